import numpy as np
import pytest
import xarray

from tests.unit.diagnostics.synthetic_trees import the, tree_of
from zoo.diagnostics.start import start_findings


def moved(shift=0.0, factor=1.0, points=32):
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=(points, 1)), 0.1 + 0.1 * rng.uniform(size=(points, 1))
    dims = ("time", "point", "output")
    values = {
        "mean": (dims, np.stack([mean, mean + shift])),
        "sd": (dims, np.stack([sd, factor * sd])),
    }
    return tree_of({"start": xarray.Dataset(values, coords={"time": ["start", "end"]})})


@pytest.mark.parametrize(
    ("shift", "factor", "level"),
    [
        (0.0, 1.0, "fail"),
        (0.01, 1.05, "fail"),
        (0.5, 1.0, "ok"),
        (0.0, 0.5, "ok"),
        (0.0, 3.0, "ok"),
    ],
)
def test_a_posterior_that_did_not_move_fails(shift, factor, level):
    result = the(start_findings(moved(shift, factor)), "optimisation.start")
    assert result.level == level
    assert (result.value < result.threshold) == (level == "fail")


def test_points_without_spread_count_by_their_move():
    still, gone = moved(0.0, 0.0), moved(1.0, 0.0)
    for tree in (still, gone):
        tree["start"] = tree["start"].to_dataset().assign(sd=lambda d: 0 * d.sd)
    assert start_findings(still)[0].level == "fail"
    assert start_findings(gone)[0].level == "ok"


def test_trees_without_a_start_give_no_finding():
    assert start_findings(tree_of({})) == []
