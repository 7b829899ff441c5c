"""The private names of torch that the library uses, each with a public fallback.

They are known to work with torch 2.13.0, and are used for their speed, which
``benchmarks/speed.py`` and ``benchmarks/nuts.py`` measure. If a name is missing or takes other
arguments in another release, the fallback is used:

- The kernel of Adam is replaced by ``torch.optim.adam.adam``.
- Without Inductor, `PrivateNameError` is raised and recorded operations are replayed one by one.
- Without access to Inductor's code, a density is called from Python.
- Functions are recorded on tensors with values instead of fake ones.
"""

import contextlib
import ctypes
import functools
import importlib
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim.adam import adam

#: The release of torch whose private names these are.
KNOWN_VERSION = "2.13.0"


class PrivateNameError(NotImplementedError):
    """A private name of torch is missing or has changed."""


@contextlib.contextmanager
def _private_names() -> Iterator[None]:
    """Turn the errors of missing or changed private names into one."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, OSError) as error:
        raise PrivateNameError(
            f"torch {torch.__version__} differs inside from {KNOWN_VERSION}: {error}"
        ) from error


def record_graph(function: Callable[..., Any], leaves: Sequence[Any]) -> GraphModule:
    """Record the operations of a function; tensors that are not among its inputs are constants."""
    options: Any = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}
    if not options.keys() <= inspect.signature(make_fx).parameters.keys():
        options = {"tracing_mode": "real"}
    graph: GraphModule = make_fx(function, **options)(*leaves)
    return graph


def schema_of(operator: Any) -> Any:
    """Return the schema of an ATen operator; None for anything else."""
    return getattr(operator, "_schema", None)


#: Parameters, gradients, first and second moments.
AdamTensors = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]
#: Updates them in place, given the number of steps so far and the learning rate.
AdamStep = Callable[[AdamTensors, Tensor, float], None]
#: The published settings; further features of the kernel are not used.
_ADAM: Any = {
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "maximize": False,
}


def fused_adam_step() -> AdamStep:
    """Return an Adam update: a single call of torch's kernel where that works.

    With the public function every parameter needs a counter of its own. It calls the same kernel,
    or takes several operations for each parameter if torch has no such kernel.
    """
    for step in (_private_step, functools.partial(_public_step, fused=True)):
        with contextlib.suppress(AttributeError, TypeError, RuntimeError):
            if _first_step_is_right(step):
                return step
    return functools.partial(_public_step, fused=False)


def _private_step(tensors: AdamTensors, count: Tensor, lr: float) -> None:
    count.add_(1)
    torch._fused_adam_(*tensors, [], [count] * len(tensors[0]), lr=lr, **_ADAM)


def _public_step(tensors: AdamTensors, count: Tensor, lr: float, *, fused: bool) -> None:
    counts = [count.clone() for _ in tensors[0]]
    adam(*tensors, [], counts, foreach=False, fused=fused, lr=lr, **_ADAM)
    count.add_(1)


def _first_step_is_right(step: AdamStep) -> bool:
    """Return whether the first update moves a parameter by the learning rate."""
    tensors: Any = [[torch.full((1,), x)] for x in (1.0, 2.0, 0.0, 0.0)]
    with torch.no_grad():
        step(tensors, torch.tensor(0.0), 0.5)
    return abs(float(tensors[0][0]) - 0.5) < 1e-6


def compile_graph(
    graph: GraphModule, inputs: Sequence[Any], *, fallback_random: bool
) -> Callable[..., Any]:
    """Compile a recorded graph for inputs with Inductor, without running it.

    With ``fallback_random``, random numbers come from torch instead of Inductor's own generator.
    """
    with torch.no_grad(), warnings.catch_warnings(), _private_names():
        warnings.simplefilter("ignore")  # the compiler's, about itself
        inductor = importlib.import_module("torch._inductor")  # half a second, often not needed
        compiled: Callable[..., Any] = inductor.compile(
            graph, inputs, options={"fallback_random": fallback_random}
        )
    return compiled


class InductorCode:
    """A graph of one input compiled by Inductor, with access to its compiled loops.

    Inductor's vectors hold sixteen numbers with AVX-512, and `narrow` ones eight.
    """

    def __init__(self, graph: GraphModule, example: Tensor, *, narrow: bool = False) -> None:
        with warnings.catch_warnings(), torch.no_grad(), _private_names():
            warnings.simplefilter("ignore")  # torch's own, about deprecated parts of itself
            self._run, self._code = _compile(graph, example, narrow)

    def __call__(self, point: Tensor) -> Any:
        """Return what the graph returns, as computed by Inductor."""
        with torch.no_grad():
            return self._run(point)

    @_private_names()
    def inputs(self, example: Tensor) -> list[Tensor | None]:
        """Return the inputs of the code: constants of the graph, and None for its own input."""
        call = self._code.current_callable
        found: list[Tensor | None] = []

        def note(inputs: list[Any]) -> Any:
            found.extend(None if value is example else value for value in inputs)
            return call(inputs)

        self._code.current_callable = note
        try:
            self(example)
        finally:
            self._code.current_callable = call
        return found

    @_private_names()
    def run_loops(
        self,
        inputs: list[Tensor],
        loop: Callable[[Any, int, Any], Any],
        operation: Callable[[Any, Sequence[Any], dict[str, Any]], None],
    ) -> Any:
        """Run the code on its inputs (see `inputs`), and observe what it calls.

        Every compiled loop is replaced by ``loop(function, address, library)``; the library must
        stay loaded as long as the address is used. ``operation`` is called with every operation of
        torch and its arguments before it runs.
        """
        from torch.utils._python_dispatch import TorchDispatchMode

        class Observer(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
            ) -> Any:
                operation(func, args, kwargs or {})
                return func(*args, **(kwargs or {}))

        call = self._code.current_callable
        known = dict(call.__func__.__globals__)
        for name, function in known.items():
            if name.startswith("cpp_fused"):
                library = ctypes.CDLL(function.__self__.__file__)
                known[name] = loop(function, address_of(library.kernel), library)
        with torch.no_grad(), Observer():
            return types.FunctionType(call.__func__.__code__, known)(call.__self__, inputs)


def _compile(
    graph: GraphModule, example: Tensor, narrow: bool
) -> tuple[Callable[[Tensor], Any], Any]:
    """Return the compiled function, and the object of Inductor that makes its calls."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    inductor = importlib.import_module("torch._inductor.compile_fx")
    functorch = importlib.import_module("torch._functorch.config")
    codes = []

    def compile_inner(*args: Any, **kwargs: Any) -> Any:
        codes.append(inductor.compile_fx_inner(*args, **kwargs))
        return codes[-1]

    # Chains run in parallel instead of loops. Sums in another order would change the draws.
    patches = {"cpp.threads": 1}
    if narrow and torch.backends.cpu.get_cpu_capability() == "AVX512":
        patches["cpp.simdlen"] = 256
    # Inductor caches its code on disk, for workers and for later runs, but only if the graph comes
    # with an environment of shapes. The cache of the layer above would hide the code.
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    with tracing(TracingContext(shapes)), functorch.patch(enable_autograd_cache=False):
        run = inductor.compile_fx(
            graph,
            [example],
            inner_compile=compile_inner,
            config_patches=patches,
        )
    return run, codes[-1]


@_private_names()
def load_source(source: str) -> Any:
    """Compile C++ source, and return the library."""
    return importlib.import_module("torch._inductor.codecache").CppCodeCache.load(source)


class Handle:
    """A tensor in the form that torch's C interface takes."""

    @_private_names()
    def __init__(self, tensor: Tensor) -> None:
        capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.address = int(pointer(capsule, None))
        delete = _torch_library().aoti_torch_delete_tensor_object
        weakref.finalize(self, delete, ctypes.c_void_p(self.address)).atexit = False


@_private_names()
def c_function(name: str) -> int:
    """Return the address of a function of torch's C interface."""
    return address_of(getattr(_torch_library(), name))


def _torch_library() -> ctypes.CDLL:
    (path,) = (Path(torch.__file__).parent / "lib").glob("*torch_cpu.[sd]*")
    return ctypes.CDLL(str(path))


def address_of(function: Any) -> int:
    """Return the address of a C function."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
