"""Comparison of predictions with observations."""

import numpy as np
import xarray

from zoo.diagnostics.finding import format_share
from zoo.diagnostics.reading import Array, task_of
from zoo.report.figures.axes import Axes, legend_above
from zoo.report.figures.canvas import BAND, FIT, INK, TRUTH, Picture, panel, short
from zoo.report.figures.densities import central_range, density, evenly, thin
from zoo.report.held_out import Classes, held_out_classes, held_out_draws, training_draws

#: Largest number of rows drawn with their interval.
MAX_ROWS = 120
#: Number of replicated data sets drawn.
REPLICATIONS = 25
#: Largest number of classes in a confusion matrix; those with the most errors are shown.
MAX_CLASSES = 12
#: Probability of a predictive interval.
INTERVAL = 0.9


def prediction_pictures(tree: xarray.DataTree) -> list[Picture]:
    """Draw predictions for held-out rows, and a posterior predictive check on training rows."""
    classes = held_out_classes(tree)
    held_out, training = held_out_draws(tree), training_draws(tree)
    is_classes = task_of(tree) == "classification"
    pictures = [] if classes is None else [_confusion(classes)]
    rows = held_out or training
    if rows is not None and not is_classes:
        words = "training rows" if held_out is None else "held-out rows"
        pictures.append(_observed_against_predicted(*rows, words))
    if training is not None:
        names = None if classes is None else classes.names
        replicated = _frequencies(*training, names) if is_classes else _replications(*training)
        pictures.append(replicated)
    return pictures


def _observed_against_predicted(samples: Array, y: Array, words: str) -> Picture:
    low, middle, high = np.quantile(samples, [(1 - INTERVAL) / 2, 0.5, (1 + INTERVAL) / 2], axis=0)
    inside = (y >= low) & (y <= high)
    shown = np.argsort(y)[evenly(len(y), MAX_ROWS)]
    hit, miss = shown[inside[shown]], shown[~inside[shown]]

    def against(axes: Axes) -> None:
        ends = [float(y[shown].min()), float(y[shown].max())]
        axes.plot(ends, ends, color=BAND, lw=1.2)
        axes.vlines(y[hit], low[hit], high[hit], color=FIT, alpha=0.35, lw=1.2)
        axes.plot(y[hit], middle[hit], "o", ms=3.5, mew=0, color=FIT, label="inside its interval")
        axes.vlines(y[miss], low[miss], high[miss], color=TRUTH, alpha=0.5, lw=1.2)
        axes.plot(y[miss], middle[miss], "x", ms=5.5, color=TRUTH, label="outside")
        axes.set(xlabel="observed", ylabel="predicted")
        legend_above(axes)

    def residuals(axes: Axes) -> None:
        axes.axhline(0, color=BAND, lw=1.2)
        axes.plot(middle[hit], y[hit] - middle[hit], "o", ms=3.5, mew=0, color=FIT)
        axes.plot(middle[miss], y[miss] - middle[miss], "x", ms=5.5, color=TRUTH)
        axes.set(xlabel="predicted", ylabel="observed − predicted")

    share = format_share(float(inside.mean()))
    promised = format_share(INTERVAL)
    alt = f"Predicted over observed values of {len(y)} {words}; {share} lie in their interval."
    return Picture(
        [
            panel(against, alt=alt, height=280),
            panel(residuals, alt=f"Residuals of the same rows. {alt}", height=280),
        ],
        f"Predictive medians of {words} with {promised} intervals ({len(shown)} of {len(y)} rows "
        f"are drawn). About {promised} of the rows should be inside their interval (dots); {share} "
        "are. Clusters of crosses or a trend in the residuals indicate a misfit.",
    )


def _replications(samples: Array, y: Array) -> Picture:
    chosen = evenly(len(samples), REPLICATIONS)
    low, high = central_range(np.concatenate([samples[chosen].ravel(), y]), 0.998)
    bounds = min(low, float(y.min())), max(high, float(y.max()))

    def paint(axes: Axes) -> None:
        for k, row in enumerate(chosen):
            curve = density(thin(samples[row]), *bounds)
            if curve is not None:
                label = None if k else "replicated"
                axes.plot(*curve, color=FIT, alpha=0.3, lw=0.8, label=label)
        observed = density(thin(y), *bounds)
        if observed is not None:
            axes.plot(*observed, color=INK, lw=2, label="observed")
        axes.set_yticks([])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("target")
        if axes.lines:
            legend_above(axes)

    alt = f"Densities of {len(y)} observed targets and of {len(chosen)} replicated data sets."
    return Picture(
        [panel(paint, alt=alt)],
        "Posterior predictive check on the training rows: data sets drawn from the fitted model "
        "(thin) should look like the observed one (strong). A peak or tail without thin lines "
        "indicates a misfit.",
    )


def _confusion(classes: Classes) -> Picture:
    count = len(classes.names)
    guess = classes.probability.argmax(-1)
    matrix = np.zeros((count, count), int)
    np.add.at(matrix, (classes.y, guess), 1)
    mistakes = matrix.sum(0) + matrix.sum(1) - 2 * matrix.diagonal()
    shown = np.sort(np.argsort(-mistakes, kind="stable")[:MAX_CLASSES])
    part = matrix[np.ix_(shown, shown)]
    names = [short(classes.names[k], 14) for k in shown]

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        share = part / np.maximum(matrix[shown].sum(1, keepdims=True), 1)
        for i, j in np.ndindex(*part.shape):
            colour = FIT if i == j else TRUTH
            if part[i, j]:
                alpha = 0.08 + 0.42 * float(share[i, j])
                square = Rectangle((j - 0.5, i - 0.5), 1, 1, fc=colour, alpha=alpha, lw=0)
                axes.add_patch(square)
                axes.text(j, i, str(part[i, j]), ha="center", va="center", color=INK)
        axes.set_xticks(range(len(shown)), names, rotation=45 if len(shown) > 5 else 0)
        axes.set_yticks(range(len(shown)), names)
        axes.set_xlim(-0.5, len(shown) - 0.5)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.grid(visible=False)
        axes.set(xlabel="predicted class", ylabel="true class")

    right = format_share(float((guess == classes.y).mean()))
    some = f" The {len(shown)} of {count} classes with the most errors are shown."
    return Picture(
        [
            panel(
                paint,
                alt=f"Confusion matrix of {len(guess)} held-out rows; {right} are correct.",
                height=130 + 24 * len(shown),
            )
        ],
        f"Held-out rows by true and predicted class; {right} are on the diagonal. Numbers off "
        "the diagonal are errors; a strong colour marks a pair of classes that the model "
        "confuses." + (some if len(shown) < count else ""),
    )


def _frequencies(samples: Array, y: Array, names: list[str] | None) -> Picture:
    labels = np.unique(y)[:MAX_CLASSES]
    observed = np.array([(y == label).mean() for label in labels])
    replicated = np.array([(samples == label).mean(1) for label in labels])
    low, middle, high = np.quantile(replicated, [0.05, 0.5, 0.95], axis=1)
    words = [_class_name(float(label), names) for label in labels]

    def paint(axes: Axes) -> None:
        place = np.arange(len(labels))
        axes.bar(place, observed, 0.7, color=BAND, alpha=0.35, label="observed")
        axes.vlines(place, low, high, color=FIT, lw=2)
        axes.plot(place, middle, "o", color=FIT, ms=5, label="replicated")
        axes.set_xticks(place, words, rotation=45 if len(labels) > 5 else 0)
        axes.set_ylabel("frequency")
        axes.grid(axis="x", visible=False)
        legend_above(axes)

    return Picture(
        [panel(paint, alt=f"Frequencies of {len(labels)} classes, observed and replicated.")],
        "Posterior predictive check on the training rows: frequencies of classes in data drawn "
        "from the fitted model (dots with 90 % intervals) and in the observed data (bars). "
        "An interval that misses its bar means a wrong base rate.",
    )


def _class_name(label: float, names: list[str] | None) -> str:
    if names is not None and label.is_integer() and 0 <= label < len(names):
        return short(names[int(label)], 14)
    return f"{label:g}"
