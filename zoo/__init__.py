"""pyro-zoo: pick a Bayesian method, swap its priors, read whether to trust it.

>>> import zoo
>>> zoo.list_models("*horseshoe*")
['group_horseshoe']
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zoo._version import __version__

if TYPE_CHECKING:
    from zoo.fit.build import create as create
    from zoo.fit.trained_batch_norm import stochastic_batch_norm as stochastic_batch_norm
    from zoo.priors import Prior as Prior
    from zoo.registry import list_models as list_models
    from zoo.registry import register as register
    from zoo.truth.calibration import calibrate as calibrate
    from zoo.truth.reference import Truth as Truth
    from zoo.truth.reference import truth as truth
    from zoo.workflow.comparing import compare as compare
    from zoo.workflow.compress_command import compress as compress
    from zoo.workflow.fitting import fit as fit
    from zoo.workflow.loading import load as load
    from zoo.workflow.result import Fit as Fit
    from zoo.workflow.result import save as save

#: Where public names live. They are imported when first used, so that `import zoo` is instant.
_HOMES = {
    "Fit": "zoo.workflow.result",
    "Prior": "zoo.priors",
    "Truth": "zoo.truth.reference",
    "calibrate": "zoo.truth.calibration",
    "compare": "zoo.workflow.comparing",
    "compress": "zoo.workflow.compress_command",
    "create": "zoo.fit.build",
    "fit": "zoo.workflow.fitting",
    "list_models": "zoo.registry",
    "load": "zoo.workflow.loading",
    "register": "zoo.registry",
    "save": "zoo.workflow.result",
    "stochastic_batch_norm": "zoo.fit.trained_batch_norm",
    "truth": "zoo.truth.reference",
}

__all__ = ["__version__", *_HOMES]

#: Packages with public names of their own: zoo.data.load(...).
_PACKAGES = ("data",)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"zoo.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Zoo(ModuleType):
    """Keeps `zoo.fit`, `zoo.truth` and `zoo.compress` functions.

    Packages have these names too, and importing one of them would put it in the function's place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Zoo
