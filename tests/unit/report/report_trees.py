"""Trees with everything that a report can show, for its tests."""

import json

import numpy as np
import xarray

from tests.unit.diagnostics.synthetic_trees import Regression, tree_of

HOSTILE = "<script>alert(1)</script>"
DOLLARS = "$x_1^"
LONG = "layer." * 60 + "weight"
#: What XML cannot hold, what matplotlib hides from legends, and what its fonts lack.
ODD = "_\x00\x1b\ud800重み\n"

CONFIG = {
    "method": "mean_field",
    "data": "linear",
    "net": "mlp(32)",
    "likelihood": "gaussian",
    "num_steps": 2000,
    "num_samples": 1000,
    "seed": 3,
    "priors": {"*.weight": "Normal(0, 1)"},
    "device": None,
}


def regression(*, mean_field=False):
    """Return fit and truth of a linear regression with correlated inputs."""
    problem = Regression(0, correlation=0.9 if mean_field else 0.0)
    tree = problem.fit(problem.mean_field if mean_field else None)
    rng = np.random.default_rng(1)
    noise = xarray.DataArray(rng.lognormal(-0.7, 0.1, (1, 1000)), dims=("chain", "draw"))
    tree["posterior"]["noise"] = noise
    tree["prior"]["noise"] = noise.copy(data=np.abs(rng.standard_cauchy((1, 1000))))
    tree["optimization"] = xarray.DataTree(
        tree["optimization"].to_dataset().assign(started(tree)).assign_coords(restart=[0, 1, 2])
    )
    tree.attrs["method"] = "mean_field"
    tree.attrs |= attributes()
    truth = problem.truth()
    truth.attrs["recipe"] = json.dumps({"sampler": "nutpie", "num_chains": 4, "target": 0.9})
    return tree, truth


def started(tree):
    """Return what is known of two restarts, the second of which diverged."""
    mean = tree["functions"]["f"].mean(("chain", "draw")).to_numpy()
    rows = ("restart", "point", "output")
    return {
        "restart_elbo": ("restart", np.array([-203.4, -203.9, np.nan])),
        "restart_elbo_error": ("restart", np.array([0.2, 0.3, np.nan])),
        "restart_outputs_mean": (rows, np.stack([mean, mean + 0.01, np.nan * mean])),
        "restart_outputs_sd": (rows, np.stack([mean * 0 + 0.1, mean * 0 + 0.1, np.nan * mean])),
        "restart_log_density": (("restart", "held_out_row"), np.full((3, 2), -0.77)),
    }


def attributes(config=CONFIG, **others):
    groups = {
        "weights_left_percent": 21.5,
        "relaxed": 2,
        "relaxations": 12,
        "slots": {
            "0.weight": {
                "groups": 40,
                "kept": 11,
                "threshold": 4.0,
                "scores": [*np.linspace(0.5, 1.5, 11), *np.linspace(7, 9, 29)],
            },
            "2.weight": {"groups": 32, "kept": 32, "threshold": float("inf")},
        },
    }
    metrics = {
        "train.rmse": 0.49, "train.nll": 0.71, "train.crps": 0.28,
        "test.rmse": 0.52, "test.nll": 0.77, "test.crps": 0.29, "test.pruned.rmse": 0.53,
        "elbo": -203.4, "kl": 13.2, "weights_left_percent": 21.5, "steps": 2000, "seconds": 4.2,
    }  # fmt: skip
    texts = {
        "summary": "Every weight has an independent Gaussian posterior.",
        "reference": "Blundell et al. (2015), Weight Uncertainty in Neural Networks",
        "command": "zoo fit --config config.yaml",
        "dimension": 3,
        "seed": 3,
    }
    mappings = {
        "config": config,
        "priors": {"0.weight": "Normal(0, 1)", "0.bias": "Normal(0, HalfCauchy(1))"},
        "metrics": metrics,
        "groups": groups,
        "versions": {"python": "3.11.9", "torch": "2.13.0", "pyro-ppl": "1.9.2"},
    }
    return texts | {key: json.dumps(value) for key, value in mappings.items()} | others


def classification(names=("adelie", "chinstrap", "gentoo"), *, draws=400, rows=240, steps=3000):
    """Return the tree of a classifier that is right about four times out of five."""
    rng = np.random.default_rng(2)
    classes, chained = len(names), ("chain", "draw")
    logits = rng.normal(0, 2.2, (rows, classes))
    probability = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = np.array([rng.choice(classes, p=row) for row in probability])
    replicated = (probability.cumsum(1)[None] < rng.uniform(size=(draws, rows, 1))).sum(2)
    f = logits[None, :16] + rng.normal(0, 0.5, (draws, 16, classes))
    log_likelihood = np.log(probability[np.arange(rows), y])[None] + rng.normal(
        0, 0.05, (draws, rows)
    )
    weights = rng.normal(0, 0.4, (1, draws, 8, 5))
    groups = {
        "posterior": {
            "0.weight": ((*chained, "unit", "feature"), weights),
            "scale": (chained, rng.lognormal(-1, 0.2, (1, draws))),
        },
        "prior": {
            "0.weight": ((*chained, "unit", "feature"), rng.normal(size=weights.shape)),
            "scale": (chained, np.abs(rng.standard_cauchy((1, draws)))),
        },
        "sample_stats": {
            "lp": (chained, rng.normal(-150, 4, (1, draws))),
            "log_q": (chained, rng.normal(20, 4, (1, draws))),
        },
        "log_prior": {"0.weight": (chained, rng.normal(-40, 3, (1, draws)))},
        "log_likelihood": {"y": ((*chained, "obs_id"), log_likelihood[None])},
        "posterior_predictive": {"y": ((*chained, "obs_id"), replicated[None])},
        "observed_data": {"y": ("obs_id", y)},
        "functions": {"f": ((*chained, "point", "output"), f[None])},
        "held_out": {"probability": (("row", "class"), probability), "y": ("row", y)},
        "optimization": {
            "loss": (
                ("chain", "step"),
                150 + 300 * np.exp(-np.arange(steps) / steps * 20) + rng.normal(0, 5, (2, steps)),
            )
        },
    }
    tree = tree_of(groups, task="classification", method="group_horseshoe")
    tree["held_out"].coords["class"] = list(names)
    config = CONFIG | {"method": "group_horseshoe", "data": "penguins", "likelihood": "categorical"}
    metrics = {"train.accuracy": 0.9, "test.accuracy": 0.8, "test.ece": 0.03, "elbo": -150.0}
    tree.attrs |= attributes(config, metrics=json.dumps(metrics))
    return tree


def hostile():
    """Return a tree whose every name tries to break out of the page or of its figures."""
    names = [HOSTILE, DOLLARS, LONG, ODD, "a&b\"'</code>", "$\\frac{1}{$", "{{ 7 * 7 }}"]
    tree = classification(names[:4])
    for name in names:
        for group in ("posterior", "prior"):
            tree[group][name] = tree[group]["scale"] * 1.0
    tree.attrs["identified"] = ", ".join(names)
    tree.attrs["method"] = HOSTILE
    config = {"data": HOSTILE, "target": DOLLARS, "list": names, HOSTILE: HOSTILE}
    slot = {"groups": 4, "kept": 2, "threshold": 1, "scores": [0, 1, 2, 3]}
    slots = dict.fromkeys(names, slot)
    edge = {"start": 0, "end": 1, "primitives": names, "weights": [1 / len(names)] * len(names)}
    tree.attrs |= attributes(
        config,
        task="classification",
        summary=HOSTILE,
        reference=HOSTILE,
        command=f"zoo fit '{HOSTILE}'",
        priors=json.dumps({name: name for name in names}),
        groups=json.dumps({"slots": slots}),
        structure=json.dumps({"edges": [edge, {"start": "x"}, 5]}),
        versions=json.dumps({HOSTILE: HOSTILE}),
        metrics=json.dumps({f"test.{HOSTILE}": 1.0, HOSTILE: 2.0}),
    )
    return tree
