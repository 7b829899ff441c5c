"""A recorded density as a C function, which a sampler calls without Python.

Inductor turns a density into loops in C++, mostly a single function, which take a few
microseconds on a small problem. It calls them from Python, which takes ten times as long: memory
is allocated, arguments are checked, and results are converted. Shapes never change here, so this is
done once, while the calls of compiled code and the addresses of their arguments are recorded. A few
lines of C then repeat the calls on the same memory.

Matrix products that Inductor leaves to torch are called through torch's own C interface. A density
that needs other operations of torch is called from Python.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule

from zoo.errors import ZooError
from zoo.infer.nuts.rewriting import faster, is_narrow
from zoo.infer.private_torch import (
    Handle,
    InductorCode,
    PrivateNameError,
    address_of,
    c_function,
    load_source,
)

Array = NDArray[np.float64]
aten = torch.ops.aten

#: C functions of operations of torch. Their arguments are the result, the operands, and the named
#: numbers, which are one by default.
_TORCH_CALLS: dict[Any, tuple[str, tuple[str, ...]]] = {
    aten.mm.out: ("aoti_torch_cpu_mm_out", ()),
    aten.bmm.out: ("aoti_torch_cpu_bmm_out", ()),
    aten.addmm.out: ("aoti_torch_cpu_addmm_out", ("beta", "alpha")),
    aten.baddbmm.out: ("aoti_torch_cpu_baddbmm_out", ("beta", "alpha")),
}


_SINGULAR: Any = vars(torch.linalg)["LinAlgError"]  # public, but its type is not exported


def nan_if_singular(
    function: Callable[[Any, Array], tuple[float, Array]],
) -> Callable[[Any, Array], tuple[float, Array]]:
    """Make a density not a number where a matrix has no factorisation, instead of failing."""

    @functools.wraps(function)
    def guarded(self: Any, flat: Array) -> tuple[float, Array]:
        try:
            return function(self, flat)
        except (_SINGULAR, ZooError) as error:
            if not isinstance(error, _SINGULAR) and not isinstance(error.__cause__, _SINGULAR):
                raise
            return math.nan, np.full(len(flat), math.nan)

    return guarded


class NotNativeError(RuntimeError):
    """A density that only Python can call; the message says why."""


@dataclass(frozen=True)
class _Call:
    """A call of compiled code: its address, addresses of arguments, and numbers after them."""

    function: int
    pointers: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    returns_error: bool = False

    def source(self, position: int) -> str:
        """Return the call in C++; ``m[position]`` is the function, its pointers follow."""
        kinds = ["void*"] * len(self.pointers) + ["double"] * len(self.numbers)
        arguments = [f"m[{position + 1 + i}]" for i in range(len(self.pointers))]
        arguments += [repr(number) for number in self.numbers]
        kind = "int" if self.returns_error else "void"
        call = f"(({kind} (*)({', '.join(kinds)}))m[{position}])({', '.join(arguments)})"
        return f"if ({call}) return -1;" if self.returns_error else f"{call};"


class _Recorder:
    """Records the calls of compiled code, and keeps their arguments alive."""

    def __init__(self, kept: Sequence[Any]) -> None:
        self.calls: list[_Call] = []
        self.kept = list(kept)

    def loop(self, function: Any, address: int, library: Any) -> Callable[..., None]:
        """Return a compiled loop that is recorded when it is called."""

        def call(*arguments: Any) -> None:
            if not all(isinstance(argument, Tensor) for argument in arguments):
                raise NotNativeError("a compiled loop takes numbers")
            self.kept += [library, *arguments]
            self.calls.append(_Call(address, tuple(a.data_ptr() for a in arguments)))
            function(*arguments)

        return call

    def operation(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Record an operation of torch."""
        if function not in _TORCH_CALLS:
            raise NotNativeError(f"it calls {function}")
        name, numbers = _TORCH_CALLS[function]
        handles = [Handle(tensor) for tensor in (kwargs["out"], *args)]
        self.kept += handles
        self.calls.append(
            _Call(
                c_function(name),
                tuple(handle.address for handle in handles),
                tuple(float(kwargs.get(number, 1.0)) for number in numbers),
                returns_error=True,
            )
        )


#: The density, with the signature that nutpie expects. It returns 0, or 1 if the density is not
#: finite or the flag is set, which ends a trajectory, or -1 if an operation failed. ``m`` holds the
#: addresses of the argument, of value and gradient, of the flag, and of the calls.
_SOURCE = """
#include <cmath>
#include <cstddef>
#include <cstring>

extern "C" int density(size_t n, const double* x, double* slope, double* value, void** m) {{
  if (*static_cast<volatile int*>(m[3])) return 1;
  try {{
    std::memcpy(m[0], x, n * sizeof(double));
    {calls}
  }} catch (...) {{
    return -1;
  }}
  *value = *static_cast<double*>(m[1]);
  std::memcpy(slope, m[2], n * sizeof(double));
  bool finite = std::isfinite(*value);
  for (size_t i = 0; i < n; ++i) finite = finite && std::isfinite(slope[i]);
  return finite ? 0 : 1;
}}
"""


class Native:
    """A density with its own memory, which must not be called by two threads at a time.

    The C function is at ``address``; its last argument is ``memory``.
    """

    def __init__(
        self, recorder: _Recorder, point: Tensor, value: Tensor, slope: Tensor, size: int
    ) -> None:
        self._stop = np.zeros(1, dtype=np.int32)
        table = [tensor.data_ptr() for tensor in (point, value, slope)]
        table.append(int(self._stop.ctypes.data))
        lines = []
        for call in recorder.calls:
            lines.append(call.source(len(table)))
            table += [call.function, *call.pointers]
        self._function = load_source(_SOURCE.format(calls="\n    ".join(lines))).density
        self._table = np.array(table, dtype=np.uintp)
        self._kept = (recorder.kept, point, value, slope)
        self.size = size
        self.address = address_of(self._function)
        self.memory = int(self._table.ctypes.data)

    def stop(self) -> None:
        """End the chain that uses the function: from now on no density is finite."""
        self._stop[0] = 1

    def __call__(self, flat: Array) -> tuple[float, Array]:
        """Return value and gradient."""
        point = np.ascontiguousarray(flat, dtype=np.float64)
        slope, value = np.empty(self.size), ctypes.c_double()
        failed = self._function(
            ctypes.c_size_t(self.size),
            ctypes.c_void_p(point.ctypes.data),
            ctypes.c_void_p(slope.ctypes.data),
            ctypes.byref(value),
            ctypes.c_void_p(self.memory),
        )
        if failed < 0:
            raise RuntimeError("an operation of torch failed in the compiled density")
        return value.value, slope


class Program:
    """A compiled density: the graph maps a flat vector of a given size to value and gradient."""

    def __init__(self, graph: GraphModule, size: int) -> None:
        self.size = size
        written = faster(graph, self._example())
        self._code = InductorCode(written, self._example(), narrow=is_narrow(written))
        self._is_native = self._agrees()

    @nan_if_singular
    def __call__(self, flat: Array) -> tuple[float, Array]:
        """Return value and gradient, as computed by Inductor."""
        value, slope = self._code(torch.from_numpy(flat))
        return value.item(), slope.detach().numpy()

    def function(self) -> "Native | Program":
        """Return the density as a function for one chain."""
        return self._native() if self._is_native else self

    def _agrees(self) -> bool:
        """Return whether there is a C function with the same results."""
        try:
            native = self._native()
        except (NotNativeError, PrivateNameError):
            return False
        for point in (np.full(self.size, c) for c in (0.1, -0.3)):
            for own, reference in zip(native(point), self(point), strict=True):
                if not np.array_equal(np.asarray(own), np.asarray(reference), equal_nan=True):
                    return False
        return True

    def _native(self) -> Native:
        point = self._example()
        inputs = [point if value is None else value for value in self._inputs]
        recorder = _Recorder(inputs)
        outputs = self._code.run_loops(inputs, recorder.loop, recorder.operation)
        value, slope = outputs
        for tensor in outputs:
            if tensor.dtype != torch.float64 or not tensor.is_contiguous():
                raise NotNativeError("the result is not a plain array of doubles")
        return Native(recorder, point, value, slope, self.size)

    @functools.cached_property
    def _inputs(self) -> list[Tensor | None]:
        """Inputs of the compiled code: constants of the density, and None for the point."""
        found = self._code.inputs(self._example())
        if found.count(None) != 1:
            raise NotNativeError("the point is copied before it is used")
        return found

    def _example(self) -> Tensor:
        return torch.full((self.size,), 0.1, dtype=torch.float64)
