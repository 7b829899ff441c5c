"""Hand-written baselines: the same mathematics in plain PyTorch."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BayesianLayer(nn.Module):
    """Linear or convolutional layer with factorised Gaussian weights and biases.

    Parameters
    ----------
    layer
        The deterministic layer to replace.
    local
        Sample outputs (local reparameterization) or weights.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, local: bool) -> None:
        super().__init__()
        self.local = local
        self.convolution = isinstance(layer, nn.Conv2d)
        assert layer.bias is not None
        self.loc = nn.Parameter(layer.weight.detach().clone())
        self.log_var = nn.Parameter(torch.full_like(self.loc, -9.0))
        self.bias_loc = nn.Parameter(layer.bias.detach().clone())
        self.bias_log_var = nn.Parameter(torch.full_like(self.bias_loc, -9.0))

    def apply_layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias) if self.convolution else F.linear(x, weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.local:
            weight = self.loc + (0.5 * self.log_var).exp() * torch.randn_like(self.loc)
            bias = self.bias_loc + (0.5 * self.bias_log_var).exp() * torch.randn_like(self.bias_loc)
            return self.apply_layer(x, weight, bias)
        mean = self.apply_layer(x, self.loc, self.bias_loc)
        variance = self.apply_layer(x * x, self.log_var.exp(), self.bias_log_var.exp())
        return mean + (variance + 1e-16).sqrt() * torch.randn_like(mean)

    def kl(self) -> Tensor:
        pairs = ((self.loc, self.log_var), (self.bias_loc, self.bias_log_var))
        return sum(  # type: ignore[return-value]
            0.5 * (log_var.exp() + loc.square() - log_var - 1).sum() for loc, log_var in pairs
        )


class HorseshoeLayer(BayesianLayer):
    """The same with a group horseshoe prior, tau0 = 1e-5; scales are drawn once per step."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, local: bool) -> None:
        super().__init__(layer, local)
        groups = self.loc.shape[0] if self.convolution else self.loc.shape[1]
        self.shape = (-1, 1, 1, 1) if self.convolution else (1, -1)
        start = 2 * math.log(1e-5)
        self.scale_loc = nn.ParameterList(
            [torch.tensor(start), torch.tensor(-start), torch.zeros(groups), torch.zeros(groups)]
        )
        self.scale_log_var = nn.ParameterList([torch.full_like(p, -9.0) for p in self.scale_loc])

    def forward(self, x: Tensor) -> Tensor:
        log_z: Tensor | float = 0.0
        for loc, log_var in zip(self.scale_loc, self.scale_log_var, strict=True):
            log_z = log_z + 0.5 * (loc + (0.5 * log_var).exp() * torch.randn_like(loc))
        assert isinstance(log_z, Tensor)
        z = log_z.exp().reshape(self.shape)
        if not self.local:
            weight = self.loc + (0.5 * self.log_var).exp() * torch.randn_like(self.loc)
            bias = self.bias_loc + (0.5 * self.bias_log_var).exp() * torch.randn_like(self.bias_loc)
            return self.apply_layer(x, weight * z, bias)
        mean = self.apply_layer(x, self.loc * z, self.bias_loc)
        variance = self.apply_layer(x * x, self.log_var.exp() * z * z, self.bias_log_var.exp())
        return mean + (variance + 1e-16).sqrt() * torch.randn_like(mean)

    def kl(self) -> Tensor:
        total = super().kl()
        rates = (1e10, 1.0, 1.0, 1.0)
        signs = (1, -1, 1, -1)  # Gamma, inverse Gamma, Gamma, inverse Gamma
        for loc, log_var, rate, sign in zip(
            self.scale_loc, self.scale_log_var, rates, signs, strict=True
        ):
            entropy = 0.5 * (math.log(2 * math.pi * math.e) + log_var)
            expected = rate * (sign * loc + 0.5 * log_var.exp()).exp()
            constant = math.lgamma(0.5) - 0.5 * math.log(rate)
            total = total + (expected - sign * 0.5 * loc + constant - entropy).sum()
        return total


LAYERS = {"mean_field": BayesianLayer, "group_horseshoe": HorseshoeLayer}


def bayesian(net: nn.Sequential, method: str, local: bool) -> nn.Sequential:
    """Replace every linear and convolutional layer of a network."""
    layers = [
        LAYERS[method](layer, local) if isinstance(layer, nn.Linear | nn.Conv2d) else layer
        for layer in net
    ]
    return nn.Sequential(*layers)


def loss(net: nn.Sequential, x: Tensor, y: Tensor, num_data: int) -> Tensor:
    """Negative ELBO of a batch."""
    kl = sum(layer.kl() for layer in net if isinstance(layer, BayesianLayer))
    return num_data * F.cross_entropy(net(x), y) + kl
