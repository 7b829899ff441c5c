"""Without the private names of torch the public ways give the same numbers."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from zoo.infer import private_torch
from zoo.infer.nuts.compiling import compile_density
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.native import Native, Program
from zoo.infer.nuts.sampler import sample_nuts
from zoo.infer.private_torch import PrivateNameError, compile_graph, fused_adam_step
from zoo.infer.recording import record
from zoo.infer.svi.optimizer import FusedAdam
from zoo.truth.reference import judge

ROOT = Path(__file__).parents[3]
X = torch.linspace(-1.0, 1.0, 15, dtype=torch.float64).reshape(5, 3).sin()
Y = torch.tensor([0.3, -0.2, 0.5, 1.0, -0.7], dtype=torch.float64)
NOISE = 0.5


def descended(steps=20):
    """Return parameters after some steps, and the state of their optimiser."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in ((5, 3), (5,))]
    optimizer = FusedAdam([value.requires_grad_() for value in values], lr=0.01)
    for _ in range(steps):
        for value in values:
            value.grad = torch.randn(value.shape, generator=generator) + value.detach()
        optimizer.step()
    return [value.detach() for value in values], optimizer.state()


def other_signature(*arguments):
    raise TypeError("other arguments")


def wrong_numbers(parameters, *rest, **options):
    parameters[0].add_(1)


def test_the_kernel_of_adam_is_called_where_it_exists():
    assert fused_adam_step() is private_torch._private_step


@pytest.mark.parametrize("kernel", [None, other_signature, wrong_numbers])
def test_adam_goes_on_with_the_kernel_that_the_public_function_calls(monkeypatch, kernel):
    wanted, state = descended()
    private = torch._fused_adam_

    def only_public(*args, **options):
        """The kernel moved: our call fails, that of torch does not."""
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith("torch.optim"):
            return private(*args, **options)
        if kernel is None:
            raise AttributeError("_fused_adam_")
        return kernel(*args, **options)

    monkeypatch.setattr(torch, "_fused_adam_", only_public)
    assert fused_adam_step().keywords == {"fused": True}
    found, again = descended()
    for own, other in zip(found, wanted, strict=True):
        assert torch.equal(own, other)
    for name, value in state.items():
        assert torch.equal(again[name], value), name


def test_adam_without_any_kernel_agrees_up_to_rounding(monkeypatch):
    wanted, state = descended()
    monkeypatch.delattr(torch, "_fused_adam_")
    assert fused_adam_step().keywords == {"fused": False}
    found, again = descended()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(again, state, rtol=1e-6, atol=1e-6)


def squares(values, x):
    return {"sum": (values["a"] * x).square().sum(), "product": values["b"][0] @ x}


def test_recorded_operations_are_replayed_without_the_compiler(monkeypatch):
    monkeypatch.delattr("torch._inductor.compile")
    values = {"a": torch.randn(3), "b": [torch.randn(2, 3)]}
    with pytest.warns(UserWarning, match="replayed one by one: torch .* differs inside"):
        run = record(squares, values, torch.ones(3), backend="inductor")
    x = torch.randn(3)
    found, wanted = run(values, x), squares(values, x)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_compiler_with_another_signature_is_named(monkeypatch):
    monkeypatch.setattr("torch._inductor.compile", other_signature)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(PrivateNameError, match=rf"from {private_torch.KNOWN_VERSION}: .*argument"):
        compile_graph(graph, [Y], fallback_random=True)


def model():
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("obs", 5):
        pyro.sample("y", dist.Normal(X @ w, NOISE), obs=Y)


def network():
    """Matrix products, which the C function leaves to torch."""
    a = pyro.sample("a", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))
    b = pyro.sample("b", dist.Normal(torch.zeros(4, 3), 1.0).to_event(2))
    pyro.factor("product", -torch.tanh(a @ b).square().sum())


def function_of(model):
    density = LogDensity(model)
    return Program(density.capture(), density.size).function()


def draws():
    options = {"num_chains": 1, "num_warmup": 200, "num_samples": 300, "executor": "serial"}
    return sample_nuts(model, low_rank=False, **options)


@pytest.fixture(scope="module")
def native_draws():
    return draws()


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Forget the densities that this process has compiled."""
    monkeypatch.setattr("zoo.infer.nuts.chain._PROGRAMS", {})


def remove_loader(monkeypatch):
    monkeypatch.delattr("torch._inductor.codecache.CppCodeCache")


def remove_code(monkeypatch):
    """Inductor needs the attribute that is looked for; it is hidden from the library alone."""
    compiled = private_torch._compile
    monkeypatch.setattr(private_torch, "_compile", lambda *given: (compiled(*given)[0], object()))


def remove_observer(monkeypatch):
    importlib.import_module("torch._inductor.compile_fx")  # torch itself needs the name for this
    monkeypatch.delattr("torch.utils._python_dispatch.TorchDispatchMode")


@pytest.mark.parametrize("remove", [remove_loader, remove_code, remove_observer])
def test_without_a_part_of_the_c_function_python_calls_the_density(
    monkeypatch, native_draws, remove
):
    assert isinstance(function_of(model), Native)
    remove(monkeypatch)
    assert isinstance(function_of(model), Program)
    found = draws()
    assert found.recipe["backend"] == "inductor"
    np.testing.assert_array_equal(found.values["w"], native_draws.values["w"])


def test_without_the_c_interface_of_torch_python_calls_the_density(monkeypatch):
    native = function_of(network)
    assert isinstance(native, Native)
    monkeypatch.delattr("torch._C._aoti.unsafe_alloc_void_ptr_from_tensor")
    called = function_of(network)
    assert isinstance(called, Program)
    point = np.linspace(-1.0, 1.0, native.size)
    assert called(point)[0] == native(point)[0]
    np.testing.assert_array_equal(called(point)[1], native(point)[1])


@pytest.mark.parametrize(
    "name",
    [
        "torch._inductor.compile_fx.compile_fx",
        "torch._guards.TracingContext",
        "torch._subclasses.fake_tensor.FakeTensorMode",
    ],
)
def test_without_inductor_the_density_is_replayed(monkeypatch, name):
    density = LogDensity(model)
    graph = density.capture()  # torch itself needs the names for this
    monkeypatch.setattr(density, "capture", lambda: graph)
    importlib.import_module("torch._inductor.compile_fx")
    monkeypatch.delattr(name)
    with pytest.warns(UserWarning, match="replayed step by step: PrivateNameError"):
        compiled = compile_density(density)
    assert compiled.backend == "replay"
    point = np.array([0.3, -0.4, 0.1])
    value, slope = compiled.function()(point)
    expected, expected_slope = density.eager(point)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-12)


def test_a_replayed_density_has_the_right_posterior(monkeypatch):
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", other_signature)
    with pytest.warns(UserWarning, match="replayed step by step: PrivateNameError"):
        found = draws()
    assert found.recipe["backend"] == "replay"
    covariance = torch.linalg.inv(torch.eye(3, dtype=torch.float64) + X.T @ X / NOISE**2)
    exact = covariance @ X.T @ Y / NOISE**2
    row = judge(found).summary["w"]
    gap = row.sel(statistic="mean").values - exact.numpy()
    assert (np.abs(gap) < 5 * row.sel(statistic="mcse_mean").values).all()


def test_functions_are_recorded_without_the_private_option(monkeypatch):
    known = torch.tensor([1.0, 2.0])
    x = torch.tensor([3.0, 5.0])
    private = private_torch.record_graph(lambda x: (x * known).sin(), [x])
    public_make_fx = private_torch.make_fx

    def make_fx(f, tracing_mode="real"):
        return public_make_fx(f, tracing_mode=tracing_mode)

    monkeypatch.setattr(private_torch, "make_fx", make_fx)
    public = private_torch.record_graph(lambda x: (x * known).sin(), [x])
    for graph in (private, public):
        assert torch.equal(graph(2 * x), (2 * x * known).sin())


#: Files with private names; the base classes of batch norm and convolution are used everywhere.
ALLOWED = {"private_torch.py", "private_nutpie.py"}
PRIVATE = re.compile(
    r"\b(torch|nutpie)(\.\w+)*\._(?!_)\w"  # torch._C, from torch.utils._pytree import tree_map
    r"|^ *from (torch|nutpie)[.\w]* import .*\b_\w"  # from torch.utils import _pytree
    r"|_make_sampler|\._schema|\"_schema\"|_allow_non_fake_inputs",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    "line",
    [
        "from torch.utils import _pytree as pytree",
        "    from torch import Tensor, _C",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "import torch._inductor",
        "torch._fused_adam_(values)",
        "torch.utils._pytree.tree_map(f, x)",
        "from nutpie import _lib",
        "target._schema.arguments",
        "make_fx(f, _allow_non_fake_inputs=True)",
    ],
)
def test_private_names_are_recognised(line):
    assert PRIVATE.search(f"import torch\n{line}\n")
    assert not PRIVATE.search("from torch import Tensor\nfrom zoo import _private\ntorch.x(_a)\n")


def test_private_names_stand_in_one_place():
    sources = [path for room in ("zoo", "guides") for path in (ROOT / room).rglob("*.py")]
    assert {path.name for path in sources} >= ALLOWED
    found = {
        str(path.relative_to(ROOT))
        for path in sources
        if path.name not in ALLOWED and PRIVATE.search(path.read_text())
    }
    assert not found
