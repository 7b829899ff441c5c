"""`BNN`: any torch network as a Pyro model.

The network stays an ordinary module. The model samples a value for each Bayesian slot, calls the
network with those values (`torch.func.functional_call`) and observes ``y`` through a likelihood. So
any network works unchanged, and many draws are one `torch.vmap`.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Required, TypedDict

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call

from guides.base import Composite, module_key
from guides.full_rank import FullRank
from guides.layout import channels_last
from zoo.errors import ConfigError
from zoo.likelihoods import Likelihood
from zoo.priors import Prior, PriorSource, Program, build_guide, build_program, resolve_priors
from zoo.slots import Slot, choose_bayesian, network_slots

#: Sites of the model that are not weights of the network.
RESERVED = {"noise", "y", "obs_id"}


class BNNOptions(TypedDict, total=False):
    """Options of `BNN` that a method hands through from the user."""

    priors: Mapping[str, PriorSource] | None
    num_data: Required[int]
    bayesian: Iterable[str] | None
    autocast: bool


class BNN(nn.Module):
    r"""A Bayesian neural network.

    .. math:: p(y, w \mid X) = p(w) \prod_{i=1}^N p(y_i \mid f_w(x_i))

    Mini-batches are scaled by :math:`N / B`, with :math:`N` the number of training rows, which is
    why it must be given: it decides how much the prior weighs.

    Parameters
    ----------
    net
        Any network. It is copied; the original is left alone.
    likelihood
        How outputs relate to observations.
    priors
        The user's priors by slot pattern; they come before the defaults.
    default_priors
        The method's priors by slot pattern.
    num_data
        Number of training observations.
    bayesian
        Patterns of the parameters that get a posterior. By default all but those of normalisation
        layers. The others are trained as points.
    autocast
        Whether the network computes in bfloat16. Priors, posteriors, divergences and the likelihood
        keep the precision of the parameters.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        *,
        priors: Mapping[str, PriorSource] | None = None,
        default_priors: Mapping[str, PriorSource] | None = None,
        num_data: int,
        bayesian: Iterable[str] | None = None,
        autocast: bool = False,
    ) -> None:
        super().__init__()
        if num_data < 1:
            raise ConfigError(f"num_data must be at least 1. Got {num_data}.")
        taken = sorted({name for name, _ in net.named_parameters()} & RESERVED)
        if taken:
            raise ConfigError(
                f"a parameter of the network is called {taken[0]!r}, a name that the model uses "
                "itself. Rename it, or put the layer inside another module."
            )
        self.net = copy.deepcopy(net)
        self.likelihood = copy.deepcopy(likelihood)
        self.num_data = num_data
        self.autocast = autocast
        slots = [
            *choose_bayesian(network_slots(self.net), bayesian),
            *self.likelihood.slots(),
        ]
        self.priors: dict[str, Prior] = resolve_priors(priors or {}, default_priors or {}, slots)
        self.slots: dict[str, Slot] = {s.name: s for s in slots if s.name in self.priors}
        if not self.slots:
            raise ConfigError("no parameter of the network has a prior: nothing is Bayesian.")
        for name in self.slots:
            self._replaced(name).requires_grad_(False)
        self.programs = nn.ModuleDict(
            {module_key(n): build_program(self.priors[n], s) for n, s in self.slots.items()}
        )

    def _replaced(self, slot: str) -> nn.Parameter:
        """Return the parameter that draws of a slot stand in for."""
        if slot == "noise":
            parameter = self.likelihood.log_noise
            assert isinstance(parameter, nn.Parameter)
            return parameter
        return self.net.get_parameter(slot)

    def _program(self, slot: str) -> Program:
        program = self.programs[module_key(slot)]
        assert isinstance(program, Program)
        return program

    def sample_slots(self) -> dict[str, Tensor]:
        """Draw a value for every Bayesian slot: the prior as a Pyro program."""
        return {name: self._program(name)() for name in self.slots}

    def evaluate(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the network's outputs for given values of the slots."""
        weights = {name: channels_last(value) for name, value in values.items() if name != "noise"}
        if not self.autocast:
            outputs: Tensor = functional_call(self.net, weights, (x,))
            return outputs
        with torch.autocast(x.device.type, torch.bfloat16):
            outputs = functional_call(self.net, weights, (x,))
        return outputs.to(x.dtype)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Run the model on a batch and return the network's outputs."""
        if len(x) > self.num_data:
            raise ConfigError(
                f"a batch of {len(x)} rows is larger than num_data={self.num_data}, which is the "
                "number of training rows."
            )
        values = self.sample_slots()
        f = self.evaluate(values, x)
        rows = torch.arange(len(x), device=x.device)
        with pyro.plate("obs_id", self.num_data, subsample=rows, dim=-1):
            pyro.sample("y", self.likelihood.distribution(f, values.get("noise")), obs=y)
        return f

    def guide(self, *, init_scale: float) -> Composite:
        """Return a guide that follows the priors and starts at the network's current weights.

        Parameters
        ----------
        init_scale
            Standard deviation at the start, in unconstrained space.
        """
        return Composite(
            {
                name: build_guide(
                    self.priors[name], slot, self._program(name), init_scale=init_scale
                )
                for name, slot in self.slots.items()
            }
        )

    def full_rank_guide(self, *, init_scale: float) -> FullRank:
        """Return one multivariate Normal over all sites, started where `guide` starts.

        It sees correlations that a factorised guide cannot, at the cost of the square of the number
        of unknowns.
        """
        factorised = self.guide(init_scale=init_scale)
        try:
            return FullRank(self.sample_slots, init=factorised.medians(), init_scale=init_scale)
        except ValueError as error:
            raise ConfigError(f"the guide 'full_rank' cannot be used: {error}.") from None
