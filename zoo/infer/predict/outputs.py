"""Network outputs for many posterior draws, joint over rows or with separate draws per row."""

import math
import time
import warnings
from collections.abc import Callable, Mapping

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from guides.base import Guide
from guides.lazy import LazyReuseError, LocalReparameterization
from zoo.errors import ConfigError
from zoo.infer.predict.draws import split_draws
from zoo.infer.recording import CANNOT, Backend, Mode, cause_of, record
from zoo.infer.rng import seeded
from zoo.network.bnn import BNN
from zoo.network.slots import has_convolutions

#: Rows per chunk, and largest number of bytes for the draws of one chunk.
CHUNK_ROWS = 512
CHUNK_BYTES = 2**28
#: Number of weights above which vectorised draws are not faster on a CPU.
LARGE_NETWORK = 2**20
#: Up to this many rows, copies are faster than a loop if the draws share the convolutions.
FEW_ROWS = 4
#: Smallest number of network calls for recording, and of seconds for compiling.
WORTH_CALLS = 50
WORTH_SECONDS = 30.0

Values = dict[str, Tensor]
Call = Callable[[Values, Tensor], Tensor]


@torch.no_grad()
def network_outputs(
    model: BNN, slots: Mapping[str, Tensor], x: Tensor, *, mode: Mode = "auto"
) -> Tensor:
    """Return the network's outputs for every draw, shape ``(draws, rows, outputs)``.

    Every draw is one function, evaluated at all rows. Rows and draws are processed in chunks within
    a memory limit. A network that `torch.vmap` cannot handle is run draw by draw, with one warning.
    The slots have draws as the first dimension; the rows are on the device of the model. The mode
    is whether calls may be recorded and replayed, or compiled; few calls are never recorded.
    """
    model.eval()
    values = {name: _channels_last(value) for name, value in slots.items()}
    if (x.device.type == "cpu" and _loop_is_faster(model, values, x)) or not _can_be_mapped(
        model, values, x
    ):
        return _looped(model, values, x, mode)
    width = sum(v[0].numel() for v in values.values()) + len(x[:CHUNK_ROWS]) * _width(model, x)
    chunk = max(1, CHUNK_BYTES // (width * x.element_size()))

    def call(values: Values, rows: Tensor) -> Tensor:
        many = torch.vmap(lambda draw: model.outputs(draw, rows), chunk_size=chunk)
        return many(values)

    run = _captured(call, values, x, mode, math.ceil(len(x) / CHUNK_ROWS))
    return torch.cat([run(values, rows) for rows in x.split(CHUNK_ROWS)], dim=1)


def _looped(model: BNN, values: Values, x: Tensor, mode: Mode) -> Tensor:
    draws = split_draws(values)
    num_calls = len(draws) * math.ceil(len(x) / CHUNK_ROWS)
    call = _captured(model.outputs, draws[0], x, mode, num_calls)
    chunks = [torch.stack([call(draw, rows) for draw in draws]) for rows in x.split(CHUNK_ROWS)]
    return torch.cat(chunks, dim=1)


def _captured(call: Call, values: Values, x: Tensor, mode: Mode, num_calls: int) -> Call:
    """Return a call that is replayed for full chunks of rows; a smaller last chunk is not."""
    if mode == "off" or num_calls < WORTH_CALLS:
        return call
    rows = x[:CHUNK_ROWS]
    started = time.perf_counter()
    call(values, rows)
    is_long = num_calls * (time.perf_counter() - started) >= WORTH_SECONDS
    try:
        backend: Backend = "inductor" if mode == "inductor" and is_long else "replay"
        recorded = record(call, values, rows, backend=backend)
    except CANNOT as error:
        warnings.warn(
            f"predictions cannot be captured and run without capture: {cause_of(error)}",
            stacklevel=4,
        )
        return call
    return lambda v, r: recorded(v, r) if r.shape == rows.shape else call(v, r)


def _can_be_mapped(model: BNN, values: Values, x: Tensor) -> bool:
    try:
        torch.vmap(lambda v: model.outputs(v, x[:1]))({k: v[:1] for k, v in values.items()})
    except RuntimeError as error:
        warnings.warn(
            "the network cannot be vectorised over posterior draws and is run draw by draw: "
            f"{str(error).splitlines()[0]}",
            stacklevel=3,
        )
        return False
    return True


def _loop_is_faster(model: BNN, values: Values, x: Tensor) -> bool:
    """Return whether a network is faster draw by draw on a CPU.

    Batched weights turn a convolution into a grouped one, which took 2.6 times longer on LeNet-5.
    A convolution with the same weights in all draws gets copies of the rows instead, which is
    faster for few rows. For large matrices there is no overhead to save.
    """
    if has_convolutions(model.net):
        # Draws of convolution weights have four or more dimensions, draws of a matrix three.
        return len(x) > FEW_ROWS or any(value.dim() > 3 for value in values.values())
    return sum(parameter.numel() for parameter in model.net.parameters()) > LARGE_NETWORK


def _channels_last(value: Tensor) -> Tensor:
    """Store draws of convolution weights in the channels-last layout."""
    if value.dim() != 5:
        return value
    return value.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _width(model: BNN, x: Tensor) -> int:
    """Count the activations of the network for one row."""
    count = 0

    def add(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    hooks = [module.register_forward_hook(add) for module in model.net.modules()]
    try:
        model.net(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return count


@torch.no_grad()
def row_outputs(
    model: BNN, guide: Guide, x: Tensor, num_samples: int, *, seed: int
) -> tuple[Tensor, Tensor | None]:
    """Return outputs with separate posterior draws for every row.

    Their shape is ``(draws, rows, outputs)``. The noise of the likelihood, if it has one, has the
    shape ``(draws, rows)``.

    A layer samples its outputs row by row (local reparameterization). For fully connected
    layers each row then has the same distribution as with its own draw of the weights. Rows are
    independent given sites that are not weights, such as the scales of a horseshoe, which are drawn
    once per draw and chunk. The outputs are more precise for averages over rows than joint draws,
    but have no correlations between rows.
    """
    if model.has_random_convolutions:
        raise ConfigError(
            "draws per row need fully connected layers: sampling the outputs of a convolution "
            "ignores their correlations. Use joint draws."
        )
    model.eval()

    def draw(rows: Tensor) -> tuple[Tensor, Tensor]:
        trace = poutine.trace(LocalReparameterization()(guide.sample_sites)).get_trace()
        with poutine.block(), poutine.replay(trace=trace):
            values = model.sample_slots()
        noise = values.get("noise", rows.new_zeros(()))
        return model.outputs(values, rows), noise.expand(len(rows))

    outputs: list[Tensor] = []
    noises: list[Tensor] = []
    with pyro.validation_enabled(False), seeded(seed, x.device):
        for rows in x.split(CHUNK_ROWS):
            try:
                draws = [draw(rows) for _ in range(num_samples)]
            except LazyReuseError as error:
                raise ConfigError(f"draws per row are not possible: {error}") from None
            for chunks, parts in zip((outputs, noises), zip(*draws, strict=True), strict=True):
                chunks.append(torch.stack(parts))
    return torch.cat(outputs, 1), torch.cat(noises, 1) if "noise" in model.slots else None
