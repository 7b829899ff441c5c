"""`Method`: everything about a method of the zoo except its priors.

A method is a file in `zoo.models` with its priors as Pyro models, and a subclass of `Method` for
everything else: its guide, its life cycle, how it predicts. The defaults are those of a network
with priors on its weights and a guide that follows them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from guides.base import Composite, Guide
from zoo.errors import ConfigError, did_you_mean
from zoo.likelihoods import Likelihood
from zoo.network.bnn import BNN
from zoo.network.lifecycle import LifeCycle
from zoo.network.slots import assign
from zoo.priors import Options, PriorSource
from zoo.priors.options import validated


class Method(LifeCycle):
    """A method with its options and those of its guides, which may be values by slot pattern."""

    #: Default priors by slot pattern; filled in by `zoo.register`.
    priors: ClassVar[Mapping[str, str]] = {}
    #: Settings of the method itself; those of guides belong to the priors that they follow.
    options: ClassVar[type[Options]] = Options
    #: The Pyro model.
    network: ClassVar[type[BNN]] = BNN
    #: Whether draws are from a posterior, which NUTS could sample as well.
    has_posterior: ClassVar[bool] = True
    #: Why no other guide than its own can be used; empty if any can.
    own_guide: ClassVar[str] = ""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        own = {name: given.pop(name) for name in self.options.model_fields if name in given}
        self.settings: Any = validated(self.options, own)
        self.guide_options = given

    # ------------------------------------------------------------------ the model

    def model(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        *,
        num_data: int,
        priors: Mapping[str, PriorSource] | None = None,
        bayesian: Iterable[str] | None = None,
        autocast: bool = False,
    ) -> BNN:
        """Return the Pyro model of a network."""
        model = self.network(
            self.prepared(net),
            likelihood,
            priors=priors,
            default_priors=self.priors,
            num_data=num_data,
            bayesian=bayesian,
            autocast=autocast,
        )
        model.use(self, options_by_slot(self, model, self.guide_options))
        return model

    def prepared(self, net: nn.Module) -> nn.Module:
        """Return the network with the layers that the method needs; by default as it is."""
        return net

    def check(self, model: BNN, x: Tensor) -> None:
        """Refuse what the method cannot fit; called before training with a few rows."""

    # ------------------------------------------------------------------ the guide

    def guide(self, model: BNN, init_scale: float) -> Guide:
        """Return the guide, initialised at the network's weights; by default by slot."""
        return model.factorised_guide(init_scale)

    def full_rank_guide(self, model: BNN, init_scale: float) -> Guide:
        """Return one multivariate Normal over all sites."""
        self.require_open("full_rank")
        return model.full_rank_guide(init_scale)

    def require_open(self, name: str) -> None:
        """Refuse a guide if the method has one that cannot be replaced."""
        if self.own_guide:
            raise ConfigError(f"the guide {name!r} cannot be used: {self.own_guide}.")

    # ------------------------------------------------------------------ around training

    def after_pretraining(self, model: BNN, guide: Guide) -> None:
        """Let every prior follow the pretrained weights."""
        if isinstance(guide, Composite):
            for name in model.slots:
                model.prior(name).after_pretraining(guide[name])

    def before_training(self, model: BNN, guide: Guide) -> None:
        """Let fitted priors follow the initial posterior."""
        if isinstance(guide, Composite):
            for name in model.updated_slots:
                model.prior(name).before_training(guide[name])

    def after_update(self, model: BNN, guide: Guide, progress: float) -> None:
        """Let priors follow the posterior, and keep posteriors within their bounds."""
        if model.updated_slots and isinstance(guide, Composite):
            for name in model.updated_slots:
                model.prior(name).after_update(guide[name])

    # ------------------------------------------------------------------ what it claims

    def loss_is_elbo(self, model: BNN) -> bool:
        """Return whether the loss is minus the ELBO: all priors proper, no weighted divergence."""
        return all(
            not model.prior(name).is_improper
            and getattr(model.prior(name).settings, "kl_scale", 1.0) == 1.0
            for name in model.slots
        )


def options_by_slot(method: Method, model: BNN, given: Mapping[str, Any]) -> dict[str, Options]:
    """Return the settings of every slot's guide from options with one value, or by pattern."""
    fields = {name: set(model.prior(name).options.model_fields) for name in model.slots}
    known = sorted(set().union(*fields.values()) | set(method.options.model_fields))
    chosen: dict[str, dict[str, Any]] = {name: {} for name in model.slots}
    for option, value in given.items():
        slots = [slot for name, slot in model.slots.items() if option in fields[name]]
        if not slots:
            listed = f"Known: {', '.join(known)}." if known else "There are none."
            raise ConfigError(
                f"neither the method nor a guide of its priors has an option {option!r}."
                f"{did_you_mean(option, known)} {listed}"
            )
        if not isinstance(value, Mapping):
            value = dict.fromkeys([slot.name for slot in slots], value)
        for name, one in assign(value, slots, what=f"pattern of the option {option!r}").items():
            chosen[name][option] = one
    for name, prior in model.priors.items():
        chosen[name] |= dict(prior.options)
    return {name: validated(model.prior(name).options, values) for name, values in chosen.items()}
