"""Time of one training step of the zoo, hand-written PyTorch, stock Pyro and other libraries.

``python -m benchmarks.speed [--quick] [--no-compile] [--peers] [--network NAME]``. Every contestant
runs in its own process with its usual settings and one thread. They alternate in every round, so
that the load of the machine affects all of them equally. A step is forward, ELBO, backward and a
fused Adam. The zoo runs inside `zoo.infer.svi.memory.kept_memory`, as in its training loop;
``, kept memory`` marks other contestants with this setting. ``--peers`` adds the installed
libraries of ``benchmarks/peers.py``. Prints medians and ratios, and writes them to
``benchmarks/results/speed.csv`` and ``.json``.
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
import pyro
import torch
import torch.nn.functional as F
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn

import zoo
from benchmarks import handwritten, peers
from zoo.infer.recording import Mode
from zoo.infer.svi.capture import GradientStep
from zoo.infer.svi.memory import kept_memory
from zoo.infer.svi.objective import Objective
from zoo.infer.svi.optimizer import FusedAdam
from zoo.network.nets import lenet5, mlp

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


def optimised(
    parameters: Iterable[Tensor], backward: Callable[[], Tensor], *, own: bool = False
) -> Step:
    """Return a step that computes gradients and updates, with the Adam of torch or of the zoo."""
    trained = [p for p in parameters if p.requires_grad]
    if own:
        update = FusedAdam(trained).step
    else:
        optimizer = torch.optim.Adam(trained, fused=True)
        update = optimizer.step  # type: ignore[assignment]

    def step() -> Tensor:
        for parameter in trained:
            parameter.grad = None
        loss = backward()
        update()
        return loss

    return step


def plain(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a function that differentiates a loss."""

    def backward() -> Tensor:
        value = loss()
        value.backward()
        return value.detach()

    return backward


KEPT = ", kept memory"


def contestants(
    method: str, network: str, *, compiled: bool, with_peers: bool
) -> dict[str, Callable[[], Step]]:
    """Return builders of a step of each contestant, all initialised from the same network."""
    net, x, y = networks()[network]
    makers: dict[str, Callable[[], Step]] = {"deterministic": lambda: deterministic(net, x, y)}
    for local in (True, False):
        name = f"handwritten {'local' if local else 'weights'}"
        makers[name] = partial(by_hand, method, net, x, y, local=local, compiled=False)
        if compiled:
            makers[f"{name}, compiled"] = partial(
                by_hand, method, net, x, y, local=local, compiled=True
            )
    makers |= {name + KEPT: make for name, make in makers.items()}
    makers["stock pyro"] = lambda: stock_pyro(method, net, x, y)
    if with_peers and method == "mean_field":
        for name, build in peers.BUILDERS.items():
            makers[name] = lambda build=build: optimised(  # type: ignore[misc]
                (peer := build(net, x, y, NUM_DATA)).parameters, plain(peer.loss)
            )
    modes: tuple[Mode, ...] = ("off", "replay", "inductor") if compiled else ("off", "replay")
    for local in (True, False):
        for mode in modes:
            makers[f"zoo {'local' if local else 'weights'}, {mode}"] = partial(
                by_zoo, method, net, x, y, local=local, mode=mode
            )
    return makers


def deterministic(net: nn.Sequential, x: Tensor, y: Tensor) -> Step:
    """Return a step of the deterministic network."""
    return optimised(net.parameters(), plain(lambda: F.cross_entropy(net(x), y)))


def by_hand(
    method: str, net: nn.Sequential, x: Tensor, y: Tensor, *, local: bool, compiled: bool
) -> Step:
    """Return a hand-written step."""
    rival = handwritten.bayesian(net, method, local)
    loss = handwritten.loss
    if compiled:  # best setting: the CPU generator is faster than that of Inductor
        loss = torch.compile(loss, options={"fallback_random": True})
    return optimised(rival.parameters(), plain(lambda: loss(rival, x, y, NUM_DATA)))


def stock_pyro(method: str, net: nn.Sequential, x: Tensor, y: Tensor) -> Step:
    """Return a step of Pyro's own estimator on the model and guide of the zoo."""
    model, guide = pair(method, net)
    elbo = TraceMeanField_ELBO()
    both = nn.ModuleList([model, guide])
    return optimised(both.parameters(), plain(lambda: elbo.differentiable_loss(model, guide, x, y)))


def by_zoo(
    method: str, net: nn.Sequential, x: Tensor, y: Tensor, *, local: bool, mode: Mode
) -> Step:
    """Return a step of the zoo."""
    objective = Objective(*pair(method, net), local=local).train()
    gradients = GradientStep(objective, mode, num_steps=1)
    return optimised(objective.parameters(), lambda: gradients(x, y), own=True)


def pair(method: str, net: nn.Sequential):  # type: ignore[no-untyped-def]
    """Return model and guide of the zoo, initialised like the other contestants."""
    model = zoo.create(method, net, likelihood="categorical", num_data=NUM_DATA)
    return model, model.guide(init_scale=0.011)


def serve(pipe: Connection, name: str, method: str, network: str, options: dict[str, bool]) -> None:
    """Build one contestant in this process, and time as many steps as requested by the pipe."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # internal to the libraries
    keeps = name.startswith("zoo") or name.endswith(KEPT)
    with (
        pyro.settings.context(module_local_params=True),
        kept_memory() if keeps else nullcontext(),
    ):
        step = contestants(method, network, **options)[name]()
        for _ in range(5):  # compilation and first allocations
            step()
        pipe.send("ready")
        while (count := pipe.recv()) > 0:
            started = time.perf_counter()
            for _ in range(count):
                step()
            pipe.send(1e3 * (time.perf_counter() - started) / count)


def measure(
    method: str,
    network: str,
    options: dict[str, bool],
    missing: Collection[str],
    rounds: int,
    per_round: int,
) -> dict[str, list[float]]:
    """Return milliseconds per step of every round; contestants alternate."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for name in contestants(method, network, **options):
        if peers.LIBRARIES.get(name) in missing:
            continue
        pipe, theirs = context.Pipe()
        arguments = (theirs, name, method, network, options)
        context.Process(target=serve, args=arguments, daemon=True).start()
        theirs.close()
        pipe.recv()  # sequentially, because compilers need memory
        pipes[name] = pipe
    times: dict[str, list[float]] = {name: [] for name in pipes}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            pipe.send(per_round)
            times[name].append(pipe.recv())
    for pipe in pipes.values():
        pipe.send(0)
    return times


def table(method: str, network: str, times: dict[str, list[float]]) -> pd.DataFrame:
    """Return medians, spread, and ratios as medians over rounds, which have the same load."""
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
    """Return a description of the machine."""
    return f"{platform.machine()}, {platform.system()}, torch {torch.__version__}, one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--no-compile", action="store_true", help="leave out Inductor")
    parser.add_argument("--peers", action="store_true", help="add other libraries to mean_field")
    parser.add_argument("--network", choices=["mlp", "lenet5"], help="only this one, not both")
    arguments = parser.parse_args()
    rounds = 10 if arguments.quick else 30
    missing = peers.missing() if arguments.peers else {}
    for name, reason in missing.items():
        print(f"not measured: {name} ({reason})")
    options = {"compiled": not arguments.no_compile, "with_peers": arguments.peers}
    tables = []
    for network in networks():
        if arguments.network not in (None, network):
            continue
        for method in handwritten.LAYERS:
            per_round = 10 if network == "mlp" else 2
            times = measure(method, network, options, missing, rounds, per_round)
            tables.append(table(method, network, times))
            print(tables[-1].round(2).to_string(index=False), flush=True)
    write(pd.concat(tables), missing)


def write(measured: pd.DataFrame, missing: dict[str, str]) -> None:
    """Write the table; rows of other networks are kept if the machine is the same."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "speed.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows = known.get("rows", []) if known.get("machine") == machine_line() else []
    others = [row for row in rows if row["network"] not in set(measured.network)]
    result = pd.DataFrame(others + measured.round(4).to_dict("records"))
    result.to_csv(RESULTS / "speed.csv", index=False)
    records = {
        "machine": machine_line(),
        "missing_peers": missing,
        "rows": result.to_dict("records"),
    }
    path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
