import json
from types import SimpleNamespace
from typing import Literal

from pydantic import Field

from zoo.priors import Options
from zoo.registry import get, list_models
from zoo.workflow.options import describe_options, option_lines


class OwnOptions(Options):
    rank: int = Field(20, ge=1, description="Rank of the covariance.")
    rule: Literal["a", "b"] | None = Field(None, description="A rule.")


def test_options_with_types_ranges_and_defaults():
    entry = SimpleNamespace(method=SimpleNamespace(options=OwnOptions), priors={})
    assert option_lines(entry) == [
        "rank <int>  Rank of the covariance.  [default: 20; x >= 1]",
        "rule <a|b>  A rule.  [default: None]",
    ]
    assert describe_options(entry)[0] == {
        "name": "rank",
        "type": "int",
        "range": "x >= 1",
        "default": 20,
        "description": "Rank of the covariance.",
    }


def test_a_method_without_options():
    assert describe_options(get("mean_field")) == []
    assert option_lines(get("mean_field")) == []


def test_options_of_the_default_priors_are_listed():
    assert [option["name"] for option in describe_options(get("group_horseshoe"))] == ["max_sd"]


def test_options_of_every_method_can_be_written_as_json():
    for name in list_models():
        json.dumps(describe_options(get(name)))
