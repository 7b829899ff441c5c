"""`BNN`: any torch network as a Pyro model.

The network stays an ordinary module. The model samples a value for each Bayesian slot, calls the
network with those values (`torch.func.functional_call`) and observes ``y`` through a likelihood. So
any network works unchanged, and many draws are one `torch.vmap`.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call

from guides.base import Composite, Guide, module_key
from guides.full_rank import FullRank
from guides.layout import channels_last
from zoo.errors import ConfigError
from zoo.likelihoods import Likelihood
from zoo.network.activations import activation_slots
from zoo.network.slots import Slot, choose_bayesian, network_slots, structure_slots
from zoo.priors import Options, Prior, PriorSource, SlotPrior, prior_of_slot, resolve_priors

if TYPE_CHECKING:
    from zoo.network.method import Method

#: Sites of the model that are not weights of the network.
RESERVED = {"noise", "y", "obs_id"}


class BNN(nn.Module):
    r"""A Bayesian neural network.

    .. math:: p(y, w \mid X) = p(w) \prod_{i=1}^N p(y_i \mid f_w(x_i))

    Mini-batches are scaled by :math:`N / B`, with :math:`N` the number of training rows; it sets
    the weight of the prior, so it must be given.

    Parameters
    ----------
    net
        Any network. It is copied.
    likelihood
        The distribution of observations given outputs.
    priors, default_priors
        The user's priors by slot pattern, and those of the method, which apply to other slots.
    num_data
        Number of training observations.
    bayesian
        Patterns of the slots with a posterior, by default all but those of normalisation layers.
        The others are trained as points.
    autocast
        Whether the network computes in bfloat16. Priors, posteriors, divergences and the likelihood
        keep the precision of the parameters.
    """

    #: Whether `outputs` are those of the network's tangent instead of the network.
    linearised = False
    #: The method that the model belongs to; set by `use`.
    method: "Method"

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
        slots = [*self.network_slots(bayesian), *self.likelihood.slots()]
        self.priors: dict[str, Prior] = resolve_priors(priors or {}, default_priors or {}, slots)
        self.slots: dict[str, Slot] = {s.name: s for s in slots if s.name in self.priors}
        if not self.slots:
            raise ConfigError("no slot of the network has a prior: nothing is Bayesian.")
        for slot in self.slots.values():
            if slot.install is not None:
                slot.install(self.net)
            else:
                self._replaced(slot.name).requires_grad_(False)
        self.programs = nn.ModuleDict(
            {module_key(n): prior_of_slot(self.priors[n], s) for n, s in self.slots.items()}
        )

    def use(self, method: "Method", settings: Mapping[str, Options]) -> None:
        """Set the method of this model, and the guide settings of every prior."""
        self.method = method
        for name, options in settings.items():
            self.prior(name).settings = options
        #: The slots whose prior or posterior changes after every update.
        self.updated_slots = [name for name in self.slots if self.prior(name).is_updated]

    def network_slots(self, bayesian: Iterable[str] | None) -> list[Slot]:
        """Return the slots of the network: parameters, structure and activations by default."""
        finders = (network_slots, structure_slots, activation_slots)
        return choose_bayesian([slot for find in finders for slot in find(self.net)], bayesian)

    def _replaced(self, slot: str) -> Tensor:
        """Return the parameter or buffer that draws of a slot replace."""
        owner, _, name = slot.rpartition(".")
        replaced = (
            self.likelihood.log_noise
            if slot == "noise"
            else getattr(self.net.get_submodule(owner), name)
        )
        assert isinstance(replaced, Tensor)
        return replaced

    @property
    def activations(self) -> list[str]:
        """The slots that multiply activations."""
        return [name for name, slot in self.slots.items() if slot.layer == "activation"]

    @property
    def has_random_convolutions(self) -> bool:
        """Whether weights of a convolution are drawn."""
        return any(slot.layer == "convolution" for slot in self.slots.values())

    @property
    def has_noisy_convolutions(self) -> bool:
        """Whether most weights of a convolution become noise under its prior."""
        return any(
            slot.layer == "convolution" and self.prior(name).makes_noise
            for name, slot in self.slots.items()
        )

    def prior(self, slot: str) -> SlotPrior:
        """Return the prior of a slot as a Pyro model."""
        prior = self.programs[module_key(slot)]
        assert isinstance(prior, SlotPrior)
        return prior

    @property
    def fitted_priors(self) -> list[str]:
        """Slots whose prior is fitted to the posterior, and so to the data."""
        return [name for name in self.slots if self.prior(name).is_fitted]

    @property
    def is_bounded(self) -> bool:
        """Whether a posterior is restricted during training."""
        return any(self.prior(name).is_bounded for name in self.slots)

    def proper(self) -> "BNN":
        """Return a copy with proper counterparts of improper priors, for sampling.

        The posterior under an improper prior need not exist.
        """
        copied = copy.deepcopy(self)
        for name in self.slots:
            text = self.prior(name).proper()
            if text is not None:
                parameter = self._replaced(name)
                counterpart = Prior.parse(text)
                copied.priors[name] = counterpart
                prior = prior_of_slot(counterpart, self.slots[name])
                copied.programs[module_key(name)] = prior.to(parameter.device, parameter.dtype)
        return copied

    def sample_slots(self) -> dict[str, Tensor]:
        """Draw a value for every Bayesian slot from its prior."""
        return {name: self.prior(name)() for name in self.slots}

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

    def outputs(self, values: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs that predictions use: by default those of the network."""
        return self.evaluate(values, x)

    @property
    def has_statistics(self) -> bool:
        """Whether draws include the statistics of normalisation layers."""
        return False

    def guide(self, *, init_scale: float) -> Any:
        """Return the guide of the method, initialised at the network's current weights.

        ``init_scale`` is the initial standard deviation in unconstrained space.
        """
        return self.method.guide(self, init_scale)

    def factorised_guide(self, init_scale: float) -> Composite:
        """Return a guide that follows the priors, slot by slot."""
        return Composite({name: self.prior(name).guide(init_scale) for name in self.slots})

    def full_rank_guide(self, init_scale: float) -> Guide:
        """Return one multivariate Normal over all sites, initialised like the factorised guide."""
        self.require_fixed_priors("full_rank")
        factorised = self.factorised_guide(init_scale)
        try:
            return FullRank(self.sample_slots, init=factorised.medians(), init_scale=init_scale)
        except ValueError as error:
            raise ConfigError(f"the guide 'full_rank' cannot be used: {error}.") from None

    def require_fixed_priors(self, guide: str) -> None:
        """Refuse a joint guide of all slots if a prior is fitted to a factorised one."""
        for name in self.fitted_priors:
            raise ConfigError(
                f"the guide {guide!r} cannot be used: the prior {self.priors[name]} of slot "
                f"{name!r} is fitted to the means and sds of a factorised one."
            )
