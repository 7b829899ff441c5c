"""A posterior for every weight of the complexity: its parameters are functions of that weight.

Grebenkova, Bakhteev and Strijov (2021), *Variational Deep Learning Model Optimization with
Complexity Control*.
"""

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions import Uniform
from torch import Tensor, nn

from guides.base import Composite, Guide, module_key
from guides.distribution_base import analytic_kl

#: Range of the weights, and the weight for which the objective is the ELBO.
LOWEST, HIGHEST = 1e-3, 1e2
ELBO_WEIGHT = 1.0
#: Site of the weight's position in its range.
SITE = "complexity"


class Position(Uniform):
    """The uniform distribution of the position, equal in model and guide."""


@analytic_kl(Position, Position)
def _no_divergence(q: Position, p: Position) -> Tensor:
    """Return zero. torch would compare the bounds, and such a step cannot be recorded."""
    return torch.zeros_like(q.low)


class Complexity(nn.Module):
    r"""The weight :math:`\lambda` of the divergence: random in training, chosen afterwards.

    .. math:: \log\lambda = \log\lambda_{\min} + e\,(\log\lambda_{\max} - \log\lambda_{\min}),
        \qquad e \sim U(0, 1)

    Model and guide sample :math:`e` from the same distribution, so it adds nothing to the
    divergence. It is sampled in training mode; before ``train`` and after ``eval`` the weight is
    the chosen one.
    """

    zero: Tensor
    chosen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(()), persistent=False)
        self.register_buffer("chosen", torch.zeros(()))
        self.choose(ELBO_WEIGHT)
        self.eval()  # without training the prior has weight one

    def choose(self, weight: float) -> None:
        """Set the weight that is used outside of training."""
        if not LOWEST <= weight <= HIGHEST:
            raise ValueError(
                f"the weight of the complexity must be between {LOWEST:g} and {HIGHEST:g}, "
                f"the range of the training. Got {weight:g}"
            )
        self.chosen.fill_(math.log(weight / LOWEST) / math.log(HIGHEST / LOWEST))

    def position(self) -> Tensor:
        """Return the position of the weight in its range, from zero to one: a sample in training.

        Draws that are made together, in a plate, share one weight.
        """
        if not self.training:
            return self.chosen
        drawn: Tensor = pyro.sample(SITE, Position(self.zero, self.zero + 1))
        return drawn.flatten()[0]

    def weight(self, position: Tensor) -> Tensor:
        """Return the weight of the divergence at a position in its range."""
        return LOWEST * (position * math.log(HIGHEST / LOWEST)).exp()

    def weighted(self, position: Tensor) -> contextlib.AbstractContextManager[object]:
        """Scale sample statements by the weight at a position, but only in training."""
        if not self.training:
            return contextlib.nullcontext()
        scaled: contextlib.AbstractContextManager[object] = poutine.scale(
            scale=self.weight(position)
        )
        return scaled


class HypernetworkGuide(Composite):
    r"""Guides whose parameters are piecewise linear in the position :math:`e` of the weight.

    .. math:: \theta(e) = \sum_{k=0}^{K-1} \max(0, 1 - |(K - 1) e - k|)\, \theta_k

    In training every run of the guide draws an :math:`e` and scales its sites by
    :math:`\lambda(e)`, so that one step is an unbiased estimate of the objective averaged over
    weights.

    Parameters
    ----------
    parts
        Guides by name. Their parameters become functions of the weight, initially constant.
    complexity
        The weight.
    num_knots
        Number :math:`K` of knots, at least two.
    """

    numbers: Tensor

    def __init__(
        self, parts: Mapping[str, Guide], *, complexity: Complexity, num_knots: int
    ) -> None:
        super().__init__(parts)
        if num_knots < 2:
            raise ValueError(f"a hypernetwork needs at least two knots. Got {num_knots}")
        self.complexity = complexity
        self.paths: list[str] = []
        self.knots = nn.ParameterList()
        self.register_buffer("numbers", torch.arange(num_knots).to(self.some_tensor), False)
        for name, parameter in list(self.parts.named_parameters()):
            if not parameter.requires_grad:
                continue
            start = parameter.detach()
            self.paths.append(name)
            self.knots.append(nn.Parameter(start.expand(num_knots, *start.shape).clone()))
            owner, leaf = self._owner_of(name)
            del owner._parameters[leaf]
            owner.register_buffer(leaf, start.clone(), persistent=False)

    def __getitem__(self, name: str) -> Guide:
        part = super().__getitem__(name)
        self._put(self._values(self.complexity.chosen, module_key(name)))
        return part

    def guide(self) -> None:
        """Sample the weight, then every part with its parameters at that weight."""
        e = self.complexity.position()
        with self._parameters_at(e), self.complexity.weighted(e):
            super().guide()

    def sample_sites(self) -> dict[str, Tensor]:
        """Run the sample statements and return the values of the sites of the parts."""
        values = super().sample_sites()
        values.pop(SITE, None)
        return values

    def at(self, weight: float) -> "HypernetworkGuide":
        """Return a copy with another chosen weight; raises a ValueError outside of the range."""
        copied = copy.deepcopy(self).eval()
        copied.complexity.choose(weight)
        return copied

    def medians(self) -> dict[str, Tensor]:
        """Return the medians of every part at the chosen weight."""
        self._put(self._values(self.complexity.chosen))
        return super().medians()

    def metrics(self) -> dict[str, float]:
        """Return the chosen weight."""
        return {"complexity": float(self.complexity.weight(self.complexity.chosen))}

    @contextlib.contextmanager
    def _parameters_at(self, position: Tensor) -> Iterator[None]:
        """Give the parts interpolated parameters through which gradients reach the knots."""
        values = self._values(position)
        self._set(values)
        try:
            yield
        finally:
            self._put(values)

    def _values(self, position: Tensor, under: str = "") -> dict[str, Tensor]:
        """Interpolate the parameters of one part, or of all."""
        last = len(self.numbers) - 1
        hats = (1 - (position * last - self.numbers).abs()).clamp(min=0)
        values = {}
        for path, knots in zip(self.paths, self.knots, strict=True):
            if under in ("", path.partition(".")[0]):
                values[path] = (hats @ knots.reshape(last + 1, -1)).reshape(knots.shape[1:])
        return values

    def _set(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            owner, leaf = self._owner_of(name)
            owner._buffers[leaf] = value

    def _put(self, values: Mapping[str, Tensor]) -> None:
        """Set detached values, which can be copied and sent to other processes."""
        self._set({name: value.detach() for name, value in values.items()})

    def _owner_of(self, name: str) -> tuple[nn.Module, str]:
        owner, _, leaf = name.rpartition(".")
        return self.parts.get_submodule(owner), leaf
