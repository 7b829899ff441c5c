"""The measurements of a compression as text for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.report.compression import COUNTS, RATES, STAGES


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the tables of ``compression.json``: layers, sizes and scores, rates."""
    return "\n\n".join([_layers(summary), _sizes(summary), _rates(summary)])


def _layers(summary: Mapping[str, Any]) -> str:
    rows = [["layer", "original", "smaller", "not zero", "bits", "bytes"]]
    rows += [
        [
            layer["layer"],
            _shape(layer["original"]),
            _shape(layer["smaller"]),
            f"{layer['nonzero']:,}",
            str(layer["counted_bits"]),
            f"{layer['bytes']:,}",
        ]
        for layer in summary["layers"]
    ]
    return _aligned(rows)


def _sizes(summary: Mapping[str, Any]) -> str:
    stages = [summary[stage] for stage in STAGES]
    rows = [["", *STAGES]]
    for key, title in COUNTS.items():
        rows.append([title, *(_cell(stage.get(key), ",") for stage in stages)])
    for size in summary["original"]["latency_ms"]:
        title = f"milliseconds, {size} row{'s' if size != '1' else ''}"
        times = [stage.get("latency_ms", {}).get(size) for stage in stages]
        rows.append([title, *(_cell(value, ".4g") for value in times)])
    for score in summary["original"]["test"]:
        values = [stage["test"].get(score) for stage in stages]
        rows.append([f"test {score}", *(_cell(value, ".4g") for value in values)])
    return _aligned(rows)


def _rates(summary: Mapping[str, Any]) -> str:
    rates = summary["rates"]
    rows = [
        ["weights left", f"{rates['weights_left_percent']:.2f} %"],
        *([RATES[key], f"{rates[key]:.1f}"] for key in ("pruning", "fast_prediction", "maximum")),
        ["file against file", f"{summary['original']['bytes'] / summary['packed']['bytes']:.1f}"],
        ["largest difference to the masked network", f"{summary['difference']:.2g}"],
    ]
    return _aligned(rows)


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _cell(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    columns = []
    for k, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if k else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))
