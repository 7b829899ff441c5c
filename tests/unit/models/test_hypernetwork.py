"""The method `hypernetwork`: fits at any weight of the complexity, without training again."""

import json

import numpy as np
import pytest
import torch

import zoo
from guides.hypernetwork import Complexity
from zoo.data import from_arrays
from zoo.data import load as load_data
from zoo.errors import ConfigError, PriorError
from zoo.infer.svi.capture import CapturedObjective
from zoo.infer.svi.objective import Objective
from zoo.network.nets import mlp

OPTIONS = {"num_steps": 40, "num_samples": 8, "compile": "off", "progress_bar": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("hypernetwork") / "run"
    return zoo.fit("hypernetwork", data="wine", net="mlp:13-6-3", out=out, **OPTIONS)


def test_another_complexity_is_another_fit_of_the_same_training(run):
    simple, rich = run.at(100.0), run.at(0.001)
    assert run.config == simple.config
    weights = [f.draws.slots["0.weight"] for f in (run, simple, rich)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert torch.equal(run.at(1.0).draws.slots["0.weight"], weights[0])
    rows = load_data("wine").X_test
    assert rich.outputs(rows, rich.draws.values).shape[:2] == (8, len(rows))


def test_the_stored_fit_has_the_weight_of_the_elbo_and_loads_with_it(run):
    metrics = json.loads((run.path / "metrics.json").read_text())
    assert metrics["complexity"] == pytest.approx(1.0)
    loaded = zoo.load(run.path)
    for weight in (0.01, 1.0, 30.0):
        here, there = run.at(weight).draws.slots, loaded.at(weight).draws.slots
        assert all(torch.equal(here[name], there[name]) for name in here)


def test_a_fit_at_another_weight_can_be_stored(run, tmp_path):
    moved = run.at(0.05)
    moved.save(tmp_path / "moved")
    loaded = zoo.load(tmp_path / "moved")
    assert torch.equal(loaded.draws.slots["0.weight"], moved.draws.slots["0.weight"])


def test_batch_statistics_follow_the_weight():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    data = from_arrays(X, (X[:, 0] > 0).astype(int), task="classification")
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )
    fitted = zoo.fit("hypernetwork", data=data, net=net, **OPTIONS)
    moved = fitted.at(0.01)
    assert moved.buffers.keys() == fitted.buffers.keys() != set()
    assert not torch.equal(moved.buffers["1.running_mean"], fitted.buffers["1.running_mean"])


@pytest.mark.parametrize("weight", [0.0, 1e-4, 1e3, float("nan")])
def test_weights_out_of_range_are_explained(run, weight):
    with pytest.raises(ConfigError, match=r"between 0\.001 and 100"):
        run.at(weight)


def test_other_methods_have_one_complexity():
    fitted = zoo.fit("mean_field", data="wine", **OPTIONS)
    with pytest.raises(ConfigError, match="Fit 'hypernetwork'"):
        fitted.at(0.3)


def test_number_of_knots_is_an_option():
    fitted = zoo.fit("hypernetwork", data="wine", options={"knots": 2}, **OPTIONS)
    assert {len(knots) for knots in fitted.assembly.guide.knots} == {2}
    with pytest.raises(ConfigError, match="full_rank"):
        zoo.fit("hypernetwork", data="wine", guide="full_rank", **OPTIONS)
    with pytest.raises(ConfigError, match="has an option 'knots'"):
        zoo.fit("mean_field", data="wine", options={"knots": 2}, **OPTIONS)


@pytest.mark.parametrize(
    ("prior", "options"),
    [("Quantized([-0.2, 0, 0.2], size=fitted)", {}), ("GroupHorseshoe()", {"max_sd": 0.2})],
)
def test_priors_that_move_posteriors_are_refused(prior, options):
    with pytest.raises(PriorError, match="cannot follow"):
        zoo.create(
            "hypernetwork",
            mlp([3, 4, 2]),
            likelihood="categorical",
            num_data=10,
            priors={"*weight": prior},
            options=options,
        )


@pytest.mark.usefixtures("double_precision", "module_local_params")
@pytest.mark.parametrize("prior", ["Normal(0, 1)", "Laplace(0, 1)", "GroupHorseshoe(scale=0.1)"])
def test_every_prior_has_the_drawn_weight_on_both_sides(prior, monkeypatch):
    """The part of the loss that is not the likelihood is proportional to the weight."""
    torch.manual_seed(0)
    model = zoo.create(
        "hypernetwork",
        mlp([3, 4, 2]),
        likelihood="categorical",
        num_data=10,
        priors={"*weight": prior},
    )
    guide = model.guide(init_scale=0.3)
    objective = Objective(model, guide, validate=False).train()
    x, y = torch.randn(10, 3), torch.randint(2, (10,))
    losses = {}
    for place in (0.2, 0.7):  # all knots start alike, so that only the weight differs
        monkeypatch.setattr(Complexity, "position", lambda self, e=place: torch.tensor(e))
        for kl_weight in (0.0, 1.0):
            objective.kl_weight.fill_(kl_weight)
            torch.manual_seed(3)
            losses[place, kl_weight] = float(objective(x, y).detach())
    assert losses[0.2, 0.0] == pytest.approx(losses[0.7, 0.0], rel=1e-12)
    terms = [losses[place, 1.0] - losses[place, 0.0] for place in (0.2, 0.7)]
    assert terms[1] / terms[0] == pytest.approx(10 ** (5 * 0.5), rel=1e-9)


@pytest.mark.usefixtures("double_precision", "module_local_params")
def test_captured_steps_draw_new_weights_and_leave_nothing_behind():
    torch.manual_seed(0)
    model = zoo.create("hypernetwork", mlp([3, 4, 2]), likelihood="categorical", num_data=10)
    objective = Objective(model, model.guide(init_scale=0.1)).train()
    x, y = torch.randn(10, 3), torch.randint(2, (10,))
    captured = CapturedObjective(objective)
    torch.manual_seed(5)
    replayed = [float(captured.loss_and_gradients(x, y)) for _ in range(3)]
    torch.manual_seed(5)
    eager = [float(objective(x, y).detach()) for _ in range(3)]
    assert replayed == eager
    assert len(set(replayed)) == 3
    assert {type(buffer) for buffer in objective.buffers()} == {torch.Tensor}


def test_structure_is_a_function_of_the_weight_too():
    """With a penalty on parameters, small weights take the polynomial, large ones two numbers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1))
    y = np.tanh(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
    small, large = ["linear(1)", "tanh"], ["powers(10)", "linear(1)", "tanh"]
    fitted = zoo.fit(
        "hypernetwork",
        X=X,
        y=y,
        net={"edges": {"0-1": [small, large], "1-2": ["linear(outputs)"]}},
        priors={"*.structure": "GumbelSoftmaxStructure(points=vertices, penalty=0.5)"},
        num_steps=1500,
        num_samples=20,
        seed=0,
        progress_bar=False,
    )
    shares = [
        float(fitted.at(weight).draws.slots["1.edges.0-1.structure"].mean(0)[0])
        for weight in (0.001, 100.0)
    ]
    assert shares[0] < 0.2
    assert shares[1] > 0.8
