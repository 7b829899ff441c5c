"""Time to a held-out NLL: LeNet-300-100 on MNIST, for the zoo and other libraries.

``python -m benchmarks.race [--no-compile] [--no-peers]``, with the folder that holds ``mnist/`` in
the environment variable ``ZOO_DATA``. All contestants start from the same network, use the same
batches, and maximise the same ELBO with the same Adam. They alternate every 25 steps, so that
the load of the machine affects all of them equally. After each turn the predictive NLL of 8
posterior draws on 2000 held-out rows is measured outside the timing; its running mean over four
turns must reach the target. Times are means over three seeds; compilation is reported separately.
Writes ``benchmarks/results/race.csv`` and ``.png``.
"""

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyro
import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

import zoo.data
from benchmarks import handwritten, peers
from benchmarks.speed import NUM_DATA, Step, machine_line, optimised, pair, plain
from zoo.infer.predict.draws import draw_posterior
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.capture import GradientStep
from zoo.infer.svi.objective import Objective
from zoo.infer.svi.schedule import batch_rows
from zoo.network.nets import mlp

RESULTS = Path(__file__).parent / "results"
TARGET = 0.15
TURN = 25
BATCH = 256
NUM_DRAWS = 8
HELD_OUT = 2000
SMOOTHED = 4


@dataclass
class Runner:
    """A contestant: its step, its predictions, and its history."""

    step: Step
    logits: Callable[[Tensor], Tensor]
    compile_seconds: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    nll: list[float] = field(default_factory=list)
    history: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def is_there(self) -> bool:
        """Whether the smoothed NLL has reached the target."""
        last = self.nll[-SMOOTHED:]
        return len(last) == SMOOTHED and sum(last) / SMOOTHED <= TARGET


def contestants(
    net: nn.Sequential, x: Tensor, y: Tensor, *, compiled: bool, with_peers: bool
) -> dict[str, Runner]:
    """Return all runners; ``x`` and ``y`` are buffers for a batch."""
    runners = {}
    for local in (True, False):
        kind = "local" if local else "weights"
        for compile_it in (False, True) if compiled else (False,):
            rival = handwritten.bayesian(net, "mean_field", local)
            best = torch.compile(handwritten.loss, options={"fallback_random": True})
            function = best if compile_it else handwritten.loss
            runners[f"handwritten {kind}{', compiled' * compile_it}"] = Runner(
                optimised(
                    rival.parameters(),
                    plain(lambda f=function, n=rival: f(n, x, y, NUM_DATA)),  # type: ignore[misc]
                ),
                rival,
            )
    model, guide = pair("mean_field", net)
    stock = TraceMeanField_ELBO()
    both = nn.ModuleList([model, guide])
    runners["stock pyro"] = Runner(
        optimised(both.parameters(), plain(lambda: stock.differentiable_loss(model, guide, x, y))),
        lambda rows: zoo_logits(model, guide, rows),
    )
    if with_peers:
        missing = peers.missing()
        for name, build in peers.BUILDERS.items():
            if peers.LIBRARIES[name] in missing:
                continue
            peer = build(net, x, y, NUM_DATA)
            runners[name] = Runner(optimised(iter(peer.parameters), plain(peer.loss)), peer.logits)
    for local in (True, False):
        for mode in ("replay", "inductor") if compiled else ("replay",):
            own, its_guide = pair("mean_field", net)
            objective = Objective(own, its_guide, local=local).train()
            gradients = GradientStep(objective, mode, num_steps=1)  # type: ignore[arg-type]
            runners[f"zoo {'local' if local else 'weights'}, {mode}"] = Runner(
                optimised(objective.parameters(), lambda g=gradients: g(x, y), own=True),  # type: ignore[misc]
                lambda rows, m=own, g=its_guide: zoo_logits(m, g, rows),  # type: ignore[misc]
            )
    return runners


_SEEDS = iter(range(10**9))


def zoo_logits(model, guide, rows: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """Return the logits of one posterior draw."""
    draws = draw_posterior(model, guide, 1, seed=next(_SEEDS))
    return network_outputs(model, draws.slots, rows, mode="off")[0]


@torch.no_grad()
def held_out_nll(runner: Runner, x: Tensor, y: Tensor) -> float:
    """Return the NLL of the average of the predictive probabilities."""
    logs = torch.stack([F.log_softmax(runner.logits(x), -1) for _ in range(NUM_DRAWS)])
    mixture = logs.logsumexp(0) - math.log(NUM_DRAWS)
    return float(F.nll_loss(mixture, y))


def race(
    runners: dict[str, Runner],
    data: dict[str, Tensor],
    x: Tensor,
    y: Tensor,
    *,
    limit: int,
    seed: int,
) -> None:
    """Run all contestants until the target or the limit of steps, and record their histories."""
    for runner in runners.values():
        started = time.perf_counter()
        runner.step()  # compilation; one step on the empty batch is harmless
        first = time.perf_counter() - started
        started = time.perf_counter()
        runner.step()
        runner.compile_seconds = max(0.0, first - (time.perf_counter() - started))
    running = dict(runners)
    for turn in range(limit // TURN):
        for name, runner in list(running.items()):
            for step in range(turn * TURN, (turn + 1) * TURN):
                rows = batch_rows(len(data["x"]), BATCH, step, seed)
                if len(rows) < BATCH:
                    continue
                x.copy_(data["x"][rows])
                y.copy_(data["y"][rows])
                started = time.perf_counter()
                runner.step()
                runner.seconds += time.perf_counter() - started
                runner.steps += 1
            runner.nll.append(held_out_nll(runner, data["x_held_out"], data["y_held_out"]))
            runner.history.append((runner.seconds, runner.steps, runner.nll[-1]))
            if runner.is_there:
                print(f"{seed}  {name}: {runner.seconds:.1f} s, {runner.steps} steps", flush=True)
                del running[name]
        if not running:
            return


def mnist() -> dict[str, Tensor]:
    """Return training rows and held-out rows, standardised as `zoo fit` does."""
    dataset = zoo.data.load("mnist")
    x = torch.as_tensor(dataset.X_train, dtype=torch.float32)
    y = torch.as_tensor(dataset.y_train, dtype=torch.int64)
    return {
        "x": x[:-HELD_OUT],
        "y": y[:-HELD_OUT],
        "x_held_out": x[-HELD_OUT:],
        "y_held_out": y[-HELD_OUT:],
    }


def table(races: list[dict[str, Runner]]) -> pd.DataFrame:
    """Return one row per contestant, fastest first; without a time if a seed missed the target."""
    rows = []
    for name in races[0]:
        runners = [runners[name] for runners in races]
        arrived = all(runner.is_there for runner in runners)
        seconds = pd.Series([runner.seconds for runner in runners])
        steps = pd.Series([runner.steps for runner in runners])
        rows.append(
            {
                "contestant": name,
                "seconds_to_target": seconds.mean() if arrived else None,
                "fastest": seconds.min(),
                "slowest": seconds.max(),
                "steps_to_target": steps.mean() if arrived else None,
                "milliseconds_per_step": 1e3 * seconds.sum() / steps.sum(),
                "compile_seconds": runners[0].compile_seconds,
                "target_nll": TARGET,
            }
        )
    return pd.DataFrame(rows).sort_values("seconds_to_target", na_position="last")


def plot(runners: dict[str, Runner], path: Path) -> None:
    """Plot the held-out NLL over seconds of training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    others = plt.get_cmap("Greys")
    for index, (name, runner) in enumerate(runners.items()):
        seconds, _, nll = zip(*runner.history, strict=True)
        ours = name.startswith("zoo")
        axes.plot(
            seconds,
            nll,
            label=name,
            color=f"C{index}" if ours else others(0.35 + 0.5 * index / len(runners)),
            linewidth=2 if ours else 1,
            linestyle="-" if ours else ["--", ":", "-."][index % 3],
            zorder=3 if ours else 2,
        )
    axes.axhline(TARGET, color="black", linewidth=0.5)
    axes.set(
        xlabel="seconds of training (compilation apart)",
        ylabel="held-out NLL",
        title="LeNet-300-100 on MNIST, mean-field posterior, one thread",
        ylim=(0.8 * TARGET, 4 * TARGET),
    )
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-compile", action="store_true", help="leave out Inductor")
    parser.add_argument("--no-peers", action="store_true", help="leave out other libraries")
    parser.add_argument("--limit", type=int, default=3000, help="steps after which a race ends")
    parser.add_argument("--races", type=int, default=3, help="seeds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # inside Inductor
    data = mnist()
    x, y = torch.zeros(BATCH, 784), torch.zeros(BATCH, dtype=torch.int64)
    races = []
    for seed in range(arguments.races):
        torch.manual_seed(seed)
        net = mlp([784, 300, 100, 10])
        with pyro.settings.context(module_local_params=True):
            runners = contestants(
                net, x, y, compiled=not arguments.no_compile, with_peers=not arguments.no_peers
            )
            race(runners, data, x, y, limit=arguments.limit, seed=seed)
        races.append(runners)
    result = table(races)
    print(result.round(3).to_string(index=False))
    RESULTS.mkdir(exist_ok=True)
    result["machine"] = machine_line()
    result.round(4).to_csv(RESULTS / "race.csv", index=False)
    plot(races[0], RESULTS / "race.png")


if __name__ == "__main__":
    main()
