"""Fits of Pyro models that are no networks."""

import json

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from torch import nn

import zoo
from guides import MeanField
from zoo.errors import ConfigError, ZooError
from zoo.fit.model_draws import densities_of

Y = torch.tensor([1.2, 0.7, 2.1, 1.6, 0.4, 1.9])
QUICK = {"num_steps": 1500, "lr": 0.05, "num_samples": 400, "progress_bar": False}


def normal_mean(y, prior_sd=2.0):
    """Draw a mean, and rows around it."""
    mu = pyro.sample("mu", dist.Normal(0.0, prior_sd))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def exact(y, prior_sd=2.0):
    precision = prior_sd**-2 + len(y)
    return float(y.sum()) / precision, precision**-0.5


@pytest.mark.parametrize("guide", ["mean_field", "full_rank", AutoNormal, "AutoDiagonalNormal"])
def test_a_conjugate_model_has_its_exact_posterior(guide):
    fitted = zoo.fit(normal_mean, guide=guide, args=(Y,), **QUICK)
    mean, sd = exact(Y)
    # 400 draws: a mean to five standard errors, an sd to 20 %
    assert float(fitted.draws["mu"].mean()) == pytest.approx(mean, abs=5 * sd / 20)
    assert float(fitted.draws["mu"].std()) == pytest.approx(sd, rel=0.2)


def test_a_guide_object_is_a_guide():
    guide = AutoNormal(normal_mean, init_scale=0.1)
    fitted = zoo.fit(normal_mean, guide=guide, args=(Y,), **QUICK)
    mean, sd = exact(Y)
    assert float(fitted.draws["mu"].mean()) == pytest.approx(mean, abs=5 * sd / 20)
    assert fitted.guide.auto is guide


def test_a_function_with_params_is_a_guide():
    def guide(y):
        loc = pyro.param("loc", torch.tensor(0.0))
        scale = pyro.param("scale", torch.tensor(0.5), constraint=dist.constraints.positive)
        pyro.sample("mu", dist.Normal(loc, scale))

    fitted = zoo.fit(normal_mean, guide=guide, args=(Y,), **QUICK)
    mean, sd = exact(Y)
    assert float(fitted.draws["mu"].mean()) == pytest.approx(mean, abs=5 * sd / 20)
    assert len(list(fitted.guide.parameters())) == 2
    assert not pyro.get_param_store()


def test_parameters_of_the_model_are_trained():
    def model(y):
        shift = pyro.param("shift", torch.tensor(0.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 0.1))
            pyro.sample("y", dist.Normal(shift + z, 1.0), obs=y)

    fitted = zoo.fit(model, args=(Y,), **QUICK)
    (shift,) = fitted.model.parameters()
    assert float(shift.detach()) == pytest.approx(float(Y.mean()), abs=0.1)


def test_the_optimum_is_that_of_pyro():
    """Same model and guide, trained here and by pyro.infer.SVI, to the same ELBO."""

    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(5.0))
        with pyro.plate("schools", 8):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(mu + tau * z, 10.0), obs=y)

    y = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12])
    fitted = zoo.fit(model, guide=AutoDiagonalNormal, args=(y,), num_steps=3000, lr=0.02)
    theirs = AutoDiagonalNormal(model)
    pyro.set_rng_seed(0)
    optimizer = pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.999})
    svi = SVI(model, theirs, optimizer, Trace_ELBO())
    for _ in range(3000):
        svi.step(y)
    elbo = -Trace_ELBO(num_particles=2000).loss(model, theirs, y)
    value, error = fitted.elbo
    # 2000 particles have a standard error of about 0.03 nats
    assert value == pytest.approx(elbo, abs=5 * (error + 0.03))


def local_latents(x, y, batch_size=None):
    """A random effect for every row, seen in random batches."""
    w = pyro.sample("w", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(y), subsample_size=batch_size) as rows:
        effect = pyro.sample("effect", dist.Normal(0.0, 0.5))
        pyro.sample("y", dist.Normal(w * x[rows] + effect, 0.5), obs=y[rows])


def test_local_latent_variables_and_subsampled_plates():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, generator=generator)
    y = 1.5 * x + 0.7 * torch.randn(60, generator=generator)
    options = {"args": (x, y), "num_steps": 4000, "lr": 0.03, "progress_bar": False}
    whole = zoo.fit(local_latents, **options)
    batches = zoo.fit(
        local_latents, kwargs={"batch_size": 12}, full_kwargs={"batch_size": None}, **options
    )
    assert batches.draws["effect"].shape == (1000, 60)
    means = [f.draws["effect"].mean(0) for f in (whole, batches)]
    # the posterior sd of an effect is 0.35; noise of batches and draws is far below
    assert float((means[0] - means[1]).abs().max()) < 0.2
    assert float(batches.draws["w"].mean()) == pytest.approx(
        float(whole.draws["w"].mean()), abs=0.1
    )
    assert "lp" in batches.tree()["sample_stats"]


def test_a_model_that_always_subsamples_says_what_is_left_out():
    x, y = torch.randn(20), torch.randn(20)
    fitted = zoo.fit(
        local_latents, args=(x, y), kwargs={"batch_size": 5}, num_steps=20, progress_bar=False
    )
    assert "lp" not in fitted.tree()["sample_stats"]
    assert any("subsamples its data" in f.message for f in fitted.findings())
    with pytest.raises(ZooError, match="subsamples 5 of 20"):
        fitted.truth()


def test_log_joint_is_that_of_a_trace():
    fitted = zoo.fit(normal_mean, args=(Y,), num_steps=5, num_samples=4, progress_bar=False)
    joint = densities_of(fitted.full, fitted.draws).log_joint
    for index, mu in enumerate(fitted.draws["mu"]):
        expected = dist.Normal(0.0, 2.0).log_prob(mu) + dist.Normal(mu, 1.0).log_prob(Y).sum()
        assert float(joint[index]) == pytest.approx(float(expected), rel=1e-6)


def test_a_run_is_written_with_its_report(tmp_path):
    fitted = zoo.fit(normal_mean, args=(Y,), out=tmp_path / "run", **QUICK)
    assert fitted.path == tmp_path / "run"
    names = {path.name for path in fitted.path.iterdir()}
    assert {"posterior.nc", "findings.json", "report.html", "metrics.json"} <= names
    page = (fitted.path / "report.html").read_text()
    assert "read parameters or structure" in page
    assert json.loads((fitted.path / "metrics.json").read_text())["steps"] == 1500


def test_same_seed_same_draws():
    options = QUICK | {"num_steps": 50}
    first, second = (zoo.fit(normal_mean, args=(Y,), **options) for _ in range(2))
    assert torch.equal(first.draws["mu"], second.draws["mu"])
    other = zoo.fit(normal_mean, args=(Y,), seed=1, **options)
    assert not torch.equal(first.draws["mu"], other.draws["mu"])


def test_a_module_is_a_model():
    class Model(nn.Module):
        def forward(self, y):
            return normal_mean(y)

    fitted = zoo.fit(Model(), args=(Y,), **QUICK)
    assert float(fitted.draws["mu"].mean()) == pytest.approx(exact(Y)[0], abs=0.1)


def test_a_guide_without_a_site_is_refused():
    with pytest.raises(ConfigError, match="has no site 'mu'"):
        zoo.fit(normal_mean, guide=lambda y: None, args=(Y,))


def test_an_unknown_guide_is_refused_by_name():
    with pytest.raises(ZooError, match="unknown guide 'AutoNormall'"):
        zoo.fit(normal_mean, guide="AutoNormall", args=(Y,))


def test_arrays_are_not_for_models():
    with pytest.raises(ConfigError, match="args= and kwargs="):
        zoo.fit(normal_mean, np.zeros(3), np.zeros(3))


def test_summary_has_a_row_per_element():
    fitted = zoo.fit(local_latents, args=(torch.zeros(3), torch.zeros(3)), num_steps=5)
    assert list(fitted.summary().index) == ["w", "effect[0]", "effect[1]", "effect[2]"]


def test_mean_field_of_a_subsampled_plate_has_all_elements():
    guide = MeanField(lambda: local_latents(torch.zeros(9), torch.zeros(9), batch_size=4))
    assert guide["effect"].loc.shape == (9,)
    assert guide.sample_sites()["effect"].shape == (4,)
    assert guide.full_size().sample_sites()["effect"].shape == (9,)


def interrupted_run(path, monkeypatch, **options):
    """Stop a run after its second checkpoint, as a killed process would."""
    from zoo.fit.store import CHECKPOINT, RunDirectory

    write = RunDirectory.write_tensors
    written = []

    def killed(self, name, *args):
        write(self, name, *args)
        written.append(name)
        if written.count(CHECKPOINT) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "write_tensors", killed)
        with pytest.raises(KeyboardInterrupt):
            zoo.fit(normal_mean, out=path, **options)


RESUMABLE = {"num_steps": 60, "num_samples": 20, "checkpoint_every": 20, "progress_bar": False}


def test_a_resumed_run_ends_in_the_same_bits(tmp_path, monkeypatch):
    whole = zoo.fit(normal_mean, args=(Y,), **RESUMABLE)
    interrupted_run(tmp_path / "run", monkeypatch, args=(Y,), **RESUMABLE)
    assert not (tmp_path / "run" / "metrics.json").exists()
    resumed = zoo.fit(normal_mean, args=(Y,), resume=tmp_path / "run", progress_bar=False)
    assert torch.equal(whole.losses, resumed.losses)
    assert torch.equal(whole.draws["mu"], resumed.draws["mu"])
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_run_is_not_resumed_with_other_data_or_settings(tmp_path, monkeypatch):
    interrupted_run(tmp_path / "run", monkeypatch, args=(Y,), **RESUMABLE)
    with pytest.raises(ConfigError, match="are not those of the run"):
        zoo.fit(normal_mean, args=(Y + 1,), resume=tmp_path / "run")
    with pytest.raises(ConfigError, match="does not take lr"):
        zoo.fit(normal_mean, args=(Y,), resume=tmp_path / "run", lr=0.1)


def test_a_loaded_run_has_the_same_posterior(tmp_path):
    def guide(y):
        loc = pyro.param("loc", torch.tensor(0.0))
        pyro.sample("mu", dist.Normal(loc, torch.tensor(0.5)))

    for number, source in enumerate(["full_rank", AutoNormal, guide]):
        fitted = zoo.fit(
            normal_mean, args=(Y,), guide=source, out=tmp_path / str(number), **RESUMABLE
        )
        given = guide if source is guide else None
        loaded = zoo.load(fitted.path, model=normal_mean, args=(Y,), guide=given)
        assert torch.equal(fitted.draws["mu"], loaded.draws["mu"])
        assert torch.equal(fitted.losses, loaded.losses)
        assert [f.check for f in fitted.findings()] == [f.check for f in loaded.findings()]
    with pytest.raises(ConfigError, match="pass the same guide as guide="):
        zoo.load(fitted.path, model=normal_mean, args=(Y,))
    with pytest.raises(ConfigError, match="pass it as model="):
        zoo.load(fitted.path)


def test_parameters_of_the_model_are_stored(tmp_path):
    def model(y):
        scale = pyro.param("scale", torch.tensor(3.0), constraint=dist.constraints.positive)
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mu, scale), obs=y)

    fitted = zoo.fit(model, args=(Y,), out=tmp_path / "run", **RESUMABLE)
    loaded = zoo.load(tmp_path / "run", model=model, args=(Y,))
    before, after = (next(f.model.parameters()).item() for f in (fitted, loaded))
    assert before == after
    assert before != pytest.approx(np.log(3.0))


def test_a_report_that_is_written_again_says_what_is_left_out(tmp_path):
    from zoo.fit.store import RunDirectory
    from zoo.workflow.outputs import write_report

    fitted = zoo.fit(normal_mean, args=(Y,), out=tmp_path / "run", **RESUMABLE)
    again = write_report(RunDirectory(tmp_path / "run"))
    assert [f.message for f in again.findings] == [f.message for f in fitted.findings()]


def test_a_bad_setting_is_named():
    with pytest.raises(ConfigError, match="the value of 'num_steps' is not accepted"):
        zoo.fit(normal_mean, args=(Y,), num_steps=0)
    with pytest.raises(ConfigError, match="unknown configuration key 'num_step'"):
        zoo.fit(normal_mean, args=(Y,), num_step=3)


def test_predictions_of_a_model_with_a_deterministic_site_in_a_plate():
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        with pyro.plate("rows", len(y)):
            shifted = pyro.deterministic("shifted", mu + torch.arange(len(y)))
            pyro.sample("y", dist.Normal(shifted, 0.1), obs=y)

    fitted = zoo.fit(model, args=(Y + torch.arange(6),), **QUICK)
    for group in ("posterior_predictive", "prior_predictive"):
        assert fitted.tree()[group]["y"].shape[2:] == (6,)
    means = fitted.tree()["posterior_predictive"]["y"].mean(("chain", "draw")).values
    # the mean of six rows, with a posterior sd of 0.04 and 400 draws of noise 0.1
    np.testing.assert_allclose(np.diff(means), 1.0, atol=0.05)
