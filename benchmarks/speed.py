"""Time of one training step, beside hand-written PyTorch, stock Pyro and other libraries.

``python -m benchmarks.speed [--quick] [--no-compile] [--peers] [--network NAME]``. One thread, one
process; contestants take turns in every round, so that a busy machine slows all of them alike. A
step is forward, ELBO, backward and a fused Adam. ``--peers`` adds the libraries of
``benchmarks/peers.py`` that are installed. Prints medians and ratios, and writes them to
``benchmarks/results/speed.csv`` and ``.json``.
"""

import argparse
import copy
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import pyro
import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

import zoo
from benchmarks import handwritten, peers
from zoo.infer.capture import GradientStep, Mode
from zoo.infer.objective import Objective
from zoo.nets import lenet5, mlp

RESULTS = Path(__file__).parent / "results"
NUM_DATA = 60_000
REFERENCE = {
    "ratio_to_handwritten": "handwritten local",
    "ratio_to_deterministic": "deterministic",
    "ratio_to_stock_pyro": "stock pyro",
}

Step = Callable[[], Tensor]


def networks() -> dict[str, tuple[nn.Sequential, Tensor, Tensor]]:
    """LeNet-300-100 with batches of 256, LeNet-5 with batches of 128."""
    torch.manual_seed(0)
    return {
        "mlp": (mlp([784, 300, 100, 10]), torch.randn(256, 784), torch.randint(10, (256,))),
        "lenet5": (lenet5((1, 28, 28), 10), torch.randn(128, 784), torch.randint(10, (128,))),
    }


def optimised(parameters: Iterable[Tensor], backward: Callable[[], Tensor]) -> Step:
    """Return a step that leaves gradients, then updates."""
    optimizer = torch.optim.Adam([p for p in parameters if p.requires_grad], fused=True)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = backward()
        optimizer.step()
        return loss

    return step


def plain(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a function that differentiates a loss."""

    def backward() -> Tensor:
        value = loss()
        value.backward()
        return value.detach()

    return backward


def contestants(
    method: str, net: nn.Sequential, x: Tensor, y: Tensor, *, compiled: bool, with_peers: bool
) -> dict[str, Step]:
    """Return one step of each contestant, all started from the same network."""
    steps: dict[str, Step] = {}
    own = copy.deepcopy(net)
    steps["deterministic"] = optimised(own.parameters(), plain(lambda: F.cross_entropy(own(x), y)))
    for local in (True, False):
        for compile_it in (False, True) if compiled else (False,):
            rival = handwritten.bayesian(net, method, local)
            # The rivals' best: the generator of the CPU is faster than Inductor's own.
            best = torch.compile(handwritten.loss, options={"fallback_random": True})
            function = best if compile_it else handwritten.loss
            name = f"handwritten {'local' if local else 'weights'}{', compiled' * compile_it}"
            steps[name] = optimised(
                rival.parameters(),
                plain(lambda f=function, n=rival: f(n, x, y, NUM_DATA)),  # type: ignore[misc]
            )
    model, guide = pair(method, net)
    stock = TraceMeanField_ELBO()
    both = nn.ModuleList([model, guide])
    steps["stock pyro"] = optimised(
        both.parameters(), plain(lambda: stock.differentiable_loss(model, guide, x, y))
    )
    if with_peers and method == "mean_field":
        for name, peer in peers.available(net, x, y, NUM_DATA).items():
            steps[name] = optimised(peer.parameters, plain(peer.loss))
    modes: tuple[Mode, ...] = ("off", "replay", "inductor") if compiled else ("off", "replay")
    for local in (True, False):
        for mode in modes:
            objective = Objective(*pair(method, net), local=local).train()
            gradients = GradientStep(objective, mode, num_steps=1)
            steps[f"zoo {'local' if local else 'weights'}, {mode}"] = optimised(
                objective.parameters(),
                lambda g=gradients: g(x, y),  # type: ignore[misc]
            )
    return steps


def pair(method: str, net: nn.Sequential):  # type: ignore[no-untyped-def]
    """Return model and guide of the zoo, started like the rivals."""
    model = zoo.create(method, net, likelihood="categorical", num_data=NUM_DATA)
    return model, model.guide(init_scale=0.011)


def measure(steps: dict[str, Step], rounds: int, per_round: int) -> dict[str, list[float]]:
    """Return milliseconds per step of every round; contestants take turns."""
    for step in steps.values():
        for _ in range(3):  # compilation and first allocations
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            started = time.perf_counter()
            for _ in range(per_round):
                step()
            times[name].append(1e3 * (time.perf_counter() - started) / per_round)
    return times


def table(method: str, network: str, times: dict[str, list[float]]) -> pd.DataFrame:
    """Return medians, spread and ratios. Ratios are medians over rounds, which share their load."""
    rows = []
    for name, own in times.items():
        row = {
            "method": method,
            "network": network,
            "contestant": name,
            "milliseconds": statistics.median(own),
            "fastest": min(own),
            "slowest": max(own),
        }
        for column, reference in REFERENCE.items():
            pairs = zip(own, times[reference], strict=True)
            row[column] = statistics.median(a / b for a, b in pairs)
        rows.append(row)
    return pd.DataFrame(rows)


def machine_line() -> str:
    """Return what the figures were measured on."""
    return f"{platform.machine()}, {platform.system()}, torch {torch.__version__}, one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--no-compile", action="store_true", help="leave out Inductor")
    parser.add_argument("--peers", action="store_true", help="add other libraries to mean_field")
    parser.add_argument("--network", choices=["mlp", "lenet5"], help="only this one, not both")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # inside Inductor
    rounds = 5 if arguments.quick else 15
    missing = peers.missing() if arguments.peers else {}
    for name, reason in missing.items():
        print(f"not measured: {name} ({reason})")
    tables = []
    with pyro.settings.context(module_local_params=True):
        for network, (net, x, y) in networks().items():
            if arguments.network not in (None, network):
                continue
            for method in handwritten.LAYERS:
                steps = contestants(
                    method,
                    net,
                    x,
                    y,
                    compiled=not arguments.no_compile,
                    with_peers=arguments.peers,
                )
                times = measure(steps, rounds, per_round=10 if network == "mlp" else 2)
                tables.append(table(method, network, times))
                print(tables[-1].round(2).to_string(index=False), flush=True)
    result = pd.concat(tables)
    RESULTS.mkdir(exist_ok=True)
    result.round(4).to_csv(RESULTS / "speed.csv", index=False)
    records = {
        "machine": machine_line(),
        "missing_peers": missing,
        "rows": result.round(4).to_dict("records"),
    }
    (RESULTS / "speed.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
