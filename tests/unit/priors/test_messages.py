import re

import pytest
import torch

from zoo.errors import PriorError
from zoo.network.slots import Slot
from zoo.priors import Prior, resolve_priors

WEIGHT = Slot("0.weight", torch.zeros(2, 3), "linear")
BIAS = Slot("0.bias", torch.zeros(2), "linear")
LAST = Slot("2.weight", torch.zeros(1, 2), "linear")
NOISE = Slot("noise", torch.tensor(0.5), "likelihood", positive=True, by_name=True)
SLOTS = [WEIGHT, BIAS, LAST, NOISE]


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        # names
        ("Norml(0, 1)", ["unknown distribution 'Norml'", "Did you mean 'Normal'?"]),
        ("HorseShoe", ["'HorseShoe'", "Did you mean 'GroupHorseshoe'?"]),
        ("zzz(1)", ["unknown distribution 'zzz'", "Common ones: Normal"]),
        ("Normal(0, HalfCauch(1))", ["'HalfCauch'", "Did you mean 'HalfCauchy'?"]),
        ({"dist": "Laplac"}, ["Did you mean 'Laplace'?"]),
        # parameters
        ("Normal(0, scal=1)", ["Normal has no parameter 'scal'", "Did you mean 'scale'?"]),
        ("Normal(0, sd=1)", ["no parameter 'sd'", "It takes: loc, scale"]),
        ("SparseVD(a=1)", ["no parameter 'a'", "It takes: none"]),
        ("Normal(0)", ["Normal needs a value for 'scale'"]),
        ("Normal", ["needs a value for 'loc', 'scale'"]),
        ("Normal(0, 1, 2)", ["takes 2 parameters (loc, scale)", "Got 3"]),
        ("Normal(0, loc=1)", ["'loc' of Normal is given twice"]),
        ("Normal(loc=0, loc=1, scale=1)", ["'loc' is given twice"]),
        # ranges
        ("Normal(0, -1)", ["'scale' of Normal must be a number that is > 0", "Got -1.0"]),
        ("Normal(0, 0)", ["'scale' of Normal", "> 0", "Got 0.0"]),
        ("StudentT(-3)", ["'df' of StudentT", "> 0"]),
        ("Uniform(1, 0)", ["Uniform(low=1.0, high=0.0) does not exist"]),
        ("SmoothLogUniform(2, -8)", ["does not exist", "low < high"]),
        ("TruncatedNormalJeffreys(1, -1)", ["needs low < high", "Got low=1, high=-1"]),
        ("TruncatedNormalJeffreys(1, 1)", ["needs low < high", "Got low=1, high=1"]),
        ("GroupHorseshoe(scale=0)", ["'scale' of GroupHorseshoe", "Got 0.0"]),
        ("GroupHorseshoe(scale=1e-200)", ["'scale' of GroupHorseshoe", "Got 1e-200"]),
        ("GroupHorseshoe(group=rows)", ["one of auto, input, output, element", "Got 'rows'"]),
        ("Quantized([0.1, 0.2])", ["must contain 0"]),
        ("Normal(0, 1e999)", ["finite"]),
        # types
        ("Normal(foo, 1)", ["'loc' of Normal must be a number", "Got 'foo'"]),
        ("Normal([0, 1], 1)", ["'loc' of Normal must be a number"]),
        ("Quantized(0.1)", ["a list of numbers like [-0.2, 0, 0.2]. Got 0.1"]),
        ("Normal(True, 1)", ["expected a number", "True"]),
        ({"dist": "Normal", "loc": 0, "scale": None}, ["expected a number", "None"]),
        ({"dist": "Normal", "loc": 0, "scale": float("nan")}, ["finite", "nan"]),
        ({"dist": "Normal", "loc": 0, "scale": 10**5000}, ["finite"]),
        ({"loc": 0}, ["needs the key 'dist'", "{'loc': 0}"]),
        ({"dist": 3}, ["needs the key 'dist'"]),
        ({"dist": "Normal", 0: 1}, ["keys", "must be text"]),
        (3, ["'Normal(0, 1)'", "Got 3 of type int"]),
        (None, ["Got None"]),
        # hyper-priors
        ("Normal(0, Normal(0, 1))", ["'scale' of Normal must be > 0", "Normal(loc=0, scale=1)"]),
        ("Normal(0, Uniform(-1, 1))", ["must be > 0", "values that are > -1 and < 1"]),
        ("Gamma(Laplace(0, 1), 1)", ["'concentration' of Gamma", "real"]),
        (
            "Normal(0, GroupHorseshoe())",
            ["structured prior GroupHorseshoe cannot be a hyper-prior"],
        ),
        (
            "Normal(0, GroupNormalJeffreys())",
            ["GroupNormalJeffreys cannot be a hyper-prior of Normal"],
        ),
        (
            "GroupHorseshoe(scale=HalfCauchy(1))",
            ["'scale' of GroupHorseshoe", "HalfCauchy(scale=1)"],
        ),
        # not a prior of single weights
        ("Bernoulli(0.5)", ["Bernoulli cannot be a prior", "continuous univariate"]),
        ("Poisson(1)", ["Poisson cannot be a prior", "continuous univariate"]),
        ("Dirichlet([1, 1])", ["Dirichlet cannot be a prior", "univariate"]),
        ("MultivariateNormal(0, 1)", ["MultivariateNormal cannot be a prior", "univariate"]),
        ("Delta(0)", ["Delta cannot be a prior"]),
        ("TorchDistribution(0, 0)", ["TorchDistribution cannot be a prior"]),
        ("Unit(1)", ["not single numbers"]),
        # syntax
        ("Normal(0, 1", ["cannot read the prior 'Normal(0, 1'", "Write it like Normal(0, 1)"]),
        ("Normal(0, 1 + 1)", ["BinOp is not accepted"]),
        ("Normal(**x)", ["'**' is not accepted"]),
        ("Normal(*x)", ["Starred is not accepted"]),
        ("dist.Normal(0, 1)", ["not a name with arguments"]),
        ("x" * 2000, ["2000 characters", "at most 1000"]),
    ],
)
def test_refusal_says_what_is_wrong_and_what_is_accepted(source, parts):
    with pytest.raises(PriorError) as caught:
        Prior.parse(source)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("slot", "prior"),
    [
        (WEIGHT, "HalfNormal(1)"),
        (WEIGHT, "Gamma(2, 1)"),
        (WEIGHT, "Uniform(-1, 1)"),
        (NOISE, "Normal(0, 1)"),
        (NOISE, "GroupHorseshoe"),
        (NOISE, "Uniform(-1, 1)"),
        (NOISE, "Quantized([-0.2, 0, 0.2])"),
    ],
)
def test_prior_with_the_wrong_support_names_slot_and_a_fitting_one(slot, prior):
    with pytest.raises(PriorError, match="wrong support") as caught:
        resolve_priors({slot.name: prior}, {}, SLOTS)
    assert repr(slot.name) in str(caught.value)
    assert ("HalfNormal(1)" if slot.positive else "Normal(0, 1)") in str(caught.value)


@pytest.mark.parametrize("prior", ["HalfNormal(1)", "Gamma(2, 1)", "LogNormal(0, 1)", "Beta(2, 2)"])
def test_positive_prior_fits_the_noise(prior):
    assert resolve_priors({"noise": prior}, {}, SLOTS) == {"noise": Prior.parse(prior)}


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("*.wieght", "*.weight"),
        ("0.wieght", "0.weight"),
        ("nois", "noise"),
        ("*.biass", "*.bias"),
        ("noise*", "noise"),
    ],
)
def test_pattern_that_matches_nothing_lists_the_slots_and_the_nearest(pattern, nearest):
    with pytest.raises(PriorError, match=re.escape(f"{pattern!r} matches no slot")) as caught:
        resolve_priors({pattern: "Normal(0, 1)"}, {}, SLOTS)
    assert "Slots: 0.weight, 0.bias, 2.weight, noise." in str(caught.value)
    assert f"Did you mean {nearest!r}?" in str(caught.value)


def resolved(user, defaults):
    return {name: prior.name for name, prior in resolve_priors(user, defaults, SLOTS).items()}


def test_user_comes_before_defaults_and_the_rest_keeps_them():
    defaults = {"*": "Normal(0, 1)", "*weight": "Laplace(0, 1)"}
    assert resolved({"0.*": "Cauchy(0, 1)"}, defaults) == {
        "0.weight": "Cauchy",
        "0.bias": "Cauchy",
        "2.weight": "Laplace",
    }


def test_last_matching_pattern_wins_within_one_mapping():
    broad_last = {"0.weight": "Laplace(0, 1)", "*": "Normal(0, 1)"}
    broad_first = dict(reversed(broad_last.items()))
    assert resolved(broad_last, {})["0.weight"] == "Normal"
    assert resolved(broad_first, {})["0.weight"] == "Laplace"
    assert resolved({}, broad_last)["0.weight"] == "Normal"


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("*", ["0.weight", "0.bias", "2.weight"]),
        ("*.weight", ["0.weight", "2.weight"]),
        ("?.bias", ["0.bias"]),
        ("[02].weight", ["0.weight", "2.weight"]),
        ("[!0].*", ["2.weight"]),
        ("0.weight", ["0.weight"]),
    ],
)
def test_globs_choose_slots_of_the_network_and_never_the_noise(pattern, matched):
    assert list(resolved({pattern: "Normal(0, 1)"}, {})) == matched


def test_noise_gets_a_prior_by_its_full_name_only():
    priors = {"*": "Normal(0, 1)", "noise": "HalfNormal(1)"}
    assert resolved(priors, {})["noise"] == "HalfNormal"
    assert "noise" not in resolved({"*": "Normal(0, 1)"}, {})


def test_default_that_matches_nothing_is_no_error():
    assert resolved({}, {"*.gain": "Normal(0, 1)"}) == {}
