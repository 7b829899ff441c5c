import numpy as np
import pytest
import xarray
from scipy import stats

from tests.unit.diagnostics.synthetic_trees import the, tree_of
from zoo.diagnostics.usefulness import (
    NATS_FAIL,
    NATS_WARN,
    lower_bound,
    usefulness_findings,
)


def compared(predictions, y, *, scale=1.0, task="regression", scales=None, gain=0.0):
    """Return the tree of predictions by name, with Gaussian densities of a scale."""
    scales = {} if scales is None else scales
    errors = [(prediction - y) ** 2 for prediction in predictions.values()]
    densities = [
        stats.norm.logpdf(y, prediction, scales.get(name, scale))
        for name, prediction in predictions.items()
    ]
    dims = ("reference", "row")
    return tree_of(
        {
            "references": xarray.Dataset(
                {
                    "error": (dims, np.stack(errors)),
                    "log_density": (dims, np.stack(densities)),
                    "training_gain": ("reference", np.full(len(predictions), gain)),
                },
                coords={"reference": list(predictions)},
            )
        },
        task=task,
    )


def problem(seed, rows=100, signal=1.0, noise=1.0):
    rng = np.random.default_rng(seed)
    truth = signal * rng.normal(size=rows)
    return rng, truth, truth + noise * rng.normal(size=rows)


def skill(tree):
    return the(usefulness_findings(tree), "usefulness.skill")


def density(tree):
    return the(usefulness_findings(tree), "usefulness.density")


def test_the_lower_bound_is_that_of_a_t_interval():
    values = np.random.default_rng(0).normal(size=20)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.98)
    assert lower_bound(values) == pytest.approx(interval.low, rel=1e-12)
    assert lower_bound(values[:2]) == -np.inf


def test_good_fits_raise_no_alarm():
    """200 fits that are as good as the linear reference, of data with R^2 = 0.5."""
    alarms = {"usefulness.skill": 0, "usefulness.density": 0}
    for seed in range(200):
        rng, truth, y = problem(seed)
        near = {name: truth + 0.2 * rng.normal(size=len(y)) for name in ("fit", "linear")}
        found = usefulness_findings(compared({"trivial": 0 * y, **near}, y))
        for finding in found:
            alarms[finding.check] += finding.level != "ok"
    # With a rate of 1 % each, more than 7 of 200 have a probability of 0.1 %.
    assert max(alarms.values()) <= 7


@pytest.mark.parametrize("seed", range(20))
def test_a_fit_that_learned_nothing_fails_where_a_reference_learned(seed):
    _, truth, y = problem(seed, signal=2.0)
    result = skill(compared({"fit": 0 * y, "trivial": 0 * y, "linear": truth}, y))
    assert result.level == "fail"
    assert result.value > result.threshold


@pytest.mark.parametrize("seed", range(20))
def test_a_fit_worse_than_the_mean_fails(seed):
    rng, _, y = problem(seed)
    wrong = {"fit": 2 * rng.normal(size=len(y)), "trivial": 0 * y}
    result = skill(compared(wrong, y))
    assert result.level == "fail"
    assert "predicting the same for every row is better" in result.advice


def test_nothing_to_learn_is_a_warning_and_no_failure():
    levels = set()
    for seed in range(20):
        rng, _, y = problem(seed, signal=0.0)
        small = {name: 0.05 * rng.normal(size=len(y)) for name in ("fit", "linear")}
        levels.add(skill(compared({"trivial": 0 * y, **small}, y)).level)
    assert levels <= {"warn", "ok"}
    assert "warn" in levels


@pytest.mark.parametrize(("gain", "level"), [(0.0, "warn"), (3.0, "warn"), (6.0, "fail")])
def test_a_fit_that_ignores_what_cross_validation_finds_is_no_better_than_the_mean(gain, level):
    """The held-out rows are too few for a signal that the training rows show."""
    _, truth, y = problem(0, rows=20, signal=0.3)
    tree = compared({"fit": 1e-3 * truth, "trivial": 0 * y, "linear": truth}, y, gain=gain)
    assert skill(tree).level == level
    follows = compared({"fit": 0.99 * truth, "trivial": 0 * y, "linear": truth}, y, gain=gain)
    assert skill(follows).level == ("ok" if gain else "warn")


def test_half_of_what_a_kernel_explains_asks_for_a_larger_network():
    _, truth, y = problem(0, rows=400, noise=0.3)
    tree = compared(
        {"fit": 0.3 * truth, "trivial": 0 * y, "linear": 0.3 * truth, "kernel": truth}, y
    )
    result = skill(tree)
    assert result.level == "fail"
    assert "larger network" in result.advice


def test_few_rows_cannot_tell():
    _, truth, y = problem(0, rows=5)
    assert skill(compared({"fit": truth, "trivial": 0 * y}, y)).level == "unchecked"


def test_predictions_that_are_not_finite_fail():
    _, truth, y = problem(0)
    broken = np.where(np.arange(len(y)) == 3, np.nan, truth)
    levels = [f.level for f in usefulness_findings(compared({"fit": broken, "trivial": 0 * y}, y))]
    assert levels == ["fail", "fail"]


def test_the_limits_of_the_density_are_losses_of_gaussians_with_a_wrong_sd():
    """The expected loss is log r + (1 / r^2 - 1) / 2, by quadrature."""
    for ratio, limit in ((0.84, NATS_WARN), (0.65, NATS_FAIL)):
        loss = stats.norm.expect(
            lambda z, r=ratio: stats.norm.logpdf(z) - stats.norm.logpdf(z, 0, r)
        )
        assert loss == pytest.approx(limit, abs=0.005)


@pytest.mark.parametrize(
    ("factor", "level"), [(1.0, "ok"), (0.4, "fail"), (0.1, "fail"), (10.0, "fail")]
)
def test_a_wrong_spread_costs_density_but_no_skill(factor, level):
    for seed in range(5):
        _, truth, y = problem(seed, rows=300)
        tree = compared(
            {"fit": truth, "trivial": 0 * y, "linear": truth},
            y,
            scales={"fit": factor, "trivial": np.sqrt(2)},
        )
        assert skill(tree).level == "ok"
        assert density(tree).level == level


def test_larger_errors_with_the_right_spread_cost_skill_but_no_density():
    """A reference with errors 100 times smaller has a density 2.3 nats larger."""
    for seed in range(20):
        rng, truth, y = problem(seed, rows=300, noise=0.01)
        rough = truth + 0.1 * rng.normal(size=len(y))
        scales = {"fit": 0.1, "trivial": 1.0, "kernel": 0.01}
        tree = compared({"fit": rough, "trivial": 0 * y, "kernel": truth}, y, scales=scales)
        assert density(tree).level == "ok"
        narrow = compared(
            {"fit": rough, "trivial": 0 * y, "kernel": truth}, y, scales=scales | {"fit": 0.04}
        )
        assert density(narrow).level == "fail"


def test_missing_references_give_no_finding():
    assert usefulness_findings(tree_of({})) == []
