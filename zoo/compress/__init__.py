"""Compression: what a posterior says can be removed, and the smaller network that is left.

The module can be called, ``zoo.compress(run)``, and loads what it wrote, ``zoo.compress.load``.
Names are imported when first used, so that `zoo.compress.loader` needs torch and safetensors alone.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.compress.compression import Compression, compress_fit
    from zoo.compress.groups import GroupView, group_view
    from zoo.compress.loader import Network
    from zoo.compress.quantize import QuantizedView, quantized_view
    from zoo.compress.runs import compress_run

__all__ = [
    "Compression",
    "GroupView",
    "Network",
    "QuantizedView",
    "compress_fit",
    "compress_run",
    "group_view",
    "load",
    "quantized_view",
]

_HOMES = {
    "Compression": "compression",
    "GroupView": "groups",
    "Network": "loader",
    "QuantizedView": "quantize",
    "compress_fit": "compression",
    "compress_run": "runs",
    "group_view": "groups",
    "quantized_view": "quantize",
}


def load(path: str | Path) -> "Network":
    """Load a compressed network as a torch module.

    Parameters
    ----------
    path
        The directory with ``network.json`` and ``network.safetensors``, or the JSON file itself.

    Raises
    ------
    CompressionError
        If the files are missing, damaged, or describe no network.
    """
    from zoo.compress import loader
    from zoo.errors import CompressionError

    try:
        return loader.load(path)
    except loader.NetworkFileError as error:
        raise CompressionError(str(error)) from None


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zoo.compress' has no attribute {name!r}")
    return getattr(importlib.import_module(f"zoo.compress.{_HOMES[name]}"), name)


class _Callable(ModuleType):
    """A module that can be called like the function it is named after."""

    def __call__(self, run: str | Path, **options: Any) -> "Compression":
        """Compress a finished run, see `zoo.compress.runs.compress_run`."""
        from zoo.compress.runs import compress_run

        return compress_run(run, **options)


sys.modules[__name__].__class__ = _Callable
