"""From patterns of findings to causes, each with the one thing to do first.

A bad fit fails several checks at once, and the advice of a single check is often that of a symptom:
raw inputs in the hundreds are not converged, have a poor k-hat and narrow intervals, and "train
longer" helps none of them. The table `CAUSES` is read from top to bottom. A cause is named if its
pattern matches and it explains a finding that no cause before it explains.
"""

import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import xarray

from zoo.diagnostics.finding import Finding
from zoo.diagnostics.usefulness import NO_SKILL

#: Levels that need an explanation.
BAD = ("warn", "fail")


@dataclass(frozen=True)
class Evidence:
    """Findings by check, and settings of the fit."""

    findings: Mapping[str, Finding]
    config: Mapping[str, Any]

    def bad(self, *patterns: str) -> bool:
        """Return whether a check that matches a pattern warned or failed."""
        return any(found.level in BAD for found in self._matching(patterns))

    def failed(self, *patterns: str) -> bool:
        """Return whether a check that matches a pattern failed."""
        return any(found.level == "fail" for found in self._matching(patterns))

    def below(self, check: str) -> bool:
        """Return whether the value of a bad check is below its threshold."""
        found = self.findings.get(check)
        return bool(
            found
            and found.level in BAD
            and found.value is not None
            and found.threshold is not None
            and found.value < found.threshold
        )

    def above(self, check: str) -> bool:
        """Return whether the value of a bad check is above its threshold."""
        return self.bad(check) and not self.below(check)

    @property
    def nothing_to_learn(self) -> bool:
        """Whether the fit has no skill, and the references found none on the training rows."""
        skill = self.findings.get("usefulness.skill")
        return bool(skill and skill.level == "warn" and skill.threshold == NO_SKILL)

    def _matching(self, patterns: Iterable[str]) -> list[Finding]:
        return [
            found
            for name, found in self.findings.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]

    @property
    def likelihood(self) -> str:
        """The likelihood as text, for example ``gaussian(noise=0.1)``."""
        return str(self.config.get("likelihood") or "")

    @property
    def has_fixed_noise(self) -> bool:
        """Whether the noise scale is a number instead of being learned."""
        return bool(re.search(r"noise\s*=\s*[\d.]", self.likelihood))

    @property
    def is_factorised(self) -> bool:
        """Whether the guide has no correlations."""
        return self.config.get("guide") in ("factorised", "mean_field", "AutoNormal")


@dataclass(frozen=True)
class Cause:
    """A cause of bad findings.

    Attributes
    ----------
    name
        Its name in ``findings.json``.
    sentence
        What is wrong.
    action
        What to do first.
    matches
        The pattern of findings.
    explains
        Patterns of the checks that it explains.
    rivals
        Causes with similar findings, and what would tell them apart.
    """

    name: str
    sentence: str
    action: str
    matches: Callable[[Evidence], bool]
    explains: tuple[str, ...]
    rivals: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """A cause that was found, in words, and the checks that it explains."""

    cause: str
    sentence: str
    checks: tuple[str, ...]


_COVERAGE = ("predictive.coverage_*", "predictive.*_pit", "predictive.calibration")
_FIT = ("optimisation.*", "approximation.*", "truth.*", "usefulness.*", "sensitivity.*")
_EVERYTHING = ("*",)
_ROWS = ("data.outliers", "data.tails")
_NOISE = (*_COVERAGE, "predictive.posterior_check", "usefulness.density", *_ROWS)
_OFF = ("approximation.*", "truth.*", "optimisation.objective", "optimisation.stationary")


def _too_wide(e: Evidence) -> bool:
    return any(e.above(f"predictive.coverage_{level}") for level in (50, 80, 95))


def _too_narrow(e: Evidence) -> bool:
    return any(e.below(f"predictive.coverage_{level}") for level in (50, 80, 95))


def _heavy_tails(e: Evidence) -> bool:
    """Too many rows far out, and too many close to the centre."""
    middle = e.findings.get("predictive.coverage_50")
    concentrated = middle is not None and (middle.value or 0.0) > 0.5
    return e.likelihood.startswith("gaussian") and concentrated and e.bad(*_NOISE)


#: All causes; those that make other findings meaningless come first.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "diverged",
        "Training diverged: losses or densities are not finite.",
        "Lower the learning rate (lr), or standardise the inputs.",
        lambda e: e.failed("optimisation.finite"),
        _EVERYTHING,
    ),
    Cause(
        "leak",
        "Test rows are copies of training rows, so test scores do not tell how new rows are "
        "predicted.",
        "Remove copies before the data are split.",
        lambda e: e.bad("data.leak"),
        ("data.leak", "data.copies", "usefulness.*", *_COVERAGE),
    ),
    Cause(
        "few_rows",
        "There are too few rows for any check to tell a good fit from a bad one.",
        "Collect more rows before you change the method.",
        lambda e: e.bad("data.size"),
        ("data.size", "usefulness.*", "sensitivity.*", "predictive.*", "prior.*", "data.*"),
    ),
    Cause(
        "extremes",
        "Three rows have most of the variance of a column.",
        "Look at these rows: correct or remove them, or transform the column.",
        lambda e: e.bad("data.extremes"),
        (*_FIT, "data.scale", "data.extremes", "prior.*", "predictive.*", *_ROWS),
    ),
    Cause(
        "scale",
        "The inputs or targets are on a scale that the priors and the learning rate do not expect.",
        "Scale your inputs and targets: subtract the mean, divide by the standard deviation.",
        lambda e: e.bad("data.scale"),
        (*_FIT, "data.scale", "prior.*", "predictive.*", *_ROWS),
    ),
    Cause(
        "untrained",
        "The posterior is still at its start: nothing has been learned.",
        "Raise the learning rate (lr), or leave out num_steps so that training ends by itself.",
        lambda e: e.failed("optimisation.start"),
        (*_FIT, "prior.*", "predictive.*", "compression.*", *_ROWS),
    ),
    Cause(
        "wrong_objective",
        "The loss that was minimised is not the negative ELBO of this posterior: the divergence "
        "has a wrong weight.",
        "Check the weight of the KL (kl_scale, kl_warmup) and the divergence of the prior.",
        lambda e: (
            e.failed("optimisation.objective")
            or (e.failed("optimisation.stationary") and not e.bad("optimisation.converged"))
        ),
        (*_FIT, "prior.*", "predictive.*", "compression.*"),
        rivals=(("not_converged", "a fit with twice the steps"),),
    ),
    Cause(
        "not_converged",
        "Training ended before it had converged.",
        "Leave out num_steps so that training ends by itself, or raise max_steps.",
        lambda e: e.bad("optimisation.converged", "optimisation.outputs_settled"),
        (*_FIT, "predictive.*", "compression.*", "prior.holds_back"),
        rivals=(("prior", "a fit that has converged"),),
    ),
    Cause(
        "wide_noise",
        "The noise scale is fixed and too large.",
        "Learn the noise scale: likelihood 'gaussian' without a number.",
        lambda e: e.has_fixed_noise and _too_wide(e) and not e.bad("prior.holds_back"),
        (*_NOISE, "predictive.prior_check", "sensitivity.*"),
    ),
    Cause(
        "prior",
        "The prior is too narrow: it cannot reach the data, and holds the posterior back.",
        "Widen the prior, or scale the data to its units.",
        lambda e: e.bad("predictive.prior_check", "prior.holds_back", "prior.conflict"),
        ("prior.*", "predictive.*", "usefulness.*", "sensitivity.*", *_ROWS),
        rivals=(("underfit", "a fit with a ten times wider prior"),),
    ),
    Cause(
        "shift",
        "The test inputs lie outside of the training inputs.",
        "Split the rows at random, or train on rows like those to be predicted.",
        lambda e: e.bad("data.shift"),
        ("data.shift", "usefulness.*", *_COVERAGE),
    ),
    Cause(
        "copies",
        "Training rows are copies of each other, which the fit takes for independent observations.",
        "Remove the copies, or give weights to rows.",
        lambda e: e.bad("data.copies"),
        ("data.copies", *_COVERAGE),
    ),
    Cause(
        "outliers",
        "A few rows own the fit.",
        "Look at these rows; if they are real, use a likelihood with heavy tails: student_t(df=4).",
        lambda e: e.bad("data.outliers"),
        (*_NOISE, "usefulness.*", "predictive.loo*"),
        rivals=(("heavy_tails", "the number of rows beyond five noise sds"),),
    ),
    Cause(
        "one_mode",
        "The posterior has several modes, and the guide has draws of only some of them.",
        "Sample with NUTS (--truth), which weighs the modes, or remove a symmetry of the model.",
        lambda e: e.bad("approximation.modes"),
        _OFF,
    ),
    Cause(
        "correlated",
        "The posterior correlates parameters, and a factorised guide cannot: their standard "
        "deviations are too small. Predictions do not suffer from it.",
        "Use guide=full_rank.",
        lambda e: e.below("approximation.sd") and e.is_factorised,
        _OFF,
    ),
    Cause(
        "narrow_noise",
        "The noise scale is fixed and too small.",
        "Learn the noise scale: likelihood 'gaussian' without a number.",
        lambda e: e.has_fixed_noise and _too_narrow(e),
        (*_NOISE, "predictive.loo*", "sensitivity.*"),
        rivals=(("underfit", "a fit with learned noise"),),
    ),
    Cause(
        "heavy_tails",
        "The noise has heavier tails than the Gaussian likelihood.",
        "Use a likelihood with heavy tails: student_t(df=4).",
        _heavy_tails,
        (*_NOISE, "predictive.loo*"),
    ),
    Cause(
        "dispersion",
        "The counts vary more than a Poisson distribution allows.",
        "Look for inputs that explain the spread; Poisson intervals are too narrow.",
        lambda e: e.likelihood.startswith("poisson") and (_too_narrow(e) or e.bad(*_NOISE)),
        (*_NOISE, "predictive.loo*"),
    ),
    Cause(
        "nothing_to_learn",
        "Nothing predicts the target better than a constant, neither this fit nor a reference.",
        "Check the target and how its rows were joined to the inputs; then look for other inputs.",
        lambda e: e.nothing_to_learn,
        ("usefulness.*",),
    ),
    Cause(
        "underfit",
        "The fit predicts worse than a simple reference.",
        "Use a larger network, or a prior that is less strong.",
        lambda e: e.bad("usefulness.skill"),
        ("usefulness.*", *_NOISE),
    ),
    Cause(
        "modes",
        "Fits from other starts predict differently: the posterior has several modes.",
        "Average the predictions of several restarts.",
        lambda e: e.bad("optimisation.restart*"),
        ("optimisation.restart*",),
    ),
)


def causes_of(findings: Iterable[Finding], tree: xarray.DataTree) -> tuple[Diagnosis, ...]:
    """Return the causes of bad findings, the first to remove first."""
    by_check: dict[str, Finding] = {}
    for found in findings:
        by_check.setdefault(found.check, found)
    evidence = Evidence(by_check, json.loads(str(tree.attrs.get("config", "{}"))))
    left = {found.check for found in by_check.values() if found.level in BAD}
    matching = {cause.name for cause in CAUSES if cause.matches(evidence)}
    named = []
    for cause in CAUSES:
        if cause.name not in matching:
            continue
        explained = {
            check
            for check in left
            if any(fnmatch.fnmatchcase(check, pattern) for pattern in cause.explains)
        }
        if explained:
            named.append(
                Diagnosis(cause.name, _sentence(cause, matching), tuple(sorted(explained)))
            )
            left -= explained
    return tuple(named)


def _sentence(cause: Cause, matching: Iterable[str]) -> str:
    others = {other.name: other for other in CAUSES}
    apart = [
        f" It may also be another cause ({others[name].sentence.rstrip('.').lower()}): {check} "
        "would tell them apart."
        for name, check in cause.rivals
        if name in matching
    ]
    return f"{cause.sentence} {cause.action}{''.join(apart)}"
