"""Load a compressed network. This file needs torch and safetensors alone, and can be copied.

A network consists of two files: ``network.json`` lists its operations, and
``network.safetensors`` holds their weights, packed into as many bits as they need. Nothing in them
is run as code: every operation is one of `OPERATIONS`, and anything invalid is refused.

>>> network = load("runs/1/compressed")  # doctest: +SKIP
>>> network(torch.zeros(1, 64))  # doctest: +SKIP
"""

import copy
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

DESCRIPTION = "network.json"
WEIGHTS = "network.safetensors"
FORMAT = "zoo-network"
VERSION = 1
#: Name of the input rows, and pattern of the names of nodes.
INPUT = "input"
NAME = re.compile(r"[A-Za-z0-9_]{1,120}")
#: Limits: bytes of the description, nodes, and elements of a tensor or of one row at a node.
MAX_BYTES = 2**24
MAX_NODES = 10_000
MAX_NUMBERS = 2**28

Values = Mapping[str, Any]


class NetworkFileError(ValueError):
    """The files of a network are missing, damaged or invalid."""


def load(path: str | Path) -> "Network":
    """Load a compressed network as a torch module.

    Parameters
    ----------
    path
        The directory with ``network.json`` and ``network.safetensors``, or the JSON file itself.

    Raises
    ------
    NetworkFileError
        If the files are missing, damaged or invalid.
    """
    path = Path(path)
    file = path / DESCRIPTION if path.is_dir() else path
    description = _read_description(file)
    packed = _read_tensors(file.with_name(WEIGHTS))
    entries = _mapping(description, "tensors")
    tensors = {name: unpack(name, entries[name], packed) for name in entries}
    network = Network(description, tensors)
    network.check()
    return network.eval()


class Network(nn.Module):
    """A network that is a list of operations, each a module or a function of earlier values.

    Parameters
    ----------
    description
        The keys ``input`` (the shape of a row), ``nodes``, ``output`` (the name of a node) and
        perhaps ``metadata``. A node is a mapping with ``name``, ``op``, ``inputs`` and the
        arguments of its operation.
    tensors
        Weights by ``node.name``, for example ``fc1.weight``.
    """

    def __init__(self, description: Values, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.input_shape = _integers("the shape of the input", description.get("input"))
        self.metadata = _mapping(description, "metadata", {})
        nodes: Any = description.get("nodes")
        fits = isinstance(nodes, list) and 0 < len(nodes) <= MAX_NODES
        _require(fits, f"a network has 1 to {MAX_NODES} nodes.", nodes)
        self.operations = nn.ModuleList()
        self.sources: dict[str, list[str]] = {}
        unused = dict(tensors)
        for node in nodes:
            self._add(node, unused)
        if unused:
            raise NetworkFileError(f"no node uses the tensor {_short(min(unused))}.")
        output: Any = description.get("output")
        is_node = isinstance(output, str) and output in self.sources
        _require(is_node, f"the output {_short(output)} is not a node.")
        self.output: str = output
        self._last_use = {name: end for end, used in self.sources.items() for name in used}

    def _add(self, node: Any, tensors: dict[str, Tensor]) -> None:
        _require(isinstance(node, dict), "a node is a mapping.", node)
        name, op, sources = node.get("name"), node.get("op"), node.get("inputs")
        is_name = isinstance(name, str) and bool(NAME.fullmatch(name))
        _require(is_name, "a node's name is made of letters and digits.", name)
        is_new = name != INPUT and name not in self.sources
        _require(is_new, f"there are two nodes {name!r}.")
        _require(
            isinstance(op, str) and op in OPERATIONS,
            f"unknown operation {_short(op)} of node {name!r}. Known: {', '.join(OPERATIONS)}.",
        )
        is_list = isinstance(sources, list) and len(sources) > 0
        _require(is_list, f"node {name!r} needs a list of inputs.", sources)
        for source in sources:
            is_known = source == INPUT or (isinstance(source, str) and source in self.sources)
            _require(is_known, f"node {name!r} reads {_short(source)}, which is not before it.")
        operation = OPERATIONS[op]
        _require(
            operation.num_inputs in (None, len(sources)),
            f"{op} takes {operation.num_inputs} inputs; node {name!r} has {len(sources)}.",
        )
        self.operations.append(operation.build(name, node, tensors))
        self.sources[name] = sources

    def values(self, x: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Compute node after node; values that are no longer needed are freed."""
        values = {INPUT: x}
        for (name, sources), operation in zip(self.sources.items(), self.operations, strict=True):
            values[name] = operation(*[values[source] for source in sources])
            yield name, values[name]
            for source in set(sources):
                if self._last_use[source] == name and source != self.output:
                    del values[source]

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for rows ``x``."""
        result = x
        for name, value in self.values(x):
            if name == self.output:
                result = value
        return result

    def check(self) -> None:
        """Refuse a network whose shapes do not fit together, without computing any value."""
        rows = torch.zeros(2, *self.input_shape, device="meta")
        try:
            for name, value in copy.deepcopy(self).to("meta").values(rows):
                keeps_rows = value.dim() > 1 and len(value) == len(rows)
                _require(keeps_rows, f"node {name!r} does not keep the rows apart.")
                count = value.numel() // 2
                _require(count <= MAX_NUMBERS, f"node {name!r} makes {count} numbers per row.")
        except NetworkFileError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            raise NetworkFileError(
                f"the nodes of the network do not fit together: {str(error).splitlines()[0][:200]}"
            ) from None


# ---------------------------------------------------------------------- operations


class Layer(nn.Module):
    """A function of earlier values, with arguments and weights of its own."""

    def __init__(self, function: Callable[..., Tensor], **values: Any) -> None:
        super().__init__()
        self.function = function
        weights = {key: value for key, value in values.items() if isinstance(value, Tensor)}
        self.arguments = {key: values[key] for key in values if key not in weights}
        for key, value in weights.items():
            self.register_parameter(key, nn.Parameter(value))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(*inputs, **self.arguments, **self._parameters)

    def extra_repr(self) -> str:
        """Show the function, its arguments and the shapes of its weights."""
        shown = self.arguments | {key: tuple(p.shape) for key, p in self.named_parameters()}
        listed = ", ".join(f"{key}={value}" for key, value in shown.items())
        return f"{self.function.__name__.strip('_')}({listed})"


class Select(nn.Module):
    """Select some of the units, the first dimension after the rows."""

    index: Tensor

    def __init__(self, keep: Tensor) -> None:
        super().__init__()
        self.num_units = len(keep)
        self.register_buffer("index", keep.nonzero().flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Return the selected units."""
        if x.shape[1] != self.num_units:
            raise ValueError(f"{self.num_units} units are expected, but there are {x.shape[1]}")
        return x.index_select(1, self.index)

    def extra_repr(self) -> str:
        """Show how many are selected."""
        return f"{len(self.index)} of {self.num_units} units"


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dim() != 2 or (bias is not None and bias.dim() != 1):
        raise ValueError("a linear layer has a matrix as its weight and a vector as its bias")
    return F.linear(x, weight, bias)


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, **arguments: Any) -> Tensor:
    return _of_rank("conv", weight.dim() - 2, arguments)(x, weight, bias, **arguments)


def _max_pool(x: Tensor, kernel: Sequence[int], **arguments: Any) -> Tensor:
    return _of_rank("max_pool", len(kernel), arguments)(x, kernel, **arguments)


def _avg_pool(x: Tensor, kernel: Sequence[int], **arguments: Any) -> Tensor:
    return _of_rank("avg_pool", len(kernel), arguments)(x, kernel, **arguments)


def _of_rank(name: str, rank: int, arguments: Values) -> Callable[..., Tensor]:
    """Return the function of torch for windows of so many dimensions."""
    lists = (value for value in arguments.values() if isinstance(value, list))
    if not 1 <= rank <= 3 or any(len(value) != rank for value in lists):
        raise ValueError("a window has one to three dimensions, the same for all of its arguments")
    function: Callable[..., Tensor] = getattr(F, f"{name}{rank}d")
    return function


def _affine(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, x, scale)


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return F.layer_norm(x, shape, weight, bias, eps)


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(x.shape[0], *shape)  # len(x) would fix the number of rows in an export


def _permute(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute(0, *order)


def _concat(*inputs: Tensor) -> Tensor:
    return torch.cat(inputs, dim=1)


# ---------------------------------------------------------------------- arguments


def _integers(what: str, value: Any, least: int = 1) -> list[int]:
    fits = isinstance(value, list) and 0 < len(value) <= 8
    fits = fits and all(type(n) is int and least <= n < 2**24 for n in value)
    _require(fits, f"{what} must be a list of whole numbers.", value)
    size = math.prod(max(1, n) for n in value)
    _require(size <= MAX_NUMBERS, f"{what} is too large.", value)
    return list(value)


def _integer(what: str, value: Any) -> int:
    return _integers(what, [value])[0]


def _number(what: str, value: Any) -> float:
    fits = type(value) in (int, float) and math.isfinite(value)
    _require(fits, f"{what} must be a number.", value)
    return float(value)


def _flag(what: str, value: Any) -> bool:
    _require(isinstance(value, bool), f"{what} must be true or false.", value)
    return bool(value)


def _approximation(what: str, value: Any) -> str:
    _require(value in ("none", "tanh"), f"{what} must be 'none' or 'tanh'.", value)
    return str(value)


Check = Callable[[str, Any], Any]
_WINDOW: dict[str, Check] = {"stride": _integers, "padding": partial(_integers, least=0)}


@dataclass(frozen=True)
class Operation:
    """A kind of node.

    Attributes
    ----------
    function
        Computes its value from inputs, arguments and tensors.
    arguments
        The names of its arguments, and a check for each.
    tensors, optional
        The names of required and of optional tensors.
    num_inputs
        The number of inputs; None for any number.
    is_elementwise
        Whether it is elementwise. Its name and arguments are then those of torch.
    """

    function: Callable[..., Tensor]
    arguments: Mapping[str, Check] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    num_inputs: int | None = 1
    is_elementwise: bool = False

    def build(self, name: str, node: Values, tensors: dict[str, Tensor]) -> nn.Module:
        """Return the module of a node, and remove its tensors from `tensors`."""
        given = set(node) - {"name", "op", "inputs"}
        _require(
            given == set(self.arguments),
            f"the arguments of {node['op']} are {sorted(self.arguments)}; node {name!r} has "
            f"{_short(sorted(given))}.",
        )
        values = {
            key: check(f"{key!r} of node {name!r}", node[key])
            for key, check in self.arguments.items()
        }
        for key in (*self.tensors, *self.optional):
            values[key] = tensors.pop(f"{name}.{key}", None)
            is_given = values[key] is not None or key in self.optional
            _require(is_given, f"node {name!r} lacks its tensor {key!r}.")
        try:
            return Select(**values) if node["op"] == "select" else Layer(self.function, **values)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).splitlines()[0][:200]
            raise NetworkFileError(f"node {name!r} cannot be built: {reason}") from None


def _elementwise(function: Callable[..., Tensor], **arguments: Check) -> Operation:
    return Operation(function, arguments, is_elementwise=True)


#: All operations. To add an elementwise one, a line in this table is enough.
OPERATIONS: dict[str, Operation] = {
    "linear": Operation(_linear, tensors=("weight",), optional=("bias",)),
    "conv": Operation(
        _conv,
        _WINDOW | {"dilation": _integers, "groups": _integer},
        tensors=("weight",),
        optional=("bias",),
    ),
    "affine": Operation(_affine, tensors=("scale", "shift")),
    "relu": _elementwise(F.relu),
    "tanh": _elementwise(torch.tanh),
    "sigmoid": _elementwise(torch.sigmoid),
    "elu": _elementwise(F.elu, alpha=_number),
    "selu": _elementwise(F.selu),
    "celu": _elementwise(F.celu, alpha=_number),
    "gelu": _elementwise(F.gelu, approximate=_approximation),
    "silu": _elementwise(F.silu),
    "mish": _elementwise(F.mish),
    "hardswish": _elementwise(F.hardswish),
    "leaky_relu": _elementwise(F.leaky_relu, negative_slope=_number),
    "softplus": _elementwise(F.softplus, beta=_number, threshold=_number),
    "hardtanh": _elementwise(F.hardtanh, min_val=_number, max_val=_number),
    "max_pool": Operation(
        _max_pool, _WINDOW | {"kernel": _integers, "dilation": _integers, "ceil_mode": _flag}
    ),
    "avg_pool": Operation(
        _avg_pool, _WINDOW | {"kernel": _integers, "ceil_mode": _flag, "count_include_pad": _flag}
    ),
    "reshape": Operation(_reshape, {"shape": _integers}),
    "permute": Operation(_permute, {"order": _integers}),
    "select": Operation(torch.index_select, tensors=("keep",)),
    "add": Operation(torch.add, num_inputs=2),
    "mul": Operation(torch.mul, num_inputs=2),
    "concat": Operation(_concat, num_inputs=None),
    "layer_norm": Operation(
        _layer_norm, {"shape": _integers, "eps": _number}, optional=("weight", "bias")
    ),
    "softmax": Operation(F.softmax, {"dim": _integer}),
    "log_softmax": Operation(F.log_softmax, {"dim": _integer}),
}


# ---------------------------------------------------------------------- files


def _read_description(file: Path) -> dict[str, Any]:
    try:
        fits = file.stat().st_size <= MAX_BYTES
        _require(fits, f"{str(file)!r} is larger than {MAX_BYTES} bytes.")
        description = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise NetworkFileError(f"cannot read {str(file)!r}: {error}") from None
    is_network = isinstance(description, dict) and description.get("format") == FORMAT
    _require(is_network, f"{str(file)!r} does not describe a compressed network.")
    version = description.get("version")
    _require(
        version == VERSION,
        f"{str(file)!r} has version {_short(version)}; this loader reads {VERSION}.",
    )
    return dict(description)


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, SafetensorError) as error:
        raise NetworkFileError(f"cannot read the weights {str(file)!r}: {error}") from None


def unpack(name: str, entry: Any, packed: Mapping[str, Tensor]) -> Tensor:
    """Restore one tensor from its bytes.

    Parameters
    ----------
    name
        The name of the tensor.
    entry
        How it is packed. ``coding`` is ``float32`` (numbers as they are), ``bitmap`` (one bit per
        element), ``grid`` (integers ``n`` of some ``bits`` that represent ``step * (low + n)``),
        ``codebook`` (indices into the tensor ``name.codebook``) or ``raw`` (the 32 bits of a
        float32). With ``sparse`` a bitmap of the nonzero elements comes first, and only those
        are coded. With ``deflate`` the bytes are compressed.
    packed
        The tensors of the file.
    """
    what = f"tensor {_short(name)}"
    _require(isinstance(entry, dict), f"the packing of {what} must be a mapping.")
    shape = _integers(f"the shape of {what}", entry.get("shape"))
    _require(name in packed, f"the weights lack the {what}.")
    stored = packed[name]
    if entry.get("coding") == "float32":
        fits = stored.dtype == torch.float32 and list(stored.shape) == shape
        _require(fits, f"{what} is not of float32 and shape {shape}.")
        return stored
    is_packed = stored.dtype == torch.uint8 and stored.dim() == 1
    _require(is_packed, f"{what} must be packed in bytes.")
    size, stored = math.prod(shape), _inflated(what, entry, stored)
    if entry.get("coding") == "bitmap":
        return _bits(what, stored, size).bool().reshape(shape)
    present = None
    if _flag(f"'sparse' of {what}", entry.get("sparse")):
        present = _bits(what, stored[: _bytes(size)], size).bool()
        stored = stored[_bytes(size) :]
    width = _integer(f"'bits' of {what}", entry.get("bits"))
    _require(width <= 32, f"'bits' of {what} is at most 32.", width)
    count = size if present is None else int(present.sum())
    bits = _bits(what, stored, count * width).reshape(count, width)
    codes = torch.zeros(count, dtype=torch.int64)
    for place in range(width):
        codes += bits[:, place].to(torch.int64) << place
    coded = _decoded(what, entry, codes, packed.get(f"{name}.codebook"))
    if present is None:
        return coded.reshape(shape)
    values = coded.new_zeros(size)
    values[present] = coded
    return values.reshape(shape)


def _decoded(what: str, entry: Values, codes: Tensor, book: Tensor | None) -> Tensor:
    coding = entry.get("coding")
    if coding == "grid":
        step = _number(f"'step' of {what}", entry.get("step"))
        low = int(_number(f"'low' of {what}", entry.get("low")))
        return ((codes + low).double() * step).float()
    if coding == "raw":
        return codes.to(torch.int32).view(torch.float32)
    _require(coding == "codebook", f"unknown coding {_short(coding)} of {what}.")
    if book is None or book.dtype != torch.float32 or book.dim() != 1:
        raise NetworkFileError(f"the weights lack the code book of {what}.")
    is_known = not len(codes) or int(codes.max()) < len(book)
    _require(is_known, f"a code of {what} is not in its code book.")
    return book[codes]


def _inflated(what: str, entry: Values, stored: Tensor) -> Tensor:
    """Undo the compression, up to a bounded size."""
    if not _flag(f"'deflate' of {what}", entry.get("deflate", False)):
        return stored
    engine = zlib.decompressobj()
    try:
        inflated = engine.decompress(stored.numpy().tobytes(), 5 * MAX_NUMBERS)
    except zlib.error as error:
        raise NetworkFileError(f"{what} is damaged: {error}.") from None
    _require(engine.eof, f"{what} is damaged or too large.")
    return torch.frombuffer(bytearray(inflated), dtype=torch.uint8) if inflated else stored[:0]


def _bits(what: str, stored: Tensor, count: int) -> Tensor:
    """Return the first bits of some bytes, the lowest of each byte first."""
    message = f"{what} has {len(stored)} bytes where {_bytes(count)} are needed."
    _require(len(stored) == _bytes(count), message)
    places = torch.arange(8, dtype=torch.uint8)
    return ((stored[:, None] >> places) & 1).flatten()[:count]


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _mapping(values: Values, key: str, default: Any = None) -> dict[str, Any]:
    value = values.get(key, default)
    _require(isinstance(value, dict), f"{key!r} must be a mapping.", value)
    return dict(value)


def _require(fits: bool, message: str, *got: Any) -> None:
    """Refuse a file unless a condition holds; the message ends with the value that was got."""
    if not fits:
        raise NetworkFileError(" ".join([message, *(f"Got {_short(value)}." for value in got)]))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
