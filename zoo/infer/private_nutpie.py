"""The private names of nutpie that the library uses: a density that is a C function.

nutpie calls compiled densities of PyMC and Stan this way. Its public interface takes a Python
function, whose call takes longer than a small density itself (``benchmarks/nuts.py``). The public
interface is the fallback if a name is missing or takes other arguments, and for unknown releases,
because a change of the arguments of the C function cannot be detected from Python.
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

#: Errors of missing or changed private names.
DIFFERS = (ImportError, AttributeError, TypeError, NotImplementedError)

#: nutpie's signature of the function that computes the stored values of a point.
_EXPAND = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_size_t] * 2, *[ctypes.c_void_p] * 3)


def is_known() -> bool:
    """Return whether the installed release is known to take a C function."""
    return version("nutpie").startswith(KNOWN_VERSIONS)


def native_model(function: Native, start: NDArray[np.float64], tick: Callable[[], None]) -> Any:
    """Return nutpie's model of a density; ``tick`` is called after every draw."""
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
