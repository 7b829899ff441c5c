import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.unit.compress.architectures import ARCHITECTURES, build, masked_values
from zoo.compress.costs import sizes
from zoo.compress.shrink import shrink
from zoo.compress.tracing import trace
from zoo.errors import CompressionError
from zoo.network.nets import lenet5, mlp


def traced(net, shape, values=None):
    net = net.double().eval()
    if values is None:
        values = {name: p.detach() for name, p in net.named_parameters()}

    def forward(slots, x):
        return torch.func.functional_call(net, slots, (x,))

    return trace(forward, values, shape)


def ops(graph):
    return [node.op for node in graph]


def layer_shapes(graph):
    return {node.name: tuple(node.weight.shape) for node in graph.weighted()}


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(max_examples=6)
@given(seed=st.integers(0, 2**31), density=st.floats(0.05, 1.0))
def test_smaller_network_equals_the_masked_one(name, seed, density):
    net, forward, shape = build(name)
    generator = torch.Generator().manual_seed(seed)
    values = masked_values(net, density, generator)
    full = trace(forward, values, shape)
    small = shrink(full)
    x = torch.randn(7, *shape, generator=generator, dtype=torch.float64)
    wanted = forward(values, x)
    scale = 1 + wanted.abs().max()
    # Rounding of float64 and of float32 through ten layers.
    assert (small.network()(x) - wanted).abs().max() <= 1e-12 * scale
    assert (small.network(torch.float32)(x.float()) - wanted).abs().max() <= 1e-5 * scale
    assert sizes(small)["weights"] <= sizes(full)["weights"]
    small.network(torch.float32).check()


def sparse_mlp(sizes, *, inputs=(), units=()):
    """Return the values of an MLP whose input columns and hidden columns are partly zero."""
    net = mlp(sizes)
    with torch.no_grad():
        net[0].weight[:, list(inputs)] = 0
        net[2].weight[:, list(units)] = 0
    return net


def test_unheard_units_and_inputs_of_an_mlp_are_removed():
    small = shrink(traced(sparse_mlp([6, 5, 3], inputs=[0, 3], units=[1, 2]), (6,)))
    assert layer_shapes(small) == {"0": (3, 4), "2": (3, 3)}
    assert ops(small) == ["select", "linear", "relu", "linear"]
    assert small["select"].tensors["keep"].tolist() == [False, True, True, False, True, True]
    counts = sizes(small)
    assert counts["flops"] == 2 * (12 + 9)
    assert counts["parameters"] == 12 + 3 + 9 + 3


def test_network_without_zeros_keeps_its_shape():
    full = traced(mlp([6, 5, 3]), (6,))
    small = shrink(full)
    assert layer_shapes(small) == layer_shapes(full)
    assert "select" not in ops(small)


def test_dead_ends_are_followed_backwards_through_layers():
    net = mlp([4, 5, 6, 2])
    with torch.no_grad():
        net[4].weight[:, 2:] = 0  # four of six units unheard
        net[2].weight[:2, 1:] = 0  # the other two hear one unit
    assert layer_shapes(shrink(traced(net, (4,)))) == {"0": (1, 4), "2": (2, 1), "4": (2, 2)}


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.Softplus, nn.ELU])
def test_unit_without_inputs_moves_into_the_next_bias(activation):
    net = nn.Sequential(nn.Linear(4, 3), activation(), nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight[1] = 0
        net[0].bias[1] = 0.7
    small = shrink(traced(net, (4,)))
    assert layer_shapes(small) == {"0": (2, 4), "2": (2, 2)}
    constant = activation()(net[0].bias[1])
    wanted = net[2].bias + net[2].weight[:, 1] * constant
    torch.testing.assert_close(small["2"].tensors["bias"], wanted, rtol=1e-12, atol=0)


def test_filters_of_lenet_go_through_pooling_and_flattening():
    net = lenet5((1, 28, 28), 10)
    with torch.no_grad():
        net[2].weight[4:] = 0  # 4 of 20 filters
        net[5].weight[6:] = 0  # 6 of 50
        net[9].weight[:, 16 * 6 - 2 : 16 * 6] = 0  # two positions of the last filter that is kept
        net[11].weight[:, 7:] = 0  # 7 of 500
    small = shrink(traced(net, (784,)))
    assert layer_shapes(small) == {
        "2": (4, 1, 5, 5),
        "5": (6, 4, 5, 5),
        "9": (7, 16 * 6 - 2),
        "11": (10, 7),
    }
    x = torch.randn(3, 784, dtype=torch.float64)
    torch.testing.assert_close(small.network()(x), net(x), rtol=1e-10, atol=1e-10)


def test_constant_channel_stays_where_padding_makes_its_border_differ():
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten()
    )
    with torch.no_grad():
        net[0].weight[1] = 0
    padded = shrink(traced(net, (1, 6, 6)))
    assert layer_shapes(padded)["0"] == (3, 1, 3, 3)
    net[1], net[0].bias.data[1] = nn.ReLU(), -1.0  # now the constant is zero, like the border
    assert layer_shapes(shrink(traced(net, (1, 6, 6))))["0"] == (2, 1, 3, 3)


def test_batch_normalisation_is_folded_into_the_layer_before():
    net, _, shape = build("conv_norm")
    small = shrink(traced(net, shape))
    assert "affine" not in ops(small)
    x = torch.randn(4, *shape, dtype=torch.float64)
    torch.testing.assert_close(small.network()(x), net(x), rtol=1e-10, atol=1e-10)


def test_residual_sum_keeps_a_unit_that_one_of_its_branches_needs():
    net, _, shape = build("residual")
    with torch.no_grad():
        net.second.weight[2] = 0
        net.second.bias[2] = 0
    # The branch is silent there, the skip is not.
    small = shrink(traced(net, shape))
    assert layer_shapes(small)["second"] == (6, 5, 3, 3)
    with torch.no_grad():  # nobody hears the sum any more
        net.down.weight[:, 2] = 0
        net.third.weight[:, 2] = 0
        net.first.weight[:, 2] = 0
    small = shrink(traced(net, shape))
    assert layer_shapes(small)["second"] == (5, 5, 3, 3)
    assert layer_shapes(small)["stem"] == (5, 1, 3, 3)


def test_depthwise_channels_are_removed_and_grouped_ones_are_left():
    net, _, shape = build("depthwise")
    with torch.no_grad():
        net.mix.weight[:, [0, 4]] = 0
    small = shrink(traced(net, shape))
    assert layer_shapes(small)["depth"] == (4, 1, 3, 3)
    assert small["depth"].arguments["groups"] == 4
    net, _, shape = build("grouped")
    with torch.no_grad():
        net.first.weight[0] = 0
    assert layer_shapes(shrink(traced(net, shape)))["first"] == (4, 1, 3, 3)


def test_factors_of_units_are_folded_into_weights():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(16, 2)
            self.theta = nn.Parameter(torch.tensor([0.5, 0.0, 2.0, 1.0]))

        def forward(self, x):
            x = F.relu(self.conv(x)) * self.theta[:, None, None]
            return self.head(F.max_pool2d(x, 2).flatten(1))

    net = Scaled()
    small = shrink(traced(net, (1, 6, 6)))
    assert ops(small) == ["conv", "relu", "max_pool", "reshape", "linear"]
    assert layer_shapes(small) == {"conv": (3, 1, 3, 3), "head": (2, 12)}


def test_network_that_is_constant_keeps_one_unit_per_layer():
    net = mlp([4, 3, 2])
    with torch.no_grad():
        net[2].weight.zero_()
    small = shrink(traced(net, (4,)))
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(small.network()(x), net(x))
    assert layer_shapes(small)["2"] == (2, 1)


def test_variances_are_cut_and_scaled_like_their_weights():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.head = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(torch.relu(self.norm(self.first(x))))

    net = Normalised()
    with torch.no_grad():
        net.norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        net.head.weight[:, 0] = 0
    full = traced(net, (4,))
    full["first"].variance = torch.full((3, 4), 0.1, dtype=torch.float64)
    small = shrink(full)
    factors = torch.tensor([[4.0], [9.0]], dtype=torch.float64) / (1 + 1e-5)
    torch.testing.assert_close(small["first"].variance, (0.1 * factors).expand(2, 4))


class Refused(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.cumsum, "cumsum"),
        (lambda x: x - x.mean(0), "mean that mixes rows"),
        (lambda x: x.reshape(2, -1), "mixes rows"),
        (lambda x: x if x.sum() > 0 else -x, "cannot be traced"),
        (lambda x: (x, x), "does not return a tensor"),
        (lambda x: torch.ones(len(x), 3), "does not return a tensor"),
        (lambda x: x / x[:, :1], "division by a value that depends on the rows"),
        (lambda x: x @ x.t() @ x, "aten.t"),
        (lambda x: F.batch_norm(x, None, None, training=True), "without running statistics"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_described_is_refused(function, message):
    if function is torch.cumsum:
        function = lambda x: torch.cumsum(x, 1)  # noqa: E731
    with pytest.raises(CompressionError, match=message):
        traced(Refused(function), (4,))


def test_functions_of_the_number_of_rows_are_refused():
    with pytest.raises(CompressionError, match=r"differs from the original|works for"):
        traced(Refused(lambda x: x * len(x)), (4,))
