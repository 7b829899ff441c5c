"""Write a compressed network as ONNX, operation by operation; needs the package ``onnx``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.compress.graph import Graph, Node
from zoo.compress.loader import INPUT
from zoo.errors import CompressionError
from zoo.fit.store import atomic_path

ONNX_FILE = "network.onnx"
#: Version of the operations; the first one with Gelu. Its file format is read by onnxruntime 1.17.
OPSET = 20
IR_VERSION = 9
#: Name of the output, and of the dimension of the rows.
OUTPUT = "output"
ROWS = "rows"


def write_onnx(graph: Graph, directory: Path) -> Path:
    """Write ``network.onnx``, whose input and output have any number of rows."""
    path = directory / ONNX_FILE
    model = onnx_model(graph)
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return path


def onnx_model(graph: Graph) -> Any:
    """Return the network as an ONNX model in float32."""
    try:
        import onnx
    except ImportError:
        raise CompressionError(
            "ONNX needs the package onnx: pip install 'pyro-zoo[onnx]'."
        ) from None
    from onnx import TensorProto, helper

    writer = _Writer(graph, helper, onnx.numpy_helper)
    for node in graph:
        writer.write(node)
    last = writer.name(graph.output)
    writer.emit("Identity", [last], OUTPUT)
    made = helper.make_graph(
        writer.operations,
        "compressed",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [ROWS, *graph.input_shape])],
        [
            helper.make_tensor_value_info(
                OUTPUT, TensorProto.FLOAT, [ROWS, *graph.shape(graph.output)]
            )
        ],
        writer.constants,
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="pyro-zoo",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


class _Writer:
    """Collects operations and constants."""

    def __init__(self, graph: Graph, helper: Any, numpy_helper: Any) -> None:
        self.graph, self.helper, self.numpy_helper = graph, helper, numpy_helper
        self.operations: list[Any] = []
        self.constants: list[Any] = []

    def name(self, name: str) -> str:
        """Return the name of a value; nodes get a prefix, so that they cannot be the input."""
        return name if name == INPUT else f"node_{name}"

    def emit(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append an operation and return the name of its result."""
        self.operations.append(self.helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: torch.Tensor) -> str:
        """Append a constant and return its name."""
        dtype = torch.float32 if value.is_floating_point() else torch.int64
        array = value.detach().cpu().to(dtype).contiguous().numpy()
        self.constants.append(self.numpy_helper.from_array(array, name))
        return name

    def write(self, node: Node) -> None:
        """Append the operations of one node."""
        inputs = [self.name(name) for name in node.inputs]
        output = self.name(node.name)
        tensors = {k: self.constant(f"{output}.{k}", v) for k, v in _tensors(node).items()}
        if node.op in _PLAIN:
            self.emit(_PLAIN[node.op], inputs, output)
        elif node.op in _WITH_ATTRIBUTES:
            op, attributes = _WITH_ATTRIBUTES[node.op]
            self.emit(op, inputs, output, **attributes(node.arguments))
        else:
            _SPECIAL[node.op](self, node, inputs, output, tensors)


def _tensors(node: Node) -> dict[str, torch.Tensor]:
    if node.op == "select":
        return {"index": node.tensors["keep"].nonzero().flatten()}
    if node.op == "reshape":
        return {"shape": torch.tensor([-1, *node.arguments["shape"]])}
    if node.op == "linear":
        return {"weight": node.weight.t(), "bias": node.bias()}
    if node.op == "hardtanh":
        limits = {"min": node.arguments["min_val"], "max": node.arguments["max_val"]}
        return {key: torch.tensor(float(value)) for key, value in limits.items()}
    if node.op == "softplus":
        return {"beta": torch.tensor(float(node.arguments["beta"]))}
    return node.tensors


Arguments = Mapping[str, Any]
Special = Callable[[_Writer, Node, list[str], str, dict[str, str]], Any]

#: Operations that ONNX has under another name.
_PLAIN = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "selu": "Selu",
    "mish": "Mish",
    "hardswish": "HardSwish",
    "add": "Add",
    "mul": "Mul",
}


def _window(a: Arguments) -> dict[str, Any]:
    return {
        "strides": a["stride"],
        "pads": [*a["padding"], *a["padding"]],
        "dilations": a["dilation"],
    }


def _max_pool(a: Arguments) -> dict[str, Any]:
    return {"kernel_shape": a["kernel"], **_window(a), "ceil_mode": int(a["ceil_mode"])}


def _avg_pool(a: Arguments) -> dict[str, Any]:
    window = _window({**a, "dilation": [1 for _ in a["kernel"]]})
    return {
        "kernel_shape": a["kernel"],
        **window,
        "ceil_mode": int(a["ceil_mode"]),
        "count_include_pad": int(a["count_include_pad"]),
    }


#: Operations that take attributes, and how those follow from the arguments.
_WITH_ATTRIBUTES: dict[str, tuple[str, Callable[[Arguments], dict[str, Any]]]] = {
    "elu": ("Elu", lambda a: {"alpha": float(a["alpha"])}),
    "celu": ("Celu", lambda a: {"alpha": float(a["alpha"])}),
    "gelu": ("Gelu", lambda a: {"approximate": a["approximate"]}),
    "leaky_relu": ("LeakyRelu", lambda a: {"alpha": float(a["negative_slope"])}),
    "softmax": ("Softmax", lambda a: {"axis": a["dim"]}),
    "log_softmax": ("LogSoftmax", lambda a: {"axis": a["dim"]}),
    "permute": ("Transpose", lambda a: {"perm": [0, *a["order"]]}),
    "concat": ("Concat", lambda a: {"axis": 1}),
    "max_pool": ("MaxPool", _max_pool),
    "avg_pool": ("AveragePool", _avg_pool),
}


def _linear(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    product = w.emit("MatMul", [inputs[0], t["weight"]], f"{output}.product")
    w.emit("Add", [product, t["bias"]], output)


def _conv(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    window = _window(node.arguments)
    kernel = list(node.weight.shape[2:])
    held = [t["weight"], *([t["bias"]] if "bias" in t else [])]
    groups = node.arguments["groups"]
    w.emit("Conv", [*inputs, *held], output, group=groups, kernel_shape=kernel, **window)


def _affine(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    product = w.emit("Mul", [inputs[0], t["scale"]], f"{output}.product")
    w.emit("Add", [product, t["shift"]], output)


def _silu(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    gate = w.emit("Sigmoid", inputs, f"{output}.gate")
    w.emit("Mul", [inputs[0], gate], output)


def _softplus(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    scaled = w.emit("Mul", [inputs[0], t["beta"]], f"{output}.scaled")
    soft = w.emit("Softplus", [scaled], f"{output}.soft")
    w.emit("Div", [soft, t["beta"]], output)


def _clip(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    w.emit("Clip", [inputs[0], t["min"], t["max"]], output)


def _reshape(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    w.emit("Reshape", [inputs[0], t["shape"]], output)


def _select(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    w.emit("Gather", [inputs[0], t["index"]], output, axis=1)


def _layer_norm(w: _Writer, node: Node, inputs: list[str], output: str, t: dict[str, str]) -> None:
    shape = node.arguments["shape"]
    weight = t.get("weight") or w.constant(f"{output}.ones", torch.ones(shape))
    held = [weight, *([t["bias"]] if "bias" in t else [])]
    attributes = {"axis": -len(shape), "epsilon": float(node.arguments["eps"])}
    w.emit("LayerNormalization", [*inputs, *held], output, **attributes)


#: Operations that are made of several, or read constants.
_SPECIAL: dict[str, Special] = {
    "linear": _linear,
    "conv": _conv,
    "affine": _affine,
    "silu": _silu,
    "softplus": _softplus,
    "hardtanh": _clip,
    "reshape": _reshape,
    "select": _select,
    "layer_norm": _layer_norm,
}
