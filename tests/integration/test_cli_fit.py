"""``zoo fit``: what a run directory holds, and that its configuration repeats it."""

import json

import pytest
import torch
import yaml

from zoo import registry
from zoo.errors import ZooError
from zoo.fit import prepare, store
from zoo.fit.store import RunDirectory

FILES = {
    "config.yaml",
    "data.json",
    "groups.json",
    "guide.safetensors",
    "metrics.json",
    "posterior.nc",
    "report.html",
    "findings.json",
    "summary.csv",
}
CLASSIFICATION = {
    *(f"{part}.{score}" for part in ("train", "test") for score in ("accuracy", "nll", "ece")),
    "elbo",
    "elbo_error",
    "kl",
    "weights_left_percent",
    "steps",
    "seconds",
}
TINY = ("--num-steps", "30", "--num-samples", "10")


def metrics_of(run):
    return json.loads((run / "metrics.json").read_text())


def untimed(metrics):
    return {name: value for name, value in metrics.items() if name != "seconds"}


def assert_same_posterior(run, other):
    here, _ = RunDirectory(run).read_tensors("guide.safetensors")
    there, _ = RunDirectory(other).read_tensors("guide.safetensors")
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert torch.equal(value, there[name]), name


def test_run_directory_holds_every_file_and_no_checkpoint(wine_run):
    assert {path.name for path in wine_run.iterdir()} == FILES


def test_files_of_a_run_have_the_same_permissions(wine_run):
    assert len({path.stat().st_mode for path in wine_run.iterdir()}) == 1


def test_metrics_of_a_classification(wine_run):
    metrics = metrics_of(wine_run)
    assert metrics.keys() >= CLASSIFICATION
    assert metrics["steps"] == 30
    assert 0.5 < metrics["test.accuracy"] <= 1.0
    assert 0.0 < metrics["weights_left_percent"] <= 100.0


def test_metrics_of_a_regression(linear_run):
    metrics = metrics_of(linear_run)
    assert metrics.keys() >= {"test.rmse", "test.nll", "test.crps", "elbo", "kl"}
    assert metrics["weights_left_percent"] == 100.0


def test_groups_count_what_is_left(wine_run):
    groups = json.loads((wine_run / "groups.json").read_text())
    assert groups["slots"].keys() == {"0.weight", "2.weight"}
    for slot in groups["slots"].values():
        assert 0 <= slot["kept"] <= slot["groups"]


def test_configuration_is_complete_and_names_the_data(wine_run):
    config = yaml.safe_load((wine_run / "config.yaml").read_text())
    recipe = registry.get("group_horseshoe").recipe
    assert (config["likelihood"], config["lr"]) == ("categorical", recipe.lr)
    assert config["device"] in ("cpu", "cuda")
    assert len(config["data_sha256"]) == 64


def test_default_directories_are_numbered_and_the_configuration_repeats_the_run(
    zoo_here, tmp_path, wine_run
):
    first = zoo_here("fit", "group_horseshoe", "--data", "wine", *TINY)
    assert first.finished
    assert "run     runs/1\n" in first.out
    assert "report  runs/1/report.html\n" in first.out
    assert "test.accuracy" in first.out
    second = zoo_here("fit", "--config", "runs/1/config.yaml")
    assert "run     runs/2\n" in second.out
    for run in (tmp_path / "runs/2", wine_run):
        assert_same_posterior(tmp_path / "runs/1", run)
        assert untimed(metrics_of(run)) == untimed(metrics_of(tmp_path / "runs/1"))


def test_flags_override_the_configuration(zoo_here, tmp_path, wine_run):
    config = wine_run / "config.yaml"
    flags = ("--num-steps", "3", "--seed", "1", "--prior", "2.weight=Normal(0, 2)")
    assert zoo_here("fit", "--config", config, *flags, "--out", "new").finished
    stored = yaml.safe_load((tmp_path / "new/config.yaml").read_text())
    assert (stored["method"], stored["num_steps"], stored["seed"]) == ("group_horseshoe", 3, 1)
    assert stored["priors"] == {"2.weight": "Normal(loc=0, scale=2)"}
    assert stored["num_samples"] == 10
    assert metrics_of(tmp_path / "new")["steps"] == 3


def test_other_data_may_be_put_into_a_configuration(zoo_here, tmp_path, wine_run):
    config = wine_run / "config.yaml"
    outcome = zoo_here(
        "fit", "--config", config, "--data", "breast_cancer", "--net", "mlp", "--num-steps", "3"
    )
    assert outcome.finished, outcome
    assert yaml.safe_load((tmp_path / "runs/1/config.yaml").read_text())["data"] == "breast_cancer"


def test_priors_of_flags_and_configuration_are_joined(zoo_here, tmp_path):
    (tmp_path / "base.yaml").write_text(
        "method: mean_field\ndata: linear\nnet: linear\nnum_steps: 3\nnum_samples: 5\n"
        "priors: {'*weight': {dist: StudentT, df: 3, loc: 0, scale: 1}, '*bias': 'Normal(0, 5)'}\n"
    )
    flags = ("--prior", "*bias=Laplace(0, 1)", "--prior", "noise=HalfNormal(1)")
    assert zoo_here("fit", "--config", "base.yaml", *flags).finished
    priors = yaml.safe_load((tmp_path / "runs/1/config.yaml").read_text())["priors"]
    assert priors == {
        "*weight": "StudentT(df=3, loc=0, scale=1)",
        "*bias": "Laplace(loc=0, scale=1)",
        "noise": "HalfNormal(scale=1)",
    }


@pytest.fixture
def read_by_fit(monkeypatch):
    """The configurations that reach the fit, which is not run."""

    def stop(config):
        found.append(config)
        raise ZooError("enough")

    found = []
    monkeypatch.setattr(prepare, "prepare", stop)
    return found


def test_options_of_flags_and_configuration_are_joined(zoo_here, tmp_path, read_by_fit):
    (tmp_path / "base.yaml").write_text(
        "method: mean_field\ndata: wine\n"
        "options: {rank: 2, rule: sum, max_sd: {0.weight: 1, 2.weight: 1}}\n"
    )
    flags = ("--option", "rank=20", "--option", "max_sd[0.weight]=0.2", "--option", "fast=true")
    assert zoo_here("fit", "--config", "base.yaml", *flags).err == "zoo: error: enough\n"
    assert read_by_fit[0].options == {
        "rank": 20,
        "rule": "sum",
        "max_sd": {"0.weight": 0.2, "2.weight": 1},
        "fast": True,
    }


def test_every_kind_of_flag(zoo_here, read_by_fit):
    zoo_here(
        "fit", "mean_field", "--data", "wine", "--lr", "1e-3", "--num-steps", "7", "--autocast",
        "--schedule", "cosine", "--ignore", "a", "--ignore", "b", "--bayesian", "*.weight",
        "--prior", "Normal(0, 2)", "--seed", "3",
    )  # fmt: skip
    (config,) = read_by_fit
    expected = {
        "method": "mean_field", "data": "wine", "lr": 0.001, "num_steps": 7, "autocast": True,
        "schedule": "cosine", "ignore": ("a", "b"), "bayesian": ("*.weight",),
        "priors": {"*weight": "Normal(loc=0, scale=2)"}, "seed": 3,
    }  # fmt: skip
    assert config.model_dump(exclude_unset=True) == expected


@pytest.mark.parametrize(
    "net", ["linear", "mlp:13-5-3", "mlp:13-4-4-3:tanh", "module:my_net.py:build"]
)
def test_networks(zoo_here, tmp_path, net):
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n\n\n"
        "def build(num_inputs, num_outputs):\n"
        "    return nn.Sequential(nn.BatchNorm1d(num_inputs), nn.Linear(num_inputs, num_outputs))\n"
    )
    outcome = zoo_here("fit", "mean_field", "--data", "wine", "--net", net, "--num-steps", "3")
    assert outcome.finished, outcome
    assert not outcome.err


@pytest.mark.parametrize("prior", ["*=GroupHorseshoe(scale=1)", "*.bias=GroupHorseshoe(scale=1)"])
def test_group_priors_on_biases(zoo_here, prior):
    options = ("--prior", prior, "--num-steps", "3", "--num-samples", "5")
    outcome = zoo_here("fit", "mean_field", "--data", "wine", *options)
    assert outcome.finished, outcome


def test_numbered_directories_are_never_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The other process makes its directory between our look and our own.
    looks = iter([tmp_path / "runs/1", tmp_path / "runs/1", tmp_path / "runs/2"])
    monkeypatch.setattr(store, "next_run_path", lambda root: next(looks))
    assert RunDirectory.new(None).path.name == "1"
    assert RunDirectory.new(None).path.name == "2"
