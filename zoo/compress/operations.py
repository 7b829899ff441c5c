"""What every operation of torch becomes in a `Graph`; `HANDLERS` lists those that are known."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.compress.reading import GraphBuilder, Shape, Value, unsupported

Arguments = dict[str, Any]
Handler = Callable[[GraphBuilder, Arguments, Shape], Value]


def _identity(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    if a.get("train"):
        raise unsupported("dropout at test time")
    value: Value = a["input"] if "input" in a else a["self"]
    return value


def _linear(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    if not isinstance(a["weight"], Tensor) or isinstance(a["bias"], Value):
        raise unsupported("a layer whose weights depend on the rows")
    return build.add("linear", [a["input"]], shape, weight=a["weight"], bias=a["bias"])


def _matmul(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    x, matrix = (a["self"], a.get("mat2", a.get("other")))
    if not isinstance(x, Value) or not isinstance(matrix, Tensor) or matrix.dim() != 2:
        raise unsupported("a product of matrices other than rows times weights")
    return build.add("linear", [x], shape, weight=matrix.t())


def _addmm(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    product = _matmul(build, {"self": a["mat1"], "mat2": a["mat2"]}, shape)
    if isinstance(a["self"], Value) or a["alpha"] != 1 or a["beta"] != 1:
        raise unsupported("addmm with a bias that depends on the rows")
    return build.affine(product, 1.0, a["self"], shape)


def _conv(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    weight, bias = a["weight"], a["bias"]
    if not isinstance(weight, Tensor) or isinstance(bias, Value) or a.get("transposed"):
        raise unsupported("a transposed convolution, or one whose weights depend on the rows,")
    kernel = weight.shape[2:]
    dilation = _window(a["dilation"], kernel)
    padding = a["padding"]
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if padding == "same" and any(n % 2 for n in total):
            raise unsupported("padding 'same' with a kernel of even size")
        padding = [n // 2 for n in total] if padding == "same" else [0]
    arguments = {
        "stride": _window(a["stride"], kernel),
        "padding": _window(padding, kernel),
        "dilation": dilation,
        "groups": a["groups"],
    }
    return build.add("conv", [a["input"]], shape, arguments, weight=weight, bias=bias)


def _batch_norm(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    mean, variance = a["running_mean"], a["running_var"]
    if a["training"] or mean is None or variance is None:
        raise unsupported("batch normalisation without running statistics")
    scale = (variance + a["eps"]).rsqrt()
    scale = scale if a["weight"] is None else scale * a["weight"]
    shift = -mean * scale if a["bias"] is None else a["bias"] - mean * scale
    rank = (-1,) + (1,) * (len(shape) - 1)
    return build.affine(a["input"], scale.reshape(rank), shift.reshape(rank), shape)


def _layer_norm(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    arguments = {"shape": list(a["normalized_shape"]), "eps": a["eps"]}
    weight, bias = a["weight"], a["bias"]
    if weight is None and bias is not None:
        weight = torch.ones_like(bias)
    return build.add("layer_norm", [a["input"]], shape, arguments, weight=weight, bias=bias)


def _activation(op: str, *names: str) -> Handler:
    def handle(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
        return build.add(op, [a["self"]], shape, {name: a[name] for name in names})

    return handle


def _elu(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    if a.get("scale", 1) != 1 or a.get("input_scale", 1) != 1:
        raise unsupported("elu with scales")
    return build.add("elu", [a["self"]], shape, {"alpha": a["alpha"]})


def _relu6(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    return build.add("hardtanh", [a["self"]], shape, {"min_val": 0, "max_val": 6})


def _max_pool(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    spatial = shape[1:]
    kernel = _window(a["kernel_size"], spatial)
    arguments = {
        "kernel": kernel,
        "stride": _window(a["stride"] or kernel, spatial),
        "padding": _window(a["padding"], spatial),
        "dilation": _window(a["dilation"], spatial),
        "ceil_mode": a["ceil_mode"],
    }
    return build.add("max_pool", [a["self"]], shape, arguments)


def _avg_pool(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    if a.get("divisor_override") is not None:
        raise unsupported("average pooling with a divisor of its own")
    spatial = shape[1:]
    kernel = _window(a["kernel_size"], spatial)
    arguments = {
        "kernel": kernel,
        "stride": _window(a["stride"] or kernel, spatial),
        "padding": _window(a["padding"], spatial),
        "ceil_mode": a["ceil_mode"],
        "count_include_pad": a["count_include_pad"],
    }
    return build.add("avg_pool", [a["self"]], shape, arguments)


def _averaged(build: GraphBuilder, x: Value, kernel: list[int], shape: Shape) -> Value:
    return _avg_pool(
        build,
        {
            "self": x,
            "kernel_size": kernel,
            "stride": kernel,
            "padding": [0],
            "ceil_mode": False,
            "count_include_pad": True,
        },
        shape,
    )


def _adaptive_avg_pool(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    before, after = build.shape(a["self"])[1:], shape[1:]
    if any(n % m for n, m in zip(before, after, strict=True)):
        raise unsupported(f"adaptive pooling from {before} to {after}, windows of unequal size,")
    kernel = [n // m for n, m in zip(before, after, strict=True)]
    return _averaged(build, a["self"], kernel, shape)


def _mean(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    before = build.shape(a["self"])
    dims = sorted(dim % (len(before) + 1) for dim in a["dim"] or ())
    if len(before) < 2 or dims != list(range(2, len(before) + 1)):
        raise unsupported("a mean other than over all positions of a map")
    channels = before[0]
    x = _averaged(build, a["self"], list(before[1:]), (channels, *(1 for _ in before[1:])))
    return x if a["keepdim"] else _reshape(build, {"self": x}, (channels,))


def _reshape(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    x: Value = a["self"]
    if build.shape(x) == shape:
        return x
    return build.add("reshape", [x], shape, {"shape": list(shape)})


def _permute(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    order = [dim % (len(shape) + 1) for dim in a["dims"]]
    return _permuted(build, a["self"], order, shape)


def _transpose(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    order = list(range(len(shape) + 1))
    first, second = (a[name] % len(order) for name in ("dim0", "dim1"))
    order[first], order[second] = order[second], order[first]
    return _permuted(build, a["self"], order, shape)


def _permuted(build: GraphBuilder, x: Value, order: list[int], shape: Shape) -> Value:
    if order[0] != 0:
        raise unsupported("a permutation that moves the rows")
    return build.add("permute", [x], shape, {"order": order[1:]})


def _slice(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    x: Value = a["self"]
    before = build.shape(x)
    if before == shape:
        return x
    if a["dim"] % (len(before) + 1) != 1:
        raise unsupported("a slice of anything but units")
    keep = torch.zeros(before[0], dtype=torch.bool)
    keep[a["start"] : a["end"] : a["step"]] = True
    return build.add("select", [x], shape, keep=keep)


def _combine(op: str, sign: float) -> Handler:
    """Handle a sum or a difference of two values, or of a value and a constant."""

    def handle(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
        x, y, factor = a["self"], a["other"], sign * a.get("alpha", 1)
        if op == "rsub":
            x, y = y, x
        if isinstance(x, Value) and isinstance(y, Value):
            if factor != 1:
                y = build.affine(y, factor, 0.0, build.shape(y))
            return build.add("add", [x, y], shape)
        if isinstance(x, Value):
            return build.affine(x, 1.0, factor * y, shape)
        return build.affine(y, factor, x, shape)

    return handle


def _mul(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    x, y = a["self"], a["other"]
    if isinstance(x, Value) and isinstance(y, Value):
        return build.add("mul", [x, y], shape)
    value, constant = (x, y) if isinstance(x, Value) else (y, x)
    return build.affine(value, constant, 0.0, shape)


def _div(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    if isinstance(a["other"], Value) or a.get("rounding_mode") is not None:
        raise unsupported("a division by something that depends on the rows")
    return build.affine(a["self"], 1.0 / a["other"], 0.0, shape)


def _neg(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    return build.affine(a["self"], -1.0, 0.0, shape)


def _cat(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
    parts = a["tensors"]
    if a["dim"] % (len(shape) + 1) != 1 or not all(isinstance(part, Value) for part in parts):
        raise unsupported("a concatenation of anything but units that depend on the rows")
    return build.add("concat", parts, shape)


def _softmax(op: str) -> Handler:
    def handle(build: GraphBuilder, a: Arguments, shape: Shape) -> Value:
        return build.add(op, [a["self"]], shape, {"dim": a["dim"] % (len(shape) + 1)})

    return handle


def _window(value: Any, like: Sequence[int]) -> list[int]:
    """Spell out one number per dimension."""
    numbers = [value] if isinstance(value, int) else [int(n) for n in value]
    return numbers * len(like) if len(numbers) == 1 else numbers


#: Handlers by the name of the operation in torch; one in place has the same.
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), _identity),
    **dict.fromkeys(("detach", "alias", "clone", "contiguous", "to", "_to_copy"), _identity),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _conv),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), _max_pool),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _avg_pool),
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
    "relu": _activation("relu"),
    "tanh": _activation("tanh"),
    "sigmoid": _activation("sigmoid"),
    "elu": _elu,
    "selu": _activation("selu"),
    "celu": _activation("celu", "alpha"),
    "gelu": _activation("gelu", "approximate"),
    "silu": _activation("silu"),
    "mish": _activation("mish"),
    "hardswish": _activation("hardswish"),
    "leaky_relu": _activation("leaky_relu", "negative_slope"),
    "softplus": _activation("softplus", "beta", "threshold"),
    "hardtanh": _activation("hardtanh", "min_val", "max_val"),
    "relu6": _relu6,
    "mean": _mean,
    "permute": _permute,
    "transpose": _transpose,
    "slice": _slice,
    "add": _combine("add", 1.0),
    "sub": _combine("sub", -1.0),
    "rsub": _combine("rsub", -1.0),
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "cat": _cat,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
}
