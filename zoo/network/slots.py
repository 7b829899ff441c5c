"""Slots: the places of a network that can carry a prior.

A slot is a named tensor of the network, or a parameter of the likelihood (``noise``). Whatever the
kind of place, the model draws a value for the tensor and calls the network with it
(`torch.func.functional_call`), so a new kind needs no new way to run a network. Parameters are
there from the start (``0.weight``). A tensor that is not there yet, such as the multipliers of an
activation (`zoo.network.activations`), is put into the model's copy of the network by the slot's
`install`.

What a method treats as one group of weights depends on the layer that owns them, so a slot also
knows its layer.
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
GROUPINGS: tuple[str, ...] = ("auto", "input", "output", "element")

LayerKind = Literal[
    "linear", "convolution", "normalisation", "activation", "structure", "likelihood", "other"
]

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
        The tensor's name among the parameters and buffers of the network, or the likelihood's name
        for it.
    value
        The current value: it gives shape, dtype and device, and is where a guide starts.
    layer
        Kind of the layer that owns the parameter; ``activation`` for what enters or leaves one,
        ``structure`` for the weights of a mixture of primitives.
    positive
        Whether values must be positive (scales of a likelihood).
    by_name
        Whether it answers to its full name only, and not to globs.
    install
        Puts the tensor into a network that does not have it yet; it is called once, on the model's
        own copy. None for a tensor that is there already.
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
        """Whether a pattern means this slot.

        Activations and structure answer to globs that end in their last word: ``*`` means all
        weights, and ``*.input`` all inputs, that of a network which is a single layer among them.
        """
        if pattern == self.name:
            return True
        if self.by_name:
            return False
        if self.layer not in ("activation", "structure"):
            return fnmatch.fnmatchcase(self.name, pattern)
        layer, _, place = self.name.rpartition(".")
        return pattern.endswith(place) and fnmatch.fnmatchcase(f"{layer}.{place}", pattern)

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
    """Tell whether a network has convolutional layers."""
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
    return [
        Slot(
            f"{name}.structure" if name else "structure",
            mixed.structure.detach(),
            "structure",
            sizes=mixed.sizes,
        )
        for name, mixed in mixtures(net)
    ]


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

    Without patterns everything is Bayesian except the gains and offsets of normalisation layers,
    whose natural value is one, not zero. The globs are over all names: here ``*`` also means
    activations, of which those without a prior are left alone.
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
            raise _nothing_matches(what, pattern, slots)
        assigned.update(dict.fromkeys(matched, value))
    return assigned


def _nothing_matches(what: str, pattern: str, slots: Sequence[Slot]) -> PriorError:
    # The places at modules of no particular kind are too many to be helpful.
    names = [s.name for s in slots if not (s.by_name and s.layer == "activation")]
    globs = sorted({f"*.{name.rpartition('.')[2]}" for name in names if "." in name})
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return PriorError(
        f"the {what} {pattern!r} matches no slot. Slots: {shown}."
        f"{did_you_mean(pattern, [*globs, *names])}"
    )
