"""What a run asks of its truth."""

import pytest

import zoo
from zoo.diagnostics import refused_truth
from zoo.errors import ConfigError
from zoo.workflow.outputs import budget_of


def test_a_number_is_the_budget_of_the_truth():
    assert budget_of(False) == budget_of(True) == {}
    assert budget_of(30) == {"max_seconds": 30.0}


@pytest.mark.parametrize("seconds", [-1.0, 0.0, float("nan")])
def test_a_budget_that_is_not_positive_is_refused_before_the_training(seconds, tmp_path):
    with pytest.raises(ConfigError, match="positive number of seconds"):
        zoo.fit("mean_field", data="diabetes", truth=seconds, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_time_is_advised_only_if_time_was_short():
    assert "--truth-seconds" in refused_truth("late.", is_out_of_budget=True).advice
    assert "--truth-seconds" not in refused_truth("two modes.").advice
