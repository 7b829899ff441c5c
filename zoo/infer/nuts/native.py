"""A recorded density as a C function, which a sampler calls without Python.

Inductor turns a density into loops in C++, mostly a single function, which take a few
microseconds on a small problem. It drives them from Python, which takes ten times as long: memory
is allocated, arguments are checked, and results are converted. Shapes never change here, so all of
this is the same in every call. It is done once while the calls of compiled code and the addresses
of their arguments are noted, and a few lines of C repeat the calls on the same memory.

Matrix products that Inductor leaves to torch are called through torch's own C interface. A density
that needs other operations of torch cannot be had this way, and is called from Python.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

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

#: Operations of torch that have a C interface, and what it is called. Its arguments are the result,
#: the operands, and the numbers of the operation (by name, with their defaults).
_TORCH_CALLS: dict[Any, tuple[str, tuple[str, ...]]] = {
    aten.mm.out: ("aoti_torch_cpu_mm_out", ()),
    aten.bmm.out: ("aoti_torch_cpu_bmm_out", ()),
    aten.addmm.out: ("aoti_torch_cpu_addmm_out", ("beta", "alpha")),
    aten.baddbmm.out: ("aoti_torch_cpu_baddbmm_out", ("beta", "alpha")),
}


class NotNativeError(RuntimeError):
    """A density that only Python can call; the message says what is in the way."""


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


class _Recorder(TorchDispatchMode):
    """Notes calls of compiled code while they are made, and keeps their arguments alive."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.kept: list[Any] = []

    def loop(self, function: Any, address: int, library: Any) -> Callable[..., None]:
        """Return a compiled loop of Inductor's that is noted when it is called."""

        def call(*arguments: Any) -> None:
            if not all(isinstance(argument, Tensor) for argument in arguments):
                raise NotNativeError("a compiled loop takes numbers")
            self.kept += [library, *arguments]
            self.calls.append(_Call(address, tuple(a.data_ptr() for a in arguments)))
            function(*arguments)

        return call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Note an operation of torch."""
        if func not in _TORCH_CALLS:
            raise NotNativeError(f"it calls {func}")
        function, numbers = _TORCH_CALLS[func]
        kwargs = kwargs or {}
        tensors = [kwargs["out"], *args]
        handles = [Handle(tensor) for tensor in tensors]
        self.kept += handles
        self.calls.append(
            _Call(
                c_function(function),
                tuple(handle.address for handle in handles),
                tuple(float(kwargs.get(number, 1.0)) for number in numbers),
                returns_error=True,
            )
        )
        return func(*args, **kwargs)


#: What a sampler calls: nutpie's signature of a density. It returns 0, 1 where the density is not
#: finite, which ends a trajectory, or -1 if something failed. ``m`` holds the addresses of the
#: argument, of value and gradient, and of the calls.
_SOURCE = """
#include <cmath>
#include <cstddef>
#include <cstring>

extern "C" int density(size_t n, const double* x, double* slope, double* value, void** m) {{
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
    """A density with memory of its own, which must not be called by two threads at a time.

    Attributes
    ----------
    address, memory
        Addresses of the C function and of its last argument.
    """

    def __init__(
        self, recorder: _Recorder, point: Tensor, value: Tensor, slope: Tensor, size: int
    ) -> None:
        table = [tensor.data_ptr() for tensor in (point, value, slope)]
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
    """A recorded density, compiled.

    Parameters
    ----------
    graph
        Takes a flat vector; returns value and gradient.
    size
        Length of the vector.
    """

    def __init__(self, graph: GraphModule, size: int) -> None:
        self.size = size
        self._code = InductorCode(graph, self._example())
        self._is_native = self._agrees()

    def __call__(self, flat: Array) -> tuple[float, Array]:
        """Return value and gradient, the way Inductor does it."""
        value, slope = self._code(torch.from_numpy(flat))
        return value.item(), slope.detach().numpy()

    def function(self) -> "Native | Program":
        """Return something that one chain can call."""
        return self._native() if self._is_native else self

    def _agrees(self) -> bool:
        """Tell whether there is a C function, and it gives the same numbers."""
        try:
            native = self._native()
        except (NotNativeError, PrivateNameError):
            return False
        points = (np.full(self.size, c) for c in (0.1, -0.3))
        pairs = ((native(point), self(point)) for point in points)
        return all(
            np.array_equal(ours[0], theirs[0], equal_nan=True)
            and np.array_equal(ours[1], theirs[1], equal_nan=True)
            for ours, theirs in pairs
        )

    def _native(self) -> Native:
        point = self._example()
        inputs = [point if value is None else value for value in self._inputs]
        recorder = _Recorder()
        recorder.kept += inputs
        with recorder:
            outputs = self._code.run_loops(inputs, recorder.loop)
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
