"""Scores as functions of the strength of an attack: curves, their averages, and findings."""

from dataclasses import dataclass

import numpy as np
import xarray

from zoo.diagnostics.finding import Finding, format_number, format_share
from zoo.diagnostics.reading import Array, variable

GROUP = "robustness"
#: Attacks by the name of their coordinate, in display order.
ATTACKS = {
    "input_noise": "Gaussian noise on inputs",
    "fgsm": "fast gradient sign method",
    "parameter_noise": "Gaussian noise on weights",
    "deletion": "weights deleted",
    "cut_edges": "edges of the graph cut",
}
#: Meaning of the strength of an attack.
STRENGTHS = {
    "input_noise": "standard deviation of the noise",
    "fgsm": "step",
    "parameter_noise": "standard deviation of the noise",
    "deletion": "fraction deleted",
    "cut_edges": "fraction cut",
}
#: The main score is the first of these that a tree has; the density shows overconfidence.
MAIN_SCORES = ("accuracy", "rmse")
DENSITY = "nll"
SOURCES = {"fgsm": "Goodfellow et al. (2015)", "deletion": "Graves (2011)"}


@dataclass(frozen=True)
class Curve:
    """A score, such as ``accuracy``, at two or more increasing strengths of an attack."""

    attack: str
    score: str
    strength: Array
    value: Array

    @property
    def mean(self) -> float:
        """The area under the curve, divided by the range of strengths: the average score."""
        return float(np.trapezoid(self.value, self.strength) / np.ptp(self.strength))

    def crossing(self, level: float) -> float | None:
        """Return the first strength at which the score reaches a level, or None."""
        above = self.value - level
        for i, value in enumerate(above):
            if value == 0:
                return float(self.strength[i])
            if i and above[i - 1] * value < 0:
                share = above[i - 1] / (above[i - 1] - value)
                step = self.strength[i] - self.strength[i - 1]
                return float(self.strength[i - 1] + share * step)
        return None


def robustness_curve(tree: xarray.DataTree, attack: str, score: str) -> Curve | None:
    """Return one curve of a tree, or None if it is missing, too short or not finite."""
    values = variable(tree, GROUP, f"{attack}_{score}")
    if values is None or values.dims != (attack,) or attack not in values.coords:
        return None
    strength = values.coords[attack].to_numpy().astype(np.float64)
    value = values.to_numpy().astype(np.float64)
    if len(value) < 2 or not (np.isfinite(strength).all() and np.isfinite(value).all()):
        return None
    return Curve(attack, score, strength, value) if (np.diff(strength) > 0).all() else None


def robustness_curves(tree: xarray.DataTree, score: str) -> list[Curve]:
    """Return the curves of one score, one for every attack in the tree."""
    found = [robustness_curve(tree, attack, score) for attack in ATTACKS]
    return [curve for curve in found if curve is not None]


def main_score(tree: xarray.DataTree) -> str | None:
    """Return the main score: accuracy for classes, otherwise the root mean squared error."""
    return next((score for score in MAIN_SCORES if robustness_curves(tree, score)), None)


def robustness_findings(tree: xarray.DataTree) -> list[Finding]:
    """Summarise every curve as ``info``: how much robustness is needed depends on the use."""
    score = main_score(tree)
    return [] if score is None else [_finding(c) for c in robustness_curves(tree, score)]


def _finding(curve: Curve) -> Finding:
    is_share = curve.score == "accuracy"
    form = format_share if is_share else format_number
    name = "accuracy" if is_share else "root mean squared error"
    message = (
        f"{ATTACKS[curve.attack].capitalize()}: the {name} changes from {form(curve.value[0])} to "
        f"{form(curve.value[-1])} at strength {format_number(curve.strength[-1])}, with an average "
        f"of {form(curve.mean)} over strengths."
    )
    half = curve.crossing(curve.value[0] / 2) if is_share else None
    if half is not None:
        message += f" It is halved at strength {format_number(half)}."
    source = SOURCES.get(curve.attack, "")
    return Finding(f"robustness.{curve.attack}", "info", curve.mean, None, message, source=source)
