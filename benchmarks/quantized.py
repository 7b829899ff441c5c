"""LeNets on MNIST with ternary weights, compared with the networks that they are initialised from.

``python -m benchmarks.quantized [--network lenet5] [--seed 0] [--steps 18760]``. MNIST is read
from ``ZOO_DATA``. Code words are initialised nearest to the weights of the parent, the default of
the method, or at 0.2, as published, with ``--size learned``. The parent is trained as a point
by plain PyTorch; the method ``quantized`` starts from it. Both are kept in the folder, with
checkpoints, so that an interrupted run can be resumed. Progress is printed; the
result is a row of ``benchmarks/results/quantized.csv``.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.speed import machine_line
from zoo.data import Dataset, load
from zoo.fit import store
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.fit.store import RunDirectory
from zoo.infer.pruning.codebooks import QuantizedView, quantized_view
from zoo.infer.svi.loop import SVI
from zoo.network.nets import build_net
from zoo.workflow.result import Fit

RESULTS = Path(__file__).parent / "results"
PARENT_BATCH_SIZE = 128
#: Columns that identify a row.
KEYS = ["network", "seed", "size", "max sd", "KL warm-up", "lr", "batch size", "steps"]
#: Posterior draws for the error of the continuous posterior.
NUM_SAMPLES = 10


def error_percent(net: nn.Module, dataset: Dataset) -> float:
    """Return the test error of a network in percent."""
    with torch.no_grad():
        predicted = net.eval()(torch.as_tensor(dataset.X_test, dtype=torch.float32)).argmax(-1)
    return 100.0 * float((predicted != torch.as_tensor(dataset.y_test)).double().mean())


def parent_network(
    dataset: Dataset, network: str, seed: int, num_steps: int, path: Path
) -> nn.Module:
    """Return the initial network, trained once and kept in a file."""
    torch.manual_seed(seed)
    net = build_net(network, 784, 10, dataset.schema.image_shape)
    if path.exists():
        net.load_state_dict(load_file(path))
        return net
    x, y = torch.as_tensor(dataset.X_train, dtype=torch.float32), torch.as_tensor(dataset.y_train)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_steps)
    for step in range(num_steps):
        rows = torch.randint(len(x), (PARENT_BATCH_SIZE,))
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 500 == 0:
            print(f"parent: step {step + 1}, error {error_percent(net, dataset):.2f} %", flush=True)
    save_file(net.state_dict(), path)
    return net


def quantized_fit(
    dataset: Dataset, parent: nn.Module, arguments: argparse.Namespace, folder: Path
) -> Fit:
    """Train the method from a parent, from its last checkpoint if there is one."""
    config = make_config(
        method="quantized",
        net=None,
        priors={"*weight": f"Quantized(codebook=[-0.2, 0, 0.2], size={arguments.size})"},
        options={} if arguments.max_sd is None else {"max_sd": arguments.max_sd},
        seed=arguments.seed,
        num_steps=arguments.steps,
        batch_size=arguments.batch_size,
        lr=arguments.lr,
        pretrain=0.0,
        kl_warmup=arguments.kl_warmup,
        # Separate noise per row: one draw of all weights per batch is too noisy for LeNet-5.
        estimator="local",
        num_samples=NUM_SAMPLES,
        num_threads=1,
        compile="inductor",
    )
    prepared = prepare(config, dataset=dataset, net=parent)
    directory = RunDirectory(folder)
    if (directory.path / store.CHECKPOINT).exists():
        prepared.svi.load_state(*directory.read_tensors(store.CHECKPOINT))

    def keep(svi: SVI) -> None:
        directory.write_tensors(store.CHECKPOINT, *svi.state())
        view = view_of(svi.objective.model, svi.objective.guide)
        errors = errors_of(view, svi.objective.model.net, dataset)
        loss = float(svi.progress.losses.last(200).mean())
        print(
            f"quantized: step {svi.progress.step} after {svi.progress.seconds:.0f} s, "
            f"loss {loss:.0f}, error of the means {errors['means']:.2f} %, "
            f"ternary {errors['ternary']:.2f} %, {view.nonzero_percent:.1f} % not zero",
            flush=True,
        )

    losses = prepared.svi.run(progress_bar=False, checkpoint_every=500, on_checkpoint=keep)
    seconds = prepared.svi.progress.seconds
    return Fit(prepared.assembly, dataset.schema, losses, seconds, dataset=dataset)


def view_of(model: Any, guide: Any) -> QuantizedView:
    view = quantized_view(model, guide)
    assert view is not None
    return view


def errors_of(view: QuantizedView, net: nn.Module, dataset: Dataset) -> dict[str, float]:
    """Return the errors of the continuous and of the ternary network."""
    means = QuantizedView(view.means, {}, {})
    return {
        "means": error_percent(means.network(net), dataset),
        "ternary": error_percent(view.network(net), dataset),
    }


def row(
    fitted: Fit, parent: nn.Module, dataset: Dataset, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return one row of the table."""
    model, guide = fitted.assembly.model, fitted.assembly.guide
    view = view_of(model, guide)
    errors = errors_of(view, model.net, dataset)
    posterior = fitted.posterior_scores(dataset.X_test, dataset.y_test)
    parent_error = error_percent(parent, dataset)
    return {
        "network": arguments.network,
        "data": "mnist",
        "seed": arguments.seed,
        "size": arguments.size,
        "max sd": "" if arguments.max_sd is None else f"{arguments.max_sd:g}",
        "KL warm-up": arguments.kl_warmup,
        "lr": arguments.lr,
        "batch size": arguments.batch_size,
        "steps": len(fitted.losses),
        "epochs": round(len(fitted.losses) * arguments.batch_size / len(dataset.X_train)),
        "parent error %": parent_error,
        "posterior error %": 100 * (1 - posterior["accuracy"]),
        "posterior nll": posterior["nll"],
        "means error %": errors["means"],
        "ternary error %": errors["ternary"],
        "ternary minus parent, points": errors["ternary"] - parent_error,
        "not zero %": view.nonzero_percent,
        "bits per weight": view.bits,
        "codebook": " ".join(f"{float(words.max()):.4f}" for words in view.codebooks.values()),
        "seconds": round(fitted.seconds),
        "machine": machine_line(),
        "command": "python -m benchmarks.quantized " + " ".join(sys.argv[1:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=["lenet300", "lenet5"], default="lenet300")
    parser.add_argument("--size", choices=["learned", "fitted"], default="fitted")
    parser.add_argument("--max-sd", type=float, help="bound of the sds, in distances of code words")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=18_760, help="469 of 128 rows are one epoch")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--kl-warmup", type=float, default=0.3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--parent-steps", type=int, default=4690)
    parser.add_argument("--folder", type=Path, default=Path("runs/quantized"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    folder = arguments.folder / arguments.network / str(arguments.seed)
    folder.mkdir(parents=True, exist_ok=True)
    dataset = load("mnist")
    parent = parent_network(
        dataset,
        arguments.network,
        arguments.seed,
        arguments.parent_steps,
        folder / "parent.safetensors",
    )
    setting = (arguments.size, arguments.max_sd, arguments.kl_warmup, arguments.lr)
    run = folder / "_".join(map(str, (*setting, arguments.batch_size, arguments.steps)))
    run.mkdir(exist_ok=True)
    fitted = quantized_fit(dataset, parent, arguments, run)
    found = row(fitted, parent, dataset, arguments)
    table = pd.DataFrame([found])
    print(table.T.to_string(), f"\n{time.monotonic() - started:.0f} seconds in all", flush=True)
    path = RESULTS / "quantized.csv"
    if path.exists():
        before = pd.read_csv(path, dtype={"max sd": str}).fillna({"max sd": ""})
        same = (before[KEYS] == table.loc[0, KEYS]).all(axis=1)
        table = pd.concat([before[~same], table]).sort_values(KEYS)
    table.round(4).to_csv(path, index=False)


if __name__ == "__main__":
    main()
