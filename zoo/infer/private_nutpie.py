"""The private names of nutpie that the library uses: a density that is a C function.

nutpie calls compiled densities of PyMC and Stan this way; its public interface takes a function in
Python, which costs more than a small density itself (``benchmarks/nuts.py``). The public interface
is used instead where a name is missing or takes other arguments, and with releases other than those
that are known, because nothing in Python shows a change of what the C function is called with.
"""

import ctypes
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zoo.infer.nuts.native import Native

#: Releases of nutpie that call a C function with the arguments of `zoo.infer.nuts.native`.
KNOWN_VERSIONS = ("0.16.",)

#: What is raised where the private names differ.
DIFFERS = (ImportError, AttributeError, TypeError, NotImplementedError)

#: nutpie's signature of what turns a point into what is stored of it.
_EXPAND = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


def is_known() -> bool:
    """Tell whether the installed release takes a C function the way it is given here."""
    return version("nutpie").startswith(KNOWN_VERSIONS)


def native_model(function: Native, start: NDArray[np.float64], tick: Callable[[], None]) -> Any:
    """Return nutpie's model of a density that is a C function.

    Parameters
    ----------
    function
        The density.
    start
        Where the chain starts.
    tick
        Called after every draw.
    """
    from nutpie import _lib
    from nutpie.sample import CompiledModel

    size = len(start)

    def expand(size: int, num_stored: int, point: int, stored: int, memory: int) -> int:
        tick()
        ctypes.memmove(stored, point, size * start.itemsize)
        return 0

    expand_function = _EXPAND(expand)

    class Model(CompiledModel):  # type: ignore[misc]  # nutpie has no types
        n_dim = size
        shapes: ClassVar = {"flat": (size,)}
        coords: ClassVar[dict[str, Any]] = {}

        def _make_sampler(self, settings: Any, init_mean: Any, cores: int, *rest: Any) -> Any:
            lengths: dict[str, int] = {}  # to which the dimension of the variable is added
            variables = _lib.PyVariable.new_variables(["flat"], ["float64"], [(size,)], lengths, {})
            address = ctypes.cast(expand_function, ctypes.c_void_p).value
            model = _lib.PyMcModel(
                _lib.LogpFunc(function.address, function.memory, function),
                _lib.ExpandFunc(size, size, address, 0, expand_function),
                variables,
                size,
                lengths,
                {},
                lambda seed: start,
                None,
            )
            return _lib.PySampler.from_pymc(settings, cores, model, *rest)

    return Model(dims={})
