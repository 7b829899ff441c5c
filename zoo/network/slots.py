"""Slots: the tensors that can have a prior.

A slot is a named tensor of the network, or a parameter of the likelihood (``noise``). The model
draws a value for it and calls the network with that value (`torch.func.functional_call`). A tensor
that the network does not have, such as the multipliers of an activation
(`zoo.network.activations`), is added to the model's copy of the network by the slot's `install`.

How a method groups weights depends on their layer, so a slot also knows its layer.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from zoo.errors import PriorError, ZooError, did_you_mean
from zoo.network.nets.graph import mixtures

#: How the weights of a slot are grouped. "auto" follows Louizos et al. (2017): the input units of a
#: linear layer, the output channels of a convolution, single elements elsewhere.
Grouping = Literal["auto", "input", "output", "element"]

LayerKind = Literal[
    "linear", "convolution", "normalisation", "activation", "structure", "likelihood", "other"
]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Slot:
    """A tensor that can have a prior.

    Attributes
    ----------
    name
        The tensor's name in the network or the likelihood.
    value
        The current value: it gives shape, dtype and device, and is the initial value of a guide.
    layer
        Kind of the layer that owns the parameter; ``activation`` for multipliers of inputs and
        outputs, ``structure`` for the weights of a mixture of primitives.
    positive
        Whether values must be positive (scales of a likelihood).
    by_name
        Whether it is matched by its full name only, and not by globs.
    install
        Adds the tensor to a network that does not have it, the model's own copy.
    sizes
        For structure, the number of parameters of every primitive.
    """

    name: str
    value: Tensor
    layer: LayerKind = "other"
    positive: bool = False
    by_name: bool = False
    install: Callable[[nn.Module], None] | None = None
    sizes: tuple[int, ...] = ()

    @property
    def shape(self) -> torch.Size:
        """Shape of the parameter."""
        return self.value.shape

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern matches this slot.

        Activations and structure are matched by globs that end in their last word: ``*`` matches
        all weights, and ``*.input`` all inputs, including that of a network of a single layer.
        """
        if pattern == self.name:
            return True
        if self.by_name:
            return False
        if self.layer not in ("activation", "structure"):
            return fnmatch.fnmatchcase(self.name, pattern)
        layer, _, word = self.name.rpartition(".")
        return pattern.endswith(word) and fnmatch.fnmatchcase(f"{layer}.{word}", pattern)

    def group_shape(self, grouping: str) -> torch.Size:
        """Return the shape of one scale per group, such as ``(1, in)``, to be broadcast."""
        if grouping == "auto":
            grouping = {"linear": "input", "convolution": "output"}.get(self.layer, "element")
        if grouping == "element" or len(self.shape) < 2:
            return self.shape
        kept = 1 if grouping == "input" else 0
        return torch.Size(n if dim == kept else 1 for dim, n in enumerate(self.shape))


def has_convolutions(net: nn.Module) -> bool:
    """Return whether a network has convolutional layers."""
    return any(isinstance(module, _CONVOLUTIONS) for module in net.modules())


def network_slots(net: nn.Module) -> list[Slot]:
    """List the slots of a network, in the order of its parameters."""
    slots = []
    for name, parameter in net.named_parameters():
        owner = net.get_submodule(name.rpartition(".")[0])
        slots.append(Slot(name, parameter.detach(), _layer_kind(owner)))
    return slots


def structure_slots(net: nn.Module) -> list[Slot]:
    """List the weights of the mixtures of a network, see `zoo.network.nets.graph`."""
    slots = []
    for name, mixed in mixtures(net):
        full_name = f"{name}.structure" if name else "structure"
        slots.append(Slot(full_name, mixed.structure.detach(), "structure", sizes=mixed.sizes))
    return slots


def _layer_kind(owner: nn.Module) -> LayerKind:
    if isinstance(owner, nn.Linear):
        return "linear"
    if isinstance(owner, _CONVOLUTIONS):
        return "convolution"
    if isinstance(owner, _NORMALISATIONS):
        return "normalisation"
    return "other"


def choose_bayesian(slots: Sequence[Slot], patterns: Iterable[str] | None) -> list[Slot]:
    """Return the slots that may have a posterior; the rest are trained as points.

    By default these are all but the gains and offsets of normalisation layers, which are not
    centred at zero. Here the glob ``*`` also matches activations; they need a prior nevertheless.
    """
    if patterns is None:
        return [slot for slot in slots if slot.layer != "normalisation"]
    chosen: set[str] = set()
    for pattern in patterns:
        matched = [s.name for s in slots if fnmatch.fnmatchcase(s.name, pattern)]
        if not matched:
            raise _nothing_matches("Bayesian pattern", pattern, slots)
        chosen.update(matched)
    if not chosen:
        raise ZooError("no parameter is Bayesian: give at least one pattern, for example '*'.")
    return [slot for slot in slots if slot.name in chosen]


def assign(
    patterns: Mapping[str, T],
    slots: Sequence[Slot],
    *,
    what: str = "prior pattern",
    must_match: bool = True,
) -> dict[str, T]:
    """Return the value of the last matching pattern for each slot that any pattern matches."""
    assigned: dict[str, T] = {}
    for pattern, value in patterns.items():
        matched = [slot.name for slot in slots if slot.matches(pattern)]
        if must_match and not matched:
            raise _nothing_matches(what, pattern, slots)
        assigned.update(dict.fromkeys(matched, value))
    return assigned


def _nothing_matches(what: str, pattern: str, slots: Sequence[Slot]) -> PriorError:
    # There are too many activations of other modules to list them.
    names = [s.name for s in slots if not (s.by_name and s.layer == "activation")]
    globs = sorted({f"*.{name.rpartition('.')[2]}" for name in names if "." in name})
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return PriorError(
        f"the {what} {pattern!r} matches no slot. Slots: {shown}."
        f"{did_you_mean(pattern, [*globs, *names])}"
    )
