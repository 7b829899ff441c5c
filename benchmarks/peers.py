"""Mean-field variational inference in other libraries.

Every contestant starts from the same network, with means at its weights, standard deviations of
``init_scale`` and a standard normal prior. It has parameters, a function of no arguments that
computes the negative ELBO of the batch,

    num_data * mean cross entropy + KL(q || p),

and a function that returns the logits of other rows for one posterior draw. The ELBO has one draw
and the library's own estimator of the divergence, the closed form if there is one. If the default
weight of the divergence in a library differs, the contestant corrects it, as documented.

``pip install -c constraints.txt -e ".[bench]"`` installs the peers that are compatible with the
installed torch; ``pip install --no-deps -r benchmarks/peers.txt`` those that require torchvision
but never import it. torch-uncertainty imports Lightning, timm and torchvision, whose wheel on PyPI
is a CUDA build that does not load with a CPU build of torch: install ``torch_uncertainty[cpu]``
where that resolves. ``missing`` lists the peers that cannot be imported, with reasons.
"""

import copy
import importlib
import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

#: Initial standard deviation of every contestant, the same as for the zoo.
INIT_SCALE = 0.011


class Contestant(NamedTuple):
    """Parameters, negative ELBO of the batch, and logits of rows for one posterior draw."""

    parameters: list[Tensor]
    loss: Callable[[], Tensor]
    logits: Callable[[Tensor], Tensor]


def torchbnn(net, x, y, num_data, init_scale=INIT_SCALE) -> Contestant:
    """torchbnn, with its divergence summed; its default is the mean over the weights."""
    from torchbnn import BayesConv2d, BayesLinear, BKLLoss

    def bayesian(layer):
        new = (
            BayesLinear(0.0, 1.0, layer.in_features, layer.out_features)
            if isinstance(layer, nn.Linear)
            else BayesConv2d(0.0, 1.0, layer.in_channels, layer.out_channels, layer.kernel_size)
        )
        _start(new.weight_mu, new.weight_log_sigma, layer.weight, math.log(init_scale))
        _start(new.bias_mu, new.bias_log_sigma, layer.bias, math.log(init_scale))
        return new

    rival, divergence = _replaced(net, bayesian), BKLLoss(reduction="sum")

    def loss():
        return num_data * F.cross_entropy(rival(x), y) + divergence(rival).squeeze()

    return Contestant(list(rival.parameters()), loss, rival)


def bayesian_torch(net, x, y, num_data, init_scale=INIT_SCALE, *, layers) -> Contestant:
    """bayesian-torch, with the divergence of every tensor times its number of weights.

    Its ``get_kl_loss`` sums means over tensors, which is not the divergence of the whole network;
    ``kl_div`` of the layers is right up to that factor. ``layers`` is
    ``Reparameterization`` (one draw of the weights) or ``Flipout``.
    """
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    rival = copy.deepcopy(net)
    settings = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": 0.0,
        "type": layers,
        "moped_enable": False,
    }
    dnn_to_bnn(rival, settings)
    terms = []
    for old, new in zip(net, rival, strict=True):
        if not isinstance(old, nn.Linear | nn.Conv2d):
            continue
        kind = "weight" if isinstance(old, nn.Linear) else "kernel"
        for name, prior, value in ((kind, "weight", old.weight), ("bias", "bias", old.bias)):
            loc, rho = getattr(new, f"mu_{name}"), getattr(new, f"rho_{name}")
            _start(loc, rho, value, _inverse_softplus(init_scale))
            standard = getattr(new, f"prior_{prior}_mu"), getattr(new, f"prior_{prior}_sigma")
            terms.append((new.kl_div, loc, rho, standard))

    def divergence():
        return sum(
            loc.numel() * mean_divergence(loc, torch.log1p(torch.exp(rho)), *standard)
            for mean_divergence, loc, rho, standard in terms
        )

    def loss():
        return num_data * F.cross_entropy(rival(x), y) + divergence()

    return Contestant(list(rival.parameters()), loss, rival)


def blitz(net, x, y, num_data, init_scale=INIT_SCALE) -> Contestant:
    """Blitz, with the divergence counted once for the data set; one draw estimates it.

    The default prior is a mixture whose two densities are computed even if the second has weight 0,
    so an explicit distribution is faster.
    """
    from blitz.losses.kl_divergence import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear
    from blitz.modules.weight_sampler import TrainableRandomDistribution

    prior = torch.distributions.Normal(0.0, 1.0, validate_args=False)

    def bayesian(layer):
        new = (
            BayesianLinear(layer.in_features, layer.out_features, prior_dist=prior)
            if isinstance(layer, nn.Linear)
            else BayesianConv2d(
                layer.in_channels, layer.out_channels, layer.kernel_size, prior_dist=prior
            )
        )
        _start(new.weight_mu, new.weight_rho, layer.weight, _inverse_softplus(init_scale))
        _start(new.bias_mu, new.bias_rho, layer.bias, _inverse_softplus(init_scale))
        return new

    rival = _replaced(net, bayesian)

    def loss():
        data = num_data * F.cross_entropy(rival(x), y)
        return data + kl_divergence_from_nn(rival)  # for the draw of the last forward pass

    # Layers register every parameter twice, sharing memory; only this one is used.
    samplers = [m for m in rival.modules() if isinstance(m, TrainableRandomDistribution)]
    parameters = [parameter for sampler in samplers for parameter in sampler.parameters()]
    return Contestant(parameters, loss, rival)


def bayestorch(net, x, y, num_data, init_scale=INIT_SCALE) -> Contestant:
    """Bayestorch, with its exact divergence."""
    from bayestorch.distributions import LogScaleNormal
    from bayestorch.nn import VariationalPosteriorModule

    weights = nn.utils.parameters_to_vector(net.parameters()).detach()
    rival = VariationalPosteriorModule(
        copy.deepcopy(net),
        prior_builder=torch.distributions.Normal,
        prior_kwargs={"loc": torch.zeros_like(weights), "scale": torch.ones_like(weights)},
        posterior_builder=LogScaleNormal,
        posterior_kwargs={
            "loc": weights.clone().requires_grad_(),
            "log_scale": torch.full_like(weights, math.log(init_scale)).requires_grad_(),
        },
    )

    def loss():
        logits, divergence = rival(x, return_kl_div=True, exact_kl_div=True)
        return num_data * F.cross_entropy(logits, y) + divergence

    return Contestant(list(rival.parameters()), loss, rival)


def posteriors(net, x, y, num_data, init_scale=INIT_SCALE) -> Contestant:
    """``posteriors.vi.diag``: one draw estimates the divergence, gradients stick the landing.

    Its ``update`` uses TorchOpt; the fused Adam of this benchmark is faster.
    """
    from posteriors import diag_normal_log_prob, model_to_function
    from posteriors.vi.diag import nelbo

    locs = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    log_scales = {
        name: torch.full_like(p, math.log(init_scale)).requires_grad_() for name, p in locs.items()
    }
    network = model_to_function(copy.deepcopy(net))

    def log_posterior(weights, batch):
        inputs, labels = batch
        fit = num_data * F.cross_entropy(network(weights, inputs), labels)
        return diag_normal_log_prob(weights) - fit, torch.tensor([])

    def loss():
        scales = {name: log_scale.exp() for name, log_scale in log_scales.items()}
        value, _ = nelbo(locs, scales, (x, y), log_posterior)
        return value

    def logits(rows):
        weights = {k: torch.normal(loc, log_scales[k].exp()) for k, loc in locs.items()}
        return network(weights, rows)

    return Contestant([*locs.values(), *log_scales.values()], loss, logits)


def torch_uncertainty(net, x, y, num_data, init_scale=INIT_SCALE) -> Contestant:
    """torch-uncertainty, with the divergence times the number of layers, of which it is the mean.

    One draw estimates it. Its log density of the posterior omits a constant of one half per weight,
    which is added here; it does not change gradients.
    """
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear
    from torch_uncertainty.losses.bayesian import KLDiv

    def bayesian(layer):
        new = (
            BayesLinear(layer.in_features, layer.out_features, prior_sigma_1=1.0)
            if isinstance(layer, nn.Linear)
            else BayesConv2d(
                layer.in_channels, layer.out_channels, layer.kernel_size, prior_sigma_1=1.0
            )
        )
        _start(new.weight_mu, new.weight_sigma, layer.weight, _inverse_softplus(init_scale))
        _start(new.bias_mu, new.bias_sigma, layer.bias, _inverse_softplus(init_scale))
        return new

    rival = _replaced(net, bayesian)
    mean_divergence = KLDiv(rival)
    num_layers = sum(isinstance(layer, BayesLinear | BayesConv2d) for layer in rival)
    constant = 0.5 * sum(p.numel() for p in net.parameters())

    def loss():
        data = num_data * F.cross_entropy(rival(x), y)
        return data + num_layers * mean_divergence().squeeze() + constant

    return Contestant(list(rival.parameters()), loss, rival)


def tyxe(net, x, y, num_data, init_scale=INIT_SCALE, *, local) -> Contestant:
    """TyXe with its own guide, the closed form of the divergence, and Pyro's validation off."""
    import tyxe

    class Guide(tyxe.guides.AutoNormal):
        """Replace the original, which needs ``pyro.util.deep_getattr``, missing in Pyro 1.9.2."""

        def get_loc(self, site_name):
            return operator.attrgetter(f"{site_name}.loc")(self)

        def get_scale(self, site_name):
            return operator.attrgetter(f"{site_name}.scale")(self)

    start = tyxe.guides.PretrainedInitializer.from_net(net)
    rival = tyxe.VariationalBNN(
        copy.deepcopy(net),
        tyxe.priors.IIDPrior(dist.Normal(0.0, 1.0)),
        tyxe.likelihoods.Categorical(num_data),
        partial(Guide, init_loc_fn=start, init_scale=init_scale),
    )
    elbo = TraceMeanField_ELBO()

    def weights():
        with pyro.validation_enabled(False):
            return elbo.differentiable_loss(rival.model, rival.guide, x, y)

    def activations():
        with tyxe.poutine.local_reparameterization():
            return weights()

    loss = activations if local else weights
    loss()  # the guide creates its parameters in the first call
    return Contestant(
        list(rival.net_guide.parameters()),
        loss,
        lambda rows: rival.predict(rows, num_predictions=1, aggregate=False)[0],
    )


def torch_blue(net, x, y, num_data, init_scale=INIT_SCALE, *, local) -> Contestant:
    """torch_blue with its own losses, which take the size of the data set.

    With the closed form of the divergence its dense layers, not its convolutions, sample outputs;
    otherwise it samples weights, and the draw estimates the divergence.
    """
    from torch_blue import vi

    rival = copy.deepcopy(net)
    vi.convert_to_vimodule(
        rival,
        keep_weights=True,
        variational_distribution=vi.distributions.MeanFieldNormal(std=init_scale),
        kaiming_initialization=False,
    )
    likelihood = vi.distributions.Categorical()
    objective = (
        vi.AnalyticalKullbackLeiblerLoss(rival, likelihood, num_data)
        if local
        else vi.KullbackLeiblerLoss(likelihood, num_data)
    )
    return Contestant(
        list(rival.parameters()),
        lambda: objective(rival(x, samples=1), y),
        lambda rows: _first(rival(rows, samples=1)),
    )


def _first(outputs):
    """Return the first draw; with the closed form torch_blue returns the divergence as well."""
    while not isinstance(outputs, Tensor):
        outputs = outputs[0]
    return outputs[0]


@dataclass(frozen=True)
class Peer:
    """A library: its imported module, and its contestants by name."""

    module: str
    contestants: dict[str, Callable[..., Contestant]]


PEERS = {
    "torchbnn": Peer("torchbnn", {"torchbnn": torchbnn}),
    "bayesian-torch": Peer(
        "bayesian_torch.models.dnn_to_bnn",
        {
            "bayesian-torch weights": partial(bayesian_torch, layers="Reparameterization"),
            "bayesian-torch flipout": partial(bayesian_torch, layers="Flipout"),
        },
    ),
    "blitz": Peer("blitz.modules", {"blitz": blitz}),
    "bayestorch": Peer("bayestorch.nn", {"bayestorch": bayestorch}),
    "posteriors": Peer("posteriors", {"posteriors": posteriors}),
    "torch-uncertainty": Peer("torch_uncertainty.losses", {"torch-uncertainty": torch_uncertainty}),
    "TyXe": Peer(
        "tyxe",
        {"TyXe local": partial(tyxe, local=True), "TyXe weights": partial(tyxe, local=False)},
    ),
    "torch_blue": Peer(
        "torch_blue.vi",
        {
            "torch_blue local": partial(torch_blue, local=True),
            "torch_blue weights": partial(torch_blue, local=False),
        },
    ),
}


#: Builder of each contestant, ``build(net, x, y, num_data)``, and its library. The
#: network has linear and convolutional layers (stride 1, no padding) with biases, and between them
#: layers without parameters; it is not modified. ``x`` and ``y`` are a batch, classes as integers.
BUILDERS: dict[str, Callable[..., Contestant]] = {
    name: build for peer in PEERS.values() for name, build in peer.contestants.items()
}
LIBRARIES = {name: library for library, peer in PEERS.items() for name in peer.contestants}


def missing() -> dict[str, str]:
    """Return the peers that cannot be imported, with the first line of the error."""
    reasons = {}
    for name, peer in PEERS.items():
        try:
            with warnings.catch_warnings(action="ignore"):  # internal to the library
                importlib.import_module(peer.module)
        except Exception as error:  # a broken installation may raise anything
            first_line = (str(error).splitlines() or [""])[0]
            reasons[name] = f"{type(error).__name__}: {first_line}"
    return reasons


def _replaced(net: nn.Sequential, bayesian: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    """Return the network with every layer that has weights replaced."""
    return nn.Sequential(
        *(
            bayesian(layer) if isinstance(layer, nn.Linear | nn.Conv2d) else copy.deepcopy(layer)
            for layer in net
        )
    )


@torch.no_grad()
def _start(loc: Tensor, raw_scale: Tensor, value: Tensor, raw: float) -> None:
    """Set a variational mean and the parameter of its standard deviation."""
    loc.copy_(value)
    raw_scale.fill_(raw)


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))
