"""Parameters as functions of the weight of the complexity."""

import copy
import math
import pickle

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from scipy import stats

from guides.base import Composite
from guides.hypernetwork import SITE, Complexity, HypernetworkGuide
from guides.mean_field import MeanField

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
Y = torch.tensor([0.3, -0.2, 0.5, 1.0, -0.4, 0.8], dtype=torch.float64)


def program():
    return pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))


def made(num_knots=6, complexity=None):
    guide = HypernetworkGuide(
        {"w": MeanField(program, init_scale=0.2)},
        complexity=complexity or Complexity(),
        num_knots=num_knots,
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for knots in guide.knots:
            knots.add_(torch.randn_like(knots), alpha=0.5)
    return guide


@pytest.mark.parametrize("num_knots", [2, 6])
@pytest.mark.parametrize("weight", [1e-3, 0.02, 1.0, 7.3, 100.0])
def test_parameters_are_interpolated_in_the_logarithm(num_knots, weight):
    guide = made(num_knots)
    posterior = guide.at(weight)["w"]["w"]
    place = (math.log10(weight) + 3) / 5
    grid = np.linspace(0, 1, num_knots)
    for found, knots in zip((posterior.loc, posterior.log_scale), guide.knots, strict=True):
        values = knots.detach().numpy()
        expected = [np.interp(place, grid, values[:, i]) for i in range(2)]
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def drawn_weight(complexity):
    return float(complexity.weight(complexity.position()))


def test_weights_are_drawn_log_uniformly_in_training():
    complexity = Complexity()
    assert drawn_weight(complexity) == pytest.approx(1.0)  # nobody trains
    complexity.train()
    torch.manual_seed(0)
    logs = [math.log10(drawn_weight(complexity)) for _ in range(2000)]
    assert stats.kstest(logs, stats.uniform(-3, 5).cdf).pvalue > 1e-3
    complexity.eval()
    assert drawn_weight(complexity) == pytest.approx(1.0)


def test_loss_in_training_is_the_objective_of_the_weight_that_was_drawn():
    """Stock Pyro against the closed form.

    For a linear regression with noise s, E_q of the negative log-likelihood is that of the means
    plus sum x^2 v / 2 s^2, and the divergence is a sum over two weights.
    """
    guide, s = made(), 0.4
    complexity = Complexity().train()
    weights = []

    def model():
        position = complexity.position()
        weights.append(float(complexity.weight(position)))
        with complexity.weighted(position):
            w = program()
        with pyro.plate("rows", len(X)):
            pyro.sample("y", dist.Normal(X @ w, s), obs=Y)

    def objective(weight):
        posterior = guide.at(weight)["w"]["w"]
        m, v = posterior.loc, (2 * posterior.log_scale).exp()
        nll = -dist.Normal(X @ m, s).log_prob(Y).sum() + (X.square() @ v).sum() / (2 * s**2)
        kl = 0.5 * (v + m.square() - v.log() - 1).sum()
        return float(nll + weight * kl), float(kl)

    guide.train()
    torch.manual_seed(2)
    gaps, divergences = [], []
    for _ in range(300):
        with torch.no_grad():
            loss = float(TraceMeanField_ELBO().differentiable_loss(model, guide))
        total, divergence = objective(weights[-1])
        gaps.append(loss - total)
        divergences.append(weights[-1] * divergence)
    error = np.std(gaps) / len(gaps) ** 0.5
    assert abs(np.mean(gaps)) < 5 * error
    assert 5 * error < 0.1 * np.mean(divergences)  # a weight that is missing would be seen
    guide.eval()
    assert guide.metrics() == {"complexity": pytest.approx(1.0)}


def test_the_weight_is_a_site_of_its_own_in_training_only():
    guide = made()
    assert SITE not in poutine.trace(guide).get_trace().nodes
    assert SITE in poutine.trace(guide.train()).get_trace().nodes
    assert SITE not in guide()
    guide.eval()
    assert SITE not in poutine.trace(guide).get_trace().nodes


def test_particles_of_one_step_share_a_weight():
    guide, complexity = made(), Complexity().train()
    weights = []

    def model():
        position = complexity.position()
        weights.append(position)
        with complexity.weighted(position):
            program()

    elbo = TraceMeanField_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    loss = elbo.differentiable_loss(model, guide.train())
    assert weights[-1].shape == ()
    posterior = guide.at(float(complexity.weight(weights[-1])))["w"]["w"]
    m, v = posterior.loc, (2 * posterior.log_scale).exp()
    kl = complexity.weight(weights[-1]) * 0.5 * (v + m.square() - v.log() - 1).sum()
    torch.testing.assert_close(loss.detach(), kl)


def test_gradients_reach_the_knots_beside_the_weight_and_no_others():
    guide = made()
    guide.train()
    # Between the third and the fourth of six knots.
    middle = poutine.condition(guide.sample_sites, data={SITE: torch.tensor(0.5)})
    middle()["w"].sum().backward()
    for knots in guide.knots:
        touched = knots.grad.abs().sum(1) > 0
        assert touched.tolist() == [False, False, True, True, False, False]


def test_copies_do_not_share_a_weight():
    guide = made()
    moved = guide.at(10.0)
    assert guide.metrics() == {"complexity": pytest.approx(1.0)}
    assert moved.metrics() == {"complexity": pytest.approx(10.0)}
    assert not torch.equal(moved["w"]["w"].loc, guide["w"]["w"].loc)
    medians = moved.medians()["w"]
    torch.testing.assert_close(medians, moved["w"]["w"].loc)


def test_it_is_stored_copied_and_sent_like_any_guide():
    guide = made().at(0.05)
    torch.manual_seed(0)
    drawn = guide.draw(3)["w"]
    state = guide.state_dict()
    assert not any("loc" in name for name in state)  # knots are stored, not what follows from them
    loaded = made()
    loaded.load_state_dict(state)
    for other in (loaded, copy.deepcopy(guide), pickle.loads(pickle.dumps(guide))):
        torch.manual_seed(0)
        assert torch.equal(other.draw(3)["w"], drawn)


def test_all_knots_start_where_the_part_starts():
    part = MeanField(program, init={"w": torch.tensor([0.3, -0.7])}, init_scale=0.2)
    guide = HypernetworkGuide({"w": part}, complexity=Complexity(), num_knots=2)
    assert isinstance(guide, Composite)
    for weight in (1e-3, 1.0, 100.0):
        torch.testing.assert_close(guide.at(weight)["w"]["w"].loc, torch.tensor([0.3, -0.7]))


@pytest.mark.parametrize("weight", [1e-4, 101.0, -1.0, 0.0, math.nan])
def test_weights_out_of_range_are_refused(weight):
    with pytest.raises(ValueError, match=r"between 0\.001 and 100"):
        made().at(weight)


def test_one_knot_is_refused():
    with pytest.raises(ValueError, match="at least two knots"):
        made(1)
