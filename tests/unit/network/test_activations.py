"""Noise on activations: where it can be put, and that every way of running a network sees it."""

import copy
import pickle

import pyro
import pyro.poutine as poutine
import pytest
import torch
from torch import nn

import zoo
from guides.lazy import LocalReparameterization
from zoo.data import from_arrays
from zoo.errors import ConfigError, PriorError
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.fit.tree import identified_slots
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs, row_outputs
from zoo.infer.svi.capture import CapturedObjective
from zoo.infer.svi.objective import Objective
from zoo.network.activations import activation_slots

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)
    )


class Twice(nn.Module):
    """Calls one layer twice."""

    def __init__(self):
        super().__init__()
        self.square = nn.Linear(3, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.square(torch.tanh(self.square(x)))))


def noisy(net, priors, method="mean_field", **options):
    return zoo.create(
        method, net, likelihood="categorical", num_data=8, priors=priors, **options
    ).eval()


def only_noise(net, patterns, prior="LogNormal(0, 0.3)", **options):
    """Return a model in which weights are points and activations are multiplied."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    model = noisy(net, dict.fromkeys(patterns, prior), bayesian=["*put"], options=options)
    return model, model.guide(init_scale=0.3)


# ---------------------------------------------------------------- where


def test_layers_answer_to_globs_and_other_modules_to_their_names():
    slots = {slot.name: slot for slot in activation_slots(convolutional())}
    sizes = {name: slot.shape.numel() for name, slot in slots.items() if not slot.by_name}
    assert sizes == {"0.input": 1, "0.output": 2, "4.input": 18, "4.output": 2}
    assert slots["1.output"].shape == (2,)
    assert {name for name, slot in slots.items() if slot.matches("*.output")} == {
        "0.output",
        "4.output",
    }
    assert slots["1.output"].matches("1.output")
    assert slots["output"].matches("output")


@pytest.mark.parametrize("pattern", ["*", "0.*", "0*", "*t"])
def test_globs_for_weights_do_not_mean_activations(pattern):
    assert not any(slot.matches(pattern) for slot in activation_slots(mlp()))


def test_a_network_that_is_a_single_layer_answers_to_the_same_glob():
    (slot,) = [s for s in activation_slots(nn.Linear(3, 2)) if s.matches("*.input")]
    assert slot.name == "input"
    assert list(noisy(nn.Linear(3, 2), {}, "structured_bp").slots) == ["input"]


def test_a_module_with_such_an_attribute_lacks_the_place():
    net = mlp()
    net[0].output = "taken"
    names = [slot.name for slot in activation_slots(net)]
    assert "0.output" not in names
    assert "0.input" in names


def test_noise_can_be_added_to_any_method_and_anywhere():
    model = noisy(mlp(), {"*.input": "LogNormal(0, 1)", "1.output": "Normal(1, 0.1)"})
    assert model.activations == ["0.input", "1.output", "2.input"]
    assert model.slots["1.output"].shape == (1,)  # the width of a nonlinearity is not known


def test_patterns_choose_among_the_places():
    model = noisy(mlp(), {}, "structured_bp", bayesian=["2.*"])
    assert list(model.slots) == ["2.input"]
    assert list(noisy(mlp(), {}, "structured_bp", bayesian=["*"]).slots) == ["0.input", "2.input"]
    with pytest.raises(ConfigError, match="no slot of the network has a prior"):
        noisy(mlp(), {}, "structured_bp", bayesian=["2.weight"])


def test_the_network_of_the_user_is_left_alone():
    net = mlp()
    noisy(net, {}, "structured_bp")
    assert type(net[0]) is nn.Linear
    assert not net[0]._forward_pre_hooks
    assert not list(net.named_buffers())


def test_weights_stay_points_and_are_trained():
    model = noisy(mlp(), {}, "structured_bp")
    assert all(parameter.requires_grad for parameter in model.net.parameters())
    assert set(dict(model.net.named_parameters())) == set(dict(mlp().named_parameters()))


# ---------------------------------------------------------------- what


@torch.no_grad()
def test_units_of_linear_layers_are_multiplied():
    model, _ = only_noise(mlp(), ["*.input", "*.output"])
    values = {name: torch.rand(slot.shape) for name, slot in model.slots.items()}
    x = torch.randn(5, 3)
    net = model.net
    hidden = torch.relu(
        ((x * values["0.input"]) @ net[0].weight.T + net[0].bias) * values["0.output"]
    )
    wanted = ((hidden * values["2.input"]) @ net[2].weight.T + net[2].bias) * values["2.output"]
    torch.testing.assert_close(model.evaluate(values, x), wanted)


@torch.no_grad()
def test_channels_are_multiplied_at_all_positions():
    model, _ = only_noise(convolutional(), ["0.output", "1.output"])
    values = {name: torch.rand(2) for name in model.slots}
    x = torch.randn(5, 1, 5, 5)
    per_channel = {name: value.reshape(2, 1, 1) for name, value in values.items()}
    # Called alone, a layer multiplies by one.
    hidden = model.net[1](model.net[0](x) * per_channel["0.output"]) * per_channel["1.output"]
    wanted = model.net[4](torch.relu(hidden).flatten(1))
    torch.testing.assert_close(model.evaluate(values, x), wanted)


@torch.no_grad()
def test_positions_of_a_sequence_share_the_noise_of_a_unit():
    model, _ = only_noise(nn.Linear(3, 2), "*.input")
    values = {"input": torch.rand(3)}
    x = torch.randn(5, 7, 3)
    torch.testing.assert_close(model.evaluate(values, x), model.net(x * values["input"]))


def test_noise_on_something_else_than_a_tensor_is_refused():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRU(3, 2, batch_first=True)

        def forward(self, x):
            return self.cell(x.unsqueeze(1))[0][:, 0]

    model, _ = only_noise(Recurrent(), "cell.output")
    with pytest.raises(ConfigError, match=r"output of a GRU needs a tensor\. It returns tuple"):
        model(torch.randn(4, 3))


def test_noise_that_no_call_reaches_is_refused():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.last = nn.Linear(4, 1)

        def forward(self, x):
            x = x.unsqueeze(1)
            return self.last(self.attention(x, x, x)[0][:, 0])

    X = torch.randn(20, 4).numpy()
    config = make_config(method="structured_bp", net=None, num_steps=5)
    with pytest.raises(ConfigError, match=r"'attention\.out_proj\.input' has no effect"):
        prepare(config, dataset=from_arrays(X, X.sum(1)), net=Attention())


def test_prior_for_noise_is_refused_on_weights_and_the_other_way_round_allowed():
    with pytest.raises(PriorError, match=r"not of '0\.weight'"):
        noisy(mlp(), {"0.weight": "StructuredBP()"})
    model, guide = only_noise(mlp(), "*.input", "GroupHorseshoe(scale=0.1)")
    assert torch.isfinite(Objective(model, guide)(*batch()))


@pytest.mark.parametrize(
    ("prior", "start"),
    [
        ("LogNormal(0, 1)", 1.0),
        ("Normal(1, 0.1)", 1.0),
        ("Gamma(3, 1)", 1.0),
        ("Beta(2, 2)", 0.5),
        ("Uniform(0, 1)", 0.5),  # one is at the border
        ("TruncatedLogUniform(-2, 0)", 0.36787944117144233),
    ],
)
def test_guide_starts_at_one_where_the_prior_has_it_inside(prior, start):
    _, guide = only_noise(mlp(), "*.input", prior)
    for median in guide.medians().values():
        torch.testing.assert_close(median, torch.full_like(median, start))


def test_weight_and_noise_are_identified_one_at_a_time():
    linear = nn.Linear(3, 1)
    assert identified_slots(linear, ["input"]) == ["input"]
    assert identified_slots(linear, ["weight", "bias"]) == ["weight", "bias"]
    assert identified_slots(linear, ["weight", "input"]) == []


# ---------------------------------------------------------------- how it runs


def batch():
    return torch.randn(8, 3), torch.randint(2, (8,))


@pytest.mark.parametrize("net", [mlp, Twice])
@torch.no_grad()
def test_vectorised_draws_equal_single_ones(net):
    model, guide = only_noise(net(), "*.input")
    draws = draw_posterior(model, guide, 4, seed=0)
    x, _ = batch()
    singles = [model.evaluate({k: v[i] for k, v in draws.slots.items()}, x) for i in range(4)]
    torch.testing.assert_close(network_outputs(model, draws.slots, x), torch.stack(singles))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("method", ["structured_bp", "variational_dropout"])
def test_captured_step_equals_the_step(method, local):
    model = noisy(mlp(), {}, method).train()
    objective = Objective(model, model.guide(init_scale=0.3), local=local).train()
    x, y = batch()
    torch.manual_seed(1)
    loss = objective(x, y)
    loss.backward()
    trained = [p for p in objective.parameters() if p.requires_grad]
    gradients = [p.grad.clone() for p in trained]
    torch.manual_seed(1)
    captured = CapturedObjective(objective).loss_and_gradients(x, y)
    assert torch.equal(captured, loss.detach())
    assert all(torch.equal(p.grad, g) for p, g in zip(trained, gradients, strict=True))


def test_copies_in_other_processes_give_the_same_loss():
    model, guide = only_noise(convolutional(), "*.input")
    x, y = torch.randn(8, 1, 5, 5), torch.randint(2, (8,))
    losses = []
    for pair in (
        (model, guide),
        pickle.loads(pickle.dumps((model, guide))),
        copy.deepcopy((model, guide)),
    ):
        torch.manual_seed(0)
        losses.append(float(Objective(*pair)(x, y).detach()))
    assert losses[0] == losses[1] == losses[2]


def test_autocast_computes_in_half_precision_between_the_noise():
    model = zoo.create(
        "structured_bp", mlp().float(), likelihood="categorical", num_data=8, autocast=True
    )
    seen = []
    model.net[0].register_forward_hook(lambda module, args, output: seen.append(args[0].dtype))
    model.net[2].register_forward_hook(lambda module, args, output: seen.append(args[0].dtype))
    values = {name: torch.rand_like(slot.value) for name, slot in model.slots.items()}
    f = model.evaluate(values, torch.randn(8, 3, dtype=torch.float32))
    assert f.dtype == torch.float32
    assert seen == [torch.float32, torch.bfloat16]


def test_state_of_a_model_holds_no_noise():
    model, _ = only_noise(mlp(), "*.input")
    assert not [name for name in model.state_dict() if name.endswith("input")]


# ---------------------------------------------------------------- noise per row


def local_values(model, guide):
    trace = poutine.trace(LocalReparameterization()(guide.sample_sites)).get_trace()
    with poutine.block(), poutine.replay(trace=trace):
        return model.sample_slots()


@torch.no_grad()
def test_each_row_has_noise_of_its_own_and_positions_do_not():
    net = nn.Sequential(nn.Conv2d(2, 2, 1, bias=False), nn.Flatten())
    nn.init.dirac_(net[0].weight)
    model, guide = only_noise(net, "0.input", "Normal(1, 0.3)")
    f = model.evaluate(local_values(model, guide), torch.ones(6, 2, 3, 3)).reshape(6, 2, 9)
    assert torch.equal(f, f[..., :1].expand_as(f))
    assert len(f[..., 0].unique()) == 12


@torch.no_grad()
def test_noise_of_a_row_has_the_moments_of_the_posterior():
    net = nn.Linear(2, 2, bias=False)
    nn.init.eye_(net.weight)
    model, guide = only_noise(net, "input", "Normal(1, 0.3)")
    num_rows = 40_000
    f = model.evaluate(local_values(model, guide), torch.ones(num_rows, 2))
    posterior = guide["input"]["input"]
    mean, sd = posterior.loc, posterior.log_scale.exp()
    error = sd / num_rows**0.5
    assert ((f.mean(0) - mean).abs() < 5 * error).all()
    assert ((f.var(0) / sd**2 - 1).abs() < 5 * (2 / num_rows) ** 0.5).all()
    assert float(torch.corrcoef(f.T)[0, 1].abs()) < 5 / num_rows**0.5


def test_layer_that_is_called_twice_keeps_its_noise_and_is_not_sampled_row_by_row():
    model, guide = only_noise(Twice(), "square.input", "Normal(1, 0.3)")
    x, y = batch()
    assert torch.isfinite(Objective(model, guide)(x, y))
    with pytest.raises(RuntimeError, match=r"'square\.input' was integrated out"):
        Objective(model, guide, local=True)(x, y)


def test_rows_of_a_convolutional_network_with_fixed_weights_can_be_drawn_one_by_one():
    model, guide = only_noise(convolutional(), "0.output", "Normal(1, 0.3)")
    f, noise = row_outputs(model, guide, torch.ones(4, 1, 5, 5), 3, seed=0)
    assert f.shape == (3, 4, 2)
    assert noise is None
    assert len(f[..., 0].unique()) == 12


def test_fixed_noise_leaves_a_guide_without_parameters():
    model, guide = only_noise(mlp(), "*.input", "VariationalDropout()", p=0.3, share="fixed")
    assert not list(guide.parameters())
    objective = Objective(model, guide)
    objective(*batch()).backward()
    assert all(parameter.grad.any() for parameter in model.net.parameters())
    with pyro.validation_enabled(False):
        assert len(draw_posterior(model, guide, 3, seed=0)) == 3
