"""Effective draws per second of three samplers: ``python -m benchmarks.nuts [--quick]``.

The zoo's NUTS, Pyro's (with its jit) and NumPyro's sample the same posteriors with the same target
acceptance, with sequential chains on one thread. The score is the smallest bulk effective
sample size over the reported quantities, per CPU second of sampling; warm-up (including the zoo's
pilot chains) and compilation are reported separately, and "s to ESS 400" is the time of all three
until the smallest effective sample size is 400, which a truth needs. Runs are repeated with other
seeds, and the row is that of the median score; divergences are those of all runs.

The horseshoe has two forms: centred for the zoo, which finds its own parameterisation, and
non-centred by hand for all three. NumPyro runs with a diagonal mass matrix, its default, and with
a dense one; the zoo is compared with the better. Pyro is so slow that it gets few draws and one
run (see the columns). Its effective sample sizes are rough, and after so short a warm-up its step
size and mass matrix differ from those of a long run.

Prints a table and writes it to ``benchmarks/results/nuts.csv``; rows of problems and engines that
were not run stay there as they are. Measure on an idle machine.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from benchmarks.speed import machine_line
from zoo.data import load
from zoo.infer.nuts.sampler import sample_nuts

RESULTS = Path(__file__).parent / "results"
HIDDEN = 8
GRID = np.linspace(-2.5, 2.5, 12)

Values = dict[str, np.ndarray]


def horseshoe(X: Tensor, y: Tensor, *, centred: bool = True) -> None:
    """Linear regression with a horseshoe prior."""
    p = X.shape[1]
    tau = pyro.sample("tau", dist.HalfCauchy(X.new_ones(())))
    sigma = pyro.sample("sigma", dist.HalfNormal(2 * X.new_ones(())))
    local = pyro.sample("local", dist.HalfCauchy(X.new_ones(p)).to_event(1))
    if centred:
        beta = pyro.sample("beta", dist.Normal(X.new_zeros(p), local * tau).to_event(1))
    else:
        base = pyro.sample("base", dist.Normal(X.new_zeros(p), X.new_ones(p)).to_event(1))
        beta = pyro.deterministic("beta", base * local * tau)
    with pyro.plate("obs_id", len(X)):
        pyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def logistic(X: Tensor, y: Tensor) -> None:
    """Logistic regression."""
    p = X.shape[1]
    w = pyro.sample("w", dist.Normal(X.new_zeros(p), X.new_ones(p)).to_event(1))
    b = pyro.sample("b", dist.Normal(X.new_zeros(()), 5 * X.new_ones(())))
    with pyro.plate("obs_id", len(X)):
        pyro.sample("y", dist.Bernoulli(logits=X @ w + b), obs=y)


def network(X: Tensor, y: Tensor) -> None:
    """One hidden layer of tanh units."""
    zeros, ones = X.new_zeros(HIDDEN), X.new_ones(HIDDEN)
    w1 = pyro.sample("w1", dist.Normal(zeros, 2 * ones).to_event(1))
    b1 = pyro.sample("b1", dist.Normal(zeros, 2 * ones).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(zeros, ones).to_event(1))
    b2 = pyro.sample("b2", dist.Normal(X.new_zeros(()), X.new_ones(())))
    sigma = pyro.sample("sigma", dist.HalfNormal(X.new_ones(())))
    with pyro.plate("obs_id", len(X)):
        pyro.sample("y", dist.Normal(torch.tanh(X * w1 + b1) @ w2 + b2, sigma), obs=y)


def numpyro_models() -> dict[str, Callable[..., None]]:
    """Return the same models for NumPyro, in double precision."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as laws

    jax.config.update("jax_enable_x64", True)

    def horseshoe(X: Any, y: Any) -> None:
        p = X.shape[1]
        tau = numpyro.sample("tau", laws.HalfCauchy(1.0))
        sigma = numpyro.sample("sigma", laws.HalfNormal(2.0))
        local = numpyro.sample("local", laws.HalfCauchy(jnp.ones(p)).to_event(1))
        base = numpyro.sample("base", laws.Normal(jnp.zeros(p), 1.0).to_event(1))
        numpyro.sample("y", laws.Normal(X @ (base * local * tau), sigma), obs=y)

    def logistic(X: Any, y: Any) -> None:
        w = numpyro.sample("w", laws.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
        b = numpyro.sample("b", laws.Normal(0.0, 5.0))
        numpyro.sample("y", laws.Bernoulli(logits=X @ w + b), obs=y)

    def network(X: Any, y: Any) -> None:
        w1 = numpyro.sample("w1", laws.Normal(jnp.zeros(HIDDEN), 2.0).to_event(1))
        b1 = numpyro.sample("b1", laws.Normal(jnp.zeros(HIDDEN), 2.0).to_event(1))
        w2 = numpyro.sample("w2", laws.Normal(jnp.zeros(HIDDEN), 1.0).to_event(1))
        b2 = numpyro.sample("b2", laws.Normal(0.0, 1.0))
        sigma = numpyro.sample("sigma", laws.HalfNormal(1.0))
        numpyro.sample("y", laws.Normal(jnp.tanh(X * w1 + b1) @ w2 + b2, sigma), obs=y)

    return {"horseshoe": horseshoe, "logistic": logistic, "network": network}


def horseshoe_data() -> tuple[np.ndarray, np.ndarray]:
    """Return 100 rows and 20 columns, four of which matter."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 20))
    beta = np.r_[3.0, -2.0, 1.5, 0.5, np.zeros(16)]
    return X, X @ beta + rng.standard_normal(100)


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of breast_cancer, standardised."""
    data = load("breast_cancer")
    X = np.concatenate([data.X_train, data.X_test]).astype(float)
    y = np.concatenate([data.y_train, data.y_test]).astype(float)
    return (X - X.mean(0)) / X.std(0), y


def network_data() -> tuple[np.ndarray, np.ndarray]:
    """Return a noisy sine at 50 points."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(-2, 2, 50))
    return x[:, None], np.sin(2 * x) + 0.2 * rng.standard_normal(50)


def coefficients(values: Values) -> Values:
    """Return coefficients and scales of the horseshoe, from either parameterisation."""
    beta = values.get("beta")
    if beta is None:
        beta = values["base"] * values["local"] * values["tau"][..., None]
    return {"beta": beta} | {name: values[name] for name in ("tau", "sigma", "local")}


def predictions(values: Values) -> Values:
    """Return the network's function on a grid; its weights are not identified."""
    inner = GRID[:, None] * values["w1"][..., None, :] + values["b1"][..., None, :]
    outputs = (np.tanh(inner) * values["w2"][..., None, :]).sum(-1) + values["b2"][..., None]
    return {"f": outputs, "sigma": values["sigma"]}


@dataclass(frozen=True)
class Problem:
    """A posterior to sample."""

    name: str
    data: Callable[[], tuple[np.ndarray, np.ndarray]]
    model: Callable[..., None]
    numpyro_model: str
    quantities: Callable[[Values], Values]
    target_accept: float


def noncentred_horseshoe(X: Tensor, y: Tensor) -> None:
    """Run the non-centred horseshoe, for samplers without automatic reparameterisation."""
    horseshoe(X, y, centred=False)


def as_they_are(values: Values) -> Values:
    return values


NONCENTRED = "horseshoe, non-centred"
PROBLEMS = (
    Problem("horseshoe", horseshoe_data, horseshoe, "horseshoe", coefficients, 0.9),
    Problem(NONCENTRED, horseshoe_data, noncentred_horseshoe, "horseshoe", coefficients, 0.95),
    Problem("logistic", logistic_data, logistic, "logistic", as_they_are, 0.8),
    Problem("network", network_data, network, "network", predictions, 0.95),
)
#: Problems sampled only by the zoo, and the form whose scores they are compared with.
OWN_FORM = {"horseshoe": NONCENTRED}


@dataclass(frozen=True)
class Outcome:
    """Result of an engine: draws, divergences, CPU seconds (wall time for the zoo's compiler)."""

    values: Values
    divergences: int
    sampling: float
    warmup: float
    compilation: float


@dataclass(frozen=True)
class Length:
    """Number of runs; chains, warm-up and draws of each."""

    runs: int
    chains: int
    warmup: int
    samples: int


def run_zoo(problem: Problem, length: Length) -> list[Outcome]:
    """Sample with the zoo's NUTS."""
    arguments = [torch.from_numpy(array) for array in problem.data()]
    outcomes = []
    for seed in range(length.runs):
        draws = sample_nuts(
            problem.model,
            arguments,
            num_chains=length.chains,
            num_warmup=length.warmup,
            num_samples=length.samples,
            target_accept=problem.target_accept,
            seed=seed,
            executor="serial",
            progress_bar=False,
        )
        outcomes.append(
            Outcome(
                draws.values,
                draws.num_divergences,
                draws.sampling_seconds,
                draws.warmup_seconds,
                draws.compile_seconds,
            )
        )
    return outcomes


def run_pyro(problem: Problem, length: Length) -> list[Outcome]:
    """Sample with Pyro's NUTS and its jit, which compiles during the warm-up."""
    return [_run_pyro_once(problem, length)]


def _run_pyro_once(problem: Problem, length: Length) -> Outcome:
    arguments = [torch.from_numpy(array) for array in problem.data()]
    chains, divergences, sampling, warmup = [], 0, 0.0, 0.0
    for seed in range(length.chains):
        pyro.set_rng_seed(seed)
        ends: list[float] = []

        def hook(
            kernel: Any, sample: Any, stage: str, index: int, ends: list[float] = ends
        ) -> None:
            ends.append(time.process_time())

        kernel = NUTS(
            problem.model,
            jit_compile=True,
            ignore_jit_warnings=True,
            target_accept_prob=problem.target_accept,
        )
        mcmc = MCMC(
            kernel,
            num_samples=length.samples,
            warmup_steps=length.warmup,
            hook_fn=hook,
            disable_progbar=True,
        )
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            mcmc.run(*arguments)
        warmup += ends[length.warmup - 1] - started
        sampling += ends[-1] - ends[length.warmup - 1]
        chains.append({name: value.numpy() for name, value in mcmc.get_samples().items()})
        divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
    return Outcome(_stack(chains), divergences, sampling, warmup, 0.0)


def run_numpyro(problem: Problem, length: Length, *, dense: bool = False) -> list[Outcome]:
    """Sample with NumPyro's NUTS.

    Its kernel is run by two programs that are compiled once, for warm-up and for sampling. The loop
    of NumPyro compiles again in each phase of each run, within the measured time.
    """
    model = numpyro_models()[problem.numpyro_model]
    import jax
    from numpyro import infer

    started = time.process_time()
    X, y = problem.data()
    keywords = {"X": X, "y": y}
    kernel = infer.NUTS(model, target_accept_prob=problem.target_accept, dense_mass=dense)

    def initial(seed: int) -> Any:
        key = jax.random.PRNGKey(seed)
        return kernel.init(key, length.warmup, None, model_args=(), model_kwargs=keywords)

    def advance(state: Any, number: int) -> tuple[Any, Any]:
        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, (), keywords)
            return state, (state.z, state.diverging)

        return jax.lax.scan(step, state, None, length=number)

    state = initial(0)
    programs = [
        jax.jit(lambda state, number=number: advance(state, number)).lower(state).compile()
        for number in (length.warmup, length.samples)
    ]
    constrain = jax.jit(jax.vmap(kernel.postprocess_fn((), keywords)))
    compilation = time.process_time() - started
    outcomes = []
    for run in range(length.runs):
        chains, divergences, sampling, warmup = [], 0, 0.0, 0.0
        for chain in range(length.chains):
            times = [time.process_time()]
            state = initial(run * length.chains + chain)
            for program in programs:
                state, (flat, diverging) = jax.block_until_ready(program(state))
                times.append(time.process_time())
            warmup += times[1] - times[0]
            sampling += times[2] - times[1]
            divergences += int(diverging.sum())
            chains.append({name: np.asarray(value) for name, value in constrain(flat).items()})
        outcomes.append(Outcome(_stack(chains), divergences, sampling, warmup, compilation))
    return outcomes


def _stack(chains: list[Values]) -> Values:
    return {name: np.stack([chain[name] for chain in chains]) for name in chains[0]}


ENGINES: dict[str, Callable[[Problem, Length], list[Outcome]]] = {
    "zoo": run_zoo,
    "numpyro": run_numpyro,
    "numpyro dense": partial(run_numpyro, dense=True),
    "pyro": run_pyro,
}


def smallest_ess(values: Values) -> tuple[float, float]:
    """Return the smallest bulk ESS, and the largest R-hat."""
    sizes, rhats = [], []
    for value in values.values():
        columns = value.reshape(*value.shape[:2], -1)
        sizes.append(arviz_stats.ess(columns, method="bulk"))
        rhats.append(arviz_stats.rhat(columns))
    return float(np.concatenate(sizes).min()), float(np.concatenate(rhats).max())


def measure(problem: Problem, engine: str, length: Length) -> dict[str, Any]:
    """Return one row of the table: the run of the median score, and the divergences of all."""
    outcomes = ENGINES[engine](problem, length)
    judged = [smallest_ess(problem.quantities(outcome.values)) for outcome in outcomes]
    scores = [ess / run.sampling for (ess, _), run in zip(judged, outcomes, strict=True)]
    middle = int(np.argsort(scores)[len(scores) // 2])
    outcome, (ess, rhat) = outcomes[middle], judged[middle]
    return {
        "problem": problem.name,
        "engine": engine,
        "runs": length.runs,
        "chains": length.chains,
        "warm-up": length.warmup,
        "draws": length.samples,
        "target accept": problem.target_accept,
        "divergences": sum(run.divergences for run in outcomes),
        "smallest ESS": ess,
        "largest R-hat": rhat,
        "sampling s": outcome.sampling,
        "ESS per s": scores[middle],
        "lowest ESS per s": min(scores),
        "highest ESS per s": max(scores),
        "warm-up s": outcome.warmup,
        "compile s": outcomes[0].compilation,
        "s to ESS 400": outcomes[0].compilation + outcome.warmup + outcome.sampling * 400 / ess,
    }


#: Length of the runs by engine; Pyro is so slow that it gets few draws, on some models very few.
LENGTHS = {
    "zoo": Length(5, 2, 500, 500),
    "numpyro": Length(5, 2, 500, 500),
    "pyro": Length(1, 1, 60, 40),
}
QUICK_LENGTHS = {
    "zoo": Length(1, 1, 300, 150),
    "numpyro": Length(1, 1, 300, 150),
    "pyro": Length(1, 1, 20, 10),
}
PYRO_ON_LOGISTIC = Length(1, 1, 150, 150)


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """Add the ratio of the zoo's effective draws per second to those of each other sampler.

    A form of a model that only the zoo samples is compared with the form of the other samplers.
    """
    rivals = table["engine"].str.removesuffix(" dense")
    scores = table["ESS per s"].groupby([table["problem"], rivals]).max()
    for rival in ("pyro", "numpyro"):

        def ratio(row: "pd.Series[Any]", rival: str = rival) -> float:
            theirs = scores.get((OWN_FORM.get(row["problem"], row["problem"]), rival))
            same = row["engine"] != "zoo" or theirs is None
            return float("nan") if same else float(row["ESS per s"] / theirs)

        table[f"times {rival}"] = table.apply(ratio, axis=1)
    return table


def with_stored(table: pd.DataFrame) -> pd.DataFrame:
    """Add the stored rows of problems and engines that were not run."""
    path = RESULTS / "nuts.csv"
    if not path.is_file():
        return table
    stored = pd.read_csv(path).filter(list(table.columns))
    keys = ["problem", "engine"]
    known = pd.MultiIndex.from_frame(table[keys])
    rest = stored[~pd.MultiIndex.from_frame(stored[keys]).isin(known)]
    return pd.concat([table, rest], ignore_index=True) if len(rest) else table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one chain, few draws; no CSV")
    parser.add_argument("--problems", nargs="+", default=[p.name for p in PROBLEMS])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lengths = QUICK_LENGTHS if arguments.quick else LENGTHS
    rows = []
    for problem in PROBLEMS:
        if problem.name not in arguments.problems:
            continue
        for engine in arguments.engines:
            if engine != "zoo" and problem.name in OWN_FORM:
                continue
            length = lengths[engine.removesuffix(" dense")]
            if engine == "pyro" and problem.name == "logistic" and not arguments.quick:
                length = PYRO_ON_LOGISTIC
            rows.append(measure(problem, engine, length))
            print({k: rows[-1][k] for k in ("problem", "engine", "ESS per s")}, flush=True)
    table = pd.DataFrame(rows)
    table["machine"] = machine_line()
    if not arguments.quick:
        table = with_stored(table)
    table = compare(table)
    with pd.option_context("display.width", 250, "display.max_columns", None):
        print(table.drop(columns="machine").round(3).to_string(index=False))
    print(table["machine"].iloc[0])
    if not arguments.quick:
        table.round(4).to_csv(RESULTS / "nuts.csv", index=False)


if __name__ == "__main__":
    main()
