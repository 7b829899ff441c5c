"""Priors from outside: a class of the user's, or a distribution of Pyro's."""

from typing import ClassVar

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import constraints

import zoo
from zoo.errors import PriorError
from zoo.infer.svi.objective import Objective
from zoo.network.slots import Slot
from zoo.priors import Prior, SlotPrior, prior_of_slot

pytestmark = pytest.mark.usefixtures("double_precision", "module_local_params")


class OneScale(SlotPrior):
    """Normal weights with one half-normal scale; nothing but this class makes it known."""

    spread: float = 1.0

    ranges: ClassVar[dict[str, constraints.Constraint]] = {"spread": constraints.positive}

    def model(self) -> Tensor:
        s = pyro.sample(self.site("scale"), dist.HalfNormal(self.number(self.spread)))
        weights = dist.Normal(self.zero, s.unsqueeze(-1).unsqueeze(-1))
        value: Tensor = pyro.sample(self.slot.name, self.elements(weights))
        return value


def model_with(prior):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return zoo.create(
        "mean_field",
        net,
        likelihood="gaussian(noise=0.5)",
        num_data=6,
        priors={"*.weight": prior},
    )


def test_class_is_known_by_its_name_in_texts():
    assert str(Prior.parse("OneScale")) == "OneScale(spread=1)"
    assert Prior.parse({"dist": "OneScale", "spread": 2}) == Prior.parse("OneScale(2)")
    with pytest.raises(PriorError, match=r"'spread' of OneScale must be .* > 0"):
        Prior.parse("OneScale(spread=-1)")
    with pytest.raises(PriorError, match="Did you mean 'OneScale'"):
        Prior.parse("OnScale()")


def test_its_model_and_guide_are_those_of_a_network():
    model = model_with("OneScale(spread=0.5)")
    guide = model.guide(init_scale=0.1)
    assert guide["0.weight"].names == ["0.weight_scale", "0.weight"]
    loss = Objective(model, guide)(torch.randn(6, 3), torch.randn(6))
    loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in guide.parameters())


def test_its_density_is_the_one_that_it_writes():
    slot = Slot("w", torch.randn(2, 3), "linear")
    prior = prior_of_slot(Prior.parse("OneScale(spread=0.5)"), slot)
    values = {"w_scale": torch.tensor(0.7), "w": slot.value}
    trace = poutine.trace(poutine.condition(prior, data=values)).get_trace()
    expected = stats.halfnorm(scale=0.5).logpdf(0.7) + stats.norm(0, 0.7).logpdf(slot.value).sum()
    assert float(trace.log_prob_sum()) == pytest.approx(expected, rel=1e-10)


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(ValueError, match=r"'GroupHorseshoe' of elsewhere is already defined"):
        type("GroupHorseshoe", (SlotPrior,), {"__module__": "elsewhere"})


ONE = torch.ones(())
OBJECTS = [
    (dist.Normal(0, 1), "Normal(0, 1)"),
    (dist.Normal(0.5, 2.0), "Normal(0.5, 2)"),
    (dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2), "Normal(0, 1)"),
    (dist.Laplace(-1.0, 0.5), "Laplace(-1, 0.5)"),
    (dist.StudentT(3.0, 1.0, 0.5), "StudentT(df=3, loc=1, scale=0.5)"),
    (dist.HalfNormal(2.0), "HalfNormal(2)"),
    (dist.HalfCauchy(2.0), "HalfCauchy(2)"),
    (dist.Gamma(2.0, 3.0), "Gamma(2, 3)"),
    (dist.InverseGamma(2 * ONE, 3 * ONE), "InverseGamma(2, 3)"),
    (dist.LogNormal(0.0, 0.5), "LogNormal(0, 0.5)"),
    (dist.Uniform(-1.0, 2.0), "Uniform(-1, 2)"),
    (zoo.distributions.SmoothLogUniform(-8.0, 2.0), "SmoothLogUniform(-8, 2)"),
]


@pytest.mark.parametrize(("distribution", "text"), OBJECTS)
def test_a_distribution_is_the_prior_that_text_names(distribution, text):
    assert Prior.parse(distribution) == Prior.parse(text)


def test_a_network_takes_distributions_by_pattern():
    net = nn.Linear(3, 1)
    for priors in ({"*": dist.Normal(0, 1)}, {"*": "Normal(0, 1)"}):
        model = zoo.create(
            "group_horseshoe", net, likelihood="gaussian(noise=1)", num_data=4, priors=priors
        )
        assert {name: str(prior) for name, prior in model.priors.items()} == {
            "weight": "Normal(loc=0, scale=1)",
            "bias": "Normal(loc=0, scale=1)",
        }


def test_a_fit_with_distributions_is_stored_as_text():
    options = {"num_steps": 3, "num_samples": 2, "compile": "off", "progress_bar": False}
    fits = [
        zoo.fit("mean_field", data="wine", net="mlp:13-3-3", priors={"*": prior}, **options)
        for prior in (dist.Normal(0, 2), "Normal(0, 2)")
    ]
    assert fits[0].config == fits[1].config
    assert torch.equal(fits[0].losses, fits[1].losses)


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (dist.Normal(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])), "'scale' .* 3 different"),
        (dist.Normal(torch.arange(2.0), 1.0).to_event(1), "'loc' .* 2 different"),
        (dist.MultivariateNormal(torch.zeros(2), torch.eye(2)), "not a continuous univariate"),
        (dist.Bernoulli(0.5), "not a continuous univariate"),
        (dist.Delta(torch.zeros(())), "Delta cannot be a prior"),
        (torch.distributions.Normal(0.0, 1.0), "Give a distribution of pyro.distributions"),
    ],
)
def test_what_is_not_one_prior_for_all_elements_is_refused(distribution, words):
    with pytest.raises(PriorError, match=words):
        Prior.parse(distribution)
