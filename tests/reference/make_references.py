"""Posteriors of every method with fixed seeds, stored to be compared with later ones.

``python tests/reference/make_references.py --out FILE`` fits every method and writes losses, draws
and predictions. ``--compare FILE`` fits again and prints, case by case, ``equal`` if every number
has the same bits, or else the largest difference relative to the size of the numbers. ``--full``
takes the steps of each method's own recipe instead of a few.

Only the public interface is used, so the script runs on any commit that has the methods.
"""

import argparse
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import zoo
from guides import darts

SMALL = {"data": "diabetes", "net": "mlp:10-6-1", "num_steps": 120}
IMAGES = {"data": "digits", "net": "mlp:64-16-10", "num_steps": 60, "test_fraction": 0.5}
LINEAR = {"data": "diabetes", "net": "linear", "num_steps": 120}
GRAPH = {
    "data": "diabetes",
    "net": {"edges": {"0-1": ["linear(outputs)", ["powers(2)", "linear(outputs)"], "constant"]}},
    "num_steps": 120,
}
#: Points were once normal distributions with a small sd. With one so small that rounding hides it,
#: the old and the new objective are the same but for a constant, which losses are stored without.
NARROW = {"init_scale": 1e-9}
POINTS = ("darts", "laplace")
KNOWN_NOISE = "gaussian(noise=0.7)"
if hasattr(darts, "POINT"):
    setattr(darts, "POINT", NARROW["init_scale"])  # noqa: B010  (only earlier versions have it)

CASES: dict[str, tuple[str, dict[str, object]]] = {
    **{
        name: (name, SMALL)
        for name in (
            "mean_field",
            "group_horseshoe",
            "group_normal_jeffreys",
            "sparse_vd",
            "empirical_bayes",
            "graves",
            "structured_bp",
            "variational_dropout",
            "quantized",
            "stochastic_batch_norm",
            "hypernetwork",
            "gumbel_softmax_structure",
            "darts",
        )
    },
    # A learned noise was once part of the mode; now it maximises the evidence.
    "laplace": ("laplace", SMALL | NARROW | {"dtype": "float64"} | {"likelihood": KNOWN_NOISE}),
    "evidence": ("evidence", LINEAR),
    "group_horseshoe, images": ("group_horseshoe", IMAGES),
    "group_normal_jeffreys, images": ("group_normal_jeffreys", IMAGES),
    "structured_bp, images": ("structured_bp", IMAGES),
    "quantized, images": ("quantized", IMAGES),
    "gumbel_softmax_structure, graph": ("gumbel_softmax_structure", GRAPH),
    "darts, graph": ("darts", GRAPH),
    "mean_field, hyper-prior": (
        "mean_field",
        SMALL | {"priors": {"*.weight": "Normal(0, HalfCauchy(1))", "noise": "HalfNormal(1)"}},
    ),
    "mean_field, full rank": ("mean_field", LINEAR | {"guide": "full_rank"}),
    "mean_field, double": ("mean_field", SMALL | {"dtype": "float64", "compile": "replay"}),
}


def fitted_numbers(case: str, *, full: bool = False) -> dict[str, Tensor]:
    """Fit one case and return its losses, the draws of every slot, and some predictions."""
    method, given = CASES[case]
    options = dict(given)
    if full:
        del options["num_steps"]
    options.setdefault("compile", "off")
    fitted = zoo.fit(method, seed=0, num_samples=8, num_threads=1, progress_bar=False, **options)
    assert fitted.dataset is not None
    rows = fitted.outputs(fitted.dataset.X_train[:16], fitted.draws.values)
    losses = fitted.losses - fitted.losses[0] if method in POINTS else fitted.losses
    numbers = {"losses": losses, "outputs": rows.cpu()}
    numbers |= {f"slot.{name}": value.cpu() for name, value in fitted.draws.slots.items()}
    return {name: value.detach().clone().contiguous() for name, value in numbers.items()}


def largest_gap(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the largest difference, relative to the largest number of the same tensor.

    Infinite if there are other tensors, or other shapes.
    """
    if found.keys() != wanted.keys():
        return float("inf")
    gaps = [0.0]
    for name, value in wanted.items():
        if found[name].shape != value.shape:
            return float("inf")
        if value.numel():
            size = value.double().abs().max().clamp(min=1e-30)
            gaps.append(float((found[name].double() - value.double()).abs().max() / size))
    return max(gaps)


def main() -> None:
    """Store references, or compare with stored ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--case", action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    stored = load_file(arguments.compare) if arguments.compare else {}
    made: dict[str, Tensor] = {}
    for case in arguments.case or CASES:
        numbers = fitted_numbers(case, full=arguments.full)
        made |= {f"{case}|{name}": value for name, value in numbers.items()}
        if not arguments.compare:
            print(f"{case:36} {float(numbers['losses'][-1:].sum()):.6g}", flush=True)
            continue
        start = f"{case}|"
        wanted = {k.removeprefix(start): v for k, v in stored.items() if k.startswith(start)}
        gap = largest_gap(numbers, wanted)
        print(f"{case:36} {'equal' if gap == 0 else f'{gap:.2e}'}", flush=True)
    if arguments.out:
        save_file(made, arguments.out)


if __name__ == "__main__":
    main()
