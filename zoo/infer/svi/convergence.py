r"""When to lower the learning rate, and when to stop.

Training runs in rounds of constant learning rate :math:`\eta_r = \rho^r \eta_0`. At looks whose
distance grows in proportion to the steps so far, the iterates since the last look are averaged, and
the ELBO of the average is estimated with the same random numbers at all looks, so that differences
between looks have small errors. Two errors remain after a look:

**Drift.** The average still moves because the iterates have not mixed. Let :math:`g` be the gain of
the ELBO while the number of steps grew by the factor `LOOKBACK`, and :math:`g'` the gain while it
grew by this factor before. If gains fall geometrically, all that follow are together

.. math:: D = g\, \frac{q}{1 - q}, \qquad q = g / g' .

The ratio is believed within the range `RATIOS`. Because the lookback grows with the steps, a slow
plateau is seen as such. A round ends when :math:`D` is below `MIXED` tolerances, and the next one
starts from the average. Drift is measured within a round: what looks
mixed at a high learning rate may only be noise, and a slow direction that is left shows itself when
the noise is gone. Every round but the first is therefore half as long as all before, or longer.

**Bias.** Averages of iterates with a constant learning rate are off by an amount of order
:math:`\eta`, and their ELBO by one of order :math:`\eta^2` near the optimum, or :math:`\eta` if
the average has not settled. With :math:`\eta^{3/2}` in between, if the ELBO gained :math:`\Delta`
when the learning rate was lowered by :math:`\rho`, all further rounds together gain

.. math:: B = \Delta\, \frac{\rho^{3/2}}{1 - \rho^{3/2}} .

Gains enter with `Z` standard errors added. Training has converged when :math:`D + B` is below the
tolerance.

References: Welandawe, Andersen, Vehtari and Huggins (2024), *A Framework for Improving the
Reliability of Black-box Variational Inference*, for rounds, averages and the extrapolation in the
learning rate; Dhaka et al. (2020), *Robust, Accurate Stochastic Optimization for Variational
Inference*, for averages of mixed iterates; Pesme, Dieuleveut and Flammarion (2020), *On
Convergence-Diagnostic based Step Sizes for Stochastic Gradient Descent*, for tests over doublings.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Decision = Literal["continue", "lower", "stop"]

#: Distance of looks in the first round and in later ones, as fractions of the steps so far, and
#: the smallest.
GROWTH, LATER_GROWTH = 0.2, 0.1
MIN_SPAN = 200
#: The drift is the gain while the number of steps grew by this factor.
LOOKBACK = 1.5
#: Factor of the learning rate from round to round, and that of the bias of the ELBO.
FACTOR = 0.3
BIAS_FACTOR = FACTOR**1.5
#: Largest number of rounds after the first.
MAX_ROUNDS = 6
#: Range of the ratio of successive gains, in which it is believed, and its value in later rounds as
#: long as it is not known.
RATIOS = (0.5, 0.8)
LATER_RATIO = 2 / 3
#: Fraction of the tolerance that is allowed for the drift when training ends, and, in tolerances,
#: when a round ends whose learning rate must be lowered anyway: gains are then mostly noise.
DRIFT_SHARE, MIXED = 0.75, 3.0
#: Standard errors that are added to a gain.
Z = 2.0


@dataclass(frozen=True)
class Look:
    """The ELBO of an average of iterates: its estimates, whose random numbers are common."""

    step: int
    round: int
    values: Array


def gain(later: Look, earlier: Look) -> tuple[float, float]:
    """Return the difference of the ELBOs of two looks and its standard error."""
    number = min(len(later.values), len(earlier.values))
    differences = later.values[:number] - earlier.values[:number]
    return float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(number)


def _geometric(term: float, ratio: float) -> float:
    """Return the sum of all terms that follow one in a geometric series."""
    return term * ratio / (1 - ratio)


def next_look(step: int, number: int = 0) -> int:
    """Return the step of the look after one at this step, in the round of this number."""
    return step + max(MIN_SPAN, math.ceil((LATER_GROWTH if number else GROWTH) * step))


class Convergence:
    """Decides from looks at a run whether to lower the learning rate or to stop.

    Parameters
    ----------
    tolerance
        Largest remaining gain, in nats.
    lowers_lr
        Whether there are further rounds. If not, a run has converged when its drift is small.
    both_ways
        Whether losses count as gains do, because the ELBO is not what all parameters maximise.
    """

    def __init__(
        self, tolerance: float, *, lowers_lr: bool = True, both_ways: bool = False
    ) -> None:
        self.tolerance, self.lowers_lr, self.both_ways = tolerance, lowers_lr, both_ways
        self.looks: list[Look] = []

    @property
    def round(self) -> int:
        """The current round."""
        return self.looks[-1].round if self.looks else 0

    def upper(self, later: Look, earlier: Look) -> float:
        """Return the largest gain that the estimates are consistent with; never negative."""
        change, error = gain(later, earlier)
        return (abs(change) if self.both_ways else max(change, 0.0)) + Z * error

    def add(self, look: Look) -> Decision:
        """Add a look and return what to do."""
        self.looks.append(look)
        drift, bias = self.drift(), self.bias()
        if drift <= DRIFT_SHARE * self.tolerance and drift + bias <= self.tolerance:
            return "stop"
        can_lower = self.lowers_lr and self.round < MAX_ROUNDS and bias > self.tolerance
        return "lower" if can_lower and drift <= MIXED * self.tolerance else "continue"

    def remaining(self) -> float:
        """Return the gain of the ELBO that is still possible, in nats; at first it is not known."""
        if not self.looks:
            return math.inf
        return self.drift() + self.bias()

    def error(self) -> float:
        """Return the standard error of the gain that `remaining` is extrapolated from."""
        pair = None
        if self.looks:
            pair = self._lookback() if self.round == 0 else self._rounds()
        return math.nan if pair is None else gain(*pair)[1]

    def drift(self) -> float:
        """Return the gain that is possible at the current learning rate."""
        pair = self._lookback()
        if pair is None:
            return math.inf
        now, before = pair
        u = self.upper(now, before)
        q = LATER_RATIO if self.round else RATIOS[1]
        older = self._at_most(before.step / LOOKBACK, self.round)
        if older is not None:
            change, error = gain(before, older)
            sure = (abs(change) if self.both_ways else change) - Z * error
            if sure > 0:
                q = float(np.clip(u / sure, *RATIOS))
        return _geometric(u, q)

    def bias(self) -> float:
        """Return the gain that is possible by lower learning rates."""
        pair = self._rounds()
        if pair is None:
            return 0.0 if not self.lowers_lr else math.inf
        return _geometric(self.upper(*pair), BIAS_FACTOR)

    def _of_round(self, number: int) -> list[Look]:
        return [look for look in self.looks if look.round == number]

    def _rounds(self) -> tuple[Look, Look] | None:
        """Return the last look, and the last of the round before."""
        before = self._of_round(self.round - 1)
        return (self.looks[-1], before[-1]) if before else None

    def _lookback(self) -> tuple[Look, Look] | None:
        """Return the last look and one of the same round, by `LOOKBACK` before it."""
        last = self.looks[-1]
        before = self._at_most(last.step / LOOKBACK, last.round)
        return None if before is None else (last, before)

    def _at_most(self, step: float, number: int) -> Look | None:
        found = [look for look in self._of_round(number) if look.step <= step]
        return found[-1] if found else None
