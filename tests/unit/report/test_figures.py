"""What figures draw are the numbers of the tree, computed here a second time."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.report.report_trees import classification, regression
from zoo.diagnostics.finding import format_number, format_share
from zoo.diagnostics.sbc import rank_test
from zoo.report.figures.canvas import TRUTH
from zoo.report.figures.differences import difference_picture
from zoo.report.figures.predictions import prediction_pictures
from zoo.report.figures.ranks import save_rank_plot
from zoo.report.figures.sparsity import sparsity_pictures
from zoo.report.figures.truth import truth_pictures


@pytest.fixture
def drawn(monkeypatch):
    """Collect the axes of all figures."""
    from matplotlib.figure import Figure

    found, subplots = [], Figure.subplots

    def recorded(self, *sizes, **options):
        axes = subplots(self, *sizes, **options)
        found.extend(np.atleast_1d(axes).ravel())
        return axes

    monkeypatch.setattr(Figure, "subplots", recorded)
    return found


def points(axes, marker):
    """Return the points drawn with a marker, in rows of x and y."""
    lines = [line for line in axes.get_lines() if line.get_marker() == marker]
    return np.concatenate([line.get_xydata() for line in lines])


def segments(axes):
    """Return the ends of all bars, in the order in which they were drawn."""
    return np.concatenate([bars.get_segments() for bars in axes.collections])


def test_outputs_of_fit_and_truth_are_compared_by_means_and_sds(drawn):
    tree, truth = regression(mean_field=True)
    captions = [picture.caption for picture in truth_pictures(tree, truth, "NUTS")]
    draws = [t["functions"]["f"].to_numpy().reshape(-1, 32) for t in (truth, tree)]
    np.testing.assert_allclose(points(drawn[0], "o"), np.stack([d.mean(0) for d in draws], 1))
    sds = np.stack([d.std(0, ddof=1) for d in draws], 1)
    np.testing.assert_allclose(points(drawn[1], "o"), sds)
    ratio = np.median(sds[:, 1] / sds[:, 0])
    assert f"the median ratio of sds is {format_number(float(ratio))}." in captions[0]


def test_predictive_intervals_hold_nine_tenths_of_the_draws(drawn):
    tree, _ = regression()
    held_out, check = prediction_pictures(tree)
    samples, y = (tree["held_out"][name].to_numpy() for name in ("y_samples", "y"))
    low, middle, high = np.quantile(samples, [0.05, 0.5, 0.95], axis=0)
    inside = (low <= y) & (y <= high)
    assert f"inside their interval (dots); {format_share(inside.mean())} are." in held_out.caption
    against, residuals, densities = drawn
    bars = {bar[0, 0]: bar[:, 1] for bar in segments(against)}
    np.testing.assert_allclose([bars[value] for value in y], np.stack([low, high], 1))
    for marker, rows in (("o", inside), ("x", ~inside)):
        expected = np.stack([y, middle], 1)[rows]
        np.testing.assert_allclose(np.sort(points(against, marker), 0), np.sort(expected, 0))
        gaps = points(residuals, marker)
        np.testing.assert_allclose(np.sort(gaps[:, 1]), np.sort((y - middle)[rows]))
    assert len(densities.get_lines()) == 26
    assert "of 25 replicated data sets" in check.panels[0]


def test_a_confusion_matrix_counts_rows_by_true_and_predicted_class(drawn):
    tree = classification()
    confusion, _ = prediction_pictures(tree)
    probability, y = (tree["held_out"][name].to_numpy() for name in ("probability", "y"))
    guess = probability.argmax(1)
    counts = {(j, i): ((y == i) & (guess == j)).sum() for i in range(3) for j in range(3)}
    texts = {text.get_position(): int(text.get_text()) for text in drawn[0].texts}
    assert texts == {place: count for place, count in counts.items() if count}
    assert f"{format_share((guess == y).mean())} are on the diagonal" in confusion.caption


def test_frequencies_of_classes_are_those_of_targets_and_of_replications(drawn):
    tree = classification()
    prediction_pictures(tree)
    y = tree["observed_data"]["y"].to_numpy()
    replicated = tree["posterior_predictive"]["y"].to_numpy()[0]
    axes = drawn[1]
    observed = [(y == k).mean() for k in range(3)]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(observed)
    shares = np.stack([(replicated == k).mean(1) for k in range(3)])
    np.testing.assert_allclose(points(axes, "o")[:, 1], np.median(shares, 1))
    expected = np.quantile(shares, [0.05, 0.95], axis=1).T
    np.testing.assert_allclose(segments(axes)[:, :, 1], expected)


def test_differences_have_bars_of_one_and_two_standard_errors_inside_the_axes(drawn):
    frame = pd.DataFrame({"difference": [0.0, 0.4], "error": [0.0, 0.1]}, index=["a", "b"])
    difference_picture("nll", frame)
    (axes,) = drawn
    np.testing.assert_allclose(points(axes, "o"), [[0, 0], [0.4, 1]])
    ends = segments(axes)[[1, 3], :, 0]
    np.testing.assert_allclose(ends, [[0.2, 0.6], [0.3, 0.5]])
    # Rows are one apart, from top to bottom, and none has more than half a row to spare.
    bottom, top = axes.get_ylim()
    assert -1 < top < 0
    assert 1 < bottom < 2


def test_bars_of_sparsity_are_the_shares_that_are_kept(drawn):
    slots = {"0.weight": {"groups": 40, "kept": 10, "threshold": 4.0}}
    slots["2.weight"] = {"groups": 8, "kept": 6, "threshold": 2.0, "scores": [3.0, 1.0, np.inf]}
    sparsity_pictures(slots)
    bars, scores = drawn
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([1, 1, 0.25, 0.75])
    assert [text.get_text() for text in bars.texts] == ["10 of 40", "6 of 8"]
    np.testing.assert_allclose(points(scores, "."), [[1, 1], [2, 3]])
    (threshold,) = [line for line in scores.get_lines() if line.get_color() == TRUTH]
    assert set(threshold.get_ydata()) == {2.0}


def test_ranks_stay_in_a_band_that_holds_99_percent_of_uniform_counts(drawn, tmp_path):
    test = rank_test(np.random.default_rng(0).integers(0, 100, 200), num_draws=99)
    save_rank_plot({"w": test, "noise": test}, tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 0
    limits = stats.binom.interval(0.99, 200, test.expected / 200)
    for axes in drawn[:2]:
        assert [bar.get_height() for bar in axes.patches] == test.counts.tolist()
        (band,) = axes.collections
        assert set(band.get_paths()[0].vertices[:, 1]) == set(np.concatenate(limits))
    assert [axes.axison for axes in drawn] == [True, True, False]
