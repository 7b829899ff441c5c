"""Names and parameters of earlier versions: still read, with a warning that shows the new ones."""

import warnings

import pytest
import torch
from torch import nn

import zoo
from zoo.fit.config import dump_config, make_config, read_config
from zoo.priors import Prior

FIT = {
    "data": "wine",
    "net": "mlp:13-4-3",
    "num_steps": 12,
    "init_scale": 0.5,
    "num_samples": 4,
    "compile": "off",
    "progress_bar": False,
}

# An old prior text by method and slots, the new one, and what is an option now.
MOVED = [
    ("group_horseshoe", "*weight", "Horseshoe(max_sd=0.2)", "GroupHorseshoe()", {"max_sd": 0.2}),
    (
        "group_normal_jeffreys",
        "*weight",
        "NormalJeffreys(max_sd=0.2)",
        "GroupNormalJeffreys()",
        {"max_sd": 0.2},
    ),
    (
        "quantized",
        "*weight",
        "Quantizing([-0.2, 0, 0.2], learned, max_sd=0.1)",
        "Quantized([-0.2, 0, 0.2], learned)",
        {"max_sd": 0.1},
    ),
    ("structured_bp", "*.input", "LogUniformNoise(kl_scale=3)", "StructuredBP()", {"kl_scale": 3}),
    (
        "variational_dropout",
        "*.input",
        "GaussianDropout(p=0.3)",
        "VariationalDropout()",
        {"p": 0.3},
    ),
    (
        "variational_dropout",
        "*.input",
        "GaussianDropout(max_p=0.4)",
        "VariationalDropout()",
        {"max_p": 0.4},
    ),
    (
        "variational_dropout",
        "*.input",
        "GaussianDropout(share=unit)",
        "VariationalDropout()",
        {"share": "unit"},
    ),
    (
        "gumbel_softmax_structure",
        "*.structure",
        "GumbelSoftmax(schedule=linear)",
        "GumbelSoftmaxStructure()",
        {"schedule": "linear"},
    ),
    (
        "gumbel_softmax_structure",
        "*.structure",
        "GumbelSoftmax(start=2)",
        "GumbelSoftmaxStructure()",
        {"start": 2},
    ),
    (
        "gumbel_softmax_structure",
        "*.structure",
        "GumbelSoftmax(schedule=geometric, end=0.1)",
        "GumbelSoftmaxStructure()",
        {"schedule": "geometric", "end": 0.1},
    ),
    (
        "gumbel_softmax_structure",
        "*.structure",
        "DirichletStructure(posterior=gumbel_softmax)",
        "DirichletStructure()",
        {"posterior": "gumbel_softmax"},
    ),
]
RENAMED = {
    "Horseshoe(scale=0.1, group=input)": "GroupHorseshoe(scale=0.1, group=input)",
    "NormalJeffreys(group=output)": "GroupNormalJeffreys(group=output)",
    "LogUniform()": "SparseVD()",
    "LogUniformNoise(low=-3)": "StructuredBP(low=-3, high=0, group=unit)",
    "GaussianDropout()": "VariationalDropout()",
    "Quantizing([-1, 0, 1])": "Quantized(codebook=[-1, 0, 1], size=fixed)",
    "BatchMean()": "StochasticBatchNorm()",
    "BatchVariance()": "StochasticBatchNorm()",
    "SoftmaxStructure(scale=2)": "Darts(scale=2, s=[], penalty=0)",
}


# Former positional arguments: parameters that became options were the last ones.
POSITIONAL = {
    "GaussianDropout(0.3, 0.4, unit)": ("VariationalDropout()", "p=0.3, max_p=0.4, share=unit"),
    "Horseshoe(0.1, input, 0.2)": ("GroupHorseshoe(0.1, input)", "max_sd=0.2"),
    "NormalJeffreys(auto, 0.2)": ("GroupNormalJeffreys(auto)", "max_sd=0.2"),
    "Quantizing([-1, 0, 1], fixed, 0.2)": ("Quantized([-1, 0, 1], fixed)", "max_sd=0.2"),
    "LogUniformNoise(-3, 0, layer, 2)": ("StructuredBP(-3, 0, layer)", "kl_scale=2"),
    "GumbelSoftmax(0.4, [], 0, cube, interior, linear, 2)": (
        "GumbelSoftmaxStructure(0.4, [], 0, cube, interior)",
        "schedule=linear, start=2",
    ),
    "DirichletStructure(1, [], 0, simplex, gumbel_softmax)": (
        "DirichletStructure()",
        "posterior=gumbel_softmax",
    ),
}


def draws(method, **options):
    return zoo.fit(method, **FIT, **options).draws.slots


def are_equal(first, second):
    assert list(first) == list(second)
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("method", "pattern", "old", "new", "options"), MOVED)
def test_parameter_that_became_an_option_gives_the_same_fit(method, pattern, old, new, options):
    with pytest.warns(FutureWarning, match="is an old spelling") as caught:
        found = draws(method, priors={pattern: old})
    message = str(caught[0].message)
    assert f"Write {Prior.parse(new)}" in message
    for name, value in options.items():
        assert f"with the option {name}={value}" in message
    assert are_equal(found, draws(method, priors={pattern: new}, options=options))
    assert not are_equal(found, draws(method, priors={pattern: new}))


@pytest.mark.parametrize("old", RENAMED)
def test_earlier_name_is_the_same_prior(old):
    new = RENAMED[old]
    with pytest.warns(FutureWarning) as caught:
        prior = Prior.parse(old)
    assert str(caught[0].message).endswith(f"Write {new}.")
    assert prior == Prior.parse(new)
    assert str(prior) == new


@pytest.mark.parametrize("old", POSITIONAL)
def test_former_positional_arguments_are_options(old):
    new, options = POSITIONAL[old]
    with pytest.warns(FutureWarning) as caught:
        prior = Prior.parse(old)
    listed = "".join(f", with the option {option}" for option in options.split(", "))
    assert str(caught[0].message).endswith(f"Write {Prior.parse(new)}{listed}.")
    assert prior.params == Prior.parse(new).params
    assert [name for name, _ in prior.options] == [o.split("=")[0] for o in options.split(", ")]
    assert str(prior) == str(Prior.parse(new))


def test_former_positional_argument_reaches_the_guide():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with pytest.warns(FutureWarning):
        model = zoo.create(
            "variational_dropout",
            net,
            likelihood="gaussian",
            num_data=5,
            priors={"*.input": "GaussianDropout(0.3)"},
        )
    assert model.prior("0.input").settings.p == 0.3


def test_values_beyond_former_parameters_are_refused():
    with pytest.raises(zoo.errors.PriorError, match="GroupHorseshoe takes 2 parameters"):
        Prior.parse("Horseshoe(0.1, input, 0.2, 3)")


def test_new_spellings_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for new in [*RENAMED.values(), *(case[3] for case in MOVED)]:
            Prior.parse(new)


def test_parameter_of_one_slot_stays_with_that_slot():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with pytest.warns(FutureWarning):
        model = zoo.create(
            "group_horseshoe",
            net,
            likelihood="gaussian",
            num_data=5,
            priors={"0.weight": "Horseshoe(max_sd=0.2)"},
        )
    bounds = [model.prior(name).settings.max_sd for name in ("0.weight", "2.weight")]
    assert bounds == [0.2, None]


def test_later_pattern_without_the_parameter_has_its_default():
    priors = {"*.weight": "Horseshoe(max_sd=0.2)", "2.weight": "Horseshoe()"}
    with pytest.warns(FutureWarning):
        config = make_config(method="group_horseshoe", priors=priors)
    assert config.options == {"max_sd": {"*.weight": 0.2, "2.weight": None}}


def test_configuration_is_stored_in_the_new_spelling(tmp_path):
    with pytest.warns(FutureWarning):
        config = make_config(method="m", priors={"0.weight": "Horseshoe(max_sd=0.2)"})
    assert config.priors == {"0.weight": "GroupHorseshoe(scale=1e-05, group=auto)"}
    assert config.options == {"max_sd": {"0.weight": 0.2}}
    (tmp_path / "c.yaml").write_text(dump_config(config))
    assert make_config(**read_config(tmp_path / "c.yaml")) == config


def test_the_linear_guide_is_two_knots():
    with pytest.warns(FutureWarning, match="knots=2"):
        config = make_config(method="hypernetwork", guide="linear")
    assert config.guide == "factorised"
    assert config.options == {"knots": 2}
