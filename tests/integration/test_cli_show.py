"""The commands that only tell: list, show, data, help."""

import json
import subprocess

import pytest
from pydantic import Field

import zoo
from zoo.priors import Options
from zoo.registry import get


def test_list_names_every_method_with_one_sentence(zoo_here):
    outcome = zoo_here("list")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines] == zoo.list_models()
    assert all(line.endswith(".") or ":" in line for line in lines)


def test_list_takes_a_pattern_and_a_task(zoo_here):
    assert zoo_here("list", "*horse*").out.startswith("group_horseshoe ")
    assert "mean_field" in zoo_here("list", "--task", "counts").out


def test_list_as_json(zoo_here):
    rows = json.loads(zoo_here("list", "--json").out)
    assert [row["name"] for row in rows] == zoo.list_models()
    assert all(row["summary"] and row["reference"] and row["priors"] for row in rows)
    assert json.loads(zoo_here("list", "nothing*", "--json").out) == []


@pytest.mark.parametrize("name", zoo.list_models())
def test_show_every_method(zoo_here, name):
    outcome = zoo_here("show", name)
    assert outcome.code == 0
    parts = ("Reference:", "Model (zoo.models.", "Recipe:", "Slots of ", "0.weight", "analytic KL")
    positions = [outcome.out.index(part) for part in parts[:4]]
    assert positions == sorted(positions)
    for part in (*parts, "2.bias"):
        assert part in outcome.out


def test_show_prints_model_and_guide_as_code(zoo_here):
    out = zoo_here("show", "mean_field").out
    model, guide = out.partition("Guide (guides.mean_field):")[::2]
    assert "pyro.sample(" in model
    assert "pyro.sample(" in guide


def test_show_lists_options(zoo_here, monkeypatch):
    class Own(Options):
        rank: int = Field(20, ge=1, description="Rank of the covariance.")

    monkeypatch.setattr(get("mean_field").method, "options", Own)
    line = "  rank <int>  Rank of the covariance.  [default: 20; x >= 1]\n"
    assert "Options:\n" + line in zoo_here("show", "mean_field").out
    rows = json.loads(zoo_here("list", "--json").out)
    (row,) = (row for row in rows if row["name"] == "mean_field")
    assert [option["name"] for option in row["options"]] == ["rank"]


@pytest.mark.parametrize("name", zoo.list_models())
def test_show_draws_every_method(zoo_here, tmp_path, name):
    outcome = zoo_here("show", name, "--graph", "g.dot")
    assert (outcome.code, outcome.out) == (0, "graph   g.dot\n")
    text = (tmp_path / "g.dot").read_text()
    assert "subgraph cluster_obs_id" in text
    assert " -> y\n" in text


def test_show_draws_another_network_and_likelihood(zoo_here, tmp_path):
    flags = ("--net", "lenet5", "--likelihood", "poisson", "--graph", "g.dot")
    assert zoo_here("show", "group_horseshoe", *flags).code == 0
    assert r"y ~ Poisson\l" in (tmp_path / "g.dot").read_text()


def test_a_graph_that_cannot_be_written_is_explained(refused):
    assert "ends in .dot" in refused("show", "mean_field", "--graph", "g.txt")
    assert "cannot write" in refused("show", "mean_field", "--graph", "nowhere/g.dot")


def test_show_with_a_prior_and_a_network(zoo_here):
    outcome = zoo_here(
        "show", "mean_field", "--net", "mlp:7-5-1", "--likelihood", "gaussian",
        "--prior", "0.weight=StudentT(3, 0, 1)", "--prior", "noise=HalfNormal(1)",
    )  # fmt: skip
    assert "0.weight  (5, 7)  ~ StudentT(df=3, loc=0, scale=1)" in outcome.out
    assert "Monte Carlo KL" in outcome.out
    assert "noise" in outcome.out


def test_show_a_prior_without_a_pattern_goes_to_the_weights(zoo_here):
    out = zoo_here("show", "mean_field", "--prior", "Normal(loc=0, scale=3)").out
    assert "0.weight  (8, 4)  ~ Normal(loc=0, scale=3)" in out
    assert "0.bias  (8,)  ~ Normal(loc=0, scale=1)" in out


def test_show_points_beside_posteriors(zoo_here):
    out = zoo_here("show", "mean_field", "--bayesian", "2.*").out
    assert "trained as points: 0.weight, 0.bias" in out


def test_data_sets_are_listed(zoo_here):
    out = zoo_here("data").out
    assert [line.split()[0] for line in out.splitlines()] == zoo.data.list_datasets()
    assert zoo_here("data", "wine").out.split()[:4] == ["wine", "classification", "178", "rows"]


def test_help_and_version(zoo_here):
    assert zoo_here("--version").out == f"pyro-zoo {zoo.__version__}\n"
    for command in ("list", "show", "data", "fit", "predict", "check"):
        assert command in zoo_here("--help").out
        assert zoo_here(command, "-h").code == 0


def test_help_answers_without_torch(process, tmp_path):
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "import zoo.cli\n"
        "for arguments in (['--help'], ['fit', '--help'], ['--version']):\n"
        "    assert CliRunner().invoke(zoo.cli.app, arguments).exit_code == 0\n"
        "print(*sorted({'torch', 'pyro', 'pandas', 'xarray', 'numpy'} & set(sys.modules)))\n"
    )
    with process(tmp_path, "-c", code) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out.strip(), err) == (0, "", "")


def test_python_dash_m_runs_the_command(process, tmp_path):
    with process(tmp_path, "-m", "zoo", "--version", stdin=subprocess.DEVNULL) as child:
        assert child.communicate(timeout=60)[0] == f"pyro-zoo {zoo.__version__}\n"
