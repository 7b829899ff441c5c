import numpy as np
import pytest
import xarray
from scipy import signal

from tests.unit.diagnostics.synthetic_trees import the, tree_of
from zoo.diagnostics.loss_curves import change_over_window
from zoo.diagnostics.optimisation import optimisation_findings
from zoo.diagnostics.restarts import restart_distances, restart_findings
from zoo.infer.svi.tolerance import tolerance_in_nats


def curve(losses, *, rows=0, **others):
    groups = {"optimization": {"loss": (("chain", "step"), np.atleast_2d(losses))}}
    for name, values in others.items():
        groups["optimization"][name] = (("chain", "step"), np.atleast_2d(values))
    if rows:
        groups["observed_data"] = {"y": ("obs_id", np.zeros(rows))}
    return tree_of(groups)


def noise(size, scale=1.0, seed=0):
    return scale * np.random.default_rng(seed).normal(size=size)


def converged(*args, **kwargs):
    return the(optimisation_findings(curve(*args, **kwargs)), "optimisation.converged")


def test_tolerance_is_a_nat_or_a_hundredth_per_row():
    assert tolerance_in_nats(10) == 1.0
    assert tolerance_in_nats(5000) == 50.0


def test_change_of_a_straight_line_is_its_rise():
    change, error = change_over_window(np.linspace(5.0, 2.0, 2000))
    # Block averages are half a block away from the ends: 19 of 20 parts of the rise.
    assert change == pytest.approx(-3.0 * 19 / 20, rel=1e-3)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_error_of_the_change_is_its_spread_over_repetitions():
    changes, errors = zip(
        *[change_over_window(noise(500, seed=k)) for k in range(400)], strict=True
    )
    # The error is estimated from 20 residuals: a tenth either way of the average is noise.
    assert np.std(changes) == pytest.approx(np.mean(errors), rel=0.15)
    assert abs(np.mean(changes)) < 5 * np.std(changes) / np.sqrt(400)


def test_a_flat_noisy_end_is_converged():
    losses = 100 + 500 * np.exp(-np.arange(2000) / 50) + noise(2000, 5.0)
    assert converged(losses).level == "ok"


@pytest.mark.parametrize(
    ("fall", "level"), [(0.5, "ok"), (4.0, "warn"), (30.0, "fail"), (-30.0, "fail")]
)
def test_a_slope_is_judged_by_the_nats_it_costs(fall, level):
    result = converged(np.linspace(4 * fall, 0.0, 2000) + noise(2000, 0.3))
    assert result.level == level
    assert result.value == pytest.approx(-fall * 19 / 20, abs=0.3)


def test_a_slope_that_fails_few_rows_is_nothing_for_many():
    losses = np.linspace(120.0, 0.0, 2000) + noise(2000, 0.3)
    assert converged(losses, rows=100).level == "fail"
    assert converged(losses, rows=10_000).level == "ok"


#: Sizes in tolerances, just below and above the limits of a warning and of a failure.
AROUND_THE_LIMITS = [(0.99, "ok"), (1.01, "warn"), (9.9, "warn"), (10.1, "fail")]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("rows", [10, 500])
@pytest.mark.parametrize(("size", "level"), AROUND_THE_LIMITS)
def test_limits_of_convergence_are_one_and_ten_tolerances(size, level, rows, sign):
    change = sign * size * tolerance_in_nats(rows)
    # The window is the last 500 steps; its blocks of 25 are 19 blocks apart.
    losses = np.arange(2000) * change / (19 * 25)
    result = converged(losses, rows=rows)
    assert result.value == pytest.approx(change, rel=1e-9)
    assert result.level == level
    assert ("increased" if sign > 0 else "decreased") in result.message


def test_a_slope_inside_its_noise_is_no_slope():
    assert converged(np.linspace(8.0, 0.0, 400) + noise(400, 100.0)).level == "ok"


def test_outliers_do_not_make_a_slope():
    losses = noise(2000, 0.5)
    losses[-20:-10] += 1000.0
    assert converged(losses).level == "ok"


def test_alarms_on_converged_curves_are_rare():
    """Autocorrelated, heavy-tailed noise; at 0.2 % each, more than 4 of 300 come once in 3000."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        errors = signal.lfilter([1.0], [1.0, -0.7], rng.standard_t(3, size=1000))
        alarms += converged(50 + 10 * errors).level != "ok"
    assert alarms <= 4, alarms


def test_ten_steps_fail():
    result = converged(np.linspace(300.0, 250.0, 10))
    assert result.level == "fail"
    assert "Only 10 steps" in result.message


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 39])
def test_few_noisy_steps_never_converge(steps):
    assert converged(100 + noise(steps, 20.0)).level == "fail"


def test_few_steps_that_end_flat_converge():
    assert converged(np.r_[np.linspace(300, 100, 10), np.full(20, 100.0)]).level == "ok"


@pytest.mark.parametrize("rows", [10, 500])
@pytest.mark.parametrize(("share", "level"), [(0.099, "ok"), (0.101, "fail")])
def test_few_steps_may_move_by_a_tenth_of_the_tolerance(share, level, rows):
    end = share * tolerance_in_nats(rows)
    # Of 20 steps the last five are judged.
    result = converged(np.r_[np.linspace(300, 100, 15), 0.0, end, 0.0, end, 0.0], rows=rows)
    assert result.level == level
    assert result.value == pytest.approx(end)
    assert result.threshold == pytest.approx(0.1 * tolerance_in_nats(rows))


def test_the_worst_of_several_chains_is_judged():
    flat, falling = noise(400, 0.1), np.linspace(400.0, 0.0, 400)
    assert converged(np.stack([flat, falling])).level == "fail"


@pytest.mark.parametrize(("step", "level"), [(None, "ok"), (5, "warn"), (-5, "fail")])
def test_losses_that_are_not_finite(step, level):
    losses = 10 + noise(400, 0.1)
    if step is not None:
        losses[step] = np.nan
    findings = optimisation_findings(curve(losses))
    assert the(findings, "optimisation.finite").level == level
    assert the(findings, "optimisation.converged").level == "ok"


@pytest.mark.parametrize(("left", "level"), [(9, "fail"), (10, "ok")])
def test_half_as_many_finite_losses_as_blocks_are_enough(left, level):
    losses = 10 + noise(400, 0.1)
    losses[300 + left :] = np.nan
    assert converged(losses).level == level


@pytest.mark.parametrize("steps", [3, 400])
def test_all_losses_nan_fail_without_a_crash(steps):
    findings = optimisation_findings(curve(np.full(steps, np.nan)))
    assert {finding.level for finding in findings} == {"fail"}


@pytest.mark.parametrize(
    ("norms", "level"),
    [
        (np.linspace(10, 1, 400), "ok"),
        (np.geomspace(1, 1e4, 400), "warn"),
        (np.zeros(400), "ok"),
        (np.r_[np.ones(399), np.nan], "fail"),
        (np.r_[np.nan, np.ones(399)], "warn"),
    ],
)
def test_gradient_norms(norms, level):
    findings = optimisation_findings(curve(noise(400), gradient_norm=norms))
    assert the(findings, "optimisation.gradients").level == level


@pytest.mark.parametrize(
    ("elbos", "errors", "rows", "level"),
    [
        ([-100.0, -100.5, -100.2], [0.1, 0.1, 0.1], 50, "ok"),
        ([-100.0, -105.0], [0.1, 0.1], 50, "warn"),
        ([-100.0, -105.0], [3.0, 3.0], 50, "ok"),  # inside the noise
        ([-100.0, -105.0], [0.1, 0.1], 1000, "ok"),  # nothing for so many rows
        ([-100.0, -100.0, np.nan], [0.1, 0.1, 0.1], 50, "warn"),
    ],
)
def test_restarts(elbos, errors, rows, level):
    assert the(restart_findings(elbos, errors, rows), "optimisation.restarts").level == level


@pytest.mark.parametrize("chains", [2, 3])
def test_chains_of_the_loss_are_restarts(chains):
    agreeing = np.stack([10 + noise(400, 0.1, seed=k) for k in range(chains)])
    apart = agreeing.copy()
    apart[-1] += 50.0
    for losses, level in ((agreeing, "ok"), (apart, "warn")):
        result = the(optimisation_findings(curve(losses)), "optimisation.restarts")
        assert result.level == level
        ends = losses[:, -40:].mean(1)  # the last tenth
        assert result.value == pytest.approx(ends.max() - ends.min())


def test_a_single_restart_agrees_with_nobody():
    assert restart_findings([1.0], [0.1], 10) == []


def started(elbos, means, *, sd=2.0, draws=200):
    """Return the tree of fits from several starts: outputs at four rows, all with one sd."""
    means = np.asarray(means, float)[:, None, None] * np.ones((1, 4, 1))
    rows = ("restart", "point", "output")
    tree = tree_of(
        {
            "optimization": {
                "restart_elbo": ("restart", np.asarray(elbos, float)),
                "restart_elbo_error": ("restart", np.full(len(elbos), 0.1)),
                "restart_outputs_mean": (rows, means),
                "restart_outputs_sd": (rows, np.full(means.shape, sd)),
            },
            "functions": {"f": (("chain", "draw", *rows[1:]), np.zeros((1, draws, 4, 1)))},
        }
    )
    named = tree["optimization"].to_dataset().assign_coords(restart=np.arange(len(elbos)) + 7)
    tree["optimization"] = xarray.DataTree(named)
    return tree


def test_distances_of_starts_are_in_sds_without_the_noise_of_draws():
    distances = restart_distances(started([-10.0, -10.1, np.nan], [0.0, 1.0, np.nan]))
    # The square of half an sd, less what two means of 200 draws add to it.
    assert distances[0] == pytest.approx(np.sqrt(0.25 - 2 / 200), rel=1e-12)
    assert np.isnan(distances[1])


@pytest.mark.parametrize(
    ("elbos", "means", "levels"),
    [
        ([-10.0, -10.2], [0.0, 0.5], ("ok", "ok")),
        ([-10.0, -10.2], [0.0, 2.0], ("ok", "warn")),
        ([-10.0, -90.0], [0.0, 0.5], ("warn", "ok")),
        ([-10.0, -10.1, np.nan], [0.0, 0.5, np.nan], ("warn", "ok")),
    ],
)
def test_starts_are_judged_by_elbo_and_by_predictions(elbos, means, levels):
    findings = optimisation_findings(started(elbos, means))
    names = ("optimisation.restarts", "optimisation.restart_predictions")
    assert tuple(the(findings, name).level for name in names) == levels


@pytest.mark.parametrize(
    ("elbos", "words"), [([-10.0, -90.0], "this fit is the best"), ([-90.0, -10.0], "--start 8")]
)
def test_advice_names_the_best_start(elbos, words):
    found = the(optimisation_findings(started(elbos, [0.0, 0.0])), "optimisation.restarts")
    assert words in found.advice


def test_rows_that_the_tree_left_out_count_for_the_tolerance():
    losses = np.linspace(120.0, 0.0, 2000) + noise(2000, 0.3)
    tree = curve(losses, rows=100)
    tree.attrs["rows_left_out"] = 9900
    assert the(optimisation_findings(tree), "optimisation.converged").level == "ok"


def objective(excess, *, spread=1.0, noise=10.0, rows=100, seed=0, **attributes):
    """Judge a loss that ends this many nats above minus the ELBO."""
    rng = np.random.default_rng(seed)
    lp, log_q = rng.normal(-300.0, spread, 400), rng.normal(-50.0, spread, 400)
    losses = 250.0 + excess + rng.normal(0.0, noise, 2000)
    groups = {
        "optimization": {"loss": (("chain", "step"), losses[None])},
        "sample_stats": {
            "lp": (("chain", "draw"), lp[None]),
            "log_q": (("chain", "draw"), log_q[None]),
        },
        "observed_data": {"y": ("obs_id", np.zeros(rows))},
    }
    findings = optimisation_findings(tree_of(groups, **({"loss_is_elbo": 1} | attributes)))
    return [f for f in findings if f.check == "optimisation.objective"]


@pytest.mark.parametrize(
    ("excess", "level"), [(0.0, "ok"), (5.0, "warn"), (40.0, "fail"), (-40.0, "fail")]
)
def test_a_loss_that_is_not_minus_the_elbo_is_told(excess, level):
    (finding,) = objective(excess)
    assert finding.level == level
    assert finding.value == pytest.approx(excess, abs=5 * 10 / np.sqrt(200))
    assert ("above" if finding.value > 0 else "below") in finding.message
    assert bool(finding.advice) == (level != "ok")


@pytest.mark.parametrize("rows", [10, 500])
@pytest.mark.parametrize(
    ("size", "level"), [(0.9, "ok"), (1.1, "warn"), (2.9, "warn"), (3.1, "fail")]
)
def test_limits_of_the_objective_are_one_and_three_tolerances(size, level, rows):
    excess = size * tolerance_in_nats(rows)
    for sign in (1, -1):
        (finding,) = objective(sign * excess, spread=0.0, noise=0.0, rows=rows)
        assert finding.level == level


def test_alarms_on_right_objectives_are_rare():
    """At four standard errors over a tolerance of a nat, none of 300 is expected."""
    assert all(objective(0.0, seed=seed)[0].level == "ok" for seed in range(300))


def test_losses_that_are_no_elbos_are_not_held_against_them():
    assert objective(40.0, loss_is_elbo=0) == []


def test_an_elbo_that_is_not_finite_is_not_compared():
    (finding,) = objective(np.nan)
    assert finding.level == "unchecked"


def moved(gain, error, rows=0):
    """Return the tree of a fit that could be improved by halving all sds."""
    gains, errors = np.full((2, 3), -5.0), np.full((2, 3), 0.1)
    gains[0, 1], errors[0, 1] = gain, error
    found = xarray.Dataset(
        {"elbo_gain": (("move", "factor"), gains), "elbo_gain_error": (("move", "factor"), errors)},
        coords={"move": ["scale", "mean"], "factor": [0.1, 0.5, 2.0]},
    )
    return tree_of({"optimization": found, "observed_data": {"y": ("obs_id", np.zeros(rows))}})


@pytest.mark.parametrize(
    ("gain", "error", "level"),
    [
        (-1.0, 0.1, "ok"),
        (0.9, 0.1, "ok"),
        (5.0, 1.2, "ok"),  # inside the noise
        (5.0, 0.1, "warn"),
        (50.0, 1.0, "fail"),
        (np.nan, np.nan, "ok"),  # one move that is not known
        (np.inf, np.nan, "ok"),
    ],
)
def test_a_posterior_that_a_scale_improves_is_not_at_the_maximum(gain, error, level):
    found = the(optimisation_findings(moved(gain, error)), "optimisation.stationary")
    assert found.level == level
    if level != "ok":
        assert "all sds of the posterior are multiplied by 0.5" in found.message


@pytest.mark.parametrize("rows", [10, 500])
@pytest.mark.parametrize(("size", "level"), AROUND_THE_LIMITS)
def test_limits_of_a_gain_are_one_and_ten_tolerances_after_its_noise(size, level, rows):
    error = 0.2
    tree = moved(size * tolerance_in_nats(rows) + 4 * error, error, rows)
    assert the(optimisation_findings(tree), "optimisation.stationary").level == level


def test_moves_that_are_all_unknown_are_not_judged():
    tree = moved(1.0, 0.1)
    tree["optimization"]["elbo_gain"][:] = np.nan
    assert optimisation_findings(tree) == []


def with_record(**record):
    """Return the tree of a run whose loss decreases, with a record of its end."""
    tree = curve(np.linspace(1000.0, 0.0, 400) + noise(400), rows=100)
    known = {"steps": 400, "tolerance": 1.0, "remaining": 0.4, "remaining_error": 0.1}
    tree["optimization"].attrs |= {**known, "sds": 0.1, "sds_tolerance": 0.3, **record}
    return tree


@pytest.mark.parametrize(
    ("record", "level", "value"),
    [
        ({"reason": "converged"}, "ok", 0.4),
        ({"reason": "budget", "remaining": 3.0}, "warn", 3.0),
        ({"reason": "budget", "remaining": 30.0}, "fail", 30.0),
        ({"reason": "budget"}, "warn", 0.4),  # within the tolerance, but not for long
        ({"reason": "budget", "remaining": np.inf}, "fail", None),
    ],
)
def test_the_record_of_a_run_decides_instead_of_the_slope(record, level, value):
    found = the(optimisation_findings(with_record(**record)), "optimisation.converged")
    assert (found.level, found.value, found.threshold) == (level, value, 1.0)
    words = "converged after 400" if record["reason"] == "converged" else "ran out"
    assert words in found.message


@pytest.mark.parametrize("reason", ["fixed", "early stopping"])
def test_the_slope_decides_for_a_given_number_of_steps(reason):
    found = the(optimisation_findings(with_record(reason=reason)), "optimisation.converged")
    assert found.level == "fail"
    assert found.value < -100


@pytest.mark.parametrize(
    ("sds", "level"), [(0.29, "ok"), (0.31, "warn"), (1.2, "fail"), (np.nan, "unchecked")]
)
@pytest.mark.parametrize("reason", ["converged", "budget", "fixed"])
def test_outputs_are_settled_if_they_no_longer_move(sds, level, reason):
    found = the(
        optimisation_findings(with_record(sds=sds, reason=reason)), "optimisation.outputs_settled"
    )
    assert found.level == level


def test_norms_of_gradients_have_their_own_steps():
    norms = (("chain", "gradient_step"), np.ones((1, 40)))
    losses = (("chain", "step"), noise(400)[None])
    tree = tree_of({"optimization": {"loss": losses, "gradient_norm": norms}})
    assert the(optimisation_findings(tree), "optimisation.gradients").level == "ok"
