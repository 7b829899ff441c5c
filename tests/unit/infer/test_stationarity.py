"""What moves of the posterior add to the ELBO, against closed forms and guides that were moved."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import constraints

import zoo
import zoo.infer.stationarity
from guides import LocScale
from zoo.infer.predict.draws import Draws, draw_posterior, log_posterior, site_log_priors
from zoo.infer.stationarity import FACTORS, MOVES, _Space, elbo_gains

ROWS, NOISE = 40, 0.5


def data(seed=0, inputs=2):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, inputs, generator=generator, dtype=torch.float64)
    y = x.sum(1) + NOISE * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    return x, y


def linear(method="mean_field", *, likelihood=f"gaussian(noise={NOISE})", priors=None):
    net = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.7, 1.2]]))
    model = zoo.create(method, net, likelihood=likelihood, num_data=ROWS, priors=priors).double()
    return model, model.guide(init_scale=0.3).double()


def gaussian_elbo(x, y, mean, sd):
    """ELBO of independent normals in a regression with unit normal priors."""
    expected = ((y - x @ mean) ** 2).sum() + (x**2 * sd**2).sum()
    likelihood = -0.5 * expected / NOISE**2 - ROWS * math.log(NOISE * math.sqrt(2 * math.pi))
    kl = (0.5 * (sd**2 + mean**2 - 1) - torch.log(sd)).sum()
    return float(likelihood - kl)


def test_gains_are_those_of_the_closed_form():
    x, y = data()
    model, guide = linear()
    draws = draw_posterior(model, guide, 64, seed=1)
    gains, errors = elbo_gains(model, guide, draws, x, y)
    mean, sd = torch.tensor([0.7, 1.2]).double(), torch.full((2,), 0.3).double()
    for i, move in enumerate(MOVES):
        for j, r in enumerate(FACTORS):
            moved = (mean, r * sd) if move == "scale" else (r * mean, sd)
            exact = gaussian_elbo(x, y, *moved) - gaussian_elbo(x, y, mean, sd)
            assert abs(gains[i, j] - exact) < 5 * errors[i, j], (move, r)


def test_no_move_gains_at_the_maximum():
    x, y = data()
    model, guide = linear()
    best_sd = (1 + (x**2).sum(0) / NOISE**2).rsqrt()
    best_mean = torch.linalg.solve(torch.eye(2) + x.T @ x / NOISE**2, x.T @ y / NOISE**2)
    part = guide["0.weight"]["0.weight"]
    with torch.no_grad():
        part.loc.copy_(best_mean[None])
        part.log_scale.copy_(best_sd.log()[None])
    draws = draw_posterior(model, guide, 64, seed=1)
    gains, errors = elbo_gains(model, guide, draws, x, y)
    assert (gains < 5 * errors).all()
    with torch.no_grad():
        part.log_scale += math.log(2.0)
    gains, errors = elbo_gains(model, guide, draw_posterior(model, guide, 64, seed=1), x, y)
    # Twice the best sds cost 2 (3/2 - log 2) nats in two dimensions; half of them is the best.
    assert gains[0, FACTORS.index(0.5)] == pytest.approx(
        2 * (1.5 - math.log(2)), abs=5 * errors[0, 0]
    )


def moved_guide(guide, move, factor):
    """Return the guide with parameters changed, as a move of its draws should change it."""
    other = copy.deepcopy(guide)
    with torch.no_grad():
        for module in other.modules():
            if isinstance(module, LocScale):
                if move == "scale":
                    module.log_scale += math.log(factor)
                else:
                    module.loc *= factor
    return other


def log_weights(model, guide, x, y, *, seed):
    draws = draw_posterior(model, guide, 4000, seed=seed)
    prior = torch.stack(list(site_log_priors(model, draws).values())).sum(0)
    f = zoo.infer.predict.outputs.network_outputs(model, draws.slots, x)
    likelihood = zoo.infer.predict.draws.log_likelihood(model, f, draws.slots.get("noise"), y)
    return prior + likelihood.sum(1) - log_posterior(guide, draws)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mean_field", {"likelihood": "gaussian", "priors": {"noise": "HalfNormal(1)"}}),
        ("mean_field", {"priors": {"*.weight": "Normal(0, HalfCauchy(1))"}}),
        ("group_horseshoe", {}),
    ],
)
@pytest.mark.parametrize(("move", "factor"), [("scale", 0.5), ("scale", 1.25), ("mean", 0.8)])
def test_moving_draws_is_moving_the_guide(method, options, move, factor):
    """Also where sites are positive, and several of them make up a weight."""
    x, y = data()
    model, guide = linear(method, **options)
    draws = draw_posterior(model, guide, 64, seed=1)
    gains, errors = elbo_gains(model, guide, draws, x, y)
    before = log_weights(model, guide, x, y, seed=2)
    after = log_weights(model, moved_guide(guide, move, factor), x, y, seed=3)
    place = MOVES.index(move), FACTORS.index(factor)
    error = math.hypot(errors[place], float((before.var() + after.var()) / len(before)) ** 0.5)
    assert abs(gains[place] - float(after.mean() - before.mean())) < 5 * error


def test_some_rows_of_many_give_the_same_within_a_larger_error(monkeypatch):
    x, y = data()
    model, guide = linear()
    draws = draw_posterior(model, guide, 64, seed=1)
    whole, small = elbo_gains(model, guide, draws, x, y)
    monkeypatch.setattr(zoo.infer.stationarity, "MAX_ENTRIES", 9 * 16 * 20)  # half of the rows
    part, large = elbo_gains(model, guide, draws, x, y)
    assert (np.abs(part - whole) < 5 * np.hypot(small, large)).all()
    assert (large > small).all()


@pytest.mark.parametrize(
    ("entries", "num_draws", "num_rows"),
    [
        (9 * 16 * 20, 16, 20),  # fewest draws, and as many rows as fit
        (9 * 32 * ROWS, 32, ROWS),  # all rows, and as many draws as fit
        (9 * 1000 * ROWS, 64, ROWS),  # most draws
    ],
)
def test_draws_and_rows_of_all_moves_fit_the_bound(monkeypatch, entries, num_draws, num_rows):
    x, y = data()
    model, guide = linear()
    shapes = set()
    density = zoo.infer.stationarity._Density.__call__

    def spied(self, sites):
        shapes.add((len(sites["0.weight"]), len(self.x)))
        assert torch.equal(self.x[[0, -1]], x[[0, -1]])  # spread over all of the data
        return density(self, sites)

    monkeypatch.setattr(zoo.infer.stationarity._Density, "__call__", spied)
    monkeypatch.setattr(zoo.infer.stationarity, "MAX_ENTRIES", entries)
    elbo_gains(model, guide, draw_posterior(model, guide, 100, seed=1), x, y)
    assert shapes == {(num_draws, num_rows)}


def test_error_of_a_gain_counts_draws_and_left_out_rows():
    rng = np.random.default_rng(0)
    num_draws, num_rows, num_data = 50, 20, 80
    before = rng.normal(size=num_draws), rng.normal(size=(num_draws, num_rows))
    after = rng.normal(size=num_draws), rng.normal(size=(num_draws, num_rows))
    volume = rng.normal(size=num_draws)
    rows = after[1] - before[1]
    total = after[0] - before[0] + volume + 4 * rows.sum(1)
    of_draws = np.std(total, ddof=1) / np.sqrt(num_draws)
    # The sum over a finite population, from a sample without replacement.
    of_rows = num_data * np.std(rows.mean(0), ddof=1) / np.sqrt(num_rows) * np.sqrt(1 - 20 / 80)
    gain, error = zoo.infer.stationarity._gain(before, after, volume, num_data)
    assert gain == pytest.approx(total.mean())
    assert error == pytest.approx(np.hypot(of_draws, of_rows))
    _, error = zoo.infer.stationarity._gain(before, after, volume, num_rows)
    alone = np.std(after[0] - before[0] + volume + rows.sum(1), ddof=1) / np.sqrt(num_draws)
    assert error == pytest.approx(alone)


def test_what_does_not_vary_has_no_sd_to_scale():
    sites = {"0.weight": torch.tensor([[[1.0, 2.0]], [[1.0, 3.0]]]).double()}
    centres = {"0.weight": torch.tensor([[1.5, 2.5]]).double()}
    space = _Space({"0.weight": constraints.real}, sites, centres)
    moved, volume = space.moved("scale", 2.0)
    assert moved["0.weight"].tolist() == [[[1.0, 1.5]], [[1.0, 3.5]]]
    assert volume == pytest.approx([math.log(2.0)] * 2)
    moved, volume = space.moved("mean", 2.0)
    assert moved["0.weight"].tolist() == [[[2.5, 4.5]], [[2.5, 5.5]]]
    assert volume == pytest.approx([0.0, 0.0])


def test_a_guide_that_does_not_know_its_medians_is_not_judged():
    model, guide = linear()
    guide.medians = lambda: (_ for _ in ()).throw(NotImplementedError)
    assert elbo_gains(model, guide, Draws({}, {}), *data()) is None


def test_a_posterior_of_another_family_is_not_judged():
    model, guide = linear("structured_bp")
    draws = draw_posterior(model, guide, 16, seed=1)
    assert elbo_gains(model, guide, draws, *data()) is None


def test_the_full_rank_guide_knows_its_medians():
    model, _ = linear()
    guide = model.method.full_rank_guide(model, 0.3).double()
    assert torch.allclose(guide.medians()["0.weight"], torch.tensor([[0.7, 1.2]]).double())
