"""The verdict on a fit: one level per use, and the worst of those that the fit is made for."""

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from zoo.diagnostics.causes import Diagnosis
from zoo.diagnostics.finding import (
    LEVEL_WORDS,
    LEVELS,
    Finding,
    Level,
    finding_from_json,
    finding_to_json,
)
from zoo.diagnostics.uses import USE_WORDS, USES, Use
from zoo.errors import ConfigError, StoreError, did_you_mean

#: Checks whose message is shown for a use without problems, the first that is present.
LEADS: dict[Use, tuple[str, ...]] = {
    "predict": ("usefulness.skill", "truth.functions.mean"),
    "intervals": ("predictive.coverage_95", "predictive.calibration", "truth.functions.sd"),
    "parameters": ("truth.parameters.sd", "approximation.khat"),
    "compare": ("approximation.elbo_gap", "predictive.loo_pareto_k", "optimisation.converged"),
    "compress": ("compression.pruned",),
}

#: Checks that a use must have, to be judged at all.
OWN: dict[Use, tuple[str, ...]] = {"compress": ("compression.*", "quantization.*")}

#: Checks whose message is shown with a cause, the first that is present.
SHOWN: dict[str, tuple[str, ...]] = {
    "leak": ("data.leak",),
    "few_rows": ("data.size",),
    "scale": ("data.scale",),
    "extremes": ("data.extremes",),
    "untrained": ("optimisation.start",),
    "not_converged": ("optimisation.outputs_settled", "optimisation.converged"),
    "wrong_objective": ("optimisation.objective", "optimisation.stationary"),
    "prior": ("prior.*", "predictive.prior_check"),
    "shift": ("data.shift",),
    "outliers": ("data.outliers",),
    "one_mode": ("approximation.modes",),
    "correlated": ("approximation.sd",),
}

#: Beginnings of the sentence on a fit, by the level of the uses that they name.
OPENINGS: dict[Level, str] = {
    "ok": "Good to {uses}",
    "unchecked": "Not checked whether this fit can be used to {uses}",
    "warn": "Use with care to {uses}",
    "fail": "Do not use this fit to {uses}",
}


@dataclass(frozen=True)
class UseVerdict:
    """The level of one use, the sentence that decides it, and the short form of that sentence."""

    level: Level
    sentence: str
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a fit.

    Attributes
    ----------
    level
        The worst level of the uses that are asked for: ``ok``, ``unchecked``, ``warn``, ``fail``.
    sentence
        What the fit can be used for, and the reason if there is a use for which it cannot.
    uses
        Level and sentence of every use.
    asked
        The uses that count.
    """

    level: Level
    sentence: str
    uses: Mapping[Use, UseVerdict]
    asked: tuple[Use, ...]


def verdict(
    findings: Iterable[Finding],
    asked: Iterable[Use] | None = None,
    causes: Sequence[Diagnosis] = (),
) -> Verdict:
    """Return the level of every use, and the worst of those that are asked for.

    Parameters
    ----------
    findings
        The results of all checks.
    asked
        The uses that count; by default all that a finding speaks for.
    causes
        What explains bad findings; the sentence of a use then begins with it.
    """
    findings = list(findings)
    uses = {use: _of_use(findings, use, causes) for use in USES}
    if asked is None:
        asked = [use for use in USES if _speaking(findings, use)]
    asked = tuple(check_use(use) for use in asked)
    if not asked:
        sentence = "Nothing was checked: the tree has no group that a check can read."
        return Verdict("unchecked", sentence, uses, asked)
    level = max((uses[use].level for use in asked), key=LEVELS.index)
    return Verdict(level, _sentence(uses, asked), uses, asked)


def check_use(use: str) -> Use:
    """Return a use by its name; an unknown one is an error."""
    for known in USES:
        if use == known:
            return known
    raise ConfigError(f"unknown use {use!r}.{did_you_mean(use, list(USES))} Known: {_list(USES)}.")


def _speaking(findings: Sequence[Finding], use: Use) -> list[Finding]:
    """Return the findings on a use; without one of its own, those of other uses do not count."""
    speaking = [found for found in findings if found.level != "info" and use in found.uses]
    own = OWN.get(use, ("*",))
    shown = any(fnmatch.fnmatchcase(f.check, pattern) for f in speaking for pattern in own)
    return speaking if shown else []


def _of_use(findings: Sequence[Finding], use: Use, causes: Sequence[Diagnosis]) -> UseVerdict:
    judged = _speaking(findings, use)
    if not judged:
        return UseVerdict("unchecked", "No check speaks for this use of this fit.")
    level = max((found.level for found in judged), key=LEVELS.index)
    deciding = [found for found in judged if found.level == level]
    if level != "ok":
        checks = {found.check: found for found in reversed(deciding)}
        for diagnosis in causes:
            explained = [name for name in checks if name in diagnosis.checks]
            if explained:
                evidence = checks[_first(explained, diagnosis.cause)]
                sentence = f"{diagnosis.sentence} {evidence.message}"
                return UseVerdict(level, sentence, diagnosis.sentence)
        first = deciding[0]
        sentence = f"{first.message} {first.advice}"
        return UseVerdict(level, sentence, sentence)
    for name in LEADS[use]:
        for found in deciding:
            if found.check == name:
                return UseVerdict(level, found.message)
    return UseVerdict(level, f"All {len(judged)} checks passed.")


def _sentence(uses: Mapping[Use, UseVerdict], asked: Sequence[Use]) -> str:
    """Return the worst news first, with its reason, then the rest in short."""
    parts: list[str] = []
    for level in reversed(LEVELS):
        named = [use for use in asked if uses[use].level == level]
        if not named:
            continue
        opening = OPENINGS[level].format(uses=_list([USE_WORDS[use] for use in named]))
        reason = uses[named[0]].reason
        if parts or level == "ok" or not reason:
            parts.append(f"{opening}.")
        else:
            parts.append(f"{opening}: {reason[0].lower()}{reason[1:]}")
    return " ".join(parts)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class Judgement:
    """All findings on a fit, the uses it is made for, and the causes of bad findings."""

    findings: tuple[Finding, ...]
    asked: tuple[Use, ...]
    causes: tuple[Diagnosis, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the uses that are asked for."""
        return verdict(self.findings, self.asked, self.causes)

    def on(self, use: str | None) -> "Judgement":
        """Return the same findings, asked for one use only."""
        return self if use is None else replace(self, asked=(check_use(use),))

    def to_json(self) -> str:
        """Write verdict and findings as JSON."""
        result = self.verdict
        document = {
            "verdict": {
                "level": result.level,
                "sentence": result.sentence,
                "asked": list(self.asked),
                "uses": {
                    use: {"level": found.level, "sentence": found.sentence}
                    for use, found in result.uses.items()
                },
            },
            "causes": [asdict(diagnosis) for diagnosis in self.causes],
            "findings": [finding_to_json(finding) for finding in self.findings],
        }
        return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Judgement":
        """Read what `to_json` wrote; the verdict follows from the findings.

        A list of findings, as earlier versions wrote it, is accepted.

        Raises
        ------
        StoreError
            If the text is neither.
        """
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"the findings are not valid JSON: {error}") from None
        if isinstance(document, list):
            found = tuple(map(finding_from_json, document))
            return cls(found, verdict(found).asked)
        try:
            rows, asked = document["findings"], document["verdict"]["asked"]
            found = tuple(map(finding_from_json, rows))
            causes = tuple(map(_diagnosis, document.get("causes", [])))
            return cls(found, tuple(check_use(use) for use in asked), causes)
        except (KeyError, TypeError, ConfigError) as error:
            raise StoreError(f"the findings cannot be read: {error}") from None


def _diagnosis(row: Any) -> Diagnosis:
    values = {"cause": row["cause"], "sentence": row["sentence"]}
    if not all(isinstance(text, str) for text in (*values.values(), *row["checks"])):
        raise TypeError(f"a cause is not text: {row}")
    return Diagnosis(**values, checks=tuple(row["checks"]))


def _first(checks: Sequence[str], cause: str) -> str:
    """Return the check that shows a cause best, or else the first one."""
    for pattern in SHOWN.get(cause, ()):
        for name in checks:
            if fnmatch.fnmatchcase(name, pattern):
                return name
    return checks[-1]


def level_words(level: Level) -> str:
    """Return a level in words."""
    return LEVEL_WORDS.get(level, level)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
