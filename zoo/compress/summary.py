"""What a compression measured, as text for a terminal."""

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
        rows.append([title, *(_count(stage.get(key)) for stage in stages)])
    for size in summary["original"]["latency_ms"]:
        title = f"milliseconds, {size} row{'s' if size != '1' else ''}"
        rows.append([title, *(_number(s.get("latency_ms", {}).get(size)) for s in stages)])
    for score in summary["original"]["test"]:
        rows.append([f"test {score}", *(_number(s["test"].get(score)) for s in stages)])
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


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4g}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
