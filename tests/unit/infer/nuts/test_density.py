"""The flat density is Pyro's own potential, in any coordinates."""

from collections import OrderedDict, namedtuple

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.mcmc.util import initialize_model
from torch import nn

import zoo
from zoo.errors import ZooError
from zoo.infer.nuts.compiling import compile_density, fingerprint
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.whitening import Hint

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
Y = torch.tensor([0.3, -1.2, 0.8, 0.1, 2.0, -0.4], dtype=torch.float64)


def regression(x, y):
    """Hierarchical, with a support that depends on another site, a simplex and a scaled plate."""
    tau = pyro.sample("tau", dist.HalfCauchy(torch.tensor(1.0)))
    top = pyro.sample("top", dist.Uniform(torch.tensor(0.5), 1 + tau))
    mix = pyro.sample("mix", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("columns", 2):
        w = pyro.sample("w", dist.Normal(top, tau))
    pyro.factor("extra", -w.abs().sum())
    with pyro.plate("obs", len(x)), pyro.poutine.scale(scale=0.5):
        pyro.sample("y", dist.Normal(x @ (w * mix), 1.0), obs=y)


def static(x, y):
    sigma = pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    mix = pyro.sample("mix", dist.Dirichlet(torch.full((3,), 1.5)))
    p = pyro.sample("p", dist.Beta(torch.full((2,), 2.0), torch.full((2,), 3.0)).to_event(1))
    w = pyro.sample("w", dist.Normal(0.0, sigma).expand([2]).to_event(1))
    with pyro.plate("obs", len(x)):
        pyro.sample("y", dist.StudentT(3.0, x @ (w * p) + mix[1], sigma), obs=y)


def point(density, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, density.size)


@pytest.mark.usefixtures("double_precision")
def test_density_and_gradient_are_those_of_pyro():
    density = LogDensity(static, (X, Y))
    _, potential, transforms, _ = initialize_model(static, (X, Y))
    function = compile_density(density).function()
    for seed in range(3):
        flat = point(density, seed)
        value, slope = function(flat)
        pieces = torch.from_numpy(flat).split([site.size for site in density.sites])
        leaves = {
            site.name: piece.reshape(site.unconstrained_shape).clone().requires_grad_()
            for site, piece in zip(density.sites, pieces, strict=True)
        }
        energy = potential(leaves)
        wanted = torch.autograd.grad(energy, list(leaves.values()))
        assert value == pytest.approx(-energy.item(), rel=1e-10)
        flat_wanted = -torch.cat([g.reshape(-1) for g in wanted]).numpy()
        np.testing.assert_allclose(slope, flat_wanted, rtol=1e-10, atol=1e-10)
        values = density.unpack(flat)
        for name, leaf in leaves.items():
            constrained = transforms[name].inv(leaf).detach().numpy()
            np.testing.assert_allclose(values[name], constrained, rtol=1e-12)


@pytest.mark.parametrize("hinted", [False, True])
def test_jacobian_is_exact_for_supports_and_scales_that_move(hinted):
    precision = torch.tensor([0.0, 4.0])
    hints = {"w": Hint(torch.tensor([0.3, -0.2]), precision)} if hinted else {}
    density = LogDensity(regression, (X, Y)).with_hints(hints)
    flat = torch.from_numpy(point(density))

    def coordinates(u):
        """The constrained values; of the simplex all but the last, which follows."""
        values = density._evaluate(u)[1]
        return torch.cat([values["tau"][None], values["top"][None], values["mix"][:1], values["w"]])

    values = {k: torch.from_numpy(v) for k, v in density.unpack(flat).items()}
    with torch.no_grad(), density._running():
        model = pyro.poutine.condition(regression, data=values)
        joint = pyro.poutine.trace(model).get_trace(X, Y).log_prob_sum()
    jacobian = torch.autograd.functional.jacobian(coordinates, flat)
    wanted = joint + torch.linalg.slogdet(jacobian).logabsdet
    assert float(density(flat)) == pytest.approx(float(wanted), rel=1e-10)


@pytest.mark.parametrize("model", [regression, static])
def test_packing_undoes_unpacking(model):
    density = LogDensity(model, (X, Y))
    flat = np.stack([[point(density, 2 * i + j) for j in range(2)] for i in range(3)])
    values = density.unpack(flat)
    assert all(v.shape == (3, 2, *density.shapes[name]) for name, v in values.items())
    for index in np.ndindex(3, 2):
        packed = density.pack({name: v[index] for name, v in values.items()})
        np.testing.assert_allclose(packed.numpy(), flat[index], rtol=1e-9, atol=1e-12)


def test_only_normals_with_random_parameters_are_found():
    assert LogDensity(regression, (X, Y)).hierarchical_normals() == ("w",)

    def flat(y):
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    assert LogDensity(flat, (Y[0],)).hierarchical_normals() == ()


def test_network_in_single_precision_is_sampled_in_double_and_left_alone():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1))
    model = zoo.create("mean_field", net, likelihood="gaussian", num_data=6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    density = LogDensity(model, (X.float(), Y.float()))
    function = compile_density(density).function()
    value, slope = function(point(density))
    expected, expected_slope = density.eager(point(density))
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-10, atol=1e-12)
    assert not any("1.weight" in site.name for site in density.sites)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def correlated():
    pyro.sample("corr", dist.LKJCholesky(3, torch.tensor(1.5)))


def agrees_with_eager(compiled, density):
    for seed in range(3):
        value, slope = compiled.function()(point(density, seed))
        expected, expected_slope = density.eager(point(density, seed))
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(slope, expected_slope, rtol=1e-10, atol=1e-12)


def test_factor_of_a_correlation_matrix_is_compiled():
    density = LogDensity(correlated)
    compiled = compile_density(density)
    assert compiled.backend == "inductor"
    agrees_with_eager(compiled, density)


def test_what_cannot_be_compiled_is_replayed_with_a_warning(monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("an operation without a lowering")

    monkeypatch.setattr("zoo.infer.nuts.chain._PROGRAMS", {})
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", refuse)
    density = LogDensity(correlated)
    with pytest.warns(UserWarning, match="cannot be compiled and is replayed.*without a lowering"):
        compiled = compile_density(density)
    assert compiled.backend == "replay"
    agrees_with_eager(compiled, density)


def test_what_cannot_be_captured_is_run_by_pyro_with_a_warning():
    def branching():
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.factor("kink", z if float(z.detach()) > 0 else 2 * z)

    density = LogDensity(branching)
    with pytest.warns(UserWarning, match="cannot be captured; it is run by Pyro"):
        function = compile_density(density)
    value, slope = function(np.array([-0.7]))
    assert value == pytest.approx(-0.5 * 0.49 - 0.5 * np.log(2 * np.pi) - 1.4, rel=1e-12)
    assert slope == pytest.approx(0.7 + 2, rel=1e-12)
    assert density.unpack(np.array([[1.0], [-2.0]]))["z"].tolist() == [1.0, -2.0]


def test_data_are_constants_that_are_not_copied_at_every_call():
    density = LogDensity(static, (X, Y))
    copies = {
        node.args[0].target
        for node in density.capture().graph.nodes
        if "lift_fresh" in str(node.target) or "clone" in str(node.target)
    }
    graph = density.capture()
    assert all(getattr(graph, str(name)).numel() == 1 for name in copies)


def test_fingerprint_depends_on_data_and_hyper_parameters_and_not_on_the_source():
    def again(a, b):
        return static(a, b)

    def other(x, y):
        return pyro.poutine.scale(static, scale=2.0)(x, y)

    def key(model, y):
        density = LogDensity(model, (X, y))
        return fingerprint(density, density.capture())

    reference = key(static, Y)
    assert key(again, Y.clone()) == reference
    assert key(other, Y) != reference
    assert key(static, Y + 1e-12) != reference


def test_discrete_site_is_refused_by_name():
    def model():
        k = pyro.sample("kind", dist.Bernoulli(0.5))
        pyro.sample("z", dist.Normal(k, 1.0))

    with pytest.raises(ZooError, match=r"'kind' \(Bernoulli\) is discrete"):
        LogDensity(model)


def test_subsampled_plate_is_refused_by_name():
    def model(y):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 6, subsample_size=2) as rows:
            pyro.sample("y", dist.Normal(z, 1.0), obs=y[rows])

    with pytest.raises(ZooError, match="plate 'rows' subsamples 2 of 6"):
        LogDensity(model, (Y,))


def test_model_without_latents_or_that_fails_is_refused():
    with pytest.raises(ZooError, match="no latent site"):
        LogDensity(lambda: pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0)))

    def broken():
        pyro.sample("z", dist.Normal(torch.zeros(2), torch.ones(3)))

    with pytest.raises(ZooError, match="cannot be run in float64"):
        LogDensity(broken)


def test_tensors_inside_arguments_are_converted_and_containers_keep_their_class():
    rows = namedtuple("Rows", ["x", "y"])
    nested = OrderedDict(rows=rows(X.float(), [Y.float(), 3]), labels=torch.arange(2), name="data")
    density = LogDensity(lambda data: pyro.sample("z", dist.Normal(0.0, 1.0)), (nested,))
    (found,) = density.args
    assert type(found) is OrderedDict
    assert found["rows"].x.dtype == found["rows"].y[0].dtype == torch.float64
    assert found["rows"].y[1] == 3
    assert found["labels"].dtype == torch.int64
    assert found["name"] == "data"
    assert nested["rows"].x.dtype == torch.float32


def test_wrong_initial_values_are_refused():
    density = LogDensity(static, (X, Y))
    with pytest.raises(ZooError, match="values are needed for the sites"):
        density.pack({"sigma": 1.0})
    values = {name: np.ones(shape) for name, shape in density.shapes.items()}
    with pytest.raises(ZooError, match=r"'p' has shape \(2,\). Got \(3,\)"):
        density.pack(values | {"p": np.ones(3)})
