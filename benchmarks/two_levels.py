r"""Bilevel optimisation of priors and complexity.

The lower level fits the posterior :math:`q_\theta(w, \Gamma)` for given hyper-parameters. The upper
level optimises these: the prior variances of weights and the favours :math:`s` of primitives.

.. math::
    L(\theta \mid h) &= E_q \log p(y \mid w, \Gamma)
        - \lambda_L^{prior} \mathrm{KL}(q_\theta \| p(\cdot \mid h)) \\
    Q(h \mid \theta) &= \lambda_Q^{lik} E_q \log p(y \mid w, \Gamma)
        - \lambda_Q^{prior} \mathrm{KL}(q_\theta \| p(\cdot \mid h))
        - \sum_k \lambda_{struct, k} \mathrm{KL}(p(\Gamma \mid h) \| p_k) + \log p(h)

:math:`p_k` is a distribution of the structure near vertex :math:`k`: with
:math:`\lambda_{struct,k} > 0` the prior moves towards it, with a negative one away from it, so that
a walk over signs visits all structures. With all other weights one, :math:`Q` is the evidence lower
bound. With :math:`\lambda_L^{prior} = 0` the posterior is a point of maximum likelihood, and
:math:`\lambda_L^{prior} = c` fits as if there were :math:`N / c` rows. The larger
:math:`\lambda_Q^{prior}`, the simpler the model.

References: Bakhteev and Strijov (2021), *Selection of a deep learning model structure*; Luketina,
Berglund, Greff and Raiko (2016), *Scalable Gradient-Based Tuning of Continuous Regularization
Hyperparameters*, for the greedy step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.func import functional_call

from guides.base import Guide, module_key
from zoo.errors import ConfigError
from zoo.models.gumbel_softmax_structure import GumbelSoftmaxStructure
from zoo.network.bnn import BNN
from zoo.priors.plain import PlainPrior

Values: TypeAlias = dict[str, Tensor]
#: An objective of both levels: a number from the parameters and the hyper-parameters.
Level: TypeAlias = Callable[[Values, Values], Tensor]


@dataclass(frozen=True)
class Metaparameters:
    r"""The weights of the two objectives, which are not optimised.

    Attributes
    ----------
    lam_l_prior
        :math:`\lambda_L^{prior}`, weight of the divergence in the lower level.
    lam_q_lik, lam_q_prior
        :math:`\lambda_Q^{lik}` and :math:`\lambda_Q^{prior}`, weights in the upper level.
    lam_struct
        :math:`\lambda_{struct,k}` by vertex. Positive values attract the prior of the structure,
        negative values repel it.
    vertex_odds
        How much the distribution near a vertex favours it.
    """

    lam_l_prior: float = 1.0
    lam_q_lik: float = 1.0
    lam_q_prior: float = 1.0
    lam_struct: Mapping[int, float] = field(default_factory=dict)
    vertex_odds: float = 100.0

    def __post_init__(self) -> None:
        for name in ("lam_l_prior", "lam_q_lik", "lam_q_prior"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must not be negative. Got {getattr(self, name)}.")
        if not self.vertex_odds > 1:
            raise ConfigError(f"vertex_odds must be above 1. Got {self.vertex_odds}.")


def hypergradient(
    lower: Level, upper: Level, theta: Values, h: Values, *, num_steps: int, lr: float
) -> tuple[Tensor, Values]:
    r"""Return the upper objective and its gradient in the hyper-parameters.

    The parameters follow the hyper-parameters through gradient steps :math:`\theta' = \theta +
    \eta \nabla_\theta L(\theta \mid h)`, and the gradient is that of :math:`Q(h, \theta'(h))`.

    Parameters
    ----------
    lower, upper
        The objectives, to be maximised.
    theta, h
        Current values.
    num_steps
        Number of unrolled steps: 0 for the first-order gradient, which keeps the parameters fixed;
        1 for the greedy one.
    lr
        :math:`\eta`.
    """
    h = {name: value.detach().requires_grad_() for name, value in h.items()}
    moved = {name: value.detach().requires_grad_() for name, value in theta.items()}
    for _ in range(num_steps):
        names = list(moved)
        slopes = torch.autograd.grad(
            lower(moved, h), [moved[name] for name in names], create_graph=True, allow_unused=True
        )
        moved = {
            name: moved[name] if slope is None else moved[name] + lr * slope
            for name, slope in zip(names, slopes, strict=True)
        }
    value = upper(moved, h)
    found = torch.autograd.grad(value, list(h.values()), allow_unused=True)
    gradients = {
        name: torch.zeros_like(h[name]) if gradient is None else gradient
        for name, gradient in zip(h, found, strict=True)
    }
    return value.detach(), gradients


@dataclass(frozen=True)
class Solution:
    """Result of `optimise`.

    Attributes
    ----------
    theta, h
        Parameters of the posterior, and hyper-parameters.
    lower, upper
        The objectives at every step.
    """

    theta: Values
    h: Values
    lower: Tensor
    upper: Tensor


def optimise(
    lower: Level,
    upper: Level,
    theta: Values,
    h: Values,
    *,
    num_steps: int,
    lr: float,
    hyper_lr: float,
    unroll: int = 1,
    unroll_lr: float | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Solution:
    """Maximise both levels alternately: a step of the parameters, then of the hyper-parameters.

    Both use Adam, with a learning rate that decreases linearly to zero over the second half.

    Parameters
    ----------
    lower, upper
        The objectives, to be maximised; they may be random.
    theta, h
        Initial values.
    num_steps
        Steps of each level.
    lr, hyper_lr
        Learning rates of parameters and hyper-parameters.
    unroll, unroll_lr
        Number of unrolled steps, see `hypergradient`, and their learning rate; by default that of
        the parameters.
    on_step
        Called before each step with its number.
    """
    theta = {name: value.detach().clone().requires_grad_() for name, value in theta.items()}
    h = {name: value.detach().clone().requires_grad_() for name, value in h.items()}
    inner = torch.optim.Adam(theta.values(), lr=lr, maximize=True)
    groups: list[torch.optim.Optimizer] = [inner]
    if h:
        groups.append(torch.optim.Adam(h.values(), lr=hyper_lr, maximize=True))
    decays = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, 2 - 2 * step / num_steps))
        for o in groups
    ]
    lowers, uppers = [], []
    for step in range(num_steps):
        if on_step is not None:
            on_step(step)
        value = lower(theta, h)
        inner.zero_grad()
        value.backward(inputs=list(theta.values()))
        inner.step()
        lowers.append(value.detach())
        if h:
            ahead = lr if unroll_lr is None else unroll_lr
            found, gradients = hypergradient(lower, upper, theta, h, num_steps=unroll, lr=ahead)
            for name, gradient in gradients.items():
                h[name].grad = gradient
            groups[1].step()
            uppers.append(found)
        for decay in decays:
            decay.step()
    return Solution(
        {name: value.detach() for name, value in theta.items()},
        {name: value.detach() for name, value in h.items()},
        torch.stack(lowers) if lowers else torch.zeros(0),
        torch.stack(uppers) if uppers else torch.zeros(0),
    )


class Bilevel:
    """Both objectives of a Bayesian network, as functions of parameters and hyper-parameters.

    Hyper-parameters are unconstrained: logarithms of prior standard deviations under
    ``{slot}.prior_scale``, and of favours under ``{slot}.logits``.

    Parameters
    ----------
    model, guide
        Model and guide to fit; not modified before `apply`.
    x, y
        Training rows.
    metaparameters
        Weights of the objectives.
    upper_rows
        Rows of the upper level, ``(x, y)``, scaled to the number of training rows; by default
        the training rows.
    per
        Whether each ``element`` of a weight tensor has a prior variance, or each ``slot``.
    variances, structure
        Whether prior variances and favours of structure are hyper-parameters.
    num_samples
        Posterior draws for an expectation.
    log_hyper_prior
        The logarithm of p(h); flat by default.
    """

    def __init__(
        self,
        model: BNN,
        guide: Guide,
        x: Tensor,
        y: Tensor,
        *,
        metaparameters: Metaparameters | None = None,
        upper_rows: tuple[Tensor, Tensor] | None = None,
        per: str = "element",
        variances: bool = True,
        structure: bool = True,
        num_samples: int = 1,
        log_hyper_prior: Callable[[Values], Tensor] | None = None,
    ) -> None:
        if per not in ("element", "slot"):
            raise ConfigError(f"per must be element or slot. Got {per!r}.")
        self.terms = _Terms(model, guide)
        self.rows, self.upper_rows = (x, y), upper_rows or (x, y)
        self.metaparameters = metaparameters or Metaparameters()
        self.num_samples, self.log_hyper_prior = num_samples, log_hyper_prior
        self.theta: Values = {
            name: p.detach() for name, p in self.terms.named_parameters() if p.requires_grad
        }
        self._structures: dict[str, GumbelSoftmaxStructure] = {}
        self.h: Values = {}
        for slot in model.slots:
            prior = model.prior(slot)
            if variances and isinstance(prior, PlainPrior) and prior.normal() is not None:
                scale = prior.get_buffer("prior_scale")
                shape = prior.slot.shape if per == "element" else scale.shape
                self.h[f"{slot}.prior_scale"] = scale.detach().log().expand(shape).clone()
            if isinstance(prior, GumbelSoftmaxStructure):
                self._structures[slot] = prior
                if structure:
                    self.h[f"{slot}.logits"] = prior.get_buffer("logits").detach().clone()

    def lower(self, theta: Values, h: Values) -> Tensor:
        """Return L, an unbiased estimate."""
        log_likelihood, divergence = self.expectations(theta, h, *self.rows)
        return log_likelihood - self.metaparameters.lam_l_prior * divergence

    def upper(self, theta: Values, h: Values) -> Tensor:
        """Return Q, an unbiased estimate."""
        meta = self.metaparameters
        log_likelihood, divergence = self.expectations(theta, h, *self.upper_rows)
        value = meta.lam_q_lik * log_likelihood - meta.lam_q_prior * divergence
        for vertex, weight in meta.lam_struct.items():
            value = value - weight * self.distance_to_vertex(h, vertex)
        return value if self.log_hyper_prior is None else value + self.log_hyper_prior(h)

    def expectations(self, theta: Values, h: Values, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the expected log-likelihood and the divergence from the prior."""
        replaced = theta | {self._buffer(name): _constrained(name, v) for name, v in h.items()}
        draws = [functional_call(self.terms, replaced, (x, y)) for _ in range(self.num_samples)]
        log_likelihoods, divergences = zip(*draws, strict=True)
        return torch.stack(log_likelihoods).mean(), torch.stack(divergences).mean()

    def distance_to_vertex(self, h: Values, vertex: int, num_samples: int = 16) -> Tensor:
        """Return the summed divergence of the structure prior from the distribution at a vertex."""
        total = self.rows[0].new_zeros(())
        for slot, prior in self._structures.items():
            logits = h.get(f"{slot}.logits", prior.get_buffer("logits"))
            if not 0 <= vertex < logits.shape[-1]:
                raise ConfigError(
                    f"lam_struct names vertex {vertex}, but {slot!r} has {logits.shape[-1]}."
                )
            current = prior.distribution()
            family, temperature = type(current), current.temperature
            near = torch.zeros_like(logits)
            near[..., vertex] = torch.tensor(self.metaparameters.vertex_odds).log()
            here = family(temperature, logits, validate_args=False)
            there = family(temperature, near, validate_args=False)
            total = total + _divergence(here, there, num_samples).sum()
        return total

    def run(
        self, *, num_steps: int, lr: float, hyper_lr: float, unroll: int = 0, **options: Any
    ) -> Solution:
        """Optimise both levels and write the solution into model and guide.

        Parameters
        ----------
        num_steps, lr, hyper_lr, unroll
            As for `optimise`.
        **options
            Further options of `optimise`.
        """
        with pyro.settings.context(module_local_params=True), pyro.validation_enabled(False):
            solution = optimise(
                self.lower,
                self.upper,
                self.theta,
                self.h,
                num_steps=num_steps,
                lr=lr,
                hyper_lr=hyper_lr,
                unroll=unroll,
                on_step=lambda step: self.terms.guide.advance(step / num_steps),
                **options,
            )
        self.apply(solution)
        return solution

    @torch.no_grad()
    def apply(self, solution: Solution) -> None:
        """Write parameters and hyper-parameters into model and guide."""
        for name, value in solution.theta.items():
            self.terms.get_parameter(name).copy_(value)
        for name, value in solution.h.items():
            owner, _, buffer = self._buffer(name).rpartition(".")
            self.terms.get_submodule(owner).register_buffer(buffer, _constrained(name, value))

    @staticmethod
    def _buffer(name: str) -> str:
        slot, _, buffer = name.rpartition(".")
        return f"model.programs.{module_key(slot)}.{buffer}"


class _Terms(nn.Module):
    """Log-likelihood of the rows and divergence from the prior, for one posterior draw.

    Unlike the objective of the training loop, it can be differentiated twice.
    """

    def __init__(self, model: BNN, guide: Guide) -> None:
        super().__init__()
        self.model, self.guide = model, guide

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        posteriors: Any = poutine.trace(self.guide).get_trace()
        replayed = poutine.replay(self.model, trace=posteriors)
        sites: Any = poutine.trace(replayed).get_trace(x, y)
        log_likelihood = divergence = x.new_zeros(())
        for name, site in sites.nodes.items():
            if site["type"] != "sample" or site["infer"].get("_deterministic"):
                continue
            if name == "y":
                log_likelihood = (site["scale"] * site["fn"].log_prob(site["value"])).sum()
            elif name in posteriors.nodes:
                q = posteriors.nodes[name]
                divergence = divergence + _site_divergence(q, site["fn"])
        return log_likelihood, divergence


def _site_divergence(posterior: Any, prior: Any) -> Tensor:
    """Return the divergence of a site, or its Monte Carlo estimate if there is no closed form."""
    try:
        return kl_divergence(posterior["fn"], prior).sum()
    except NotImplementedError:
        value = posterior["value"]
        term: Tensor = posterior["fn"].log_prob(value) - prior.log_prob(value)
        return term.sum()


def _divergence(q: Any, p: Any, num_samples: int) -> Tensor:
    try:
        return kl_divergence(q, p)
    except NotImplementedError:
        value = q.rsample((num_samples,))
        mean: Tensor = (q.log_prob(value) - p.log_prob(value)).mean(0)
        return mean


def _constrained(name: str, value: Tensor) -> Tensor:
    return value.exp() if name.endswith(".prior_scale") else value
