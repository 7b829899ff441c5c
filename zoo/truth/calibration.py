"""Simulation-based calibration of a method.

Parameters are drawn from the prior, data given the parameters, and the posterior is inferred from
the data. If the posterior is correct, the rank of the true value among the posterior draws is
uniform; the converse holds only on average over data sets (Talts et al. 2018, *Validating Bayesian
Inference Algorithms with Simulation-Based Calibration*).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo.diagnostics import Finding, sbc_findings
from zoo.diagnostics.sbc import RankTest
from zoo.errors import ConfigError
from zoo.fit.build import create
from zoo.infer.nuts.sampler import sample_nuts
from zoo.infer.predict.draws import draw_posterior, draw_prior, log_likelihood, slots_of
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.loop import SVI
from zoo.infer.svi.schedule import child_seed
from zoo.infer.tasks.running import Report, run_tasks
from zoo.network.bnn import BNN
from zoo.registry import Recipe, get

Engine = Literal["svi", "nuts"]
Array = NDArray[Any]

#: Rows, inputs and noise of the linear regression.
ROWS, INPUTS, NOISE = 30, 3, 0.5
#: Posterior draws per simulation.
NUM_DRAWS = 99
#: Thinning of NUTS draws, which must be nearly independent.
THINNING = 3
SVI_RECIPE = Recipe(num_steps=1500, batch_size=ROWS, lr=0.02, schedule="linear", kl_warmup=0.0)


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws.

    Attributes
    ----------
    ranks
        By quantity, one rank per simulation, between 0 and `num_draws`.
    num_draws
        Posterior draws per simulation.
    findings
        Findings of the uniformity tests.
    tests
        The tests, with the data for plots.
    """

    ranks: dict[str, Array]
    num_draws: int
    findings: list[Finding]
    tests: dict[str, RankTest]


def calibrate(
    method: str,
    *,
    engine: Engine = "svi",
    num_simulations: int = 100,
    priors: Mapping[str, str] | None = None,
    seed: int = 0,
    executor: str | None = None,
    progress_bar: bool | None = None,
) -> Calibration:
    """Run simulation-based calibration of a method on a linear regression with known noise.

    Parameters
    ----------
    method
        A method of the zoo; its prior must be proper.
    engine
        ``svi`` tests the guide of the method, ``nuts`` the model and the sampler.
    num_simulations
        Number of data sets.
    priors
        Priors by slot pattern; they take precedence over those of the method.
    seed
        Seed of all random numbers.
    executor
        Where simulations run, see `zoo.infer.tasks.executor.make_executor`.
    progress_bar
        Whether to show a progress bar; by default on a terminal.
    """
    get(method)
    if engine not in ("svi", "nuts"):
        raise ConfigError(f"unknown engine {engine!r}. Accepted: svi, nuts.")
    if num_simulations < 10:
        raise ConfigError(f"num_simulations must be at least 10. Got {num_simulations}.")
    simulate(method, "svi", dict(priors or {}), seed, 0, dry_run=True)  # fail early
    tasks = [
        partial(simulate, method, engine, dict(priors or {}), seed, index)
        for index in range(num_simulations)
    ]
    collected = run_tasks(
        tasks,
        executor,
        length=1,
        unit="simulation",
        description="calibration",
        progress_bar=progress_bar,
    )
    ranks = {name: np.array([found[name] for found in collected]) for name in collected[0]}
    findings, tests = sbc_findings(ranks, NUM_DRAWS)
    return Calibration(ranks, NUM_DRAWS, findings, tests)


def simulate(
    method: str,
    engine: Engine,
    priors: dict[str, str],
    seed: int,
    index: int,
    report: Report | None = None,
    *,
    dry_run: bool = False,
) -> dict[str, int]:
    """Draw parameters and data, infer, and return the rank of every true value."""
    torch.set_num_threads(1)
    own_seed = child_seed(seed, index)
    generator = torch.Generator().manual_seed(own_seed)
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(INPUTS, 1)).double()
    model = create(
        method, net, likelihood=f"gaussian(noise={NOISE})", num_data=ROWS, priors=priors
    ).double()
    if model.fitted_priors:
        raise ConfigError(
            f"the prior of {method!r} is fitted to the data, so it cannot be sampled without data. "
            "Give a fixed one, for example --prior '*=Normal(0, 1)'."
        )
    prior = draw_prior(model, 1, seed=own_seed)
    if prior is None:
        raise ConfigError(
            f"the prior of {method!r} is improper, so it cannot be sampled. Give a proper "
            "one, for example --prior '*=Normal(0, 1)'."
        )
    if dry_run:
        return {}
    f = network_outputs(model, prior.slots, x)[0, :, 0]
    y = f + NOISE * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    infer = _by_nuts if engine == "nuts" else _by_svi
    posterior = infer(model, x, y, own_seed)
    truth, draws = _quantities(model, prior.slots, x, y), _quantities(model, posterior, x, y)
    if report is not None:
        report(1)
    return {name: int((draws[name] < truth[name][0]).sum()) for name in truth}


def _by_svi(model: BNN, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    guide = model.guide(init_scale=0.05)
    SVI(model, guide, x, y, recipe=SVI_RECIPE, seed=seed, local=True, mode="replay").run(
        progress_bar=False
    )
    return draw_posterior(model, guide, NUM_DRAWS, seed=seed).slots


def _by_nuts(model: BNN, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    drawn = sample_nuts(
        model,
        (x, y),
        num_chains=1,
        num_warmup=200,
        num_samples=NUM_DRAWS * THINNING,
        target_accept=0.9,
        seed=seed % 2**31,
        executor="serial",
        compiled=False,  # every data set would need its own compilation
        progress_bar=False,
    )
    sites = {k: torch.as_tensor(v[0, ::THINNING].copy()) for k, v in drawn.values.items()}
    return slots_of(model, sites)


def _quantities(model: BNN, slots: Mapping[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the ranked quantities, one number per draw: every weight and the log-likelihood."""
    found = {
        f"{name}[{index}]": column
        for name, value in slots.items()
        for index, column in enumerate(value.flatten(1).T)
    }
    f = network_outputs(model, slots, x)
    return found | {"log_likelihood": log_likelihood(model, f, slots.get("noise"), y).sum(1)}
