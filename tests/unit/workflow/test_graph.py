import pyro
import pyro.distributions as dist
import pytest
import torch

from zoo.errors import ConfigError
from zoo.workflow.graph import model_graph, write_graph


def model(x, y=None):
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("groups", 2):
        z = pyro.sample("z", dist.Normal(0.0, scale))
        w = pyro.deterministic("0.weight", 2 * z)
        with pyro.plate("rows", len(x), dim=-2):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def guide(x):
    pyro.sample("scale", dist.Delta(torch.tensor(1.0)))
    with pyro.plate("groups", 2):
        pyro.sample("z", dist.Normal(0.0, 1.0))


@pytest.fixture
def graph():
    return model_graph(model, guide, torch.zeros(3))


def test_sites_plates_and_edges(graph):
    dot = graph.source
    for edge in ("scale -> z", 'z -> "0.weight"', '"0.weight" -> y'):
        assert edge in dot
    assert dot.index("scale [") < dot.index("cluster_groups") < dot.index("z [")
    assert dot.index("cluster_groups") < dot.index("cluster_rows") < dot.rindex("y [")
    assert "y [label=y fillcolor=gray shape=ellipse style=filled]" in dot  # observed
    assert 'shape=ellipse style="filled,dashed"' in dot  # deterministic
    assert r"scale ~ HalfNormal\lz ~ Normal\l" in dot


@pytest.mark.parametrize("name", ["g.dot", "g.gv", "G.DOT"])
def test_text_needs_no_program(graph, tmp_path, monkeypatch, name):
    monkeypatch.setenv("PATH", "")
    write_graph(graph, tmp_path / name)
    assert (tmp_path / name).read_text() == graph.source


def test_a_picture_without_the_program_is_explained(graph, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"needs the program 'dot'.*ends in \.dot"):
        write_graph(graph, tmp_path / "g.svg")
    assert not list(tmp_path.iterdir())


def test_a_picture_is_drawn_by_the_program(graph, tmp_path, monkeypatch):
    program = tmp_path / "bin" / "dot"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "drawn $*"\ncat\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    write_graph(graph, tmp_path / "g.PNG")
    assert (tmp_path / "g.PNG").read_text() == f"drawn -Kdot -Tpng\n{graph.source}"


def test_other_endings_are_refused(graph, tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.dot, \.gv, \.svg, \.png, \.pdf\. Got '.*g'"):
        write_graph(graph, tmp_path / "g")
