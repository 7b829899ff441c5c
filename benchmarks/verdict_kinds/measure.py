"""Whether labels are right: fits measured with what only the generator of the data knows.

======== ==================================================== ============== =============
use      measure                                              good           bad
======== ==================================================== ============== =============
predict  share of the way from the trivial to the best score  at least 0.8   at most 0.5
         on fresh rows (squared error; log loss of classes)
intervals largest error of coverage (50, 80, 95 %) on fresh    at most 0.06   at least 0.12
         rows; for classes, error of probabilities in ten     at most 0.06   at least 0.10
         bins, root mean square
parame-  largest shift of a mean, in right sds, and           0.65           1.11
ters     ratio of sds, against the right posterior            0.84 to 1.19   0.65 to 1.53
compare  divergence from the right posterior, in nats         at most 1      at least 3
compress inputs that matter pruned, or others kept            0, 50 %        1, 90 %
======== ==================================================== ============== =============

Between them a measure decides nothing. The limits of parameters are those of ``truth.*``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.verdict_kinds.case import Case
from benchmarks.verdict_kinds.problems import Array, Problem
from benchmarks.verdict_kinds.reference import FAMILIES, Posterior, divergence, reference

DRAWS = 4000
LEVELS = (0.5, 0.8, 0.95)
BINS = 10
Measures = dict[str, float]


def measures(fitted: Any, case: Case) -> Measures:
    """Return all measures that the case allows."""
    if case.reference is not None:
        return _against_draws(fitted.draws, case.reference(fitted))
    assert case.problem is not None
    found = predictive_measures(fitted, case.problem)
    if case.problem.active is not None:
        found |= pruning(fitted, case.problem.active)
    return found | posterior_measures(fitted, case.problem)


def opinions(found: Measures) -> dict[str, str]:
    """Return good, bad or grey for each use that was measured."""
    sides: dict[str, list[str]] = {}

    def add(use: str, name: str, good: float, bad: float) -> None:
        if name in found:
            value, sign = found[name], 1 if bad > good else -1
            is_good, is_bad = sign * value <= sign * good, not sign * value < sign * bad
            sides.setdefault(use, []).append("good" if is_good else "bad" if is_bad else "grey")

    add("predict", "skill", 0.8, 0.5)
    add("intervals", "coverage_error", 0.06, 0.12)
    add("intervals", "probability_error", 0.06, 0.10)
    add("parameters", "shift", 0.65, 1.11)
    add("parameters", "smallest_ratio", 0.84, 0.65)
    add("parameters", "largest_ratio", 1.19, 1.53)
    add("compare", "divergence", 1.0, 3.0)
    add("compress", "missed", 0.0, 1.0)
    add("compress", "useless", 0.5, 0.9)
    worst = ("bad", "grey", "good")
    return {use: next(w for w in worst if w in levels) for use, levels in sides.items()}


def predictive_measures(fitted: Any, problem: Problem) -> Measures:
    """Return the skill of predictions and the error of intervals on fresh rows."""
    rows, train = problem.fresh, problem.train
    prediction = fitted.predict(rows.X)
    if prediction.probabilities is not None:
        p, right = np.clip(prediction.probabilities, 1e-12, 1), rows.expected
        shares = np.bincount(train.y, minlength=right.shape[1]) / len(train.y)
        losses = [
            -(right * np.log(q)).sum(1).mean() for q in (shares[None], p, np.clip(right, 1e-12, 1))
        ]
        return {"skill": skill(*losses), "probability_error": probability_error(p, right)}
    errors = [
        float(np.mean((guess - rows.expected) ** 2))
        for guess in (np.mean(train.y), prediction.mean)
    ]
    return {
        "skill": skill(*errors, 0.0),
        "coverage_error": coverage_error(prediction.samples, rows.y),
    }


def skill(trivial: float, own: float, best: float) -> float:
    """Return how far a loss is on the way from the trivial to the best one; 0 if there is none."""
    return (trivial - own) / (trivial - best) if trivial > best + 1e-12 else 0.0


def coverage_error(samples: Array, y: Array) -> float:
    """Return the largest error of the coverage of central intervals, by randomised PIT."""
    rng = np.random.default_rng(0)
    below, equal = (samples < y).mean(0), (samples == y).mean(0)
    pit = below + rng.uniform(size=len(y)) * np.maximum(equal, 1 / len(samples))
    inside = [float(np.mean(np.abs(pit - 0.5) <= level / 2)) for level in LEVELS]
    return float(np.max(np.abs(np.subtract(inside, LEVELS))))


def probability_error(p: Array, right: Array) -> float:
    """Return the root mean square error of probabilities, in bins of equal size."""
    errors = [
        float(p[part, column].mean() - right[part, column].mean())
        for column in range(p.shape[1])
        for part in np.array_split(np.argsort(p[:, column]), BINS)
    ]
    return float(np.sqrt(np.mean(np.square(errors))))


def posterior_measures(fitted: Any, problem: Problem) -> Measures:
    """Return distances from the right posterior, for a linear model."""
    from torch import nn

    from zoo.infer.predict.draws import draw_posterior

    net = fitted.assembly.model.net
    layers = [
        layer for layer in net.modules() if any(True for _ in layer.parameters(recurse=False))
    ]
    if problem.family not in FAMILIES or len(layers) != 1 or not isinstance(layers[0], nn.Linear):
        return {}
    drawn = draw_posterior(fitted.assembly.model, fitted.assembly.guide, DRAWS, seed=0).slots
    weights, bias = (
        next(v for name, v in drawn.items() if name.endswith(part)).double().numpy()
        for part in ("weight", "bias")
    )
    x, y = fitted.dataset.X_train, fitted.dataset.y_train
    if problem.clean is not None:
        x, y = problem.clean.X, problem.clean.y
    columns = slice(None)
    if problem.active is not None:  # the others are judged as pruned or not
        columns = list(problem.active)  # type: ignore[assignment]
    chosen = np.asarray(x)[:, columns]
    right = reference(chosen, np.asarray(y), problem.family, problem.prior_scale)
    flat = np.concatenate([weights[:, :, columns].reshape(len(weights), -1), bias], axis=1)
    if flat.shape[1] != len(right.mean):  # the fit has other outputs than the right model
        return {}
    found = distances(flat, right)
    if problem.active is None:
        found["divergence"] = divergence(flat.mean(0), np.cov(flat.T), right)
    return found


def distances(draws: Array, right: Posterior) -> Measures:
    """Return the largest shift in right sds, and the smallest and largest ratio of sds."""
    ratios = draws.std(0) / right.sd
    return {
        "shift": float(np.max(np.abs(draws.mean(0) - right.mean) / right.sd)),
        "smallest_ratio": float(ratios.min()),
        "largest_ratio": float(ratios.max()),
    }


def pruning(fitted: Any, active: tuple[int, ...]) -> Measures:
    """Return how many inputs that matter are pruned, and the share of the others that is kept."""
    groups = fitted.groups(fitted.dataset).to_dict()["slots"]
    found = next(slot for name, slot in groups.items() if name.endswith("weight"))  # the inputs
    pruned = set(np.ravel(found["pruned"]).astype(int).tolist())
    others = set(range(found["groups"])) - set(active)
    return {
        "missed": float(len(pruned & set(active))),
        "useless": len(others - pruned) / max(1, len(others)),
    }


def _against_draws(own: Mapping[str, Any], right: Mapping[str, Array]) -> Measures:
    """Compare draws of the same sites."""
    mine = np.concatenate([_flat(own[name]) for name in right], axis=1)
    theirs = np.concatenate([_flat(value) for value in right.values()], axis=1)
    posterior = Posterior(theirs.mean(0), np.atleast_2d(np.cov(theirs.T)))
    covariance = np.atleast_2d(np.cov(mine.T))
    return distances(mine, posterior) | {
        "divergence": divergence(mine.mean(0), covariance, posterior)
    }


def _flat(values: Any) -> Array:
    array = np.asarray(values, dtype=float)
    return array.reshape(len(array), -1)
