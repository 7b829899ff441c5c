"""pyro-zoo: pick a Bayesian method, swap its priors, read whether to trust it.

>>> import zoo
>>> zoo.list_models("*horseshoe*")
['group_horseshoe']
"""

import importlib
from typing import TYPE_CHECKING, Any

from zoo._version import __version__

if TYPE_CHECKING:
    from zoo.assemble import create
    from zoo.comparison import compare
    from zoo.fitted import Fit
    from zoo.ground_truth import Truth, truth
    from zoo.persist import load, save
    from zoo.pretrained import stochastic_batch_norm
    from zoo.priors import Prior
    from zoo.registry import list_models, register
    from zoo.sbc import calibrate
    from zoo.workflow import fit

__all__ = [
    "Fit",
    "Prior",
    "Truth",
    "__version__",
    "calibrate",
    "compare",
    "create",
    "fit",
    "list_models",
    "load",
    "register",
    "save",
    "stochastic_batch_norm",
    "truth",
]

#: Where public names live. They are imported when first used, so that `import zoo` is instant.
_HOMES = {
    "Fit": "zoo.fitted",
    "Prior": "zoo.priors",
    "Truth": "zoo.ground_truth",
    "calibrate": "zoo.sbc",
    "compare": "zoo.comparison",
    "create": "zoo.assemble",
    "fit": "zoo.workflow",
    "list_models": "zoo.registry",
    "load": "zoo.persist",
    "register": "zoo.registry",
    "save": "zoo.persist",
    "stochastic_batch_norm": "zoo.pretrained",
    "truth": "zoo.ground_truth",
}

#: Packages with public names of their own: zoo.data.load(...), zoo.compress(...).
_PACKAGES = ("compress", "data")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"zoo.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
