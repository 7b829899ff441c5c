"""The nodes of a `LayerGraph` that represent the operations of torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.compress.graph import LayerGraph, LayerNode, Shape
from zoo.compress.loader import OPERATIONS
from zoo.errors import CompressionError


class GraphBuilder:
    """Appends nodes to a graph; one whose weight is the value of a slot is named after it."""

    def __init__(self, row_shape: Sequence[int], slots: Mapping[str, Tensor]) -> None:
        self.graph = LayerGraph(row_shape)
        self._slot_of = {id(value): name for name, value in slots.items()}
        self._example = next(iter(slots.values()))

    def add(
        self,
        op: str,
        inputs: Sequence[LayerNode],
        shape: Shape,
        arguments: Mapping[str, Any] | None = None,
        **tensors: Tensor | None,
    ) -> LayerNode:
        """Append a node."""
        slot = self._slot_of.get(id(tensors.get("weight")))
        stem = slot.removesuffix(".weight").replace(".", "_") if slot else op
        name = re.sub(r"\W", "_", stem, flags=re.ASCII)[:100]
        held = {key: value for key, value in tensors.items() if value is not None}
        node = LayerNode(name, op, list(inputs), shape, dict(arguments or {}), held, slot)
        return self.graph.add(node)

    def affine(
        self, x: LayerNode, scale: Tensor | float, shift: Tensor | float, shape: Shape
    ) -> LayerNode:
        """Append a factor and a shift, with one entry per unit or per element."""
        if shape != x.shape:
            raise unsupported("a constant that expands a value to a larger shape")
        parts = [_per_unit(self._example.new_zeros(()) + part, shape) for part in (scale, shift)]
        factors, shifts = (part.clone() for part in torch.broadcast_tensors(*parts))
        return self.add("affine", [x], shape, scale=factors, shift=shifts)


def unsupported(what: str) -> CompressionError:
    """Return the error for something that cannot be compressed."""
    return CompressionError(
        f"{what} cannot be compressed. Networks of linear layers, convolutions, batch and layer "
        "normalisation, pooling, activations, flattening, sums, products and concatenations can be."
    )


def _per_unit(constant: Tensor, shape: Shape) -> Tensor:
    """Expand a constant to the units, the first dimension; others may stay of size one."""
    if constant.dim() == len(shape) + 1 and len(constant) == 1:
        constant = constant[0]
    if constant.dim() > len(shape):
        raise unsupported("a constant that differs from row to row")
    constant = constant.reshape((1,) * (len(shape) - constant.dim()) + constant.shape)
    return constant.expand(shape[0], *constant.shape[1:])


# ---------------------------------------------------------------------- handlers

Arguments = dict[str, Any]
Handler = Callable[[GraphBuilder, Arguments, Shape], LayerNode]


def _identity(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    if a.get("train"):
        raise unsupported("dropout that is active at test time")
    value: LayerNode = a["input"] if "input" in a else a["self"]
    return value


def _linear(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    if not isinstance(a["weight"], Tensor) or isinstance(a["bias"], LayerNode):
        raise unsupported("a layer whose weights depend on the rows")
    return build.add("linear", [a["input"]], shape, weight=a["weight"], bias=a["bias"])


def _matmul(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    x, matrix = (a["self"], a.get("mat2", a.get("other")))
    if not isinstance(x, LayerNode) or not isinstance(matrix, Tensor) or matrix.dim() != 2:
        raise unsupported("a product of matrices other than rows times weights")
    return build.add("linear", [x], shape, weight=matrix.t())


def _addmm(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    product = _matmul(build, {"self": a["mat1"], "mat2": a["mat2"]}, shape)
    if isinstance(a["self"], LayerNode) or a["alpha"] != 1 or a["beta"] != 1:
        raise unsupported("addmm with a bias that depends on the rows")
    return build.affine(product, 1.0, a["self"], shape)


def _conv(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    weight, bias = a["weight"], a["bias"]
    if not isinstance(weight, Tensor) or isinstance(bias, LayerNode) or a.get("transposed"):
        raise unsupported("a transposed convolution, or one whose weights depend on the rows,")
    if isinstance(a["padding"], str):
        dilation = _window(a["dilation"], shape)
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if a["padding"] == "same" and any(n % 2 for n in total):
            raise unsupported("padding 'same' with a kernel of even size")
        a["padding"] = [n // 2 for n in total] if a["padding"] == "same" else [0]
    windows = {name: _window(a[name], shape) for name in ("stride", "padding", "dilation")}
    arguments = windows | {"groups": a["groups"]}
    return build.add("conv", [a["input"]], shape, arguments, weight=weight, bias=bias)


def _batch_norm(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    mean, variance = a["running_mean"], a["running_var"]
    if a["training"] or mean is None or variance is None:
        raise unsupported("batch normalisation without running statistics")
    scale = (variance + a["eps"]).rsqrt()
    scale = scale if a["weight"] is None else scale * a["weight"]
    shift = -mean * scale if a["bias"] is None else a["bias"] - mean * scale
    rank = (-1,) + (1,) * (len(shape) - 1)
    return build.affine(a["input"], scale.reshape(rank), shift.reshape(rank), shape)


def _layer_norm(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    arguments = {"shape": list(a["normalized_shape"]), "eps": a["eps"]}
    weight, bias = a["weight"], a["bias"]
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    return build.add("layer_norm", [a["input"]], shape, arguments, weight=weight, bias=bias)


def _copied(op: str, build: GraphBuilder, a: Arguments, shape: Shape, **fixed: float) -> LayerNode:
    """Handle an operation that has the same arguments here and in torch."""
    if a.get("scale", 1) != 1 or a.get("input_scale", 1) != 1:
        raise unsupported(f"{op} with scales")
    arguments = {name: (a | fixed)[name] for name in OPERATIONS[op].arguments}
    return build.add(op, [a["self"]], shape, arguments)


def _pool(op: str, build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    if a.get("divisor_override") is not None:
        raise unsupported("average pooling with divisor_override")
    a |= {"kernel": a["kernel_size"], "stride": a["stride"] or a["kernel_size"]}
    given = {name: a[name] for name in OPERATIONS[op].arguments}
    arguments = {k: v if isinstance(v, bool) else _window(v, shape) for k, v in given.items()}
    return build.add(op, [a["self"]], shape, arguments)


def _adaptive_avg_pool(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    before, after = a["self"].shape[1:], shape[1:]
    if any(n % m for n, m in zip(before, after, strict=True)):
        raise unsupported(f"adaptive pooling from {before} to {after}, windows of unequal size,")
    kernel = [n // m for n, m in zip(before, after, strict=True)]
    window = {"stride": kernel, "padding": [0] * len(kernel), "kernel": kernel}
    flags = {"ceil_mode": False, "count_include_pad": True}
    return build.add("avg_pool", [a["self"]], shape, window | flags)


def _mean(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    before = a["self"].shape
    dims = sorted(dim % (len(before) + 1) for dim in a["dim"] or ())
    if len(before) < 2 or dims != list(range(2, len(before) + 1)):
        raise unsupported("a mean other than over all positions of a map")
    x = _adaptive_avg_pool(build, a, (before[0], *(1 for _ in before[1:])))
    return x if a["keepdim"] else _reshape(build, {"self": x}, before[:1])


def _reshape(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    x: LayerNode = a["self"]
    if x.shape == shape:
        return x
    return build.add("reshape", [x], shape, {"shape": list(shape)})


def _permute(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    order = [dim % (len(shape) + 1) for dim in a["dims"]]
    if order[0] != 0:
        raise unsupported("a permutation that moves the rows")
    return build.add("permute", [a["self"]], shape, {"order": order[1:]})


def _transpose(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    order = list(range(len(shape) + 1))
    first, second = a["dim0"], a["dim1"]
    order[first], order[second] = order[second], order[first]
    return _permute(build, {"self": a["self"], "dims": order}, shape)


def _slice(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    x: LayerNode = a["self"]
    if x.shape == shape:
        return x
    if a["dim"] != 1:
        raise unsupported("a slice of anything but units")
    keep = torch.zeros(x.shape[0], dtype=torch.bool)
    keep[a["start"] : a["end"] : a["step"]] = True
    return build.add("select", [x], shape, keep=keep)


def _add(build: GraphBuilder, a: Arguments, shape: Shape, sign: float = 1.0) -> LayerNode:
    """Handle a sum or a difference of two values, or of a value and a constant."""
    x, y, factor = a["self"], a["other"], sign * a.get("alpha", 1)
    if isinstance(x, LayerNode) and isinstance(y, LayerNode):
        if factor != 1:
            y = build.affine(y, factor, 0.0, y.shape)
        return build.add("add", [x, y], shape)
    if isinstance(x, LayerNode):
        return build.affine(x, 1.0, factor * y, shape)
    return build.affine(y, factor, x, shape)


def _rsub(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    return _add(build, a | {"self": a["other"], "other": a["self"]}, shape, -1.0)


def _mul(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    x, y = a["self"], a["other"]
    if isinstance(x, LayerNode) and isinstance(y, LayerNode):
        return build.add("mul", [x, y], shape)
    value, constant = (x, y) if isinstance(x, LayerNode) else (y, x)
    return build.affine(value, constant, 0.0, shape)


def _div(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    if isinstance(a["other"], LayerNode) or a.get("rounding_mode") is not None:
        raise unsupported("a division by a value that depends on the rows")
    return build.affine(a["self"], 1.0 / a["other"], 0.0, shape)


def _cat(build: GraphBuilder, a: Arguments, shape: Shape) -> LayerNode:
    parts = a["tensors"]
    if a["dim"] != 1 or not all(isinstance(part, LayerNode) for part in parts):
        raise unsupported("a concatenation of anything but units that depend on the rows")
    return build.add("concat", parts, shape)


def _window(value: Any, shape: Shape) -> list[int]:
    """Return one number per dimension of a map."""
    numbers = [value] if isinstance(value, int) else [int(n) for n in value]
    return numbers * (len(shape) - 1) if len(numbers) == 1 else numbers


def find_handler(kind: str) -> Handler | None:
    """Return the handler of an operation of torch; one in place has the same name."""
    is_elementwise = kind in OPERATIONS and OPERATIONS[kind].is_elementwise
    return partial(_copied, kind) if is_elementwise else HANDLERS.get(kind)


#: Handlers of operations that are not elementwise, by their names in torch. The argument ``dim`` is
#: counted from the front.
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _identity),
    **dict.fromkeys(("detach", "alias", "clone", "contiguous", "to", "_to_copy"), _identity),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _conv),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), partial(_pool, "max_pool")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), partial(_pool, "avg_pool")),
    **dict.fromkeys(
        ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), _adaptive_avg_pool
    ),
    **dict.fromkeys(
        ("flatten", "unflatten", "view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"),
        _reshape,
    ),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "addmm": _addmm,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "relu6": partial(_copied, "hardtanh", min_val=0, max_val=6),
    "mean": _mean,
    "permute": _permute,
    "transpose": _transpose,
    "slice": _slice,
    "add": _add,
    "sub": partial(_add, sign=-1.0),
    "rsub": _rsub,
    "mul": _mul,
    "div": _div,
    "neg": lambda build, a, shape: build.affine(a["self"], -1.0, 0.0, shape),
    "cat": _cat,
    "softmax": partial(_copied, "softmax"),
    "log_softmax": partial(_copied, "log_softmax"),
}
