"""What a fit is used for, and which checks speak for which use.

A fit can be good enough for one use and not for another: a factorised posterior of correlated
weights predicts well and has standard deviations that are far too small, and a pruned network need
not have calibrated weights. So every check names its uses, and the verdict is one level per use.
"""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import xarray

from zoo.diagnostics.reading import dimension_of, identified, variables
from zoo.infer.psis import MAX_DIMENSION

Use = Literal["predict", "intervals", "parameters", "compare", "compress"]
USES: tuple[Use, ...] = get_args(Use)

#: Uses in words, for tables.
USE_WORDS: dict[Use, str] = {
    "predict": "predict",
    "intervals": "trust the intervals",
    "parameters": "read parameters or structure",
    "compare": "compare models by ELBO or LOO",
    "compress": "compress the network",
}


@dataclass(frozen=True)
class FitKind:
    """The kind of a fit, on which the list of its checks depends.

    Attributes
    ----------
    family
        ``network`` or ``model`` for fits of this library, ``other`` for trees of other libraries.
    task
        ``regression``, ``classification``, ``counts`` or empty.
    trained
        Whether there were optimizer steps.
    identified
        Whether parameters can be interpreted.
    weights_tell
        Whether importance weights are informative: few unknowns, some of them identified.
    compresses
        Whether the method prunes or rounds weights.
    """

    family: str
    task: str
    trained: bool
    identified: bool
    weights_tell: bool
    compresses: bool


def kind_of(tree: xarray.DataTree) -> FitKind:
    """Return the kind of a fit from the root attributes of its tree."""
    attributes = tree.attrs
    family = str(attributes.get("kind", ""))
    if family not in ("network", "model"):  # trees of earlier versions have no kind
        guess = "network" if "task" in attributes else "model"
        family = guess if attributes.get("creation_library") == "pyro-zoo" else "other"
    # Under an improper prior there need not be a posterior that parameters could be read from.
    proper = not attributes.get("improper", 0)
    known = proper and ("identified" not in attributes or bool(identified(tree)))
    return FitKind(
        family=family,
        task=str(attributes.get("task", "")),
        trained=bool(attributes.get("trained", family != "other")),
        identified=known and bool(variables(tree, "posterior")),
        weights_tell=known and dimension_of(tree) <= MAX_DIMENSION,
        compresses=bool(attributes.get("compresses", 0)),
    )


def asked_uses(tree: xarray.DataTree) -> tuple[Use, ...]:
    """Return the uses that a fit is made for; the overall verdict is the worst of them.

    A network is fitted to predict, with intervals; the parameters of a linear model and of a Pyro
    model are read; methods that prune are for compression. Models are compared only on request.
    """
    kind = kind_of(tree)
    asked: set[Use] = set()
    if kind.family == "network" or "held_out" in tree.children:
        asked |= {"predict", "intervals"}
    if kind.identified:
        asked.add("parameters")
    if kind.compresses:
        asked.add("compress")
    return tuple(use for use in USES if use in asked)


@dataclass(frozen=True)
class Check:
    """A check in the list of all checks.

    Attributes
    ----------
    name
        Name of its findings; may be a pattern.
    uses
        The uses it speaks for.
    required
        Whether a fit of a kind must have it. Without a finding, the fit is "not checked".
    needs, remedy
        What it needs, and how to provide it, in words.
    """

    name: str
    uses: tuple[Use, ...]
    required: Callable[[FitKind], bool] | None = None
    needs: str = ""
    remedy: str = ""

    @property
    def shown(self) -> str:
        """The name without a pattern, for a finding that the check did not run."""
        return self.name.rstrip("*").rstrip("._")


def _trained(kind: FitKind) -> bool:
    return kind.family != "other" and kind.trained


def _network(kind: FitKind) -> bool:
    return kind.family == "network"


def _of_task(*tasks: str) -> Callable[[FitKind], bool]:
    return lambda kind: kind.family == "network" and kind.task in tasks


_LOSSES = "the loss of every step (group 'optimization')"
_HELD_OUT = "observed and predicted held-out rows (group 'held_out')"
_REFERENCES = "predictions of references for held-out rows (group 'references')"
_ROWS = "the least probable training rows (group 'rows')"
_FACTS = "facts about the data (group 'data')"
_HOLD_OUT = "Hold out rows for testing (test_fraction)."
_AGAIN = "Fit again, and keep all groups of the tree."
_DENSITIES = "log densities of model and guide at the same draws (group 'sample_stats')"
_PREDICTIVE = "observed data and predictive draws of the same rows"
_ALL = USES
_FUNCTIONS: tuple[Use, ...] = ("predict", "intervals")

#: All checks. The first entry whose name matches is used.
CHECKS: tuple[Check, ...] = (
    Check("tree.complete", _ALL),
    Check("optimisation.finite", _ALL, _trained, _LOSSES, _AGAIN),
    Check(
        "optimisation.start",
        _ALL,
        lambda kind: kind.family == "network" and kind.trained,
        "outputs before training (group 'start')",
        _AGAIN,
    ),
    Check("optimisation.converged", ("parameters", "compare"), _trained, _LOSSES, _AGAIN),
    Check(
        "optimisation.outputs_settled",
        _FUNCTIONS,
        lambda kind: kind.family == "network" and kind.trained,
        "outputs at fixed rows during training (group 'optimization')",
        _AGAIN,
    ),
    Check("optimisation.gradients", ("parameters", "compare")),
    Check(
        "optimisation.objective",
        ("parameters", "compare"),
        _trained,
        f"losses, and {_DENSITIES}",
        _AGAIN,
    ),
    Check("optimisation.stationary", ("parameters", "compare")),
    Check("optimisation.restarts", ("compare",)),
    Check("optimisation.restart_predictions", ("intervals",)),
    Check(
        "approximation.khat",
        ("parameters", "compare"),
        lambda kind: kind.weights_tell and kind.family != "other",
        _DENSITIES,
        "Use a guide whose density is known, and keep all groups of the tree.",
    ),
    Check("approximation.modes", ("parameters",)),
    Check("approximation.mean", ("parameters",)),
    Check("approximation.sd", ("parameters",)),
    Check("approximation.elbo_gap", ("compare",)),
    Check("sampling.*", ("intervals", "parameters")),
    Check("truth.accepted", ("intervals", "parameters")),
    Check("truth.functions.mean", _FUNCTIONS),
    Check("truth.functions.*", ("intervals",)),
    Check("truth.parameters.*", ("parameters",)),
    Check("truth.*", ("compare",)),
    Check(
        "predictive.prior_check",
        ("parameters", "compare"),
        _network,
        "statistics of data replicated from the prior (group 'prior_statistics')",
        _AGAIN,
    ),
    Check("prior.holds_back", _FUNCTIONS),
    Check("prior.conflict", ("parameters", "compare")),
    Check(
        "predictive.posterior_check",
        ("intervals", "parameters"),
        lambda kind: kind.family != "other",
        _PREDICTIVE,
        _AGAIN,
    ),
    Check("predictive.loo_pit", ("intervals",)),
    Check("predictive.loo*", ("compare",)),
    Check(
        "predictive.coverage_*",
        ("intervals",),
        _of_task("regression", "counts"),
        _HELD_OUT,
        _HOLD_OUT,
    ),
    Check("predictive.held_out_pit", ("intervals",)),
    Check(
        "predictive.calibration", ("intervals",), _of_task("classification"), _HELD_OUT, _HOLD_OUT
    ),
    Check(
        "usefulness.skill", ("predict", "intervals", "compress"), _network, _REFERENCES, _HOLD_OUT
    ),
    Check("usefulness.density", ("intervals",), _network, _REFERENCES, _HOLD_OUT),
    Check("data.size", ("predict", "intervals", "compare"), _network, _FACTS, _AGAIN),
    Check("data.scale", ("predict", "intervals", "parameters"), _network, _FACTS, _AGAIN),
    Check("data.copies", ("intervals", "parameters", "compare"), _network, _FACTS, _AGAIN),
    Check("data.leak", _FUNCTIONS, _network, _FACTS, _HOLD_OUT),
    Check("data.shift", _FUNCTIONS, _network, _FACTS, _HOLD_OUT),
    Check("data.outliers", ("predict", "intervals", "parameters"), _network, _ROWS, _AGAIN),
    Check("data.extremes", ("predict", "intervals", "parameters"), _network, _FACTS, _AGAIN),
    Check("data.tails", ("intervals",), _network, _ROWS, _AGAIN),
    Check("sensitivity.*", ("parameters",)),
    Check(
        "compression.*",
        ("compress",),
        lambda kind: kind.compresses,
        "held-out densities of the pruned network",
        _HOLD_OUT,
    ),
    Check("quantization.*", ("compress",)),
    Check("sbc.parameters.*", ("parameters",)),
    Check("sbc.functions.*", ("intervals",)),
    Check("sbc.*", ("intervals", "parameters")),
)


def uses_of(check: str) -> tuple[Use, ...]:
    """Return the uses that a check speaks for; one that is not in the list speaks for all."""
    found = entry_of(check)
    return _ALL if found is None else found.uses


def entry_of(check: str) -> Check | None:
    """Return the entry of a check in `CHECKS`."""
    return next((entry for entry in CHECKS if fnmatch.fnmatchcase(check, entry.name)), None)
