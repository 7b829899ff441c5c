"""Compression of LeNets on MNIST: ``python -m benchmarks.compression --methods group_horseshoe``.

Fits LeNet-300-100 and LeNet-5-Caffe to MNIST (from ``ZOO_DATA``) with a recipe per method,
compresses the fits, and compares them with published results. Every row is written to
``benchmarks/results/compression.csv`` as soon as it is available, with the command that repeats the
fit. Finished rows are skipped, and interrupted fits are resumed from their run directories.
"""

import argparse
import logging
import math
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import zoo
from benchmarks.speed import machine_line
from zoo.compress.compression import Compression
from zoo.fit.config import make_config
from zoo.fit.store import RunDirectory
from zoo.registry import list_models
from zoo.workflow.compressing import compress_run
from zoo.workflow.fitting import resume

RESULTS = Path(__file__).parent / "results" / "compression.csv"
RUNS = Path("runs") / "compression"
#: Columns that identify a row.
KEYS = ["method", "network", "seed", "setting"]

NETWORKS = {
    "lenet300": "lenet300",
    "lenet5": "lenet5",
    # The networks of structured Bayesian pruning, with pixels from 0 to 1.
    "lenet_fc": "module:benchmarks/unit_pixels.py:lenet_fc",
    "lenet5_unit": "module:benchmarks/unit_pixels.py:lenet5",
}
#: Rows per epoch.
NUM_ROWS = 60_000

log = logging.getLogger("compression")


@dataclass(frozen=True)
class Published:
    """Results of a publication.

    Attributes
    ----------
    error
        Test error in percent.
    weights_left
        Weights left, in percent.
    rates
        Compression by pruning, for fast prediction, and maximum.
    units
        Units left in every layer: output channels of a convolution, inputs of a dense layer.
    """

    error: str
    weights_left: str = ""
    rates: str = ""
    units: str = ""


#: Louizos, Ullrich and Welling (2017); sparse variational dropout as they ran it. Neklyudov,
#: Molchanov, Ashukha and Vetrov (2017) for structured Bayesian pruning. Achterhold, Koehler,
#: Schmeink and Genewein (2018) for quantization.
PUBLISHED = {
    ("group_normal_jeffreys", "lenet300"): Published("1.8", "10.8", "9 / 36 / 58", "278-98-13"),
    ("group_horseshoe", "lenet300"): Published("1.8", "10.6", "9 / 23 / 59", "311-86-14"),
    ("sparse_vd", "lenet300"): Published("1.8", "2.2", "21 / 84 / 113"),
    ("group_normal_jeffreys", "lenet5"): Published("1.0", "0.9", "108 / 361 / 573", "8-13-88-13"),
    ("group_horseshoe", "lenet5"): Published("1.0", "0.6", "156 / 419 / 771", "5-10-76-16"),
    ("sparse_vd", "lenet5"): Published("1.0", "0.7", "63 / 228 / 365"),
    ("structured_bp", "lenet_fc"): Published("1.55", units="245-160-55"),
    ("structured_bp", "lenet5_unit"): Published("0.86", units="3-18-284-283"),
    ("quantized", "lenet5"): Published("0.7-0.8", "20-30"),
}

#: Default training settings.
COMMON: dict[str, Any] = {
    "num_samples": 20,
    "checkpoint_every": 1000,
    "kl_warmup": 0.3,
    "batch_size": 128,
    "compile": "inductor",
}
#: Dense networks are trained for 200 epochs, as published, convolutions for 20. Half the batch size
#: gives twice the steps, which the scales need to converge.
DENSE: dict[str, Any] = {"num_steps": 94_000, "lr": 1e-3}
CONVOLUTIONS: dict[str, Any] = {
    "num_steps": 18_760,
    "batch_size": 64,
    "lr": 2e-3,
    "estimator": "local",
}
#: As published: from a trained network, without warm-up.
FROM_TRAINED: dict[str, Any] = {"lr": 1e-3, "pretrain": 0.05, "kl_warmup": 0.0}
#: The publication bounds the posterior sds of the first layer of dense networks by 0.2. With a
#: horseshoe this keeps twice the published inputs.
BOUNDED = {
    "group_normal_jeffreys": {"max_sd": {"0.weight": 0.2}},
    "group_horseshoe": {"max_sd": {"0.weight": 0.4}},
}
#: Training settings of each method and network.
RECIPES: dict[tuple[str, str], dict[str, Any]] = {
    ("group_horseshoe", "lenet300"): {
        "num_steps": 47_000,
        "lr": 4e-3,
        "options": BOUNDED["group_horseshoe"],
    },
    ("group_normal_jeffreys", "lenet300"): DENSE | {"options": BOUNDED["group_normal_jeffreys"]},
    ("sparse_vd", "lenet300"): DENSE,
    ("group_horseshoe", "lenet5"): CONVOLUTIONS,
    ("group_normal_jeffreys", "lenet5"): CONVOLUTIONS,
    ("sparse_vd", "lenet5"): CONVOLUTIONS,
    ("structured_bp", "lenet_fc"): DENSE | FROM_TRAINED,
    # Noise after the second convolution removes filters; noise on the inputs of the following
    # dense layer removes single positions of their feature maps.
    ("structured_bp", "lenet5_unit"): {
        "num_steps": 18_760,
        "batch_size": 64,
        **FROM_TRAINED,
        "lr": 3e-3,
        "priors": {"6.output": "StructuredBP()"},
    },
}


def options_of(method: str, network: str, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a fit; changes that are None are ignored."""
    return {
        "method": method,
        "data": "mnist",
        "net": NETWORKS[network],
        "seed": seed,
        **COMMON,
        **RECIPES.get((method, network), DENSE),
        **{name: value for name, value in changes.items() if value is not None},
    }


def command_of(options: dict[str, Any]) -> str:
    """Return the command that repeats a fit."""
    flags = []
    for name, value in options.items():
        if name == "priors":
            flags += [f"--prior={slot}={prior}" for slot, prior in value.items()]
        elif name == "options":
            flags += [
                f"--option={option}[{slot}]={number:g}"
                for option, by_slot in value.items()
                for slot, number in by_slot.items()
            ]
        elif name != "method":
            flags += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(["zoo", "fit", options["method"], *flags])


def fit_or_resume(options: dict[str, Any], path: Path) -> None:
    """Start or resume a run, and finish it."""
    directory = RunDirectory(path)
    if directory.is_complete:
        log.info("%s is finished", path)
        return
    if (path / "config.yaml").exists():
        log.info("%s is resumed", path)
        resume(directory, progress_bar=False)
        return
    log.info("%s starts: %s", path, command_of(options))
    make_config(**options)
    zoo.fit(**options, out=path, progress_bar=False)


def units_left(compression: Compression) -> str:
    """Return the units left in every layer, in the notation of the literature."""
    layers = compression.summary["layers"]
    return "-".join(
        str(layer["smaller"][0] if len(layer["smaller"]) > 2 else layer["smaller"][1])
        for layer in layers
    )


def row_of(
    options: dict[str, Any], network: str, setting: str, compression: Compression, seconds: float
) -> dict[str, Any]:
    """Return one row of the table."""
    summary = compression.summary
    before, after = summary["original"], summary["packed"]
    rates = summary["rates"]
    published = PUBLISHED.get((options["method"], network), Published(""))
    errors = {
        name: round(100 * (1 - summary[part]["test"]["accuracy"]), 2)
        for name, part in {
            "posterior": "posterior",
            "means": "original",
            "pruned": "smaller",
            "packed": "packed",
        }.items()
    }
    return {
        "method": options["method"],
        "network": network,
        "seed": options["seed"],
        "setting": setting,
        "largest sd of the first layer": (
            options.get("options", {}).get("max_sd", {}).get("0.weight", "")
        ),
        **{f"error {name} %": value for name, value in errors.items()},
        "published error %": published.error,
        "weights left %": round(rates["weights_left_percent"], 2),
        "published left %": published.weights_left,
        "units": units_left(compression),
        "published units": published.units,
        "rates": " / ".join(
            f"{rates[name]:.0f}" for name in ("pruning", "fast_prediction", "maximum")
        ),
        "published rates": published.rates,
        "bits": "-".join(str(layer["counted_bits"]) for layer in summary["layers"]),
        "bytes": after["bytes"],
        "bytes before": before["bytes"],
        "FLOPs ratio": round(before["flops"] / after["flops"], 2),
        "latency ratio, 256 rows": round(
            before["latency_ms"]["256"] / after["latency_ms"]["256"], 2
        ),
        "latency ratio, 1 row": round(before["latency_ms"]["1"] / after["latency_ms"]["1"], 2),
        "training seconds": round(seconds),
        "machine": machine_line(),
        "command": command_of(options),
    }


def finished_rows(path: Path) -> pd.DataFrame:
    """Return the existing rows."""
    return pd.read_csv(path, dtype=str).fillna("") if path.exists() else pd.DataFrame()


def is_finished(table: pd.DataFrame, wanted: dict[str, str]) -> bool:
    """Return whether a row exists."""
    if table.empty:
        return False
    return bool((table[KEYS] == [wanted[key] for key in KEYS]).all(axis=1).any())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=["group_horseshoe"])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["lenet300", "lenet5"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--num-steps", type=int, help="instead of the recipe's")
    parser.add_argument("--lr", type=float, help="instead of the recipe's")
    parser.add_argument("--tolerance", type=float, help="instead of the method's own threshold")
    parser.add_argument("--runs", type=Path, default=RUNS, help="directory of the fits")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV file")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.methods) - set(list_models()))
    if unknown:
        parser.error(f"unknown method {unknown[0]!r}; known: {', '.join(list_models())}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    rule = "own threshold" if arguments.tolerance is None else f"tolerance {arguments.tolerance:g}"
    for method in arguments.methods:
        for network in arguments.networks:
            for seed in arguments.seeds:
                changes = {"num_steps": arguments.num_steps, "lr": arguments.lr}
                options = options_of(method, network, seed, changes)
                steps_per_epoch = math.ceil(NUM_ROWS / options["batch_size"])
                epochs = round(options["num_steps"] / steps_per_epoch)
                batches = f"batches of {options['batch_size']}"
                setting = f"{epochs} epochs, {batches}, lr {options['lr']:g}, {rule}"
                wanted = dict(zip(KEYS, (method, network, str(seed), setting), strict=True))
                table = finished_rows(arguments.out)
                if is_finished(table, wanted):
                    log.info("skipped, finished: %s", wanted)
                    continue
                path = arguments.runs / f"{method}_{network}_{epochs}_{options['lr']:g}_{seed}"
                fit_or_resume(options, path)
                started = time.perf_counter()
                compression = compress_run(path, tolerance=arguments.tolerance)
                log.info("compressed in %.0f s", time.perf_counter() - started)
                seconds = RunDirectory(path).read_json("metrics.json")["seconds"]
                row = row_of(options, network, setting, compression, seconds)
                table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
                table.to_csv(arguments.out, index=False)
                log.info("%s", row)


if __name__ == "__main__":
    main()
