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
import importlib
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

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

    def kernel(self, function: Any) -> Callable[..., None]:
        """Return a compiled function of Inductor's that is noted when it is called."""
        library = ctypes.CDLL(function.__self__.__file__)
        address = _address(library.kernel)

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
        handles = [_Handle(tensor) for tensor in tensors]
        self.kept += handles
        self.calls.append(
            _Call(
                _address(getattr(_torch_library(), function)),
                tuple(handle.address for handle in handles),
                tuple(float(kwargs.get(number, 1.0)) for number in numbers),
                returns_error=True,
            )
        )
        return func(*args, **kwargs)


class _Handle:
    """A tensor as torch's C interface takes it."""

    def __init__(self, tensor: Tensor) -> None:
        capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.address = int(pointer(capsule, None))
        delete = _torch_library().aoti_torch_delete_tensor_object
        weakref.finalize(self, delete, ctypes.c_void_p(self.address)).atexit = False


def _torch_library() -> ctypes.CDLL:
    (path,) = (Path(torch.__file__).parent / "lib").glob("*torch_cpu.[sd]*")
    return ctypes.CDLL(str(path))


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


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
        cache = importlib.import_module("torch._inductor.codecache").CppCodeCache
        self._function = cache.load(_SOURCE.format(calls="\n    ".join(lines))).density
        self._table = np.array(table, dtype=np.uintp)
        self._kept = (recorder.kept, point, value, slope)
        self.size = size
        self.address = _address(self._function)
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
        self._run, self._code = _compile(graph, size)
        self._is_native = self._agrees()

    def __call__(self, flat: Array) -> tuple[float, Array]:
        """Return value and gradient, the way Inductor does it."""
        with torch.no_grad():
            value, slope = self._run(torch.from_numpy(flat))
        return value.item(), slope.detach().numpy()

    def function(self) -> "Native | Program":
        """Return something that one chain can call."""
        return self._native() if self._is_native else self

    def _agrees(self) -> bool:
        """Tell whether there is a C function, and it gives the same numbers."""
        try:
            native = self._native()
        except (NotNativeError, *_PRIVATE_PARTS_DIFFER):
            return False
        points = (np.full(self.size, c) for c in (0.1, -0.3))
        pairs = ((native(point), self(point)) for point in points)
        return all(
            np.array_equal(ours[0], theirs[0], equal_nan=True)
            and np.array_equal(ours[1], theirs[1], equal_nan=True)
            for ours, theirs in pairs
        )

    def _native(self) -> Native:
        point = torch.full((self.size,), 0.1, dtype=torch.float64)
        inputs = [point if value is None else value for value in self._inputs]
        recorder = _Recorder()
        recorder.kept += inputs
        call = self._code.current_callable
        known = {
            name: recorder.kernel(value) if name.startswith("cpp_fused") else value
            for name, value in call.__func__.__globals__.items()
        }
        with torch.no_grad(), recorder:
            outputs = types.FunctionType(call.__func__.__code__, known)(call.__self__, inputs)
        value, slope = outputs
        for tensor in outputs:
            if tensor.dtype != torch.float64 or not tensor.is_contiguous():
                raise NotNativeError("the result is not a plain array of doubles")
        return Native(recorder, point, value, slope, self.size)

    @functools.cached_property
    def _inputs(self) -> list[Tensor | None]:
        """Inputs of the compiled code: constants of the density, and None for the point."""
        point = torch.full((self.size,), 0.1, dtype=torch.float64)
        call = self._code.current_callable
        found: list[Tensor | None] = []

        def note(inputs: list[Any]) -> Any:
            found.extend(None if value is point else value for value in inputs)
            return call(inputs)

        self._code.current_callable = note
        try:
            with torch.no_grad():
                self._run(point)
        finally:
            self._code.current_callable = call
        if found.count(None) != 1:
            raise NotNativeError("the point is copied before it is used")
        return found


#: What happens with a version of torch whose inner parts are others.
_PRIVATE_PARTS_DIFFER = (AttributeError, TypeError, ValueError, KeyError, OSError)


def _compile(graph: GraphModule, size: int) -> tuple[Callable[[Tensor], Any], Any]:
    """Return the compiled function, and Inductor's object within it that makes the calls."""
    codes = []

    def compile_inner(*args: Any, **kwargs: Any) -> Any:
        codes.append(inductor.compile_fx_inner(*args, **kwargs))
        return codes[-1]

    example = torch.full((size,), 0.1, dtype=torch.float64)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's own, about deprecated parts of itself
        inductor = importlib.import_module("torch._inductor.compile_fx")
        functorch = importlib.import_module("torch._functorch.config")
        # Inductor keeps what it made on disk, for the workers and for later runs, but only of a
        # graph that comes with an environment of shapes. The cache of the layer above would hide
        # the code that is looked for.
        shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
        with tracing(TracingContext(shapes)), functorch.patch(enable_autograd_cache=False):
            run = inductor.compile_fx(
                graph,
                [example],
                inner_compile=compile_inner,
                # Chains are what runs side by side. Sums in another order would change the draws.
                config_patches={"cpp.threads": 1},
            )
    return run, codes[-1]
