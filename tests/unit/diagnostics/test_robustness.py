import numpy as np
import pytest
import xarray

from zoo.diagnostics import diagnose
from zoo.diagnostics.robustness import (
    Curve,
    main_score,
    robustness_curve,
    robustness_curves,
    robustness_findings,
)


def tree_of(**curves):
    """Return a tree with curves given as (attack, score): (strengths, values)."""
    group = xarray.Dataset()
    for name, (attack, strength, value) in curves.items():
        group = group.assign_coords({attack: (attack, np.asarray(strength, float))})
        group[name] = ((attack,), np.asarray(value))
    return xarray.DataTree.from_dict({"robustness": group})


def test_mean_is_the_area_divided_by_the_range():
    curve = Curve("fgsm", "accuracy", np.array([0.0, 1.0, 3.0]), np.array([1.0, 0.5, 0.0]))
    assert curve.mean == pytest.approx((0.75 * 1 + 0.25 * 2) / 3, rel=1e-12)
    x = np.linspace(0, 2, 2001)  # a fine grid: the integral of exp(-x) is known
    fine = Curve("fgsm", "accuracy", x, np.exp(-x))
    assert fine.mean == pytest.approx((1 - np.exp(-2)) / 2, rel=1e-6)


def test_crossing_is_interpolated():
    curve = Curve("fgsm", "accuracy", np.array([0.0, 1.0, 3.0]), np.array([1.0, 0.6, 0.2]))
    assert curve.crossing(0.5) == pytest.approx(1.5)
    assert curve.crossing(0.6) == pytest.approx(1.0)
    assert curve.crossing(0.2) == pytest.approx(3.0)
    assert curve.crossing(0.1) is None


def test_findings_carry_the_numbers_and_no_judgement():
    tree = tree_of(
        input_noise_accuracy=("input_noise", [0, 1], [0.9, 0.7]),
        fgsm_accuracy=("fgsm", [0, 0.1, 0.2], [0.9, 0.5, 0.1]),
        fgsm_nll=("fgsm", [0, 0.1, 0.2], [0.3, 1.0, 3.0]),
    )
    assert main_score(tree) == "accuracy"
    found = {finding.check: finding for finding in robustness_findings(tree)}
    assert set(found) == {"robustness.input_noise", "robustness.fgsm"}
    assert {finding.level for finding in found.values()} == {"info"}
    assert found["robustness.fgsm"].value == pytest.approx(0.5)
    assert "from 90 % to 10 % at strength 0.2" in found["robustness.fgsm"].message
    assert "It is halved at strength 0.113" in found["robustness.fgsm"].message
    assert "halved" not in found["robustness.input_noise"].message
    assert [f.check for f in diagnose(tree)] == list(found)


def test_errors_of_numbers_are_summed_up_too():
    tree = tree_of(deletion_rmse=("deletion", [0, 0.5], [1.0, 2.0]))
    (finding,) = robustness_findings(tree)
    assert finding.value == pytest.approx(1.5)
    assert "root mean squared error changes from 1 to 2" in finding.message


@pytest.mark.parametrize(
    "tree",
    [
        xarray.DataTree(),
        tree_of(fgsm_accuracy=("other", [0, 1], [1, 0])),
        tree_of(fgsm_accuracy=("fgsm", [0], [1.0])),
        tree_of(fgsm_accuracy=("fgsm", [1, 0], [1.0, 0.5])),
        tree_of(fgsm_accuracy=("fgsm", [0, 1], [1.0, np.nan])),
        tree_of(fgsm_accuracy=("fgsm", [0, 1], ["a", "b"])),
    ],
)
def test_what_cannot_be_read_is_left_out(tree):
    assert robustness_curve(tree, "fgsm", "accuracy") is None
    assert robustness_curves(tree, "accuracy") == []
    assert robustness_findings(tree) == []
