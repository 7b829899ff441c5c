import json

import pytest

from tests.unit.diagnostics.synthetic_trees import tree_of
from zoo.diagnostics import Finding, Judgement
from zoo.diagnostics.causes import CAUSES, causes_of
from zoo.diagnostics.verdict import SHOWN


def found(check, level="fail", value=2.0, threshold=1.0):
    return Finding(check, level, value, threshold, f"Message of {check}.", "An advice.")


def causes(*findings, **config):
    tree = tree_of({})
    tree.attrs["config"] = json.dumps({"guide": "factorised", **config})
    return causes_of(findings, tree)


LOW_COVERAGE = found("predictive.coverage_95", value=0.7, threshold=0.95)
HIGH_COVERAGE = found("predictive.coverage_50", value=0.9, threshold=0.5)
NARROW = found("approximation.sd", value=0.3, threshold=0.84)


@pytest.mark.parametrize(
    ("name", "findings", "config"),
    [
        ("diverged", [found("optimisation.finite"), found("optimisation.converged")], {}),
        ("leak", [found("data.leak")], {}),
        ("few_rows", [found("data.size"), LOW_COVERAGE], {}),
        ("extremes", [found("data.extremes", "warn"), found("data.scale", "warn")], {}),
        ("scale", [found("data.scale", "warn"), found("optimisation.converged")], {}),
        ("untrained", [found("optimisation.start"), found("usefulness.skill")], {}),
        ("not_converged", [found("optimisation.converged"), NARROW], {}),
        ("wrong_objective", [found("optimisation.objective")], {}),
        ("wrong_objective", [found("optimisation.stationary")], {}),
        ("prior", [found("prior.holds_back"), found("usefulness.skill")], {}),
        ("shift", [found("data.shift"), LOW_COVERAGE], {}),
        ("copies", [found("data.copies")], {}),
        ("outliers", [found("data.outliers"), found("predictive.posterior_check")], {}),
        ("one_mode", [found("approximation.modes"), NARROW], {}),
        ("correlated", [NARROW], {}),
        ("wide_noise", [HIGH_COVERAGE], {"likelihood": "gaussian(noise=10)"}),
        (
            "wide_noise",
            [HIGH_COVERAGE, found("predictive.prior_check")],
            {"likelihood": "gaussian(noise=10)"},
        ),
        ("narrow_noise", [LOW_COVERAGE], {"likelihood": "gaussian(noise=0.1)"}),
        (
            "heavy_tails",
            [
                found("predictive.posterior_check", "warn"),
                found("predictive.coverage_50", "ok", 0.6, 0.5),
            ],
            {"likelihood": "gaussian"},
        ),
        ("dispersion", [LOW_COVERAGE], {"likelihood": "poisson"}),
        ("nothing_to_learn", [found("usefulness.skill", "warn", -0.01, 0.0)], {}),
        ("underfit", [found("usefulness.skill")], {}),
        ("modes", [found("optimisation.restart_predictions", "warn")], {}),
    ],
)
def test_the_first_cause_is_the_one_to_remove_first(name, findings, config):
    first, *_ = causes(*findings, **config)
    assert first.cause == name


def test_every_cause_is_tried_above():
    marks = test_the_first_cause_is_the_one_to_remove_first.pytestmark[0].args[1]
    assert {case[0] for case in marks} == {cause.name for cause in CAUSES}
    assert set(SHOWN) <= {cause.name for cause in CAUSES}


def test_a_good_fit_has_no_cause():
    assert causes(found("optimisation.converged", "ok"), found("data.leak", "info")) == ()


def test_a_cause_explains_only_what_is_left():
    """A fit that is not converged explains narrow sds; a leak is another matter."""
    named = causes(found("optimisation.converged"), NARROW, found("data.leak"))
    assert [diagnosis.cause for diagnosis in named] == ["leak", "not_converged"]
    assert named[1].checks == ("approximation.sd", "optimisation.converged")


def test_learned_noise_is_not_blamed():
    """Too narrow intervals with learned noise get no advice to learn it."""
    assert causes(LOW_COVERAGE, likelihood="student_t(df=4)") == ()


def test_a_richer_guide_is_not_advised_twice():
    assert causes(NARROW, guide="full_rank") == ()


def test_similar_causes_are_told_apart():
    (diagnosis,) = causes(found("optimisation.converged"), found("optimisation.objective"))
    assert "a fit with twice the steps would tell them apart" in diagnosis.sentence


def test_the_sentence_of_a_use_begins_with_the_cause():
    findings = (NARROW, found("optimisation.outputs_settled", "ok"))
    judgement = Judgement(findings, ("predict", "parameters"), causes(*findings))
    result = judgement.verdict
    assert result.uses["parameters"].sentence.startswith("The posterior correlates parameters")
    assert result.uses["parameters"].sentence.endswith("Message of approximation.sd.")
    assert "Good to predict." in result.sentence
    assert Judgement.from_json(judgement.to_json()) == judgement
