import numpy as np
import pytest
import torch
import xarray
from torch import nn

import zoo
from zoo.data import from_arrays
from zoo.diagnostics.truth_distance import truth_findings
from zoo.fit.build import choose_likelihood
from zoo.fit.comparable import function_group, functions_of
from zoo.fit.config import make_config
from zoo.truth.of_fit import truth_of


def logistic_data(classes=("no", "yes"), rows=80, seed=0):
    """Return rows of a logistic regression with two inputs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    scores = np.stack([k * (x[:, 0] - 0.5 * x[:, 1]) for k in range(len(classes))], -1)
    index = (scores + rng.gumbel(size=scores.shape)).argmax(-1)
    return from_arrays(x, np.array(classes)[index], test_fraction=0.2, task="classification")


def fit(dataset, **options):
    given = {"net": "linear", "num_steps": 5, "num_samples": 300} | options
    return zoo.fit("mean_field", data=dataset, progress_bar=False, **given)


@pytest.mark.parametrize("classes", [("a", "b"), ("a", "b", "c")])
def test_a_common_shift_of_the_logits_changes_nothing_in_the_findings(classes):
    """The shift of each draw is that of a prior 30 times wider than the logits."""
    fitted = fit(logistic_data(classes), likelihood="categorical")
    model, values, dataset = fitted.assembly.model, fitted.draws.values, fitted.dataset
    (bias,) = [name for name in values if name.endswith("bias")]
    shift = 30 * torch.randn(len(values[bias]), 1, generator=torch.Generator().manual_seed(0))
    moved = values | {bias: values[bias] + shift.to(values[bias])}

    def tree(values):
        functions, names = functions_of(model, values, dataset)
        group = function_group(functions.numpy()[None], names, model.likelihood, dataset)
        return xarray.DataTree.from_dict({"functions": group})

    findings = truth_findings(tree(moved), tree(values))
    assert len(findings) == 5
    assert {finding.level for finding in findings} == {"ok"}
    assert findings[0].value == pytest.approx(0, abs=1e-3)
    raw = model.likelihood.functions  # the logits themselves would differ
    try:
        model.likelihood.functions = lambda f, classes: dict(enumerate(f.unbind(-1)))
        assert "fail" in {f.level for f in truth_findings(tree(moved), tree(values))}
    finally:
        model.likelihood.functions = raw


def test_functions_of_a_tree_have_names_and_rows():
    dataset = logistic_data(("a", "b", "c"))
    f = fit(dataset).tree(dataset)["functions"]["f"]
    assert f.coords["output"].to_numpy().tolist() == ["P(a)", "P(b)", "P(c)"]
    assert f.coords["point"].to_numpy()[[0, -1]].tolist() == [0, len(dataset.X_train) - 1]
    np.testing.assert_allclose(f.sum("output"), 1.0, rtol=1e-5)


def matched_fits(method, dataset, **options):
    """Return fits with one logit and with two; the difference of two N(0, s²) is N(0, 2 s²)."""
    one = zoo.fit(
        method, data=dataset, net="linear", priors={"*": f"Normal(0, {2**0.5})"}, dtype="float64",
        progress_bar=False, **options,
    )  # fmt: skip
    two = zoo.fit(
        method, data=dataset, net="linear", priors={"*": "Normal(0, 1)"}, likelihood="categorical",
        dtype="float64", progress_bar=False, **options,
    )  # fmt: skip
    assert (one.config.likelihood, two.config.likelihood) == ("bernoulli", "categorical")
    return one, two


def test_one_logit_and_two_have_the_same_laplace_posterior():
    """The Laplace approximation of a linear model depends on the density alone."""
    dataset = logistic_data()
    one, two = matched_fits(
        "laplace", dataset, num_steps=300, lr=0.05, batch_size=1000, num_samples=4000,
    )  # fmt: skip
    p, q = (fitted.predict_proba(dataset.X_test) for fitted in (one, two))
    assert p.shape == q.shape == (len(dataset.X_test), 2)
    # Probabilities have sds of at most 0.1 here: 5 errors of a difference of two means.
    np.testing.assert_allclose(p, q, atol=5 * 0.1 * np.sqrt(2 / 4000))


@pytest.mark.slow
def test_one_logit_and_two_have_the_same_truth(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    one, two = matched_fits("mean_field", logistic_data(), num_steps=5, num_samples=10)
    found = [truth_of(fitted, fitted.dataset, progress_bar=False)[1] for fitted in (one, two)]
    trees = [xarray.DataTree.from_dict({"functions": t["functions"].to_dataset()}) for t in found]
    findings = truth_findings(*trees)
    assert len(findings) == 5
    assert {finding.level for finding in findings} == {"ok"}
    f = [tree["functions"]["f"] for tree in trees]
    assert f[0].coords["output"].item() == f[1].coords["output"].item() == "P(yes)"
    means = [array.mean(("chain", "draw")).to_numpy() for array in f]
    # At least 400 effective draws on either side (ESS limit of an accepted truth), sds at most 0.1.
    np.testing.assert_allclose(*means, atol=5 * 0.1 * np.sqrt(2 / 400))


class Two(nn.Module):
    def __init__(self, outputs=2):
        super().__init__()
        self.layer = nn.Linear(2, outputs)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("net", "wanted"),
    [
        ("mlp", "bernoulli"),
        ("linear", "bernoulli"),
        ("mlp:2-5-1", "bernoulli"),
        ("mlp:2-5-2", "categorical"),
        (Two(1), "bernoulli"),
        (Two(2), "categorical"),
        (Two(3), "bernoulli"),  # refused later, with the shapes
    ],
)
def test_two_classes_have_one_logit_unless_the_network_has_two(net, wanted):
    schema = logistic_data().schema
    given = None if isinstance(net, str) else net
    config = make_config(method="mean_field", data="moons", **({} if given else {"net": net}))
    before = torch.random.get_rng_state()
    assert choose_likelihood(config, schema, given) == wanted
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_network_with_two_outputs_is_fitted_as_before():
    fitted = fit(logistic_data(), net=Two())
    assert fitted.config.likelihood == "categorical"
    assert fitted.predict_proba(fitted.dataset.X_test).shape[1] == 2
