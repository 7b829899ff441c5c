import pyro
import pyro.distributions as dist
import pytest
import torch

from zoo.errors import ConfigError
from zoo.workflow.graph import relations, to_dot, write_graph


def model(x, y=None):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("groups", 2):
        z = pyro.sample("z", dist.Normal(0.0, scale))
        w = pyro.deterministic("w", 2 * z)
        with pyro.plate("rows", len(x), dim=-2):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def guide(x):
    pyro.sample("scale", dist.Delta(torch.tensor(1.0)))
    with pyro.plate("groups", 2):
        pyro.sample("z", dist.Normal(0.0, 1.0))


@pytest.fixture
def dot():
    return to_dot(relations(model, guide, torch.zeros(3)))


def test_sites_plates_and_edges(dot):
    assert (
        dot
        == """digraph model {
  graph [labeljust=r, labelloc=b];
  "scale" [label="scale\\nHalfNormal"];
  subgraph "cluster/groups" {
    label="groups";
    "z" [label="z\\nNormal"];
    "w" [label="w\\nDeterministic", style=dashed];
    subgraph "cluster/groups/rows" {
      label="rows";
      "y" [label="y\\nNormal", style=filled, fillcolor=lightgrey];
    }
  }
  "scale" -> "z";
  "z" -> "w";
  "w" -> "y";
}
"""
    )


def test_names_are_quoted():
    found = {
        "sample_dist": {'a"b': "Normal"},
        "sample_sample": {'a"b': []},
        "plate_sample": {},
        "observed": [],
    }
    assert '"a\\"b" [label="a\\"b\\nNormal"];' in to_dot(found)


@pytest.mark.parametrize("name", ["g.dot", "g.gv", "G.DOT"])
def test_text_needs_no_program(dot, tmp_path, monkeypatch, name):
    monkeypatch.setenv("PATH", "")
    write_graph(dot, tmp_path / name)
    assert (tmp_path / name).read_text() == dot


def test_a_picture_without_the_program_is_explained(dot, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"needs the program 'dot'.*ends in \.dot"):
        write_graph(dot, tmp_path / "g.svg")
    assert not list(tmp_path.iterdir())


def test_a_picture_is_drawn_by_the_program(dot, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "dot"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "drawn $1"\ncat\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    write_graph(dot, tmp_path / "g.PNG")
    assert (tmp_path / "g.PNG").read_text() == f"drawn -Tpng\n{dot}"


def test_other_endings_are_refused(dot, tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.dot, \.gv, \.svg, \.png, \.pdf\. Got '.*g'"):
        write_graph(dot, tmp_path / "g")
