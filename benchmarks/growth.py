"""Scaling of a step: time and peak memory over width, depth, particles and draws.

``python -m benchmarks.growth [--quick]``. Every cell runs in its own process with one thread, so
that its peak memory can be measured; the memory before the first step is subtracted.
Contestants: a deterministic step, the hand-written form, stock Pyro, and the zoo uncaptured and
replayed, all sampling weights. ``overhead_per_layer`` is the additional time per layer compared
with the hand-written step. Writes ``benchmarks/results/growth.csv``.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pyro
import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from torch import nn

from benchmarks import handwritten
from benchmarks.speed import NUM_DATA, machine_line, optimised, pair, plain
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.capture import GradientStep
from zoo.infer.svi.memory import kept_memory
from zoo.infer.svi.objective import Objective
from zoo.network.nets import mlp

RESULTS = Path(__file__).parent / "results"
CONTESTANTS = ("deterministic", "handwritten", "stock pyro", "zoo, off", "zoo, replay")
WIDTHS = (100, 300, 1000, 2000, 4000)
DEPTHS = (2, 4, 8, 16, 32)
PARTICLES = (1, 2, 4, 8)
DRAWS = (1, 10, 100, 1000)
BATCH = 128


def network(width: int, depth: int) -> nn.Sequential:
    """Return ``depth`` layers of weights, with 784 inputs and ten outputs."""
    return mlp([784, *[width] * (depth - 1), 10])


def step_of(contestant: str, width: int, depth: int, particles: int) -> Callable[[], Any]:
    """Return one training step."""
    torch.manual_seed(0)
    net, x, y = network(width, depth), torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    if contestant == "deterministic":
        return optimised(net.parameters(), plain(lambda: F.cross_entropy(net(x), y)))
    if contestant == "handwritten":
        rival = handwritten.bayesian(net, "mean_field", local=False)

        def loss() -> torch.Tensor:
            losses = [handwritten.loss(rival, x, y, NUM_DATA) for _ in range(particles)]
            return torch.stack(losses).mean()

        return optimised(rival.parameters(), plain(loss))
    model, guide = pair("mean_field", net)
    if contestant == "stock pyro":
        elbo = TraceMeanField_ELBO(num_particles=particles)
        both = nn.ModuleList([model, guide])
        return optimised(
            both.parameters(), plain(lambda: elbo.differentiable_loss(model, guide, x, y))
        )
    objective = Objective(model, guide, num_particles=particles).train()
    gradients = GradientStep(objective, contestant.removeprefix("zoo, "), num_steps=1)  # type: ignore[arg-type]
    return optimised(objective.parameters(), lambda: gradients(x, y), own=True)


def prediction(draws: int) -> Callable[[], Any]:
    """Return a prediction of 1000 rows with many draws, on a network 784-300-100-10."""
    torch.manual_seed(0)
    model, guide = pair("mean_field", mlp([784, 300, 100, 10]))
    x = torch.randn(1000, 784)
    values = draw_posterior(model, guide, draws, seed=0).slots
    return lambda: network_outputs(model, values, x)


def measured(run: Callable[[], Any], before: float) -> dict[str, float]:
    """Return the median time of a call, and the additional peak memory."""
    times: list[float] = []
    run()
    while len(times) < 5 or (sum(times) < 1.0 and len(times) < 50):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"milliseconds": 1e3 * statistics.median(times), "megabytes": peak - before}


def cell(arguments: dict[str, Any]) -> dict[str, float]:
    """Measure one cell in this process."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    keeps = arguments["contestant"].startswith("zoo")  # as its training loop does
    with (
        pyro.settings.context(module_local_params=True),
        kept_memory() if keeps else nullcontext(),
    ):
        if arguments["axis"] == "draws":
            return measured(prediction(arguments["size"]), before)
        shape = {"width": 300, "depth": 3, "particles": 1, arguments["axis"]: arguments["size"]}
        if arguments["axis"] == "depth":
            shape["width"] = 100
        return measured(step_of(arguments["contestant"], **shape), before)


def in_own_process(arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure one cell in a separate process."""
    command = [sys.executable, "-m", "benchmarks.growth", "--cell", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row = arguments | json.loads(done.stdout.splitlines()[-1])
    print({k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def table(quick: bool) -> pd.DataFrame:
    """Measure all cells; contestants of one size run consecutively, under the same load."""
    axes: dict[str, tuple[int, ...]] = {"width": WIDTHS, "depth": DEPTHS, "particles": PARTICLES}
    rows = [
        in_own_process({"axis": axis, "size": size, "contestant": contestant})
        for axis, sizes in axes.items()
        for size in (sizes[:3] if quick else sizes)
        for contestant in CONTESTANTS
        if not (axis == "particles" and contestant == "deterministic")
    ]
    rows += [
        in_own_process({"axis": "draws", "size": size, "contestant": "zoo, prediction"})
        for size in (DRAWS[:3] if quick else DRAWS)
    ]
    result = pd.DataFrame(rows)
    reference = result[result.contestant == "handwritten"].set_index(["axis", "size"]).milliseconds
    keys = pd.MultiIndex.from_frame(result[["axis", "size"]])
    result["ratio_to_handwritten"] = result.milliseconds / reference.reindex(keys).to_numpy()
    added = (result.milliseconds - reference.reindex(keys).to_numpy()) / result["size"]
    result["overhead_per_layer"] = added.where(result.axis == "depth")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(cell(json.loads(arguments.cell))))
        return
    result = table(arguments.quick)
    print(result.round(3).to_string(index=False))
    RESULTS.mkdir(exist_ok=True)
    result["machine"] = machine_line()
    result.round(4).to_csv(RESULTS / "growth.csv", index=False)


if __name__ == "__main__":
    main()
