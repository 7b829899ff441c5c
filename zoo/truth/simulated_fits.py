"""Data sets simulated from the prior of a network's model, and fits to them.

Inputs are those of the data. Weights are drawn from the prior, targets from the likelihood.
Parameters without a prior, such as a noise scale that is learned as a point, have no distribution
to draw from: in all simulations they have the values of one fit to the data.
"""

import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.data import Dataset, from_arrays
from zoo.errors import ConfigError
from zoo.fit.build import DTYPES
from zoo.fit.config import RunConfig
from zoo.fit.guides import GuideSource
from zoo.fit.prepare import Prepared, prepare, threads
from zoo.fit.result import target_tensor
from zoo.fit.run import begin, train
from zoo.infer.normalisation import batch_statistics, tracked_layers
from zoo.infer.nuts.sampler import sample_nuts
from zoo.infer.predict.draws import draw_prior, observation_distribution, slots_of
from zoo.infer.predict.outputs import CHUNK_ROWS, network_outputs
from zoo.infer.rng import seeded
from zoo.infer.svi.schedule import child_seed
from zoo.network.bnn import BNN
from zoo.truth.quantities import Quantities, Simulated, noise_of, quantities, ranked_slots

Engine = Literal["svi", "nuts"]
Array = NDArray[Any]

#: Largest product of draws and rows of the log-likelihood.
MAX_ENTRIES = 500_000
#: Warm-up of NUTS, and thinning of its draws, which must be nearly independent.
NUTS_WARMUP = 200
THINNING = 3

#: The problem without data: a linear regression with known noise.
SMALL_PROBLEM: dict[str, Any] = {
    "net": "linear",
    "likelihood": "gaussian(noise=0.5)",
    "dtype": "float64",
    "num_steps": 1500,
    "lr": 0.02,
    "schedule": "linear",
    "kl_warmup": 0.0,
    "init_scale": 0.05,
}


def small_dataset() -> Dataset:
    """Return 30 rows with three independent inputs; only the scale of the targets is used."""
    rng = np.random.Generator(np.random.PCG64(0))
    return from_arrays(rng.standard_normal((30, 3)), rng.standard_normal(30), task="regression")


@dataclass(frozen=True)
class NetworkFit:
    """Infers the posterior of one simulated data set; can be sent to another process.

    Attributes
    ----------
    config, dataset, net, guide
        The run that is repeated with other targets.
    module
        The module that registers the method.
    points
        Values of the parameters without a prior, for NUTS.
    engine
        ``svi`` trains the guide, ``nuts`` samples the model.
    """

    config: RunConfig
    dataset: Dataset
    net: nn.Module | None
    guide: GuideSource | None
    module: str
    points: dict[str, Tensor]
    engine: Engine

    def __call__(self, simulated: Simulated, seed: int) -> Quantities:
        """Return the true value and the posterior draws of every quantity."""
        importlib.import_module(self.module)
        prepared = prepare(
            self.config.model_copy(update={"seed": seed}),
            dataset=replace(self.dataset, y_train=simulated.data),
            net=self.net,
            guide=fresh(self.guide),
        )
        return (self._by_svi if self.engine == "svi" else self._by_nuts)(prepared, simulated)

    def _by_svi(self, prepared: Prepared, simulated: Simulated) -> Quantities:
        fitted = train(prepared, progress_bar=False)
        values = fitted.draws.values
        rows = kept_rows(len(fitted.draws))
        f = fitted.outputs(prepared.source.X_train[rows], values)
        y = target_tensor(fitted.assembly, simulated.data[rows])
        return quantities(fitted.assembly.model, simulated, values, f, y)

    def _by_nuts(self, prepared: Prepared, simulated: Simulated) -> Quantities:
        model = prepared.assembly.model
        model.load_state_dict(self.points, strict=False)
        model = model.cpu().double().eval()
        x = torch.as_tensor(prepared.source.X_train, dtype=torch.float64)
        y = target_tensor(prepared.assembly, simulated.data).cpu()
        y = y.double() if y.is_floating_point() else y
        seed, num_draws = prepared.assembly.config.seed, self.config.num_samples
        slots = slots_of(model, nuts_draws(model, (x, y), num_draws=num_draws, seed=seed))
        rows = kept_rows(num_draws)
        return quantities(model, simulated, slots, network_outputs(model, slots, x[rows]), y[rows])


class NetworkSimulator:
    """Draws data sets from the prior of a network's model.

    Raises a `ConfigError` if the prior cannot be sampled.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        dataset: Dataset | None = None,
        net: nn.Module | None = None,
        guide: GuideSource | None = None,
        engine: Engine = "svi",
        progress_bar: bool | None = None,
    ) -> None:
        config = config.model_copy(update={"restarts": 0})
        prepared = prepare(config, dataset=dataset, net=net, guide=fresh(guide))
        self.model = prepared.assembly.model
        _check_prior(self.model, config.method)
        prepared = begin(prepared, None)
        likelihood = self.model.likelihood  # laplace sets its noise without a gradient
        #: Names of the parameters without a prior.
        noise = None if "noise" in self.model.slots else getattr(likelihood, "log_noise", None)
        self.points = [n for n, p in self.model.named_parameters() if p.requires_grad or p is noise]
        if self.points:
            train(prepared, progress_bar=progress_bar)
        source = prepared.source
        self.dataset = replace(source, X_test=source.X_test[:0], y_test=source.y_test[:0])
        self._x = torch.as_tensor(
            self.dataset.X_train,
            dtype=DTYPES[prepared.assembly.config.dtype],
            device=prepared.assembly.config.device,
        )
        mode = {"compile": prepared.assembly.config.compile, "data_sha256": None}
        self.device = self._x.device
        self.fit = NetworkFit(
            config.model_copy(update=mode),
            self.dataset,
            net,
            guide,
            type(self.model.method).__module__,
            {name: self.model.get_parameter(name).detach().cpu() for name in self.points},
            engine,
        )

    @property
    def num_draws(self) -> int:
        """Posterior draws per simulation."""
        return self.fit.config.num_samples

    @property
    def num_parameters(self) -> int:
        """Number of identified parameters."""
        return sum(self.model.slots[name].value.numel() for name in ranked_slots(self.model))

    @property
    def observed(self) -> dict[str, Array]:
        """The targets of the data, to compare the size of simulated ones with."""
        return {"y": self.dataset.y_train}

    @torch.no_grad()
    def simulate(self, seed: int) -> Simulated:
        """Draw weights and targets."""
        prior = draw_prior(self.model, 1, seed=seed)
        assert prior is not None
        slots = {name: value[0] for name, value in prior.slots.items()}
        f = self._outputs(slots)
        with seeded(child_seed(seed, 1), f.device):  # weights and noise are independent
            y = observation_distribution(self.model, f[None], noise_of(prior.slots)).sample()[0]
        kind = self.dataset.y_train.dtype
        number = y.double().cpu().numpy()
        is_integer = np.issubdtype(kind, np.integer) and np.isfinite(number).all()
        values = {name: value.cpu() for name, value in slots.items()}
        return Simulated(values, number.astype(kind) if is_integer else number, f.cpu())

    def sizes(self, simulated: Simulated) -> dict[str, Array]:
        """Return the data whose size is judged; classes have none."""
        return {} if self.dataset.task == "classification" else {"y": simulated.data}

    def _outputs(self, slots: Mapping[str, Tensor]) -> Tensor:
        self.model.eval()
        if tracked_layers(self.model.net):
            with batch_statistics(self.model.net):
                return self.model.evaluate(slots, self._x)
        return torch.cat([self.model.evaluate(slots, x) for x in self._x.split(CHUNK_ROWS)])


def kept_rows(num_draws: int) -> slice:
    """Return the training rows at which outputs of all draws fit into memory."""
    return slice(0, max(1, MAX_ENTRIES // num_draws))


def nuts_draws(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_draws: int,
    seed: int,
) -> dict[str, Tensor]:
    """Return thinned draws of one chain, by site."""
    with threads(1):
        drawn = sample_nuts(
            model,
            args,
            kwargs,
            num_chains=1,
            num_warmup=NUTS_WARMUP,
            num_samples=num_draws * THINNING,
            target_accept=0.9,
            seed=seed % 2**31,
            executor="serial",
            compiled=False,  # every data set would need its own compilation
            progress_bar=False,
        )
    return {k: torch.as_tensor(v[0, ::THINNING].copy()) for k, v in drawn.values.items()}


def fresh(guide: GuideSource | None) -> GuideSource | None:
    """Return an untrained copy of a guide object; names, classes and functions have no state."""
    return copy.deepcopy(guide) if isinstance(guide, nn.Module) else guide


def _check_prior(model: BNN, method: str) -> None:
    if not model.method.has_posterior:
        raise ConfigError(f"{method!r} does not define a posterior that could be calibrated.")
    if model.fitted_priors:
        raise ConfigError(
            f"the prior of {method!r} is fitted to the data, so it cannot be sampled without data. "
            "Give a fixed one, for example --prior '*=Normal(0, 1)'."
        )
    if draw_prior(model, 1, seed=0) is None:
        raise ConfigError(
            f"the prior of {method!r} is improper, so it cannot be sampled. Give a proper "
            "one, for example --prior '*=Normal(0, 1)'."
        )
