import math

import pytest

from tests.unit.diagnostics.synthetic_trees import tree_of
from zoo.diagnostics import Finding, Judgement, judge, verdict
from zoo.diagnostics.uses import USES, asked_uses, uses_of
from zoo.errors import ConfigError, StoreError


def finding(level="ok", check="a.b", value=1.0, threshold=2.0):
    return Finding(check, level, value, threshold, "A message.", "An advice.", "Somebody (2000)")


@pytest.mark.parametrize(
    ("levels", "worst", "words"),
    [
        ([], "unchecked", "Nothing was checked"),
        (["info"], "unchecked", "Nothing was checked"),
        (["ok", "info"], "ok", "Good to predict"),
        (["ok", "unchecked"], "unchecked", "Not checked whether"),
        (["ok", "warn", "unchecked"], "warn", "Use with care to predict"),
        (["ok", "fail", "warn"], "fail", "Do not use this fit to predict"),
    ],
)
def test_verdict_is_the_worst_level(levels, worst, words):
    result = verdict(finding(level, f"check.{k}") for k, level in enumerate(levels))
    assert result.level == worst
    assert words in result.sentence


def test_a_check_speaks_only_for_its_uses():
    found = [finding("fail", "approximation.khat"), finding("ok", "optimisation.outputs_settled")]
    result = verdict(found, ("predict", "parameters"))
    assert result.level == "fail"
    assert result.uses["predict"].level == "ok"
    assert result.uses["parameters"].level == "fail"
    assert result.uses["compress"].level == "unchecked"
    assert verdict(found, ("predict",)).level == "ok"
    assert "Good to predict." in result.sentence


def test_the_sentence_of_a_use_is_that_of_the_deciding_check():
    bad = Finding("predictive.coverage_95", "fail", 0.1, 0.95, "Too narrow.", "Do this.")
    good = Finding("usefulness.skill", "ok", 0.1, 0.0, "Better than a line.")
    result = verdict([good, bad])
    assert result.uses["intervals"].sentence == "Too narrow. Do this."
    assert result.uses["predict"].sentence == "Better than a line."


def test_unknown_checks_speak_for_every_use():
    assert uses_of("plugin.own") == USES


def test_an_unknown_use_is_refused():
    with pytest.raises(ConfigError, match=r"unknown use 'predic'\. Did you mean 'predict'"):
        Judgement((finding(),), USES).on("predic")


def test_uses_asked_for_follow_the_kind_of_fit():
    posterior = {"posterior": {"w": (("chain", "draw"), [[1.0, 2.0]])}}
    linear = tree_of(posterior, kind="network", identified="w")
    network = tree_of(posterior, kind="network", identified="", compresses=1)
    model = tree_of(posterior, kind="model", identified="w")
    assert asked_uses(linear) == ("predict", "intervals", "parameters")
    assert asked_uses(network) == ("predict", "intervals", "compress")
    assert asked_uses(model) == ("parameters",)


def test_checks_that_could_not_run_are_not_passed():
    """A network without any other group has no evidence at all."""
    result = judge(tree_of({}, kind="network", task="regression", trained=1, identified=""))
    checks = {found.check for found in result.findings if found.level == "unchecked"}
    assert {"optimisation.finite", "usefulness.skill", "predictive.coverage"} <= checks
    assert result.verdict.level == "unchecked"


def test_a_reason_replaces_the_general_one_and_what_does_not_apply_is_a_note():
    tree = tree_of(
        {},
        kind="model",
        trained=0,
        not_applicable='{"predictive.posterior_check": "nothing is observed."}',
        unchecked='{"approximation.khat": "the density is not known."}',
    )
    found = {finding.check: finding for finding in judge(tree).findings}
    assert found["predictive.posterior_check"].level == "info"
    assert found["approximation.khat"].message == "The density is not known."


@pytest.mark.parametrize("number", [None, 0.1, math.nan, math.inf, -math.inf, 1e300])
def test_findings_survive_json(number):
    before = Judgement((finding(value=number), finding("fail", threshold=number)), ("predict",))
    text = before.to_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert repr(Judgement.from_json(text)) == repr(before)  # NaN is not equal to itself


def test_lists_of_earlier_versions_are_read():
    text = (
        '[{"check": "optimisation.finite", "level": "ok", "value": 0, "threshold": 0, '
        '"message": "m", "advice": "", "source": ""}]'
    )
    assert Judgement.from_json(text).verdict.level == "ok"


GOOD = Judgement((finding(),), ("predict",)).to_json()


@pytest.mark.parametrize(
    "text",
    ["{", "{}", "[1]", '[{"check": "a"}]', GOOD.replace("2.0", "NaN"), GOOD.replace("ask", "x")],
)
def test_damaged_json_is_refused(text):
    with pytest.raises(StoreError, match="finding"):
        Judgement.from_json(text)


@pytest.mark.parametrize("change", [('level": "ok"', 'level": "green"'), ("1.0", '"one"')])
def test_json_with_impossible_values_is_refused(change):
    with pytest.raises(StoreError, match="cannot be read"):
        Judgement.from_json(GOOD.replace(*change))
