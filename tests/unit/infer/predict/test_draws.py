import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import zoo
from zoo.errors import ConfigError
from zoo.infer.predict import outputs
from zoo.infer.predict.draws import (
    Prediction,
    draw_posterior,
    log_likelihood,
    log_posterior,
    log_predictive_density,
    predictive,
    site_log_priors,
)
from zoo.infer.predict.outputs import network_outputs, row_outputs
from zoo.network.nets import mlp

pytestmark = pytest.mark.usefixtures("double_precision")

DRAWS, ROWS = 7, 11


def fitted(net, likelihood="gaussian", method="mean_field", **options):
    model = zoo.create(method, net, likelihood=likelihood, num_data=50, **options)
    return model, model.guide(init_scale=0.3)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        h = self.stem(x)
        h = h + self.drop(torch.relu(self.norm(h)))
        return self.head(h.mean((2, 3)))


CASES = {
    "mlp": (lambda: mlp([4, 5, 2], "tanh"), (4,)),
    "convolution": (Residual, (1, 5, 5)),
}


@pytest.fixture(params=CASES)
def case(request):
    build, shape = CASES[request.param]
    model, guide = fitted(build(), "categorical", "group_horseshoe")
    draws = draw_posterior(model, guide, DRAWS, seed=0)
    return model, draws, torch.randn(ROWS, *shape)


@torch.no_grad()
def one_by_one(model, slots, x):
    model.eval()
    draws = range(len(next(iter(slots.values()))))
    return torch.stack([model.evaluate({n: v[k] for n, v in slots.items()}, x) for k in draws])


def test_outputs_equal_those_of_one_draw_at_a_time(case):
    model, draws, x = case
    f = network_outputs(model, draws.slots, x)
    assert f.shape == (DRAWS, ROWS, 2)
    assert torch.allclose(f, one_by_one(model, draws.slots, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("rows", "num_bytes"), [(512, 1), (3, 2**28), (1, 1), (4, 5000)])
def test_chunks_do_not_change_the_outputs(case, monkeypatch, rows, num_bytes):
    model, draws, x = case
    whole = network_outputs(model, draws.slots, x)
    monkeypatch.setattr(outputs, "CHUNK_ROWS", rows)
    monkeypatch.setattr(outputs, "CHUNK_BYTES", num_bytes)
    assert torch.allclose(network_outputs(model, draws.slots, x), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["replay", pytest.param("inductor", marks=pytest.mark.slow)])
def test_captured_predictions_are_the_same(case, monkeypatch, mode):
    model, draws, x = case
    monkeypatch.setattr(outputs, "WORTH_CALLS", 0)
    monkeypatch.setattr(outputs, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(outputs, "CHUNK_ROWS", 4)  # two full chunks and a smaller one
    plain = network_outputs(model, draws.slots, x, mode="off")
    captured = network_outputs(model, draws.slots, x, mode=mode)
    if mode == "replay":
        assert torch.equal(captured, plain)
    else:
        torch.testing.assert_close(captured, plain)


def test_many_calls_are_recorded_unasked(case, monkeypatch):
    model, draws, x = case
    recordings = []

    def spy(*arguments, **options):
        recordings.append(options["backend"])
        return record(*arguments, **options)

    record = outputs.record
    monkeypatch.setattr(outputs, "record", spy)
    monkeypatch.setattr(outputs, "CHUNK_ROWS", 1)
    monkeypatch.setattr(outputs, "WORTH_CALLS", 100)
    network_outputs(model, draws.slots, x)
    assert recordings == []
    monkeypatch.setattr(outputs, "WORTH_CALLS", ROWS)
    network_outputs(model, draws.slots, x)
    assert recordings == ["replay"]


def test_rows_with_draws_of_their_own_have_the_same_law_and_are_independent():
    torch.manual_seed(0)
    model, guide = fitted(mlp([4, 6, 1], "tanh"), priors={"noise": "HalfNormal(1)"})
    x = torch.randn(1, 4).expand(2, 4)
    num_draws = 4000
    draws = draw_posterior(model, guide, num_draws, seed=0)
    joint = network_outputs(model, draws.slots, x)[..., 0]
    f, noise = row_outputs(model, guide, x, num_draws, seed=1)
    assert noise is not None
    assert noise.shape == (num_draws, 2)
    assert torch.equal(noise[:, 0], noise[:, 1])
    f = f[..., 0]
    # The same row twice: joint draws agree, draws per row are independent (5 / sqrt(n) = 0.08).
    assert torch.allclose(joint[:, 0], joint[:, 1])
    assert abs(np.corrcoef(f.T.numpy())[0, 1]) < 0.08
    for row in (0, 1):
        assert stats.ks_2samp(f[:, row].numpy(), joint[:, 0].numpy()).pvalue > 1e-3


def test_scales_are_drawn_once_per_draw_when_rows_have_draws_of_their_own():
    torch.manual_seed(0)
    model, guide = fitted(mlp([4, 1]), method="group_horseshoe")
    x = torch.randn(1, 4).expand(2, 4)
    draws = draw_posterior(model, guide, 4000, seed=0)
    joint = network_outputs(model, draws.slots, x)[:, 0, 0]
    f, _ = row_outputs(model, guide, x, 4000, seed=1)
    assert stats.ks_2samp(f[:, 1, 0].numpy(), joint.numpy()).pvalue > 1e-3


def test_draws_per_row_refuse_convolutions_and_weights_that_are_used_twice():
    model, guide = fitted(Residual(), "categorical")
    with pytest.raises(ConfigError, match="fully connected"):
        row_outputs(model, guide, torch.randn(2, 1, 5, 5), 3, seed=0)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))[:, :1]

    model, guide = fitted(Twice())
    with pytest.raises(ConfigError, match=r"layer\.weight.*second time"):
        row_outputs(model, guide, torch.randn(2, 4), 3, seed=0)


class Peeking(nn.Module):
    """Reads a number out of its weights, which cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x) * (1.0 + self.layer.weight.sum().item())


def test_network_that_cannot_be_vectorised_is_run_draw_by_draw_with_one_warning():
    model, guide = fitted(Peeking())
    draws = draw_posterior(model, guide, DRAWS, seed=0)
    x = torch.randn(ROWS, 4)
    with pytest.warns(UserWarning, match=r"draw by draw: .*\.item\(\)") as caught:
        f = network_outputs(model, draws.slots, x)
    assert len(caught) == 1
    assert torch.allclose(f, one_by_one(model, draws.slots, x), rtol=1e-12)


@pytest.mark.parametrize("prior", ["Normal(0, 1)", "GroupHorseshoe", "Normal(0, HalfCauchy(1))"])
def test_draws_are_reproduced_by_their_seed_and_leave_the_global_generator_alone(prior):
    model, guide = fitted(mlp([4, 3, 1]), priors={"*": prior, "noise": "HalfNormal(1)"})
    state = torch.get_rng_state()
    first, again = (draw_posterior(model, guide, DRAWS, seed=5) for _ in range(2))
    other = draw_posterior(model, guide, DRAWS, seed=6)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(first.slots) == list(model.slots)
    for name, value in first.slots.items():
        assert value.shape == (DRAWS, *model.slots[name].shape)
        assert torch.equal(value, again.slots[name])
        assert not torch.equal(value, other.slots[name])
    assert (first.slots["noise"] > 0).all()


def test_slots_follow_from_the_sites_of_the_same_draw():
    model, guide = fitted(mlp([4, 3, 1]), method="group_horseshoe")
    draws = draw_posterior(model, guide, DRAWS, seed=0)
    name = "0.weight"
    scales = ("global_a", "global_b", "local_a", "local_b")
    z = np.prod([draws.sites[f"{name}_{s}"].reshape(DRAWS, 1, -1).numpy() for s in scales[2:]], 0)
    z = z * np.prod(
        [draws.sites[f"{name}_{s}"].reshape(DRAWS, 1, 1).numpy() for s in scales[:2]], 0
    )
    expected = draws.sites[f"{name}_base"].numpy() * np.sqrt(z)
    np.testing.assert_allclose(draws.slots[name].numpy(), expected, rtol=1e-10)


def test_at_least_one_draw_is_needed():
    with pytest.raises(ConfigError, match="num_samples must be at least 1"):
        draw_posterior(*fitted(nn.Linear(2, 1)), 0, seed=0)


@pytest.mark.parametrize(("likelihood", "width"), [("categorical", 3), ("bernoulli", 1)])
def test_entropies_of_the_two_parts_add_up_to_that_of_the_mixture(likelihood, width):
    model, _ = fitted(nn.Linear(2, width), likelihood)
    f = torch.randn(DRAWS, ROWS, width)
    classes = ("a", "b", "c")[: max(width, 2)]
    found = predictive(model, f, None, seed=0, classes=classes)
    if width == 1:
        p = torch.sigmoid(f[..., 0]).numpy()
        p = np.stack([1 - p, p], -1)
    else:
        p = f.softmax(-1).numpy()
    np.testing.assert_allclose(found.probabilities, p.mean(0), rtol=1e-10)
    np.testing.assert_allclose(found.total, stats.entropy(p.mean(0), axis=-1), rtol=1e-10)
    np.testing.assert_allclose(found.aleatoric, stats.entropy(p, axis=-1).mean(0), rtol=1e-10)
    assert (found.epistemic >= 0).all()
    assert found.labels == [classes[k] for k in p.mean(0).argmax(-1)]
    assert found.samples.shape == (DRAWS, ROWS)


def test_draws_that_agree_have_no_epistemic_uncertainty():
    model, _ = fitted(nn.Linear(2, 3), "categorical")
    f = torch.randn(1, ROWS, 3).expand(DRAWS, ROWS, 3)
    found = predictive(model, f, None, seed=0, classes=("a", "b", "c"))
    np.testing.assert_allclose(found.epistemic, 0, atol=1e-14)


@pytest.mark.parametrize("likelihood", ["gaussian(noise=0.4)", "student_t(df=5, noise=0.4)"])
def test_variances_add_up_by_the_law_of_total_variance(likelihood):
    model, _ = fitted(nn.Linear(2, 1), likelihood)
    num, location, scale = 40_000, 10.0, 3.0
    f = 0.7 * torch.randn(num, 3, 1)
    found = predictive(model, f, None, seed=0, location=location, scale=scale)
    noise = 0.4**2 * (5 / 3 if "student" in likelihood else 1)
    means = f[..., 0].numpy()
    np.testing.assert_allclose(found.mean, means.mean(0) * scale + location, rtol=1e-10)
    np.testing.assert_allclose(found.aleatoric, noise * scale**2, rtol=1e-10)
    np.testing.assert_allclose(found.epistemic, means.var(0) * scale**2, rtol=1e-10)
    squares = (found.samples - found.mean) ** 2
    z = (squares.mean(0) - found.total) / (squares.std(0) / num**0.5)
    assert np.abs(z).max() < 5, z


def test_bayesian_noise_is_used_draw_by_draw():
    model, _ = fitted(nn.Linear(2, 1), priors={"noise": "HalfNormal(1)"})
    noise, f = torch.rand(DRAWS) + 0.1, torch.randn(DRAWS, ROWS, 1)
    found = predictive(model, f, noise, seed=0)
    np.testing.assert_allclose(found.aleatoric, noise.square().mean().item(), rtol=1e-10)
    y = torch.randn(ROWS)
    value = log_likelihood(model, f, noise, y)
    expected = torch.distributions.Normal(f[..., 0], noise[:, None]).log_prob(y)
    assert torch.allclose(value, expected, rtol=1e-12)


def test_sampled_observations_are_reproduced_by_their_seed():
    model, _ = fitted(nn.Linear(2, 1))
    f = torch.randn(DRAWS, ROWS, 1)
    state = torch.get_rng_state()
    first, again, other = (predictive(model, f, None, seed=s).samples for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_log_likelihood_of_the_wrong_shape_is_refused():
    model, _ = fitted(nn.Linear(2, 1))
    f = torch.randn(DRAWS, ROWS, 1)
    assert log_likelihood(model, f, None, torch.randn(ROWS)).shape == (DRAWS, ROWS)
    with pytest.raises(ConfigError, match=rf"shape \({ROWS}, {DRAWS}, {ROWS}\) instead of"):
        log_likelihood(model, f, None, torch.randn(ROWS, 1, 1))


def test_log_predictive_density_is_the_log_of_the_mean_likelihood():
    values = torch.randn(DRAWS, ROWS)
    expected = np.log(np.exp(values.numpy()).mean(0))
    np.testing.assert_allclose(log_predictive_density(values).numpy(), expected, rtol=1e-12)
    assert torch.isfinite(log_predictive_density(values - 10_000)).all()


def test_log_densities_are_those_of_prior_and_guide_per_site_and_draw():
    model, guide = fitted(nn.Linear(4, 1))
    draws = draw_posterior(model, guide, DRAWS, seed=0)
    priors, posterior = site_log_priors(model, draws), log_posterior(guide, draws)
    normal = torch.distributions.Normal
    for name, value in draws.sites.items():
        expected = normal(0.0, 1.0).log_prob(value).flatten(1).sum(1)
        assert torch.allclose(priors[name], expected, rtol=1e-10)
    expected = sum(
        normal(model.slots[n].value, 0.3).log_prob(v).flatten(1).sum(1)
        for n, v in draws.sites.items()
    )
    assert torch.allclose(posterior, expected, rtol=1e-10)


def numbers(**fields):
    given = np.arange(12.0).reshape(4, 3)
    return Prediction(given.mean(0), given, np.ones(3), np.ones(3), **fields)


def test_quantiles_are_taken_over_the_draws():
    assert numbers().quantile(0.5).tolist() == [4.5, 5.5, 6.5]
    assert numbers().quantile([0.0, 1.0]).tolist() == [[0.0, 1.0, 2.0], [9.0, 10.0, 11.0]]


@pytest.mark.parametrize("q", [-0.1, 1.1, [0.5, 2.0], float("nan")])
def test_quantile_outside_zero_and_one_is_refused(q):
    with pytest.raises(ConfigError, match="quantiles are between 0 and 1"):
        numbers().quantile(q)


def test_quantiles_are_for_numbers_and_labels_for_classes():
    with pytest.raises(ConfigError, match="classes have no quantiles; use probabilities"):
        numbers(probabilities=np.ones((3, 1)), classes=("a",)).quantile(0.5)
    with pytest.raises(ConfigError, match="labels are for classes"):
        _ = numbers().labels
