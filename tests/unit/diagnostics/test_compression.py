import json

import numpy as np
import pytest

from tests.unit.diagnostics.synthetic_trees import tree_of
from zoo.diagnostics.compression import compression_findings


def pruned_tree(cost, left=20.0, rows=400):
    rng = np.random.default_rng(0)
    density = rng.normal(-1.0, 0.5, rows)
    pruned = density - cost + 0.05 * rng.normal(size=rows)
    held_out = {"log_density": ("row", density), "pruned_log_density": ("row", pruned)}
    tree = tree_of({"held_out": held_out}, compresses=1)
    tree.attrs["groups"] = json.dumps({"weights_left_percent": left})
    return tree


@pytest.mark.parametrize(
    ("cost", "level"), [(-0.1, "ok"), (0.0, "ok"), (0.05, "warn"), (0.3, "fail")]
)
def test_pruning_is_judged_by_what_it_costs(cost, level):
    (found,) = compression_findings(pruned_tree(cost))
    assert found.level == level
    assert found.value == pytest.approx(cost, abs=0.01)
    assert ("higher" if cost > 0.01 else "nats") in found.message


def test_a_method_that_prunes_nothing_is_a_warning():
    (found,) = compression_findings(pruned_tree(0.0, left=100.0))
    assert found.level == "warn"


def test_methods_that_do_not_prune_have_no_finding():
    tree = pruned_tree(1.0)
    tree.attrs["compresses"] = 0
    assert compression_findings(tree) == []
