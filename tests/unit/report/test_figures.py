"""What figures draw are the numbers of the tree, computed here a second time."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.unit.diagnostics.synthetic_trees import tree_of
from tests.unit.report.report_trees import classification, regression
from zoo.diagnostics.finding import format_number, format_share
from zoo.diagnostics.held_out import reliability_curve
from zoo.diagnostics.sbc import rank_test
from zoo.diagnostics.uniformity import randomized_pit, uniformity
from zoo.report.figures.calibration import calibration_pictures
from zoo.report.figures.canvas import TRUTH
from zoo.report.figures.differences import difference_picture
from zoo.report.figures.forest import forest_picture, parameter_rows
from zoo.report.figures.predictions import prediction_pictures
from zoo.report.figures.ranks import save_rank_plot
from zoo.report.figures.sensitivity import prior_picture
from zoo.report.figures.sparsity import sparsity_pictures
from zoo.report.figures.training import elbo_picture
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


def band(axes):
    """Return the lower and upper edge of the only band, over the points where it is drawn."""
    (area,) = [part for part in axes.collections if len(part.get_paths()) == 1]
    x, y = area.get_paths()[0].vertices.T
    places = np.unique(x)
    return places, *([pick(y[x == place]) for place in places] for pick in (min, max))


def curve(axes, label):
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return line.get_xydata().T


def test_pit_and_coverage_are_compared_with_what_chance_allows(drawn):
    tree, _ = regression()
    calibration_pictures(tree)
    samples, y = (tree["held_out"][name].to_numpy() for name in ("y_samples", "y"))
    pit = randomized_pit(samples, y)
    ecdf, coverage = drawn
    places, gap = curve(ecdf, "held-out rows")
    np.testing.assert_allclose(gap, [(pit <= u).mean() - u for u in places], atol=1e-12)
    tested = uniformity(pit)
    np.testing.assert_allclose(band(ecdf)[1], tested.lower - places)
    np.testing.assert_allclose(band(ecdf)[2], tested.upper - places)
    levels, covered = curve(coverage, "held-out rows")
    np.testing.assert_allclose(levels, np.arange(1, 20) / 20)
    inside = [((pit >= (1 - p) / 2) & (pit <= (1 + p) / 2)).mean() for p in levels]
    np.testing.assert_allclose(covered, inside)
    _, low, high = band(coverage)
    np.testing.assert_allclose(low, stats.binom(len(y), levels).ppf(0.025) / len(y))
    np.testing.assert_allclose(high, stats.binom(len(y), levels).ppf(0.975) / len(y))


def test_confidences_are_counted_by_right_and_wrong(drawn):
    tree = classification()
    (picture,) = calibration_pictures(tree)
    probability, y = (tree["held_out"][name].to_numpy() for name in ("probability", "y"))
    confidence, right = probability.max(1), probability.argmax(1) == y
    reliability, histogram = drawn
    expected = reliability_curve(probability, y)
    np.testing.assert_allclose(
        curve(reliability, "held-out rows"), [expected["confidence"], expected["accuracy"]]
    )
    bounds = np.stack([expected["lower"], expected["upper"]], 1)
    np.testing.assert_allclose(segments(reliability)[:, :, 1], bounds)
    gap = float(np.abs(expected["accuracy"] - expected["confidence"]).max())
    assert f"confidence and accuracy is {format_number(gap)}." in picture.panels[0]
    hits, misses = histogram.patches[:20], histogram.patches[20:]
    for bars, rows in ((hits, right), (misses, ~right)):
        for bar in bars:
            left, end = bar.get_x(), bar.get_x() + bar.get_width()
            inside = (confidence >= left - 1e-9) & (confidence <= end + 1e-9)
            assert bar.get_height() == (inside & rows).sum()
    assert [bar.get_y() for bar in misses] == [bar.get_height() for bar in hits]
    assert hits[-1].get_x() + hits[-1].get_width() == pytest.approx(1)


def test_a_forest_has_rows_of_medians_and_intervals_with_the_truth_below(drawn):
    tree, truth = regression()
    rows = parameter_rows(tree, truth)[:2]
    forest_picture(rows, "NUTS")
    (axes,) = drawn
    for k, row in enumerate(rows):
        for marker, quantiles, place in (("o", row.fit, k - 0.16), ("s", row.truth, k + 0.16)):
            np.testing.assert_allclose(points(axes, marker)[k], [quantiles[2], place])
            spans = [line.get_xdata() for line in axes.get_lines() if line.get_ydata()[0] == place]
            np.testing.assert_allclose(spans[:2], [quantiles[[0, 4]], quantiles[[1, 3]]])
    bottom, top = axes.get_ylim()
    assert -1 < top < -0.16
    assert 1.16 < bottom < 2


def test_the_elbo_is_minus_the_loss_with_its_last_quarter_enlarged(drawn):
    loss = 100 + np.random.default_rng(0).normal(size=(1, 240))
    tree = tree_of({"optimization": {"loss": (("chain", "step"), loss)}})
    picture = elbo_picture(tree, [])
    whole, end = drawn
    assert f"the mean of the last quarter is {format_number(-loss[0, 180:].mean())}." in str(
        picture.panels[0]
    )
    for axes, start, block in ((whole, 0, 4), (end, 180, 1)):
        raw, smooth = axes.get_lines()
        np.testing.assert_allclose(raw.get_xydata().T, [np.arange(start, 240), -loss[0, start:]])
        blocks = -loss[0, start:].reshape(-1, block).mean(1)
        middles = np.arange(start, 240).reshape(-1, block).mean(1)
        np.testing.assert_allclose(smooth.get_xydata().T, [middles, blocks])
    shaded = whole.patches[0]
    assert (shaded.get_x(), shaded.get_width()) == (180, 60)


def test_sites_are_ordered_by_how_far_their_quartiles_moved(drawn):
    normal = stats.norm.ppf((np.arange(400) + 0.5) / 400)[None]
    moves = {"near": 0.5, "far": 3.0, "same": 0.0}
    groups = {
        "prior": {name: (("chain", "draw"), 10 + 2 * normal) for name in moves},
        "posterior": {n: (("chain", "draw"), 10 + 2 * (normal + m)) for n, m in moves.items()},
    }
    picture = prior_picture(tree_of(groups))
    assert [axes.get_title("left") for axes in drawn] == ["far", "near", "same"]
    _, height = curve(drawn[0], "prior")
    assert height.max() == pytest.approx(1)
    width = format_number(2 * float(np.subtract(*np.quantile(normal, [0.75, 0.25]))))
    assert f"range {width} after and {width} before" in picture.panels[0]
    assert "medians 16 and 10" in picture.panels[0]
