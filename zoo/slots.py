"""Slots: the places of a network that can carry a prior.

A slot is a parameter of the network under its own name (``0.weight``), or a parameter of the
likelihood (``noise``). What a method treats as one group of weights depends on the layer that owns
them, so a slot also knows its layer.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from zoo.errors import PriorError, ZooError, did_you_mean

#: How the weights of a slot are grouped. "auto" follows Louizos et al. (2017): the input units of a
#: linear layer, the output channels of a convolution, single elements elsewhere.
Grouping = Literal["auto", "input", "output", "element"]
GROUPINGS: tuple[str, ...] = ("auto", "input", "output", "element")

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMALISATIONS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Slot:
    """One place for a prior.

    Attributes
    ----------
    name
        The parameter's name in ``net.named_parameters()``, or the likelihood's name for it.
    value
        The current value: it gives shape, dtype and device, and is where a guide starts.
    layer
        Kind of the layer that owns the parameter.
    positive
        Whether values must be positive (scales of a likelihood).
    """

    name: str
    value: Tensor
    layer: Literal["linear", "convolution", "normalisation", "likelihood", "other"] = "other"
    positive: bool = False

    @property
    def shape(self) -> torch.Size:
        """Shape of the parameter."""
        return self.value.shape

    def matches(self, pattern: str) -> bool:
        """Whether a glob names this slot; one of the likelihood only by its full name."""
        if pattern == self.name:
            return True
        return self.layer != "likelihood" and fnmatch.fnmatchcase(self.name, pattern)

    def group_shape(self, grouping: str) -> torch.Size:
        """Shape of one scale per group, ready to be broadcast against the parameter.

        A linear weight of shape ``(out, in)`` grouped by input gives ``(1, in)``.
        """
        if grouping == "auto":
            grouping = {"linear": "input", "convolution": "output"}.get(self.layer, "element")
        if grouping == "element" or len(self.shape) < 2:
            return self.shape
        kept = 1 if grouping == "input" else 0
        return torch.Size(n if dim == kept else 1 for dim, n in enumerate(self.shape))


def has_convolutions(net: nn.Module) -> bool:
    """Tell whether a network has convolutional layers; draws of their weights cost differently."""
    return any(isinstance(module, _CONVOLUTIONS) for module in net.modules())


def network_slots(net: nn.Module) -> list[Slot]:
    """List the slots of a network, in the order of its parameters."""
    slots = []
    for name, parameter in net.named_parameters():
        owner = net.get_submodule(name.rpartition(".")[0])
        slots.append(Slot(name, parameter.detach(), _layer_kind(owner)))
    return slots


def _layer_kind(
    owner: nn.Module,
) -> Literal["linear", "convolution", "normalisation", "other"]:
    if isinstance(owner, nn.Linear):
        return "linear"
    if isinstance(owner, _CONVOLUTIONS):
        return "convolution"
    if isinstance(owner, _NORMALISATIONS):
        return "normalisation"
    return "other"


def choose_bayesian(slots: Sequence[Slot], patterns: Iterable[str] | None) -> list[Slot]:
    """Return the slots that get a posterior; the rest are trained as points.

    Without patterns everything is Bayesian except the gains and offsets of normalisation layers,
    whose natural value is one, not zero.
    """
    if patterns is None:
        return [slot for slot in slots if slot.layer != "normalisation"]
    chosen = assign(dict.fromkeys(patterns, True), slots, what="Bayesian pattern")
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
    """Give each slot the value of the last pattern that matches it.

    Raises
    ------
    PriorError
        If a pattern matches nothing although it must.
    """
    assigned: dict[str, T] = {}
    for pattern, value in patterns.items():
        matched = [slot.name for slot in slots if slot.matches(pattern)]
        if must_match and not matched:
            raise _nothing_matches(what, pattern, [slot.name for slot in slots])
        assigned.update(dict.fromkeys(matched, value))
    return assigned


def _nothing_matches(what: str, pattern: str, names: Sequence[str]) -> PriorError:
    globs = sorted({f"*.{name.rpartition('.')[2]}" for name in names if "." in name})
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return PriorError(
        f"the {what} {pattern!r} matches no slot. Slots: {shown}."
        f"{did_you_mean(pattern, [*globs, *names])}"
    )
