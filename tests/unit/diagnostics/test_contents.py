"""A tree that lost a part is not judged as if it had never been there."""

import numpy as np
import pytest
import xarray

import zoo
from zoo.data import from_arrays
from zoo.diagnostics import judge
from zoo.diagnostics.contents import contents_findings
from zoo.fit.contents import LISTED
from zoo.fit.schema import read_tree, write_tree


@pytest.fixture(scope="module")
def tree():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=300)
    data = from_arrays(X[:200], y[:200], X_test=X[200:], y_test=y[200:], task="regression")
    fitted = zoo.fit("mean_field", data=data, net="mlp:3-1", seed=0, progress_bar=False)
    return fitted.tree()


def test_a_whole_tree_is_complete_also_after_it_was_stored(tree, tmp_path):
    write_tree(tree, tmp_path / "posterior.nc")
    for found in (tree, read_tree(tmp_path / "posterior.nc")):
        assert [finding.level for finding in contents_findings(found)] == ["ok"]
    assert judge(tree).verdict.level == "ok"


def parts(tree):
    """Every group, every variable, every attribute."""
    for name, group in tree.children.items():
        yield name, None
        yield from ((name, variable) for variable in group.data_vars)
    yield from ((None, name) for name in tree.attrs)


def without(tree, group, name):
    copied = tree.copy(deep=True)
    if group is None:
        del copied.attrs[name]
    elif name is None:
        del copied[group]
    else:
        copied[group] = xarray.DataTree(copied[group].to_dataset().drop_vars(name))
    return copied


def test_whatever_is_removed_is_missed(tree):
    for group, name in parts(tree):
        judgement = judge(without(tree, group, name))
        assert judgement.verdict.level != "ok", (group, name)
        if name != "creation_library":
            (found,) = [f for f in judgement.findings if f.check == "tree.complete"]
            assert found.level == "unchecked"
            assert name == LISTED or (name or group) in found.message


def test_trees_of_other_libraries_have_no_list():
    assert contents_findings(xarray.DataTree()) == []
