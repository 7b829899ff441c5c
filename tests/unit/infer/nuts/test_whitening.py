"""Hierarchical normal sites are whitened by the same rule, however the model writes them."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import Normal

from zoo.distributions.smooth_log_uniform import SmoothLogUniform
from zoo.infer.nuts.density import LogDensity
from zoo.infer.nuts.whitening import Hint, site_transform

Y = torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64)
SD = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)


def effects():
    return pyro.sample("effect", dist.Normal(torch.zeros(3), 1.0).to_event(1))


def scale():
    return pyro.sample("scale", dist.HalfNormal(1.0))


def observe(z):
    pyro.sample("y", dist.Normal(z, SD).to_event(1), obs=Y)


def centred():
    tau = scale()
    observe(pyro.sample("effect", dist.Normal(0.0, tau).expand([3]).to_event(1)))


def noncentred():
    tau = scale()
    observe(effects() * tau)


def horseshoe():
    tau = scale()
    local = pyro.sample("local", dist.HalfCauchy(torch.ones(3)).to_event(1))
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    observe(mean + effects() * local.sqrt() * tau)


def precision():
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    observe(effects() / rate.sqrt())


def scale_comes_later():
    z = effects()
    observe(z * scale())


def used_twice():
    tau = scale()
    z = effects()
    observe(z * tau + z)


def shared():
    tau = pyro.sample("tau", dist.HalfNormal(torch.ones(3)).to_event(1))
    observe(pyro.sample("effect", dist.Normal(0.0, 1.0)) * tau)


def squared():
    z = effects()
    observe(z * z)


def constant():
    observe(effects() * SD)


@pytest.mark.parametrize("model", [centred, noncentred, horseshoe, precision])
def test_either_form_is_recognised(model):
    assert LogDensity(model).hierarchical_normals() == ("effect",)


@pytest.mark.parametrize("model", [scale_comes_later, used_twice, shared, squared, constant])
def test_what_is_not_a_product_with_earlier_sites_is_left_alone(model):
    assert LogDensity(model).hierarchical_normals() == ()


@pytest.mark.parametrize(
    ("model", "values", "factor"),
    [
        (noncentred, {"scale": 0.3}, [0.3] * 3),
        (horseshoe, {"scale": 0.3, "local": [1.0, 4.0, 9.0]}, [0.3, 0.6, 0.9]),
        (precision, {"rate": 4.0}, [0.5] * 3),
    ],
)
def test_factor_is_what_the_model_multiplies_by(model, values, factor):
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    found = LogDensity(model)._forms[1]["effect"](given).expand(3)
    np.testing.assert_allclose(found.numpy(), factor, rtol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 0.02, -3.0])
def test_coordinates_are_standard_normal_under_prior_and_hint(factor):
    """N(z; mu, s^2) N(cz; m, 1 / l) is normal with precision 1 / s^2 + l c^2."""
    loc, spread, centre, sharpness = 0.7, 1.3, -0.4, 5.0
    numbers = torch.tensor([loc, spread, centre, sharpness, factor], dtype=torch.float64)
    transform = site_transform(Normal(*numbers[:2]), Hint(*numbers[2:4]), numbers[4])
    total = spread**-2 + sharpness * factor**2
    mean = (loc / spread**2 + sharpness * factor * centre) / total
    at_zero, at_one = transform(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    assert at_zero == pytest.approx(mean, rel=1e-12)
    assert at_one - at_zero == pytest.approx(total**-0.5, rel=1e-12)


@pytest.mark.parametrize("model", [centred, noncentred])
def test_hints_are_exact_for_a_gaussian_likelihood(model):
    """y_i ~ N(z_i, sd_i) says N(y_i, sd_i^2) about z_i, whatever the draws are."""
    density = LogDensity(model)
    draws = np.random.default_rng(0).normal(size=(20, density.size))
    hint = density.estimate_hints(draws, ["effect"])["effect"]
    np.testing.assert_allclose(hint.precision.numpy(), SD.numpy() ** -2, rtol=1e-8)
    np.testing.assert_allclose(hint.centre.numpy(), Y.numpy(), rtol=1e-6)


def whitened(model):
    density = LogDensity(model)
    return density.with_hints({"effect": Hint(Y, SD**-2)})


@pytest.mark.parametrize("model", [noncentred, horseshoe, precision])
def test_jacobian_of_a_site_with_a_factor_is_exact(model):
    density = whitened(model)
    flat = torch.from_numpy(np.random.default_rng(1).normal(size=density.size))

    def coordinates(u):
        return torch.cat([value.reshape(-1) for value in density._evaluate(u)[1].values()])

    values = {name: torch.from_numpy(value) for name, value in density.unpack(flat).items()}
    with torch.no_grad(), density._running():
        joint = pyro.poutine.trace(pyro.poutine.condition(model, data=values)).get_trace()
    jacobian = torch.autograd.functional.jacobian(coordinates, flat)
    wanted = joint.log_prob_sum() + torch.linalg.slogdet(jacobian).logabsdet
    assert float(density(flat)) == pytest.approx(float(wanted), rel=1e-10)


@pytest.mark.parametrize("model", [noncentred, horseshoe])
def test_packing_undoes_unpacking_of_a_site_with_a_factor(model):
    density = whitened(model)
    flat = np.random.default_rng(2).normal(size=density.size)
    np.testing.assert_allclose(density.pack(density.unpack(flat)).numpy(), flat, rtol=1e-9)


def test_both_texts_have_the_same_density_in_whitened_coordinates():
    one, other = whitened(centred), whitened(noncentred)
    flat = np.random.default_rng(3).normal(size=one.size)
    value, slope = one.eager(flat)
    other_value, other_slope = other.eager(flat)
    assert value == pytest.approx(other_value, rel=1e-10)
    np.testing.assert_allclose(slope, other_slope, rtol=1e-8, atol=1e-10)


def kernel(scale):
    x = torch.linspace(0.0, 2.0, 3, dtype=torch.float64)
    return scale**2 * torch.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-6 * torch.eye(3)


def process():
    """A Gaussian process, centred."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    law = dist.MultivariateNormal(torch.zeros(3), scale_tril=torch.linalg.cholesky(kernel(scale)))
    observe(pyro.sample("effect", law))


def process_of_noise():
    """The same, non-centred."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    base = pyro.sample("effect", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    observe(torch.linalg.cholesky(kernel(scale)) @ base)


def scaled_process():
    """The same, with the scale outside of the matrix."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    shape = pyro.sample("shape", dist.HalfNormal(1.0))
    base = pyro.sample("effect", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    observe(scale * (torch.linalg.cholesky(kernel(shape)) @ base))


PROCESSES = [process, process_of_noise, scaled_process]


@pytest.mark.parametrize("model", PROCESSES)
def test_gaussian_processes_are_recognised_in_all_forms(model):
    assert LogDensity(model).hierarchical_normals() == ("effect",)


@pytest.mark.parametrize("model", PROCESSES)
def test_hints_about_a_process_are_exact_for_a_gaussian_likelihood(model):
    density = LogDensity(model)
    draws = np.random.default_rng(0).normal(size=(20, density.size))
    hint = density.estimate_hints(draws, ["effect"])["effect"]
    np.testing.assert_allclose(hint.precision.numpy(), SD.numpy() ** -2, rtol=1e-6)
    np.testing.assert_allclose(hint.centre.numpy(), Y.numpy(), rtol=1e-5)


@pytest.mark.parametrize("model", PROCESSES)
def test_coordinates_of_a_process_are_standard_normal_given_its_scale(model):
    """With a Gaussian likelihood the density at given scales is -|u|^2 / 2 and a constant."""
    density = whitened(model)
    rng = np.random.default_rng(4)
    number = density.size - 3
    scales = rng.normal(size=number)
    points = rng.normal(size=(3, 3))
    values = [density.eager(np.r_[scales, point])[0] + 0.5 * point @ point for point in points]
    np.testing.assert_allclose(values, values[0], rtol=1e-7)


@pytest.mark.parametrize("model", PROCESSES)
def test_jacobian_and_inverse_of_a_process_are_exact(model):
    test_jacobian_of_a_site_with_a_factor_is_exact(model)
    density = whitened(model)
    flat = np.random.default_rng(2).normal(size=density.size)
    np.testing.assert_allclose(density.pack(density.unpack(flat)).numpy(), flat, rtol=1e-6)


def test_both_texts_of_a_process_have_the_same_density():
    one, other = whitened(process), whitened(process_of_noise)
    flat = np.random.default_rng(3).normal(size=one.size)
    assert one.eager(flat)[0] == pytest.approx(other.eager(flat)[0], rel=1e-8)


def test_density_is_not_a_number_where_a_matrix_has_no_factor():
    def broken():
        scale = pyro.sample("scale", dist.Normal(5.0, 1.0))
        observe(torch.linalg.cholesky(scale * torch.eye(3)) @ torch.ones(3, dtype=torch.float64))

    value, slope = LogDensity(broken).eager(np.array([-1.0]))
    assert np.isnan(value)
    assert np.isnan(slope).all()


def spiked():
    observe(pyro.sample("effect", SmoothLogUniform(-8.0, 2.0).expand([3]).to_event(1)))


def test_log_uniform_sites_are_nearly_flat_and_their_jacobian_is_exact():
    law = SmoothLogUniform(torch.tensor(-8.0).double(), torch.tensor(2.0).double())
    transform = site_transform(law, flatten=True)
    u = torch.linspace(-9.0, 9.0, 41, dtype=torch.float64, requires_grad=True)
    z = transform(u)
    (slope,) = torch.autograd.grad(z.sum(), u)
    jacobian = transform.log_abs_det_jacobian(u, z)
    np.testing.assert_allclose(jacobian.detach().numpy(), slope.log().numpy(), rtol=1e-10)
    np.testing.assert_allclose(transform.inv(z).detach().numpy(), u.detach().numpy(), rtol=1e-9)
    flat = (law.log_prob(z) + jacobian).detach()
    assert float(flat.max() - flat.min()) < 1.0  # over a range of e^18 in z
    assert site_transform(law)(u).equal(u)


def test_log_uniform_sites_are_found():
    assert LogDensity(spiked).log_uniform_sites() == ("effect",)
    assert LogDensity(centred).log_uniform_sites() == ()
