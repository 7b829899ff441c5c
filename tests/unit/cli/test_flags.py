import pytest

from zoo.cli.fit import merged
from zoo.cli.flags import parse_options, parse_priors, parse_value
from zoo.errors import ConfigError


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("rank=20", {"rank": 20}),
        ("max_sd=0.2", {"max_sd": 0.2}),
        (" max_sd = 2e-1 ", {"max_sd": 0.2}),
        ("max_sd[0.weight]=0.2", {"max_sd": {"0.weight": 0.2}}),
        ("max_sd[*]=-1", {"max_sd": {"*": -1}}),
        ("max_sd[[02].weight]=1", {"max_sd": {"[02].weight": 1}}),
        ("fast=true", {"fast": True}),
        ("fast=False", {"fast": False}),
        ("rule=a=b", {"rule": "a=b"}),
        ("rule=", {"rule": ""}),
        ("rule=__import__('os')", {"rule": "__import__('os')"}),
    ],
)
def test_options(flag, expected):
    assert parse_options([flag]) == expected


def test_numbers_keep_their_type():
    assert type(parse_value("20")) is int
    assert type(parse_value("20.0")) is float
    assert type(parse_value("twenty")) is str


def test_options_are_collected():
    flags = ["max_sd[a]=1", "rank=1", "max_sd[b]=2", "rank=3"]
    assert parse_options(flags) == {"max_sd": {"a": 1, "b": 2}, "rank": 3}
    assert parse_options(None) == {}


@pytest.mark.parametrize("flag", ["rank", "=3", "3=4", "a b=1", "max_sd[]=1", "max_sd[a=1"])
def test_what_is_not_an_option_is_refused(flag):
    with pytest.raises(ConfigError, match="NAME=VALUE") as caught:
        parse_options([flag])
    assert repr(flag) in str(caught.value)


@pytest.mark.parametrize("flags", [["s=1", "s[a]=2"], ["s[a]=2", "s=1"]])
def test_one_value_for_all_slots_or_one_for_each(flags):
    with pytest.raises(ConfigError, match="not both"):
        parse_options(flags)


def test_priors():
    flags = ["*.bias=Normal(0, 1)", "Laplace(loc=0, scale=1)", "noise = HalfNormal(1)"]
    assert parse_priors(flags) == {
        "*.bias": "Normal(0, 1)",
        "*weight": "Laplace(loc=0, scale=1)",
        "noise": "HalfNormal(1)",
    }


def test_flags_come_before_a_file_and_mappings_are_joined():
    file = {"lr": 1, "net": {"nodes": 3}, "options": {"rank": 2, "sd": {"a": 1, "b": 1}, "m": {}}}
    flags = {"net": "mlp", "options": {"sd": {"b": 2}, "m": 3}}
    assert merged(file, flags) == {
        "lr": 1,
        "net": "mlp",
        "options": {"rank": 2, "sd": {"a": 1, "b": 2}, "m": 3},
    }
