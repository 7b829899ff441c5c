"""Graph networks: what they compute, what they are written as, what they refuse."""

import json

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import ConfigError, UnknownNameError
from zoo.fit.config import dump_config, make_config, read_config
from zoo.network.nets import Graph, Mixed, build_net, choices, mixtures
from zoo.network.nets.graph import AGGREGATIONS, with_choices
from zoo.network.nets.graph_spec import CELL_PRIMITIVES
from zoo.network.nets.primitives import PRIMITIVES

IMAGE = (1, 12, 12)


def edges(**lists):
    return {"edges": {name.replace("_", "-").strip("-e"): value for name, value in lists.items()}}


def test_mixture_is_the_weighted_sum_of_its_primitives():
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    mixed = Mixed([first, second, nn.Sequential(nn.Linear(3, 2), nn.Tanh())])
    mixed.structure.copy_(torch.tensor([0.2, 0.5, 0.3]))
    x = torch.randn(7, 3)
    expected = 0.2 * first(x) + 0.5 * second(x) + 0.3 * mixed.primitives[2](x)
    torch.testing.assert_close(mixed(x), expected)
    assert mixed.sizes == (8, 8, 8)


def test_corner_of_the_simplex_is_the_selected_architecture():
    graph = Graph({(0, 1): [nn.Linear(3, 4), nn.Linear(3, 4)], (1, 2): [nn.Tanh(), nn.ReLU()]})
    graph.edges["0-1"].structure.copy_(torch.tensor([0.0, 1.0]))
    graph.edges["1-2"].structure.copy_(torch.tensor([1.0, 0.0]))
    chosen = graph.select({"0-1": 1, "1-2": 0})
    x = torch.randn(5, 3)
    torch.testing.assert_close(chosen(x), graph(x))
    assert sum(p.numel() for p in chosen.parameters()) == 16
    assert not list(mixtures(chosen))
    with pytest.raises(UnknownNameError, match="'0-1'"):
        chosen.select({"0-1": 0})


@pytest.mark.parametrize("word", AGGREGATIONS)
def test_vertex_gathers_its_edges(word):
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    graph = Graph({(0, 1): a, (0, 2): b, (1, 2): nn.Identity()}, {2: word})
    x = torch.randn(4, 3)
    left, right = b(x), a(x)
    expected = {
        "sum": left + right,
        "mean": (left + right) / 2,
        "product": left * right,
        "concatenate": torch.cat([left, right], 1),
    }[word]
    torch.testing.assert_close(graph(x), expected)


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ([], "at least one edge"),
        ([(1, 0)], "smaller vertex to a larger"),
        ([(0, 0)], "Got '0-0'"),
        ([(0, 1), (0, 3), (1, 3)], "no edge leads to vertex 2"),
        ([(0, 1), (0, 2)], "no edge leaves vertex 1"),
    ],
)
def test_what_is_no_graph_is_refused(links, words):
    with pytest.raises(ConfigError, match=words):
        Graph({link: nn.Identity() for link in links})


def test_mapping_builds_the_toy_with_three_primitives():
    net = build_net("toy", 1, 1)
    (_, mixed), *rest = mixtures(net)
    assert not rest
    assert mixed.sizes == (1, 2, 11)  # a constant; slope and bias; ten coefficients and bias
    x = torch.linspace(-1, 1, 5)[:, None]
    constant, linear, polynomial = (g(x) for g in mixed.primitives)
    assert constant.eq(constant[0]).all()
    weight, bias = mixed.primitives[1][0].weight, mixed.primitives[1][0].bias
    torch.testing.assert_close(linear, torch.tanh(x * weight + bias))
    layer = mixed.primitives[2][1]
    powers = torch.cat([x**k for k in range(1, 11)], 1)
    torch.testing.assert_close(polynomial, torch.tanh(powers @ layer.weight.T + layer.bias))


@pytest.mark.parametrize(
    "primitive",
    [
        ["flatten", "linear(outputs)"],
        ["conv(4)", "average", "linear(outputs)"],
        ["separable(4, kernel=5, dilation=2)", "average", "linear(outputs)"],
        ["max_pool", "avg_pool(2, stride=2)", "flatten", "linear(outputs)"],
        ["identity", "relu", "flatten", "powers(2)", "linear(outputs)"],
    ],
)
def test_every_primitive_can_be_written(primitive):
    spec = {"input": "image", "edges": {"0-1": [primitive, "zero", "constant"]}}
    net = build_net(spec, 144, 3, IMAGE)
    x = torch.randn(2, 144)
    assert net(x).shape == (2, 3)
    mixed = net[-1].edges["0-1"]
    assert not mixed.primitives[1](x).any()
    torch.testing.assert_close(net(x.reshape(2, *IMAGE)), net(x))


def test_all_primitives_are_covered_by_names():
    written = "linear conv separable max_pool avg_pool average powers flatten identity relu"
    named = {*written.split(), "tanh", "elu", "gelu", "silu", "zero", "constant"}
    assert named == set(PRIMITIVES)


def test_cells_have_the_edges_of_darts():
    net = build_net("cells:4-3-2", 144, 10, IMAGE)
    mixed = list(mixtures(net))
    assert len(mixed) == 2 * (1 + 2 + 3)
    assert all(len(m.primitives) == len(CELL_PRIMITIVES) for _, m in mixed)
    assert net(torch.randn(3, 144)).shape == (3, 10)


BAD = [
    ({}, ["needs 'edges'"]),
    ({"egdes": {}}, ["unknown key of a graph 'egdes'", "Did you mean 'edges'?"]),
    (edges(e0_1=["liner(2)"]), ["unknown primitive of edge '0-1' 'liner'", "'linear'"]),
    (edges(e0_1=["linear(2"]), ["cannot read the primitive", "linear(16)"]),
    (edges(e0_1=["__import__('os')"]), ["unknown primitive"]),
    (edges(e0_1=["linear(1 + 1)"]), ["BinOp is not accepted"]),
    (edges(e0_1=["linear(0)"]), ["whole number from 1", "Got 0"]),
    (edges(e0_1=["linear(2.5)"]), ["whole number", "2.5"]),
    (edges(e0_1=["linear(1e9)"]), ["whole number from 1 to 10000"]),
    (edges(e0_1=["linear(unit=2)"]), ["'unit'", "Did you mean 'units'?", "It takes: units"]),
    (edges(e0_1=["linear(2, units=2)"]), ["'units'", "given twice"]),
    (edges(e0_1=["linear(1, 2)"]), ["takes 1 parameters (units)", "Got 2"]),
    (edges(e0_1=["linear"]), ["needs a value for 'units'"]),
    (edges(e0_1=["conv(3)"]), ["'conv(3)' of edge '0-1'", "needs images", "(4,)"]),
    (edges(e0_1=[]), ["edge '0-1' needs a list of primitives", "Got []"]),
    (edges(e0_1=[[]]), ["a primitive of edge '0-1' is empty"]),
    (edges(e0_1=[5]), ["text like linear(16)", "Got 5"]),
    (edges(e0_1=[{"linear": 2}]), ["text like linear(16)"]),
    (edges(e0_1=["linear(2)", "linear(3)"]), ["differ in shape", "(3,)", "(2,)"]),
    (edges(e0_1=["linear(3)"]), ["has shape (3,)", "needs (2,)", "linear(outputs)"]),
    ({"edges": {"a-b": ["zero"]}}, ["two vertices", "'a-b'"]),
    ({"edges": {"0-201": ["zero"]}}, ["vertices from 0 to 200"]),
    ({"edges": {"0-00001": ["zero"]}}, ["two vertices", "'0-00001'"]),
    ({"edges": ["0-1"]}, ["a mapping like"]),
    (edges(e0_1=["linear(2)"]) | {"aggregate": "summ"}, ["'summ'", "Did you mean 'sum'?"]),
    (edges(e0_1=["linear(2)"]) | {"aggregate": 3}, ["'aggregate' is one of", "Got 3"]),
    (edges(e0_1=["linear(2)"]) | {"aggregate": {"7": "sum"}}, ["vertex 7", "1 to 1"]),
    (edges(e0_1=["linear(2)"]) | {"input": "picture"}, ["flat or image", "'picture'"]),
    (edges(e0_1=["linear(2)"]) | {"input": "image"}, ["the data have no image shape"]),
]


@pytest.mark.parametrize(("spec", "parts"), BAD)
def test_bad_mapping_says_what_is_wrong(spec, parts):
    with pytest.raises((ConfigError, UnknownNameError)) as caught:
        build_net(spec, 4, 2)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("cells:4", "like cells:8-2-2"),
        ("cells:4-0-1", "like cells:8-2-2"),
        ("cells:4-2-99", "at most 12"),
        ("toy:3", "takes no sizes"),
        ("graph:", "graph:path.yaml"),
        ("graph:no/such.yaml", "cannot read the graph"),
    ],
)
def test_bad_text_says_what_is_wrong(spec, part):
    with pytest.raises(ConfigError, match=part):
        build_net(spec, 144, 2, IMAGE)


def test_graph_of_a_file_becomes_part_of_the_configuration(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text(
        "edges:\n  0-1: [[linear(4), tanh], linear(4)]\n  1-2: [linear(outputs)]\n  0-2: "
        "[linear(outputs), zero]\naggregate: {2: mean}\n"
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator).numpy()
    fitted = zoo.fit("mean_field", X=x, y=x[:, 0], net=f"graph:{path}", num_steps=3, num_samples=4)
    path.unlink()
    assert fitted.config.net["edges"]["1-2"] == ["linear(outputs)"]
    again = tmp_path / "config.yaml"
    again.write_text(dump_config(fitted.config))
    assert make_config(**read_config(again)) == fitted.config


def test_mapping_with_numbers_as_keys_comes_back_from_yaml():
    spec = {"edges": {"0-1": ["linear(outputs)"]}, "aggregate": {1: "mean"}}
    config = make_config(method="mean_field", net=spec)
    assert config.net == json.loads(json.dumps(spec))
    with pytest.raises(ConfigError, match="text, numbers and lists only"):
        make_config(method="mean_field", net={"edges": {"0-1": [nn.Linear(2, 2)]}})


def test_other_methods_leave_the_structure_alone():
    net = build_net("toy", 1, 1)
    model = zoo.create("mean_field", net, likelihood="gaussian(noise=0.1)", num_data=10)
    assert not [name for name in model.slots if name.endswith("structure")]
    assert len([name for name in model.slots]) == 5


def test_activation_functions_of_a_plain_stack_become_choices():
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)), nn.ReLU())
    names = [(name, mixed.names) for name, mixed in mixtures(with_choices(net))]
    assert names == [("1.0", ["tanh", "identity", "relu"]), ("2", ["relu", "identity", "tanh"])]
    assert with_choices(nn.Linear(2, 2)).weight is not None
    graph = build_net("toy", 1, 1)
    assert with_choices(graph) is graph


def test_edges_are_listed_with_their_vertices():
    found = choices(build_net("toy", 1, 1))
    assert [(c.module, c.start, c.end, len(c.primitives)) for c in found] == [
        ("1.edges.0-1", 0, 1, 3)
    ]
    chain = choices(with_choices(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))))
    assert [(c.module, c.start, c.end) for c in chain] == [("1", 0, 1)]
