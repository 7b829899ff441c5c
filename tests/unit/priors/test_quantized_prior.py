"""The prior with a codebook: fixed, learned, fitted."""

import math

import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence

import zoo
from zoo.distributions import Quantizing
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.objective import Objective
from zoo.models.quantized import Quantized
from zoo.priors import Prior
from zoo.registry import Recipe

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")


def model_with(prior, method="mean_field", **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    return zoo.create(
        method,
        net,
        likelihood="categorical",
        num_data=40,
        priors={"*.weight": prior},
        options=options,
    )


def trained(model, guide, **recipe):
    x = torch.randn(40, 3)
    values = {"num_steps": 20, "batch_size": 20, "lr": 1e-2} | recipe
    svi = SVI(model, guide, x, (x[:, 0] > 0).long(), recipe=Recipe(**values), seed=0)
    svi.run(progress_bar=False)
    return svi


def test_every_way_to_write_it_is_the_same_prior():
    text = Prior.parse("Quantized([-1, 0, 1], fitted)")
    mapping = {"dist": "Quantized", "codebook": [-1, 0, 1], "size": "fitted"}
    assert text == Prior.parse(mapping) == Prior.parse(str(text))
    assert str(Prior.parse("Quantized")) == "Quantized(codebook=[-0.2, 0, 0.2], size=fixed)"


def test_a_fixed_codebook_stays_and_a_learned_one_moves():
    for size, moves in (("fixed", False), ("learned", True), ("fitted", True)):
        model = model_with(f"Quantized([-0.2, 0, 0.2], size={size})")
        guide = model.guide(init_scale=0.01)
        trained(model, guide, kl_warmup=0.0)
        words = model.prior("0.weight").code_words().detach()
        assert torch.equal(words, torch.tensor([-0.2, 0.0, 0.2])) != moves
        assert words[1] == 0
        assert words[2] == -words[0]


def test_the_divergence_does_not_depend_on_the_size_of_the_codebook():
    # The published objective in other coordinates: KL(s θ, s σ; s c) = KL(θ, σ; c).
    divergences = []
    for words in ("[-0.2, 0, 0.2]", "[-0.6, 0, 0.6]"):
        model = model_with(f"Quantized({words}, size=learned)")
        guide = model.guide(init_scale=0.02)
        part, prior = guide["0.weight"], model.prior("0.weight")
        with torch.no_grad():
            size = float(words[2:5]) / 0.2
            part.base.loc.copy_(torch.linspace(-0.3, 0.3, 24).reshape(8, 3))
            normal = torch.distributions.Normal(size * part.base.loc, torch.tensor(size * 0.02))
            expected = kl_divergence(normal, Quantizing(prior.code_words())).sum()
        trace = poutine.trace(guide).get_trace()
        site = poutine.trace(poutine.replay(prior, trace=trace)).get_trace().nodes["0.weight_base"]
        found = kl_divergence(trace.nodes["0.weight_base"]["fn"], site["fn"]).sum()
        torch.testing.assert_close(found, expected)
        divergences.append(found)
    torch.testing.assert_close(*divergences)


def test_weights_stay_on_their_code_words_when_the_codebook_grows():
    model = model_with("Quantized([-0.2, 0, 0.2], size=learned)")
    part, prior = model.guide(init_scale=0.02)["0.weight"], model.prior("0.weight")
    before = prior.quantized(part).detach()
    with torch.no_grad():
        prior.growth.fill_(0.5)
    torch.testing.assert_close(prior.quantized(part).detach(), before * math.exp(0.5))
    torch.testing.assert_close(prior.code_words().detach()[2], torch.tensor(0.2 * math.exp(0.5)))


def test_the_size_has_the_gradient_of_the_likelihood():
    # w = s w̃: the derivative by log s is that by every weight, times the weight.
    model = model_with("Quantized([-0.2, 0, 0.2], size=learned)")
    guide = model.guide(init_scale=1e-9)
    objective = Objective(model, guide, validate=False)
    x = torch.randn(40, 3)
    growth = model.prior("0.weight").growth

    def loss(value):
        with torch.no_grad():
            growth.fill_(value)
        torch.manual_seed(0)
        return objective(x, (x[:, 0] > 0).long())

    numeric = float((loss(1e-4) - loss(-1e-4)).detach()) / 2e-4
    loss(0.0).backward()
    assert float(growth.grad) == pytest.approx(numeric, rel=1e-5)
    assert abs(numeric) > 0.1


def test_the_bound_of_the_sds_is_a_share_of_the_distance_between_code_words():
    model = model_with("Quantized([-3, 0, 3], size=learned)", max_sd=0.1)
    guide = model.guide(init_scale=0.05)
    part, prior = guide["0.weight"], model.prior("0.weight")
    prior.after_update(part)
    sds = part.base.log_scale.detach().exp() * prior.scale().detach()
    torch.testing.assert_close(sds, torch.full_like(sds, 0.3))


def test_fitting_leaves_the_weights_where_they_are():
    model = model_with("Quantized([-1, 0, 1], size=fitted)", method="quantized")
    part, prior = model.guide(init_scale=0.0183)["0.weight"], model.prior("0.weight")
    before = part.base.loc.detach() * prior.scale().detach()
    prior.after_pretraining(part)
    after = part.base.loc.detach() * prior.scale().detach()
    # The largest are moved to the outer code words, and no further than sds beyond.
    edge = prior.code_words().detach().max() * (1 + 0.0183 * math.exp(-1.5) / 0.2)
    torch.testing.assert_close(after, before.clamp(-edge, edge))


def test_fitting_happens_once_where_pretraining_ends():
    model = model_with("Quantized([-1, 0, 1], size=fitted)", method="quantized")
    guide = model.guide(init_scale=0.0183)
    seen = []
    recipe = Recipe(num_steps=20, batch_size=20, lr=1e-2, pretrain=0.5, kl_warmup=0.25)
    x = torch.randn(40, 3)
    svi = SVI(model, guide, x, (x[:, 0] > 0).long(), recipe=recipe, seed=0)
    prior = model.prior("0.weight")
    svi.run(
        checkpoint_every=1,
        on_checkpoint=lambda svi: seen.append((float(prior.unit), float(svi.objective.kl_weight))),
    )
    starts, weights = zip(*seen[:20], strict=True)
    assert starts[:10] == (1.0,) * 10
    assert len(set(starts[10:])) == 1
    assert starts[10] != 1.0
    assert weights == pytest.approx([0.0] * 11 + [0.2, 0.4, 0.6, 0.8] + [1.0] * 5)


def test_a_codebook_does_not_collapse():
    prior = model_with("Quantized([-0.2, 0, 0.2], size=learned)").prior("0.weight")
    assert isinstance(prior, Quantized)
    with torch.no_grad():
        prior.growth.fill_(-1e6)
    prior.after_update(object())
    torch.testing.assert_close(prior.code_words().detach()[2], torch.tensor(0.05))


@pytest.mark.parametrize("step", [9, 10, 11])
def test_a_run_that_stops_near_the_end_of_pretraining_continues_to_the_same_bits(step):
    def make():
        model = model_with("Quantized([-1, 0, 1], size=fitted)", method="quantized")
        recipe = Recipe(num_steps=20, batch_size=16, lr=1e-2, pretrain=0.5, kl_warmup=0.25)
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        guide = model.guide(init_scale=0.0183)
        return SVI(model, guide, x, (x[:, 0] > 0).long(), recipe=recipe, seed=0)

    states = {}
    whole = make()
    whole.run(
        checkpoint_every=step,
        on_checkpoint=lambda svi: states.setdefault(
            svi.progress.step, [dict(part) for part in _copied(svi.state())]
        ),
    )
    part = make()
    part.load_state(*states[step])
    part.run()
    for (name, first), second in zip(
        whole.objective.state_dict().items(), part.objective.state_dict().values(), strict=True
    ):
        assert torch.equal(first, second), name


def _copied(state):
    tensors, numbers = state
    return {name: value.clone() for name, value in tensors.items()}, numbers
