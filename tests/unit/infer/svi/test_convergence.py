import math

import numpy as np
import pytest

from zoo.infer.svi.convergence import (
    BIAS_FACTOR,
    DRIFT_SHARE,
    LOOKBACK,
    MAX_ROUNDS,
    MIXED,
    RATIOS,
    Convergence,
    Look,
    Z,
    gain,
    next_look,
)

RNG = np.random.default_rng(0)
#: Noise that all looks have in common, as with common random numbers.
COMMON = 50 * RNG.standard_normal(32)


def look(step, elbo, *, number=0, noise=0.0):
    own = noise * RNG.standard_normal(len(COMMON)) if noise else 0.0
    return Look(step, number, elbo + COMMON + own)


def first_round(rule, elbo_at, *, most=10**6, noise=0.0):
    """Add looks at a curve until the rule decides; return the step."""
    step = next_look(750)
    while step < most:
        if rule.add(look(step, elbo_at(step), noise=noise)) != "continue":
            return step
        step = next_look(step)
    return None


def test_a_gain_has_the_error_of_paired_differences():
    earlier, later = look(100, -7.0), look(200, -5.0, noise=1.0)
    differences = later.values - earlier.values
    change, error = gain(later, earlier)
    assert change == pytest.approx(differences.mean())
    assert error == pytest.approx(differences.std(ddof=1) / math.sqrt(32))
    assert error < 0.5  # although each ELBO has a standard error of nine
    rule, both = Convergence(1.0), Convergence(1.0, both_ways=True)
    assert rule.upper(later, earlier) == pytest.approx(change + Z * error)
    assert rule.upper(earlier, later) == pytest.approx(Z * error)  # a loss is no gain
    assert both.upper(earlier, later) == pytest.approx(change + Z * error)


def test_looks_with_more_values_are_paired_with_the_first_of_them():
    assert gain(Look(2, 0, np.arange(6.0)), Look(1, 0, np.zeros(3))) == pytest.approx(
        (1.0, 1 / math.sqrt(3))
    )


def test_looks_are_a_fraction_of_the_steps_apart():
    assert [next_look(100), next_look(10_000), next_look(10_000, 1)] == [300, 12_000, 11_000]


@pytest.mark.parametrize("ratio", [0.55, 0.65, 0.75])
def test_the_drift_of_geometric_gains_is_exact(ratio):
    # ELBO(t) = -c t^-a gains by a factor of LOOKBACK^-a less, each time t grows by LOOKBACK.
    a = -math.log(ratio) / math.log(LOOKBACK)
    rule = Convergence(tolerance=1e-9)
    for power in range(3):
        step = 1000 * LOOKBACK**power
        rule.add(Look(step, 0, COMMON - 500 * (step / 1000) ** -a))
    left = 500 * (rule.looks[-1].step / 1000) ** -a
    assert rule.drift() == pytest.approx(left, rel=1e-6)


def test_ratios_outside_of_their_range_are_not_believed():
    for gains, ratio in (((1000.0, 1.0), RATIOS[0]), ((1.0, 1.0), RATIOS[1])):
        rule = Convergence(tolerance=1e-9)
        elbos = np.cumsum([0.0, *gains])
        for power, elbo in enumerate(elbos):
            rule.add(look(1000 * LOOKBACK**power, elbo))
        assert rule.drift() == pytest.approx(gains[-1] * ratio / (1 - ratio))


def test_the_first_round_ends_when_little_is_left():
    tolerance, c = 5.0, 4000.0
    rule = Convergence(tolerance)
    step = first_round(rule, lambda t: -c / t * 100)
    assert c * 100 / step <= MIXED * tolerance
    assert c * 100 / step > 0.5 * MIXED * tolerance  # and not much later


def test_a_plateau_does_not_end_the_first_round_if_it_grows_in_proportion():
    # One nat per increase of the steps by LOOKBACK, for ever: four are extrapolated.
    curve = lambda t: math.log(t) / math.log(LOOKBACK)  # noqa: E731
    assert first_round(Convergence(0.9 * 4 / MIXED), curve) is None
    assert first_round(Convergence(1.5 * 4 / MIXED), curve) is not None
    # And training does not end before the drift is below its share of the tolerance.
    for tolerance, stops in ((0.9 * 4 / DRIFT_SHARE, False), (1.5 * 4 / DRIFT_SHARE, True)):
        only = Convergence(tolerance, lowers_lr=False)
        found = [only.add(look(step, curve(step))) for step in np.geomspace(1000, 10_000, 30)]
        assert ("stop" in found) == stops


def test_a_learning_rate_that_is_low_enough_is_kept_while_there_is_drift():
    rule = after_first_round()
    rule.add(look(1800, 2.0, number=1))
    drifting = rule.add(look(1800 * LOOKBACK, 5.0, number=1))
    assert rule.bias() < rule.tolerance < rule.drift() < MIXED * rule.tolerance
    assert drifting == "continue"


def test_noise_alone_ends_the_first_round_and_hides_no_gain():
    flat = Convergence(5.0)
    assert first_round(flat, lambda t: 0.0, noise=0.1) is not None
    # Errors of differences are about a nat: nothing below is certain.
    assert first_round(Convergence(1.0), lambda t: 0.0, noise=4.0) is None


def test_a_late_gain_is_waited_for():
    jump = lambda t: 0.0 if t < 4000 else 100.0  # noqa: E731
    rule = Convergence(5.0)
    for step in (2000, 3001, 4502):
        rule.add(look(step, jump(step)))
    assert rule.add(look(5402, 100.0)) == "continue"  # the jump is within the lookback
    assert rule.add(look(4502 * 1.6, 100.0)) == "lower"


def after_first_round(tolerance=5.0):
    rule = Convergence(tolerance)
    assert [rule.add(look(s, 0.0)) for s in (1000, 1600)] == ["continue", "lower"]
    return rule


def test_a_later_round_is_half_as_long_as_all_before():
    rule = after_first_round()
    assert rule.add(look(1800, 0.5, number=1)) == "continue"
    assert rule.add(look(2000, 0.6, number=1)) == "continue"  # they agree, but prove nothing
    assert rule.add(look(1800 * LOOKBACK, 0.7, number=1)) == "stop"


def test_a_gain_that_noise_had_hidden_prolongs_a_later_round():
    rule = after_first_round()
    rule.add(look(1800, 10.0, number=1))
    assert rule.add(look(1800 * LOOKBACK, 14.0, number=1)) == "continue"
    # Without a ratio of gains, the next ones are expected to fall by a third.
    assert rule.drift() == pytest.approx(4.0 * 2)


def test_the_bias_is_extrapolated_over_all_further_rounds():
    rule = after_first_round()
    rule.add(look(1800, 12.0, number=1))
    total = sum(12.0 * BIAS_FACTOR**k for k in range(1, 60))
    assert rule.bias() == pytest.approx(total)
    rule.add(look(1800 * LOOKBACK, 12.0, number=1))
    assert rule.drift() == 0.0
    assert rule.remaining() == pytest.approx(total)


def test_a_large_bias_lowers_the_learning_rate_again_until_the_last_round():
    rule, step = after_first_round(), 1800
    for number in range(1, MAX_ROUNDS + 1):
        rule.add(look(step, 100.0 * number, number=number))
        last = number == MAX_ROUNDS
        decision = rule.add(look(step * LOOKBACK, 100.0 * number, number=number))
        assert decision == ("continue" if last else "lower")
        step = round(step * LOOKBACK) + 200


def test_values_that_are_not_finite_decide_nothing():
    rule = Convergence(5.0)
    for step in (1000, 1600, 2500):
        assert rule.add(Look(step, 0, np.array([math.nan, 1.0]))) == "continue"
    assert not math.isfinite(rule.remaining())


def test_a_constant_learning_rate_stops_after_its_only_round():
    rule = Convergence(5.0, lowers_lr=False)
    assert [rule.add(look(s, 0.0)) for s in (1000, 1600)] == ["continue", "stop"]
    assert rule.bias() == 0.0


def test_nothing_is_known_before_the_first_look():
    assert Convergence(1.0).remaining() == math.inf
