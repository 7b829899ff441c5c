import numpy as np
import pandas as pd
import pytest

from tests.unit.diagnostics.synthetic_trees import the, tree_of
from zoo.data import from_arrays, load
from zoo.diagnostics.data import data_findings
from zoo.fit.data_facts import data_facts

TASKS = ("regression", "classification", "counts")


def simulated(seed, task="regression", rows=200, columns=4, **options):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    signal = x.sum(1) / np.sqrt(columns)
    y = {
        "regression": signal + rng.normal(size=rows),
        "classification": (signal + rng.logistic(size=rows) > 0).astype(int),
        "counts": rng.poisson(np.exp(0.5 * signal)),
    }[task]
    return from_arrays(x, y, task=task, test_fraction=0.25, seed=seed, **options)


def judged(dataset):
    tree = tree_of({"data": data_facts(dataset)}, task=dataset.task)
    return {finding.check: finding for finding in data_findings(tree)}


def split(x, y, x_test, y_test, task="regression"):
    return from_arrays(x, y, X_test=x_test, y_test=y_test, task=task)


def test_good_data_raise_no_alarm():
    alarms = [
        (seed, task, check)
        for seed in range(60)
        for task in TASKS
        for check, finding in judged(simulated(seed, task)).items()
        if finding.level not in ("ok", "info")
    ]
    assert len(alarms) <= 2, alarms  # of 180


def test_facts_are_those_of_the_training_rows():
    dataset = simulated(0)
    facts = data_facts(dataset)
    assert facts["input_sd"].to_numpy() == pytest.approx(dataset.X_train.std(0))
    assert float(facts["target_mean"]) == pytest.approx(dataset.y_train.mean())
    assert (int(facts["rows"]), int(facts["test_rows"])) == (150, 50)


@pytest.mark.parametrize(("rows", "level"), [(8, "fail"), (14, "warn"), (30, "ok")])
def test_few_rows_ask_for_more_rows(rows, level):
    rng = np.random.default_rng(0)
    result = judged(from_arrays(rng.normal(size=(rows, 2)), rng.normal(size=rows)))["data.size"]
    assert result.level == level
    if level != "ok":
        assert "Collect more rows" in result.advice


# ---------------------------------------------------------------------- scale


@pytest.mark.parametrize("task", TASKS)
def test_raw_inputs_in_the_hundreds_are_a_warning_to_scale_them(task):
    for seed in range(5):
        dataset = simulated(seed, task)
        raw = split(
            300 * dataset.X_train, dataset.y_train, 300 * dataset.X_test, dataset.y_test, task
        )
        result = judged(raw)["data.scale"]
        assert result.level == "warn"
        assert "Scale your inputs" in result.advice


def scaled(spread, size=300.0, offset=0.0, target=1.0):
    rng = np.random.default_rng(0)
    x, y = size * rng.normal(size=(100, 2)) + offset, target * rng.normal(size=100)
    tree = tree_of(
        {
            "data": data_facts(from_arrays(x, y)),
            "prior_statistics": {"spread": ("draw", np.full(50, spread))},
        },
        task="regression",
    )
    return the(data_findings(tree), "data.scale")


def test_large_inputs_with_a_prior_that_suits_them_are_no_alarm():
    assert scaled(300.0).level == "warn"
    assert scaled(2.0).level == "ok"


def test_inputs_far_from_zero_are_a_warning():
    result = scaled(2.0, size=5.0, offset=500.0)
    assert result.level == "warn"
    assert "subtract the mean" in result.advice


def test_targets_beyond_the_prior_are_a_warning_to_scale_them():
    result = scaled(1.0, size=1.0, target=1e4)
    assert result.level == "warn"
    assert "Scale your targets" in result.advice
    assert scaled(1e4, size=1.0, target=1e4).level == "ok"


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("seed", range(5))
def test_rows_of_which_copies_are_in_both_parts_are_a_leak(task, seed):
    dataset = simulated(seed, task)
    x = np.concatenate([dataset.X_train] * 2)
    y = np.concatenate([dataset.y_train] * 2)
    doubled = from_arrays(x, y, task=task, test_fraction=0.25, seed=seed)
    found = judged(doubled)
    assert found["data.leak"].level == "fail"
    inner = len(np.unique(doubled.X_train, axis=0)) / len(doubled.X_train)
    assert found["data.copies"].value == pytest.approx(1 / inner)


@pytest.mark.parametrize(("times", "level"), [(1, "ok"), (2, "warn"), (3, "fail")])
def test_copies_within_the_training_rows_count_by_their_number(times, level):
    dataset = simulated(0)
    x, y = np.tile(dataset.X_train, (times, 1)), np.tile(dataset.y_train, times)
    found = judged(split(x, y, dataset.X_test, dataset.y_test))
    assert found["data.copies"].value == pytest.approx(times)
    assert found["data.copies"].level == level
    assert found["data.leak"].level == "ok"


@pytest.mark.parametrize("kind", ["integers", "binary", "sparse", "one-hot", "correlated"])
@pytest.mark.parametrize("seed", range(4))
def test_equal_rows_of_discrete_tables_are_expected(kind, seed):
    rng = np.random.default_rng(seed)
    rows = 600
    if kind == "integers":
        x = rng.integers(0, 5, size=(rows, 3))
    elif kind == "binary":
        x = rng.integers(0, 2, size=(rows, 6))
    elif kind == "sparse":
        x = (rng.uniform(size=(rows, 20)) < 0.02).astype(int)
    elif kind == "one-hot":
        x = np.eye(6)[rng.integers(0, 6, size=rows)]
    else:
        first = rng.integers(0, 6, size=(rows, 1))
        x = first + (rng.uniform(size=(rows, 4)) < 0.2)
    y = (rng.uniform(size=rows) < 0.5).astype(int)
    found = judged(from_arrays(x, y, task="classification", test_fraction=0.25, seed=seed))
    assert found["data.copies"].level == "ok"
    assert found["data.leak"].level == "ok"


def test_hashes_tell_rows_apart_that_differ_in_one_column():
    x = np.zeros((60, 50))
    x[np.arange(50), np.arange(50)] = 1.0
    x[50:] = np.arange(10)[:, None] + 2
    facts = data_facts(from_arrays(x, np.arange(60.0)))
    assert float(facts["equal_pairs"]) == 0


# ---------------------------------------------------------------------- shift


@pytest.mark.parametrize(("shift", "level"), [(0.0, "ok"), (1.5, "warn"), (8.0, "fail")])
def test_test_rows_from_elsewhere_are_found(shift, level):
    for seed in range(5):
        dataset = simulated(seed)
        moved = dataset.X_test + shift * np.array([0, 1, 0, 0])
        result = judged(split(dataset.X_train, dataset.y_train, moved, dataset.y_test))[
            "data.shift"
        ]
        assert result.level == level
        if level != "ok":
            assert "x1" in result.message or "distance" in result.message


def test_a_shift_that_no_single_column_shows_is_found():
    """Test rows with the opposite correlation have the same marginals."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1)) + 0.2 * rng.normal(size=(400, 2))
    test = rng.normal(size=(200, 1)) * [1, -1] + 0.2 * rng.normal(size=(200, 2))
    result = judged(split(x, x[:, 0], test, test[:, 0]))["data.shift"]
    assert result.level in ("warn", "fail")
    assert "distance from the centre" in result.message


def test_images_are_compared_by_principal_components():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(120, 1, 12, 12)).astype(np.float32)
    dataset = split(x[:80], x[:80].mean((1, 2, 3)), x[80:], x[80:].mean((1, 2, 3)))
    facts = data_facts(dataset)
    assert str(facts["compared"][0].item()) == "component 1"
    assert judged(dataset)["data.shift"].level == "ok"


# ---------------------------------------------------------------------- outliers


def with_rows(likelihood, observed, replicated, dataset):
    tree = tree_of(
        {
            "data": data_facts(dataset),
            "rows": {
                "log_likelihood": ("row", likelihood),
                "smallest": ("draw", observed),
                "smallest_replicated": (("replication", "draw"), replicated),
            },
        },
        task=dataset.task,
    )
    found = data_findings(tree)
    return the(found, "data.outliers"), the(found, "data.tails")


def gaussian_rows(residuals, seed=0, draws=100):
    """Return the finding for residuals of a Gaussian whose scale was learned from them."""
    rng = np.random.default_rng(seed)
    z = residuals / residuals.std()
    likelihood = -0.5 * z**2 - 0.919
    simulated_rows = -0.5 * rng.normal(size=(5, draws, len(z))) ** 2 - 0.919
    dataset = from_arrays(rng.normal(size=(len(z), 2)), residuals)
    observed = np.full(draws, likelihood.min())
    return with_rows(likelihood, observed, simulated_rows.min(-1), dataset)


def test_gaussian_residuals_raise_no_alarm():
    levels = [
        finding.level
        for seed in range(200)
        for finding in gaussian_rows(np.random.default_rng(seed).normal(size=200), seed)
    ]
    # With a rate of 1 %, more than 7 of 200 have a probability of 0.1 %.
    assert sum(level != "ok" for level in levels) <= 7


@pytest.mark.parametrize("seed", range(10))
def test_a_few_targets_a_thousand_sds_away_own_the_fit(seed):
    residuals = np.random.default_rng(seed).normal(size=200)
    residuals[:3] += [1000, -1000, 800]
    outliers, tails = gaussian_rows(residuals, seed)
    assert (outliers.level, tails.level) == ("fail", "warn")
    assert "student_t" in outliers.advice
    assert outliers.value > outliers.threshold


def test_one_row_of_seven_sds_is_a_warning_about_the_tails():
    residuals = np.random.default_rng(0).normal(size=400)
    residuals[0] = 7
    outliers, tails = gaussian_rows(residuals)
    assert (outliers.level, tails.level) == ("ok", "warn")


def test_noise_that_is_too_small_for_most_rows_is_not_called_an_outlier():
    rng = np.random.default_rng(0)
    likelihood = -50 * rng.normal(size=100) ** 2
    replicated = (-0.5 * rng.normal(size=(5, 100, 100)) ** 2).min(-1)
    dataset = simulated(0)
    outliers, tails = with_rows(likelihood, np.full(100, likelihood.min()), replicated, dataset)
    assert (outliers.level, tails.level) == ("ok", "warn")
    assert "noise" in tails.message


def test_an_input_whose_variance_three_rows_own_is_a_warning():
    dataset = simulated(0)
    x = dataset.X_train.copy()
    x[:2, 1] = [1e4, -1e4]
    extreme = split(x, dataset.y_train, dataset.X_test, dataset.y_test)
    assert float(data_facts(extreme)["input_top_share"][1]) > 0.99
    assert judged(dataset)["data.extremes"].level == "ok"
    found = judged(extreme)["data.extremes"]
    assert found.level == "warn"
    assert "100 % of the variance of x1" in found.message
    rare = (np.arange(150) == 3).astype(float)
    x[:, 2] = rare
    facts = data_facts(split(x, dataset.y_train, dataset.X_test, dataset.y_test))
    assert float(facts["input_top_share"][2]) == 0  # a rare category is no outlier


def test_tables_hash_a_category_as_one_column(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": rng.choice(list("abc"), 100), "y": rng.choice([0, 1], 100)})
    frame.to_csv(tmp_path / "table.csv", index=False)
    dataset = load(str(tmp_path / "table.csv"), target="y")
    found = judged(dataset)
    assert found["data.copies"].level == found["data.leak"].level == "ok"
