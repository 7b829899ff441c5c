"""The picture of a graph: from the attributes of a tree alone, whatever they hold."""

import json

import pytest
import torch
from torch import nn

import zoo
from zoo.fit.tree import structure_edges
from zoo.network.nets import build_net
from zoo.report import render_report
from zoo.report.figures.graph import WIDEST, graph_picture, paint_graph

EDGES = [
    {"start": 0, "end": 1, "primitives": ["linear", "tanh", "zero"], "weights": [0.7, 0.28, 0.02]},
    {"start": 0, "end": 2, "primitives": ["identity"], "weights": [1.0]},
    {"start": 1, "end": 2, "primitives": ["a", "b"], "weights": [0.5, 0.5]},
]


def lines_of(edges):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    paint_graph(axes, edges)
    return axes


def test_width_of_a_line_is_the_posterior_weight():
    axes = lines_of(EDGES)
    widths = [line.get_linewidth() for line in axes.get_lines()]
    assert widths[0] == pytest.approx(WIDEST * 0.7)
    assert widths[1] == pytest.approx(WIDEST * 0.28)
    assert len(widths) == 6
    texts = [text.get_text() for text in axes.texts]
    assert "linear 0.70" in texts
    assert "tanh 0.28" in texts
    assert not any("zero" in text for text in texts)  # next to no weight
    assert {"0", "1", "2"} <= set(texts)


def test_labels_start_two_points_off_the_line_that_they_name():
    offsets = {text.get_text(): text.xyann[1] for text in lines_of(EDGES).texts}
    assert offsets["linear 0.70"] == pytest.approx(2 + WIDEST * 0.7 / 2)
    assert offsets["b 0.50"] == pytest.approx(-2 - WIDEST * 0.5 / 2)


def test_picture_says_what_was_chosen():
    picture = graph_picture(EDGES)
    assert "linear with 70" in picture.panels[0]
    assert picture.panels[0].startswith("<svg")


@pytest.mark.parametrize(
    "edges",
    [
        [],
        [EDGES[1]],
        [5, None, "x"],
        [{"start": 0, "end": 1}],
        [EDGES[0] | {"weights": [1.0]}],
        [EDGES[0] | {"weights": [float("nan"), 0.5, 0.5]}],
        [EDGES[0] | {"start": -1}],
        [EDGES[0] | {"primitives": "abc"}],
    ],
)
def test_what_cannot_be_drawn_is_left_out(edges):
    assert graph_picture(edges) is None


def test_report_of_a_fit_draws_its_structure():
    x = torch.linspace(-1, 1, 30)[:, None].numpy()
    fitted = zoo.fit(
        "gumbel_softmax_structure",
        X=x,
        y=x[:, 0],
        net="toy",
        num_steps=20,
        num_samples=8,
        likelihood="gaussian(noise=0.3)",
    )
    tree = fitted.tree()
    edges = json.loads(tree.attrs["structure"])["edges"]
    assert sum(edges[0]["weights"]) == pytest.approx(1)
    page = render_report(tree)
    assert 'id="structure"' in page
    assert "tanh" in page[page.index('id="structure"') :]


def test_networks_without_structure_have_no_such_section():
    assert structure_edges(nn.Linear(2, 2), {}) == []
    assert structure_edges(build_net("toy", 1, 1), {}) == []


def test_crowded_graphs_name_steps_without_their_numbers():
    primitives = ["relu → conv(kernel=3)", "zero"]
    edges = [
        {"start": i, "end": i + 1, "primitives": primitives, "weights": [0.9, 0.1]}
        for i in range(4)
    ]
    texts = [text.get_text() for text in lines_of(edges).texts]
    assert texts.count("relu→conv 0.90") == 4
    assert "relu → conv(kernel=3) 0.90" in [text.get_text() for text in lines_of(edges[:1]).texts]
