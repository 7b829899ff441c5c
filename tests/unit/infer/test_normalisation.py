"""Batch normalisation under a posterior."""

import torch
from torch import nn

import zoo
from zoo.infer.normalisation import batch_statistics, statistics_of_draws
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.objective import Objective, estimate_elbo


def normalised_model():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    model = zoo.create("mean_field", net, likelihood="categorical", num_data=32)
    return model, model.guide(init_scale=0.5)


def test_every_draw_is_normalised_by_its_own_statistics():
    model, guide = normalised_model()
    x = torch.randn(32, 3, dtype=torch.float64) * 5 + 2
    draws = draw_posterior(model, guide, 3, seed=0)
    buffers = statistics_of_draws(model, draws.slots, x)
    assert set(buffers) == {"1.running_mean", "1.running_var"}
    for index in range(3):
        weight, bias = draws.slots["0.weight"][index], draws.slots["0.bias"][index]
        hidden = x @ weight.T + bias
        torch.testing.assert_close(buffers["1.running_mean"][index], hidden.mean(0))
        torch.testing.assert_close(buffers["1.running_var"][index], hidden.var(0))
    outputs = network_outputs(model, draws.slots | buffers, x)
    without = network_outputs(model, draws.slots, x)
    assert not torch.allclose(outputs, without)


def test_checks_before_the_first_step_leave_running_statistics_alone():
    model, guide = normalised_model()
    x, y = torch.randn(32, 3, dtype=torch.float64), torch.randint(2, (32,))
    objective = Objective(model, guide).train()
    objective.check_once(x, y)
    assert torch.equal(model.net[1].running_mean, torch.zeros(4, dtype=torch.float64))
    assert objective.training
    objective(x, y)
    assert int(model.net[1].num_batches_tracked) == 1


def test_network_without_normalisation_has_no_statistics():
    model = zoo.create("mean_field", nn.Linear(3, 2), likelihood="categorical", num_data=32)
    draws = draw_posterior(model, model.guide(init_scale=0.1), 2, seed=0)
    assert statistics_of_draws(model, draws.slots, torch.randn(8, 3)) == {}


def test_elbo_uses_batch_statistics_and_changes_nothing():
    model, guide = normalised_model()
    x, y = torch.randn(32, 3, dtype=torch.float64), torch.randint(2, (32,))
    before = model.net[1].running_mean.clone()
    elbo = estimate_elbo(model, guide, x, y)
    assert torch.equal(model.net[1].running_mean, before)
    objective = Objective(model, guide, num_particles=8).eval()
    torch.manual_seed(0)
    with torch.no_grad(), batch_statistics(model.net):
        assert elbo == -float(objective(x, y))
    assert not model.net[1].training


def test_fit_with_normalisation_predicts_the_same_after_loading(tmp_path):
    net = nn.Sequential(nn.Linear(13, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    options = {"num_steps": 60, "num_samples": 12, "seed": 0, "progress_bar": False}
    fitted = zoo.fit("mean_field", data="wine", net=net, **options)
    fitted.save(tmp_path / "run")
    loaded = zoo.load(tmp_path / "run", net=net)
    rows = zoo.data.load("wine").schema
    X = torch.randn(5, len(rows.columns)).numpy()
    assert (fitted.predict_proba(X) == loaded.predict_proba(X)).all()
    assert fitted.predict(X, num_samples=4).samples.shape == (4, 5)
