"""`zoo.fit` of Pyro models beside `pyro.infer.SVI`: ``python -m benchmarks.posteriordb.any_model``.

Every model of posteriordb is fitted twice with the same guide (`AutoDiagonalNormal`, started at the
same values): by `zoo.fit` and by `pyro.infer.SVI` with `Trace_ELBO`, with the same number of Adam
steps and the same learning rates, which end at zero, with three seeds each. All ELBOs are estimated
by stock Pyro with many particles, and the best of each side is kept: the centred schools have a
funnel, in which runs may end early. The optimum is the same if the two agree within their standard
errors.
The verdict is that of the report of the zoo's best fit, without and with NUTS. ``ZOO_POSTERIORDB``
names the data. Prints the table and writes ``benchmarks/results/any_model.csv``.
"""

import argparse
import datetime
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.infer.autoguide.initialization import init_to_median, init_to_value

import zoo
from benchmarks.posteriordb import reference
from benchmarks.posteriordb.models import POSTERIORS, Posterior
from zoo.errors import ZooError
from zoo.infer.svi.schedule import lr_factor
from zoo.registry import Recipe

RESULTS = Path(__file__).parents[1] / "results"
NAMES = ("schools_noncentred", "schools_centred", "sblrc", "nes1980", "kidiq")
LR = 0.02
PARTICLES = 4000
SEEDS = 3
#: Coefficients that are strongly correlated need more steps than others, by both.
STEPS = {"sblrc": 60_000}


def guide_of(posterior: Posterior, args: Any) -> AutoDiagonalNormal:
    start = init_to_value(values=posterior.start(*args), fallback=init_to_median)
    return AutoDiagonalNormal(posterior.model, init_loc_fn=start, init_scale=0.1)


def elbo_of(posterior: Posterior, guide: Any, args: Any) -> tuple[float, float]:
    """Return an estimate of the ELBO by stock Pyro, and its standard error."""
    pyro.set_rng_seed(1)
    single = Trace_ELBO()
    with torch.no_grad():
        draws = torch.tensor(
            [-single.loss(posterior.model, guide, *args) for _ in range(PARTICLES)]
        )
    return float(draws.mean()), float(draws.std()) / PARTICLES**0.5


def zoo_fit(posterior: Posterior, args: Any, num_steps: int, seed: int) -> tuple[Any, Any]:
    """Fit by the zoo; return the fit, and the ELBO with its error."""
    guide = guide_of(posterior, args)
    with pyro.settings.context(module_local_params=True):
        fitted = zoo.fit(
            posterior.model,
            guide=guide,
            args=args,
            num_steps=num_steps,
            lr=LR,
            seed=seed,
            progress_bar=False,
        )
        return fitted, elbo_of(posterior, guide, args)


def stock_elbo(posterior: Posterior, args: Any, num_steps: int, seed: int) -> tuple[float, float]:
    """Fit by `pyro.infer.SVI`; return the ELBO with its error."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide = guide_of(posterior, args)
    recipe = Recipe(num_steps=num_steps)
    scheduler = pyro.optim.LambdaLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": LR},
            "lr_lambda": lambda step: lr_factor(recipe, step),
        }
    )
    svi = SVI(posterior.model, guide, scheduler, Trace_ELBO())
    for _ in range(num_steps):
        svi.step(*args)
        scheduler.step()
    return elbo_of(posterior, guide, args)


def row_of(posterior: Posterior, args: Any, num_steps: int) -> dict[str, Any]:
    ours = [zoo_fit(posterior, args, num_steps, seed) for seed in range(SEEDS)]
    fitted, (mine, error) = max(ours, key=lambda found: found[1][0])
    theirs = [stock_elbo(posterior, args, num_steps, seed) for seed in range(SEEDS)]
    stock, stock_error = max(theirs)
    try:
        judged = fitted.verdict(truth=fitted.truth(progress_bar=False)).level
    except ZooError as refusal:
        judged = f"no truth: {refusal}"[:80]
    return {
        "posterior": posterior.name,
        "zoo_elbo": mine,
        "zoo_error": error,
        "zoo_worst": min(elbo for _, (elbo, _) in ours),
        "pyro_elbo": stock,
        "pyro_error": stock_error,
        "pyro_worst": min(theirs)[0],
        "z": (mine - stock) / (error**2 + stock_error**2) ** 0.5,
        "verdict": fitted.verdict().level,
        "verdict_with_truth": judged,
        "steps": num_steps,
        "seeds": SEEDS,
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    arguments = parser.parse_args()
    try:
        root = reference.folder()
    except ZooError as error:
        sys.exit(f"error: {error}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rows = []
    for posterior in POSTERIORS:
        if posterior.name in arguments.only:
            args = posterior.arguments(reference.read_data(root, posterior.reference))
            num_steps = STEPS.get(posterior.name, arguments.num_steps)
            rows.append(row_of(posterior, args, num_steps))
            print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    print(table.to_string(float_format=lambda value: f"{value:.4g}"))
    if set(arguments.only) == set(NAMES):
        table.round(4).to_csv(RESULTS / "any_model.csv", index=False)


if __name__ == "__main__":
    main()
