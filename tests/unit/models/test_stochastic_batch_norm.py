"""Stochastic batch normalisation: what is random, when, and with which law."""

import copy

import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Predictive
from torch import nn
from torch.nn import functional as F

import zoo
from zoo.errors import ConfigError, PriorError
from zoo.infer.predict import outputs
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.objective import Objective, estimate_elbo
from zoo.models.stochastic_batch_norm import NUM_BATCHES
from zoo.network.nets.normalised import with_batch_norm

pytestmark = pytest.mark.usefixtures("module_local_params")


def normalised():
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, eps=0.1), nn.ReLU(), nn.Linear(4, 2)
    ).double()


def convolutional(affine=True):
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3, affine=affine),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 2),
    ).double()


def rows(count=64, *shape):
    return 2 + 3 * torch.randn(count, *(shape or (3,)), dtype=torch.float64)


def matched(net, x, batch_size=8):
    """Return a model and a guide that know the batches of given rows."""
    model = zoo.create("stochastic_batch_norm", net, likelihood="categorical", num_data=len(x))
    guide = model.guide(init_scale=0.1)
    model.match(guide, x.split(batch_size))
    return model, guide


def test_sites_are_the_statistics_and_their_divergence_is_zero():
    x, y = rows(), torch.randint(2, (64,))
    model, guide = matched(normalised(), x)
    assert list(model.slots) == ["1.running_mean", "1.running_var"]
    trace = poutine.trace(guide).get_trace(x, y)
    model_trace = poutine.trace(poutine.replay(model.eval(), trace=trace)).get_trace(x, y)
    latent = [n for n, s in trace.nodes.items() if s["type"] == "sample"]
    assert latent == list(model.slots)
    for name in latent:
        ours = trace.nodes[name]["fn"].log_prob(trace.nodes[name]["value"])
        theirs = model_trace.nodes[name]["fn"].log_prob(trace.nodes[name]["value"])
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    loss = Objective(model, guide).eval()
    torch.manual_seed(1)
    value = loss(x, y)
    torch.manual_seed(1)
    draws = poutine.trace(guide).get_trace()
    f = model.evaluate({n: draws.nodes[n]["value"] for n in latent}, x)
    torch.testing.assert_close(value, F.cross_entropy(f, y, reduction="sum"), rtol=1e-9, atol=0)


def test_moments_are_those_of_the_batches():
    x = rows()
    model, guide = matched(normalised(), x)
    hidden = model.net[0](x).detach().reshape(8, 8, 4)
    mean, log_variance = hidden.mean(1), hidden.var(1, correction=0).log()
    for slot, values in (("1.running_mean", mean), ("1.running_var", log_variance)):
        law = guide[slot][slot]
        torch.testing.assert_close(law.loc.data, values.mean(0), rtol=1e-9, atol=1e-12)
        scale = values.std(0, correction=0)
        torch.testing.assert_close(law.log_scale.data.exp(), scale, rtol=1e-9, atol=0)
    assert int(model.num_batches) == 8


def test_feature_maps_are_averaged_over_positions():
    x = rows(32, 1, 4, 4)
    model, guide = matched(convolutional(), x)
    maps = model.net[0](x).detach().reshape(4, 8, 3, 2, 2)
    mean = maps.mean((1, 3, 4))
    torch.testing.assert_close(guide["1.running_mean"]["1.running_mean"].loc.data, mean.mean(0))


def test_deeper_layers_see_what_the_batch_has_normalised():
    net = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 5), nn.BatchNorm1d(5)
    ).double()
    x = rows()
    model, guide = matched(net, x)
    second = []
    for batch in x.split(8):
        hidden = model.net[0](batch)
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
        second.append(model.net[3](torch.tanh(hidden)).detach().mean(0))
    law = guide["4.running_mean"]["4.running_mean"]
    torch.testing.assert_close(law.loc.data, torch.stack(second).mean(0), rtol=1e-9, atol=1e-12)


def test_a_dead_channel_has_the_variance_that_the_layer_adds():
    net = normalised()
    nn.init.zeros_(net[0].weight[2])
    _, guide = matched(net, rows())
    law = guide["1.running_var"]["1.running_var"]
    assert float(law.loc[2].exp()) == pytest.approx(0.1, rel=1e-9)
    assert law.loc.exp()[[0, 1, 3]].gt(0.1).all()


@pytest.mark.parametrize("affine", [True, False])
def test_draws_normalise_by_the_formula(affine):
    x = rows(5, 1, 4, 4)
    model, guide = matched(convolutional(affine), rows(32, 1, 4, 4))
    if affine:
        nn.init.normal_(model.net[1].weight)
        nn.init.normal_(model.net[1].bias)
    draws = draw_posterior(model, guide, 3, seed=0)
    f = network_outputs(model, draws.slots, x)
    for index in range(3):
        mean = draws.slots["1.running_mean"][index].reshape(-1, 1, 1)
        variance = draws.slots["1.running_var"][index].reshape(-1, 1, 1)
        hidden = (model.net[0](x) - mean) / (variance + 1e-5).sqrt()
        if affine:
            hidden = hidden * model.net[1].weight.reshape(-1, 1, 1)
            hidden = hidden + model.net[1].bias.reshape(-1, 1, 1)
        expected = model.net[4](torch.relu(hidden).flatten(1))
        torch.testing.assert_close(f[index], expected.detach(), rtol=1e-9, atol=1e-9)


def test_copies_of_few_rows_in_one_pass_are_what_a_loop_gives(monkeypatch):
    model, guide = matched(convolutional(), rows(32, 1, 4, 4))
    draws = draw_posterior(model, guide, 20, seed=0).slots
    x = rows(outputs.FEW_ROWS, 1, 4, 4)
    calls = []
    convolution = model.net[0]
    convolution.register_forward_hook(lambda *_: calls.append(1))
    together = network_outputs(model, draws, x, mode="off")
    assert len(calls) <= 3  # whether it can be mapped, how wide it is, and the one pass
    monkeypatch.setattr(outputs, "FEW_ROWS", 0)
    torch.testing.assert_close(network_outputs(model, draws, x, mode="off"), together)
    assert len(calls) > 20


def test_in_training_the_batch_is_the_draw_and_running_averages_are_kept():
    net, x, y = normalised(), rows(), torch.randint(2, (64,))
    model = zoo.create("stochastic_batch_norm", net, likelihood="categorical", num_data=64)
    objective = Objective(model, model.guide(init_scale=0.1)).train()
    plain = copy.deepcopy(net).train()
    loss = objective(x[:8], y[:8])
    expected = F.cross_entropy(plain(x[:8]), y[:8], reduction="sum") * 64 / 8
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    for name, value in plain.named_buffers():
        assert torch.equal(value, model.net.get_buffer(name)), name


def test_before_any_batch_predictions_are_near_those_of_the_network():
    net, x = normalised().eval(), rows()
    model = zoo.create("stochastic_batch_norm", net, likelihood="categorical", num_data=64)
    draws = draw_posterior(model, model.guide(init_scale=1.0), 200, seed=0)
    f = network_outputs(model, draws.slots, x[:4])
    error = f.std(0) / len(f) ** 0.5
    assert not model.has_statistics
    # Statistics vary by 1% here: what is not linear in them is of the order of its square.
    assert ((f.mean(0) - net(x[:4]).detach()).abs() < 5 * error + 1e-3).all()


def test_statistics_have_gradients():
    model, guide = matched(normalised(), rows())
    values = {n: v[0].requires_grad_() for n, v in guide.draw(1).items()}
    f = model.eval().evaluate(values, rows(4))
    assert all(g.any() for g in torch.autograd.grad(f.square().sum(), list(values.values())))


def test_elbo_uses_the_law_once_it_is_known():
    x, y = rows(), torch.randint(2, (64,))
    model = zoo.create("stochastic_batch_norm", normalised(), likelihood="categorical", num_data=64)
    guide = model.guide(init_scale=0.1)
    by_batch = model.net.train()(x).detach()
    before = estimate_elbo(model, guide, x, y)
    assert before == pytest.approx(-float(F.cross_entropy(by_batch, y, reduction="sum")), rel=1e-6)
    model.match(guide, x.split(8))
    assert model.has_statistics
    assert estimate_elbo(model, guide, x, y) != pytest.approx(before, rel=1e-6)


def test_pyros_own_predictive_averages_over_the_statistics():
    model, guide = matched(normalised(), rows())
    model.eval()
    predictive = Predictive(model, guide=guide, num_samples=5, return_sites=["1.running_mean", "y"])
    drawn = predictive(rows(6))
    assert drawn["y"].shape == (5, 6)
    assert drawn["1.running_mean"].std(0).gt(0).all()


def test_fit_predicts_the_same_after_loading(tmp_path):
    options = {"num_steps": 40, "num_samples": 12, "seed": 0, "progress_bar": False}
    fitted = zoo.fit("stochastic_batch_norm", data="wine", **options)
    assert int(fitted.assembly.model.num_batches) == NUM_BATCHES
    fitted.save(tmp_path / "run")
    loaded = zoo.load(tmp_path / "run")
    X = torch.randn(5, 13).numpy()
    assert (fitted.predict_proba(X) == loaded.predict_proba(X)).all()
    assert loaded.assembly.model.has_statistics
    assert fitted.predict(X, num_samples=30).samples.shape == (30, 5)  # more than were stored
    assert fitted.predict(X).epistemic.max() > 0
    with pytest.raises(ConfigError, match="does not define a posterior"):
        fitted.truth()


def test_noise_can_have_a_prior():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    model = zoo.create(
        "stochastic_batch_norm",
        net,
        likelihood="gaussian",
        num_data=64,
        priors={"noise": "HalfNormal(1)"},
    )
    guide = model.guide(init_scale=0.1)
    Objective(model, guide)(rows(8).float(), torch.randn(8)).backward()
    trained = {n for n, p in guide.named_parameters() if p.requires_grad}
    assert trained == {n for n, p in guide.named_parameters() if p.grad is not None}
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"priors": {"*": "Laplace(0, 1)"}}, PriorError, "wrong support"),
        ({"priors": {"1.running_mean": "Normal(0, 1)"}}, PriorError, "comes from the mini-batches"),
        ({"priors": {"*.weight": "Normal(0, 1)"}}, PriorError, "matches no slot"),
        ({"bayesian": ("*",)}, ConfigError, "every parameter as a point"),
    ],
)
def test_weights_and_statistics_take_no_other_prior(options, error, message):
    with pytest.raises(error, match=message):
        zoo.create(
            "stochastic_batch_norm",
            normalised(),
            likelihood="categorical",
            num_data=64,
            **options,
        )


def test_law_of_statistics_is_no_prior_of_weights():
    with pytest.raises(PriorError, match=r"'0\.weight' is neither"):
        zoo.create(
            "mean_field",
            normalised(),
            likelihood="categorical",
            num_data=64,
            priors={"0.weight": "StochasticBatchNorm()"},
        )


def test_full_rank_guide_is_refused():
    with pytest.raises(ConfigError, match="a guide of its own"):
        zoo.fit("stochastic_batch_norm", data="wine", num_steps=2, guide="full_rank")


def test_batches_that_are_all_alike_are_told():
    x = rows(8)
    model = zoo.create("stochastic_batch_norm", normalised(), likelihood="categorical", num_data=8)
    with pytest.warns(UserWarning, match="the same in every batch"):
        model.match(model.guide(init_scale=0.1), [x, x])
    with pytest.raises(ConfigError, match="at least one batch"):
        model.match(model.guide(init_scale=0.1), [])


def test_plain_network_gets_normalisation_behind_every_hidden_layer():
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(),
        nn.Linear(4, 2),
    ).double()  # fmt: skip
    made = with_batch_norm(net)
    assert [n for n, m in made.named_modules() if "BatchNorm" in type(m).__name__] == [
        "0.0_norm",
        "2_norm",
    ]
    assert made[0].get_submodule("0_norm").weight.dtype == torch.float64
    parameters = dict(made.named_parameters())
    assert all(parameters[name] is value for name, value in net.named_parameters())
    assert made.eval()(rows(4, 1, 4, 4)).shape == (4, 2)
    assert len(net) == 5
    assert with_batch_norm(made) is made


@pytest.mark.parametrize(
    "net", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2)), nn.Bilinear(2, 2, 1)]
)
def test_network_that_cannot_be_normalised_is_refused(net):
    with pytest.raises(ConfigError, match="has no batch normalisation"):
        zoo.create("stochastic_batch_norm", net, likelihood="categorical", num_data=64)
