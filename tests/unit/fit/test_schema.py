import numpy as np
import pytest
import torch

from zoo.errors import StoreError
from zoo.fit import schema
from zoo.fit.schema import TreeParts, posterior_tree, read_tree, write_tree


def parts(num_draws=4, num_rows=6):
    torch.manual_seed(0)
    sites = {"0.weight_base": torch.randn(num_draws, 3, 2), "noise": torch.rand(num_draws)}
    return {
        "sites": sites,
        "slots": {"0.weight": torch.randn(num_draws, 3, 2), "noise": sites["noise"]},
        "sample_stats": {"log_prior": torch.randn(num_draws), "log_q": torch.randn(num_draws)},
        "log_likelihood": torch.randn(num_draws, num_rows),
        "posterior_predictive": np.zeros((num_draws, num_rows)),
        "observed": np.arange(num_rows),
        "losses": torch.arange(5.0),
        "attributes": {"method": "m", "seed": 3},
    }


def test_values_are_where_arviz_looks_for_them():
    given = parts()
    tree = posterior_tree(TreeParts(**given))
    assert tree["posterior"]["0.weight"].shape == (1, 4, 3, 2)
    assert tree["posterior"]["noise"].dims == ("chain", "draw")
    for group in ("log_likelihood", "posterior_predictive"):
        assert tree[group]["y"].dims == ("chain", "draw", "obs_id")
    assert tree["observed_data"]["y"].dims == ("obs_id",)
    assert tree["optimization"]["loss"].dims == ("chain", "step")
    np.testing.assert_array_equal(
        tree["log_likelihood"]["y"].values[0], given["log_likelihood"].numpy()
    )
    listed = tree.attrs.pop("contents")
    assert "log_likelihood/y" in listed
    assert tree.attrs == {"weights_left_out": 0, "method": "m", "seed": 3}


def test_a_tree_survives_the_file(tmp_path):
    tree = posterior_tree(TreeParts(**parts()))
    write_tree(tree, tmp_path / "t.nc")
    assert read_tree(tmp_path / "t.nc").identical(tree)
    # The file is closed: it can be replaced and removed.
    write_tree(tree, tmp_path / "t.nc")
    (tmp_path / "t.nc").unlink()


@pytest.mark.parametrize("name", ["log_likelihood", "posterior_predictive"])
def test_wrong_broadcasting_is_noticed(name):
    given = parts()
    wrong = np.zeros((4, 4, 6)) if name == "posterior_predictive" else torch.zeros(4, 4, 6)
    with pytest.raises(ValueError, match=rf"{name} has shape \(4, 4, 6\)"):
        posterior_tree(TreeParts(**(given | {name: wrong})))


def test_large_weights_are_left_out_and_the_tree_says_so(monkeypatch):
    monkeypatch.setattr(schema, "MAX_WEIGHT_BYTES", 150)
    tree = posterior_tree(TreeParts(**parts()))
    assert tree.attrs["weights_left_out"] == 1
    assert "0.weight" not in tree["posterior"]
    assert "log_likelihood" in tree.children


def test_what_is_no_tree_is_refused(tmp_path):
    (tmp_path / "t.nc").write_bytes(b"CDF nothing")
    with pytest.raises(StoreError, match="cannot read the posterior"):
        read_tree(tmp_path / "t.nc")
