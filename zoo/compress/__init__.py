"""Compression: smaller networks, without the weights that are noise according to the posterior.

Names are imported when first used, so that `zoo.compress.loader` needs torch and safetensors alone.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.compress.compression import Compression, compress_fit
    from zoo.compress.loader import Network

__all__ = ["Compression", "Network", "compress_fit", "load"]

_HOMES = {"Compression": "compression", "Network": "loader", "compress_fit": "compression"}


def load(path: str | Path) -> "Network":
    """Load a compressed network as `zoo.compress.loader.load` does; raise `CompressionError`."""
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
