"""Checks of a fit: reproducibility, storage, predictions."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from zoo.fit.config import dump_config, make_config, read_config
from zoo.registry import Entry
from zoo.testing.problems import small_dataset, tiny_fit
from zoo.workflow.loading import load
from zoo.workflow.result import save


def seed_reproduces(entry: Entry) -> None:
    """The same seed gives the same bits, another seed does not."""
    dataset = small_dataset(entry)

    def state(seed: int) -> Tensor:
        guide = tiny_fit(entry, dataset, seed=seed).assembly.guide
        return torch.cat([p.detach().flatten() for p in guide.parameters()])

    first = state(1)
    assert torch.equal(first, state(1)), "two runs with the same seed differ"
    assert not torch.equal(first, state(2)), "runs with different seeds are the same"


def tree_schema(entry: Entry) -> None:
    """The tree has ArviZ's groups, and log-likelihoods of shape (chain, draw, obs_id)."""
    dataset = small_dataset(entry)
    tree = tiny_fit(entry, dataset).tree(dataset)
    wanted = {"posterior", "sample_stats", "log_likelihood", "posterior_predictive"}
    missing = {*wanted, "observed_data"} - set(tree.children)
    assert not missing, f"the tree lacks {sorted(missing)}"
    dims = dict(tree["log_likelihood"]["y"].sizes)
    expected = {"chain": 1, "draw": 8, "obs_id": len(dataset.y_train)}
    assert dims == expected, f"log_likelihood has {dims} instead of {expected}"


def save_load(entry: Entry) -> None:
    """A stored fit, loaded into a new object, gives identical draws."""
    dataset = small_dataset(entry)
    fitted = tiny_fit(entry, dataset)
    with tempfile.TemporaryDirectory() as folder:
        save(fitted, Path(folder) / "run")
        loaded = load(Path(folder) / "run")
        for name, value in fitted.draws.slots.items():
            assert torch.equal(value, loaded.draws.slots[name]), f"draws of {name} differ"


def config_round_trip(entry: Entry) -> None:
    """The resolved configuration comes back from YAML unchanged."""
    config = tiny_fit(entry, small_dataset(entry)).config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump_config(config), encoding="utf-8")
        assert make_config(**read_config(path)) == config, "config.yaml does not give the config"


def predict_shapes(entry: Entry) -> None:
    """Predictions have one number per row, and uncertainties are not negative."""
    dataset = small_dataset(entry)
    prediction = tiny_fit(entry, dataset).predict(dataset.X_test)
    rows = len(dataset.X_test)
    assert prediction.mean.shape == (rows,), f"mean has shape {prediction.mean.shape}"
    assert prediction.samples.shape == (8, rows), f"samples: {prediction.samples.shape}"
    for name in ("aleatoric", "epistemic"):
        part = getattr(prediction, name)
        assert part.shape == (rows,), f"{name} uncertainty has shape {part.shape}"
        assert (part >= 0).all(), f"{name} uncertainty is negative"


def beats_the_prior(entry: Entry) -> str:
    """After a short fit, held-out rows are more probable than before it."""
    dataset = small_dataset(entry, rows=120)
    densities = []
    for num_steps in (1, 400):
        fitted = tiny_fit(entry, dataset, num_steps=num_steps, num_samples=50, lr=0.02)
        observed = dataset.schema.decode_target(dataset.y_test)
        densities.append(-fitted.score(dataset.X_test, observed)["nll"])
    before, after = densities
    assert after > before, f"log density per row is {after:.3f} after and {before:.3f} before"
    return f"log density per row {before:.2f} -> {after:.2f}"
