"""Construction of model and guide from a configuration."""

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from guides.base import Guide
from zoo.data import Schema
from zoo.errors import ConfigError
from zoo.fit.config import RunConfig
from zoo.fit.guides import GuideSource, build_guide
from zoo.infer.svi.schedule import child_seed
from zoo.likelihoods import Likelihood, default_likelihood, parse_likelihood
from zoo.network.activations import silent_slots
from zoo.network.bnn import BNN
from zoo.network.nets import build_net, spell_out
from zoo.priors import PriorSource
from zoo.registry import Entry, Recipe, check_task, get

#: Streams of random numbers derived from the seed of a run, beside those of the training loop.
INIT_STREAM = 2_000_000_011
START_STREAM = 4_000_000_007
PREDICT_STREAM = 2_000_000_033

#: Number of multiplications per step below which more threads are not faster.
WORK_FOR_THREADS = 2**25
#: Up to this many weights, a step takes nearly the same time with 128 rows and with 512.
SMALL_NETWORK = 10_000
SMALL_BATCH = 512
#: The learning rate that a small network starts with, relative to that of the recipe.
SMALL_LR = 3.0

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Assembly:
    """A method with its model and guide for given data."""

    entry: Entry
    config: RunConfig
    model: BNN
    guide: Guide


def assemble(
    config: RunConfig,
    schema: Schema,
    *,
    num_data: int,
    net: nn.Module | None = None,
    guide: GuideSource | None = None,
) -> Assembly:
    """Build model and guide, with every default of the configuration filled in.

    ``num_data`` is the number of training rows, which scales the likelihood. ``net`` and ``guide``
    are objects that the configuration cannot name.
    """
    source = config.guide if guide is None else guide
    if source is None:
        raise ConfigError("this run was made with a guide object: pass the same guide as guide=.")
    entry = get(config.method)
    check_task(entry, schema.task)
    likelihood_text = config.likelihood or choose_likelihood(config, schema, net)
    likelihood = parse_likelihood(likelihood_text)
    if schema.task not in likelihood.tasks:
        raise ConfigError(
            f"the likelihood {likelihood_text!r} is for {' or '.join(likelihood.tasks)}, but the "
            f"target is for {schema.task}."
        )
    num_classes = len(schema.classes) or None
    num_outputs = likelihood.num_outputs(num_classes)
    given = config
    config = config.resolved(
        entry,
        likelihood=likelihood_text,
        device=str(choose_device(config.device)),
        net=config.net and spell_out(config.net, schema.num_features, num_outputs),
    )
    with torch.random.fork_rng():
        torch.manual_seed(child_seed(start_seed(config), INIT_STREAM))
        if net is not None and config.start:
            net = reinitialised(net)
        elif net is None:
            if config.net is None:
                raise ConfigError(
                    "this run was made with a network object: pass the same network as net=."
                )
            net = build_net(config.net, schema.num_features, num_outputs, schema.image_shape)
    dtype, device = DTYPES[config.dtype], torch.device(config.device)
    net = copy.deepcopy(net).to(dtype)
    model = create(
        entry.name,
        net,
        likelihood=likelihood.to(dtype),
        priors=config.priors,
        num_data=num_data,
        bayesian=config.bayesian,
        options=config.options,
        autocast=config.autocast,
    )
    check_network(model, torch.zeros(2, *schema.input_shape, dtype=dtype), num_classes)
    built = build_guide(model, source, config.recipe(entry).init_scale)
    threads = config.num_threads or choose_threads(model, config.recipe(entry))
    config = config.model_copy(update={"num_threads": threads} | for_small_networks(given, model))
    return Assembly(entry, config, model.to(device), built.to(device))


def choose_likelihood(config: RunConfig, schema: Schema, net: nn.Module | None) -> str:
    """Return the default likelihood; a network with one output for each of two classes keeps it."""
    chosen = default_likelihood(schema.task, len(schema.classes) or None)
    if chosen != "bernoulli":
        return chosen
    return "categorical" if _num_outputs(config, schema, net) == 2 else chosen


def _num_outputs(config: RunConfig, schema: Schema, net: nn.Module | None) -> int | None:
    """Return the width of a network, or None if it cannot have one output or two."""
    with torch.random.fork_rng(), torch.no_grad():
        for wanted in (1, 2):
            try:
                built = copy.deepcopy(net)
                if built is None and config.net is not None:
                    built = build_net(config.net, schema.num_features, wanted, schema.image_shape)
                if built is None:
                    return None
                rows = torch.zeros(2, *schema.input_shape, dtype=torch.float64)
                return int(built.double().eval()(rows).shape[-1])
            except (ConfigError, RuntimeError, ValueError, TypeError, AttributeError, IndexError):
                continue  # the width is part of the text, or the network is refused later
    return None


def start_seed(config: RunConfig) -> int:
    """Return the seed of initial weights, batches and noise.

    It differs from the seed of the configuration for other starts, which have the same data split.
    """
    return child_seed(config.seed, START_STREAM + config.start) if config.start else config.seed


def reinitialised(net: nn.Module) -> nn.Module:
    """Return a copy of a network with new weights in all layers that can be reset."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
    return net


def create(
    name: str,
    net: nn.Module,
    *,
    likelihood: str | Likelihood,
    num_data: int,
    priors: Mapping[str, PriorSource] | None = None,
    bayesian: tuple[str, ...] | None = None,
    options: Mapping[str, Any] | None = None,
    autocast: bool = False,
) -> BNN:
    """Return the Pyro model of a method for any torch network.

    Parameters
    ----------
    name
        A method of the zoo, see `zoo.list_models`.
    net
        Any network; it is copied.
    likelihood
        For example ``"categorical"`` or ``"gaussian(noise=0.1)"``.
    num_data
        Number of training rows.
    priors
        Priors by slot pattern; they come before the method's own.
    bayesian
        Patterns of the parameters that get a posterior.
    options
        Settings of the method and of its guide, by name; ``zoo show`` lists them.
    autocast
        Whether the network computes in bfloat16.

    Examples
    --------
    >>> import torch, zoo
    >>> net = torch.nn.Linear(3, 1)
    >>> model = zoo.create("mean_field", net, likelihood="gaussian(noise=0.1)", num_data=100)
    >>> guide = model.guide(init_scale=0.01)
    """
    built = parse_likelihood(likelihood) if isinstance(likelihood, str) else likelihood
    return (
        get(name)
        .method(options)
        .model(net, built, priors=priors, num_data=num_data, bayesian=bayesian, autocast=autocast)
    )


def check_network(model: BNN, x: Tensor, num_classes: int | None) -> None:
    """Check that the network accepts the rows and has the outputs that the likelihood needs."""
    model.eval()
    try:
        with torch.no_grad():
            f = model.net(x)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"the network does not accept rows of shape {tuple(x.shape[1:])}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    if not isinstance(f, Tensor):
        raise ConfigError(f"the network must return a tensor. It returned {type(f).__name__}.")
    model.likelihood.check_outputs(f, num_classes)
    silent = silent_slots(model.net, model.activations, x)
    if silent:
        raise ConfigError(
            f"the noise {silent[0]!r} has no effect: the network does not call that module. "
            "Choose the slots with bayesian=."
        )
    model.method.check(model, x)


def choose_threads(model: BNN, recipe: Recipe) -> int:
    """Return one thread for small problems, where more are not faster, else all."""
    work = recipe.batch_size * sum(parameter.numel() for parameter in model.net.parameters())
    return 1 if work < WORK_FOR_THREADS else torch.get_num_threads()


def for_small_networks(given: RunConfig, model: BNN) -> dict[str, Any]:
    """Return batch size and learning rate of a small network that trains until convergence.

    Larger batches have less noise, which allows a larger learning rate at the start; rounds lower
    it. Methods with a batch size of their own keep it.
    """
    recipe = given.recipe(get(given.method))
    is_given = given.batch_size is not None or given.lr is not None
    is_own = recipe.batch_size != Recipe.batch_size or recipe.schedule == "constant"
    weights = sum(parameter.numel() for parameter in model.net.parameters())
    if not recipe.until_converged or is_given or is_own or weights > SMALL_NETWORK:
        return {}
    return {"batch_size": SMALL_BATCH, "lr": SMALL_LR * recipe.lr}


def choose_device(name: str) -> torch.device:
    """Return the device a name stands for; ``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = None
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}. Accepted: auto, cpu, cuda, cuda:0, ...")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"the device {name!r} is not available: no CUDA. Use cpu or auto.")
    return device
