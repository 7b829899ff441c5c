from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.compress.architectures import ARCHITECTURES, build, masked_values
from zoo.compress import loader, onnx_export
from zoo.compress.onnx_export import onnx_model, write_onnx
from zoo.compress.shrink import shrink
from zoo.compress.tracing import trace
from zoo.compress.writing import write_network
from zoo.errors import CompressionError


def run_onnx(model, x):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": x.numpy()})[0]


def assert_same(graph, shape):
    x = torch.randn(5, *shape)
    wanted = graph.network(torch.float32)(x).detach().numpy()
    got = run_onnx(onnx_model(graph).SerializeToString(), x)
    assert np.abs(got - wanted).max() <= 1e-5 * (1 + np.abs(wanted).max())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_onnxruntime_computes_the_same(name):
    net, forward, shape = build(name)
    values = masked_values(net, 0.7, torch.Generator().manual_seed(3))
    assert_same(shrink(trace(forward, values, shape)), shape)


FUNCTIONS = {
    **{f.__name__: f for f in (F.relu, torch.tanh, torch.sigmoid, F.selu, F.mish, F.hardswish)},
    **{f.__name__: f for f in (F.silu, F.relu6, F.gelu)},
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 0.7),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "softplus": lambda x: F.softplus(x, beta=2.0),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.8),
    "softmax": lambda x: F.softmax(x, -1),
    "arithmetic": lambda x: x * torch.tanh(x) - x,
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "permute": lambda x: x.reshape(-1, 2, 3).transpose(1, 2).flatten(1),
}


@pytest.fixture(scope="module")
def every_operation():
    """Outputs of all functions of one layer, by onnxruntime and by torch, from one export."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 6)

        def forward(self, x):
            y = self.first(x)
            return torch.cat([function(y) for function in FUNCTIONS.values()], 1)

    torch.manual_seed(0)
    net = Net().double()
    values = {name: p.detach() for name, p in net.named_parameters()}
    graph = trace(lambda v, x: torch.func.functional_call(net, v, (x,)), values, (4,))
    x = torch.randn(5, 4)
    got = run_onnx(onnx_model(graph).SerializeToString(), x)
    wanted = net(x.double()).detach().numpy()
    parts = (np.split(outputs, len(FUNCTIONS), axis=1) for outputs in (got, wanted))
    return dict(zip(FUNCTIONS, zip(*parts, strict=True), strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_operation_is_exported(every_operation, name):
    got, wanted = every_operation[name]
    assert np.abs(got - wanted).max() <= 1e-5 * (1 + np.abs(wanted).max())


def test_elementwise_operation_needs_one_line_of_the_table(tmp_path, monkeypatch):
    net = nn.Sequential(nn.Linear(4, 6), nn.Hardshrink(0.3), nn.Linear(6, 2)).double()
    with torch.no_grad():
        net[0].weight[1] = 0
        net[0].bias[1] = 0.7
    values = {name: p.detach() for name, p in net.named_parameters()}

    def traced():
        return trace(lambda v, x: torch.func.functional_call(net, v, (x,)), values, (4,))

    with pytest.raises(CompressionError, match="hardshrink"):
        traced()
    line = loader._elementwise(F.hardshrink, lambd=loader._number)
    monkeypatch.setitem(loader.OPERATIONS, "hardshrink", line)
    small = shrink(traced())
    assert small["0"].weight.shape == (5, 4)
    assert_same(small, (4,))
    write_network(small, {}, tmp_path)
    x = torch.randn(5, 4)
    wanted = net(x.double()).float()
    torch.testing.assert_close(loader.load(tmp_path)(x), wanted, rtol=1e-5, atol=1e-5)


def test_file_tells_nothing_of_the_machine_it_was_made_on(tmp_path):
    net, forward, shape = build("residual")
    values = {name: p.detach() for name, p in net.named_parameters()}
    written = write_onnx(trace(forward, values, shape), tmp_path).read_bytes()
    for place in (b"loader.py", b"site-packages", str(Path(torch.__file__).parent).encode()):
        assert place not in written


def test_missing_packages_are_named(monkeypatch):
    net, forward, shape = build("mlp")
    values = {name: p.detach() for name, p in net.named_parameters()}
    graph = trace(forward, values, shape)
    monkeypatch.setattr(onnx_export.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompressionError, match=r"needs the package onnx: pip install .*\[onnx\]"):
        onnx_model(graph)


def test_file_is_read_by_onnxruntime(tmp_path):
    net, forward, shape = build("mlp")
    values = {name: p.detach() for name, p in net.named_parameters()}
    graph = trace(forward, values, shape)
    path = write_onnx(graph, tmp_path)
    assert path.name == "network.onnx"
    assert run_onnx(str(path), torch.zeros(3, 12)).shape == (3, 3)
