"""The normal prior whose variance is fitted to each weight of the guide."""

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Normal, constraints
from torch.distributions.utils import broadcast_all

from guides.distribution_base import Expandable, analytic_kl
from guides.log_scale_normal import LogScaleNormal

__all__ = ["EmpiricalBayesNormal"]


class EmpiricalBayesNormal(Expandable, dist.Normal):
    r"""Zero-mean normal with the prior variance that maximises the evidence bound.

    .. math:: p(w) = N(w \mid 0, σ² + μ²), \qquad
        KL(N(μ, σ²) \| p) = ½ \log(1 + μ²/σ²)

    The optimal variance depends on the parameters of the guide. By the envelope
    theorem the gradient is the same whether or not it flows through them. With
    σ = softplus(ρ) and μ = γσ the gradient is γ/(1 + γ²) in γ and zero in ρ. For a normal
    with other parameters the divergence is the usual Gaussian one.

    Parameters
    ----------
    guide_loc, guide_scale
        Mean μ and standard deviation σ of the guide.

    References
    ----------
    See `zoo.models.empirical_bayes`.
    """

    arg_constraints = {  # noqa: RUF012
        "guide_loc": constraints.real,
        "guide_scale": constraints.positive,
    }
    batched = ("guide_loc", "guide_scale", "loc", "scale")

    def __init__(
        self,
        guide_loc: Tensor | float,
        guide_scale: Tensor | float,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.guide_loc, self.guide_scale = broadcast_all(guide_loc, guide_scale)
        scale = torch.hypot(self.guide_loc, self.guide_scale)
        super().__init__(torch.zeros_like(scale), scale, validate_args=validate_args)


# Without the second rule a LogScaleNormal would also match the rule for two Normals.
@analytic_kl(Normal, EmpiricalBayesNormal)
@analytic_kl(LogScaleNormal, EmpiricalBayesNormal)
def _kl_normal_empirical_bayes(p: Normal, q: EmpiricalBayesNormal) -> Tensor:
    # With s² = σ² + μ² of the first argument and δ = log s − log(prior scale), the Gaussian
    # divergence is ½ log(1 + μ²/σ²) + ½ (e^{2δ} − 1 − 2δ): no cancellation when δ = 0.
    twice_delta = 2 * (torch.hypot(p.loc, p.scale).log() - q.scale.log())
    mismatch = torch.expm1(twice_delta) - twice_delta
    return 0.5 * (torch.log1p((p.loc / p.scale).square()) + mismatch)
