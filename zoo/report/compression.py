"""The measurements of ``zoo compress`` as tables of the report, and as text for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.report.tables import NAMES, Table, table

STAGES = {"original": "original", "smaller": "units removed", "packed": "packed"}
COUNTS = {
    "parameters": "parameters",
    "weights": "weights",
    "nonzero_weights": "nonzero weights",
    "bytes": "bytes on disk",
    "flops": "FLOPs per row",
}
RATES = {
    "weights_left_percent": "weights left (%)",
    "pruning": "compression by pruning",
    "fast_prediction": "compression, fast prediction",
    "maximum": "compression, maximum",
}


def compression_tables(measured: Mapping[str, Any]) -> list[Table | None]:
    """Return the tables of sizes and scores, of rates, and of layers, without invalid values."""
    return [_sizes(measured), _rates(measured), _layers(measured)]


def _sizes(measured: Mapping[str, Any]) -> Table | None:
    rows: list[list[Any]] = []
    for kind, key, values in _stage_rows(measured):
        titles = {
            "count": COUNTS.get(key),
            "latency_ms": f"milliseconds for {key} rows",
            "test": f"{NAMES.get(key, key)}, test rows",
        }
        rows.append([titles[kind], *map(_number, values)])
    rows = [row for row in rows if any(value is not None for value in row[1:])]
    columns = ["quantity", *STAGES.values()]
    return table("Before and after", columns, rows, "text", "number")


def _stage_rows(measured: Mapping[str, Any]) -> list[tuple[str, str, list[Any]]]:
    """Return kind, key and values at all stages: counts, milliseconds, and scores of test rows."""
    stages = [_mapping(measured, stage) for stage in STAGES]
    rows = [("count", key, [stage.get(key) for stage in stages]) for key in COUNTS]
    for kind in ("latency_ms", "test"):
        parts = [_mapping(stage, kind) for stage in stages]
        rows += [(kind, key, [part.get(key) for part in parts]) for key in parts[0]]
    return rows


def _rates(measured: Mapping[str, Any]) -> Table | None:
    rates = _mapping(measured, "rates")
    rows = [(title, _number(rates[key])) for key, title in RATES.items() if key in rates]
    columns = ["weights, without biases", "value"]
    return table("Compression rates", columns, rows, "text", "number")


def _layers(measured: Mapping[str, Any]) -> Table | None:
    layers = measured.get("layers")
    rows = [
        (
            str(layer.get("layer")),
            _shape(layer.get("original"), "×"),
            _shape(layer.get("smaller"), "×"),
            _number(layer.get("nonzero")),
            _number(layer.get("counted_bits")),
            _number(layer.get("bytes")),
        )
        for layer in (layers if isinstance(layers, list) else [])
        if isinstance(layer, Mapping)
    ]
    columns = ["layer", "original", "smaller", "nonzero", "bits per weight", "bytes"]
    return table("Layers", columns, rows, "code", "text", "text", "number")


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else None


def _shape(sizes: Any, sign: str) -> str:
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    return f" {sign} ".join(map(str, sizes)) if is_list else ""


def compression_text(measured: Mapping[str, Any]) -> str:
    """Return the tables of layers, of sizes and scores, and of rates as text."""
    layers = [["layer", "original", "smaller", "not zero", "bits", "bytes"]]
    for layer in measured["layers"]:
        shapes = [_shape(layer[stage], "x") for stage in ("original", "smaller")]
        counts = [f"{layer[key]:,}" for key in ("nonzero", "counted_bits", "bytes")]
        layers.append([layer["layer"], *shapes, *counts])
    sizes = [["", *STAGES]]
    for kind, key, values in _stage_rows(measured):
        titles = {
            "count": COUNTS.get(key, ""),
            "latency_ms": f"milliseconds, {key} row{'s' if key != '1' else ''}",
            "test": f"test {key}",
        }
        form = "," if kind == "count" else ".4g"
        sizes.append([titles[kind], *("" if v is None else format(v, form) for v in values)])
    rates = measured["rates"]
    listed = [
        ["weights left", f"{rates['weights_left_percent']:.2f} %"],
        *([RATES[key], f"{rates[key]:.1f}"] for key in ("pruning", "fast_prediction", "maximum")),
        ["file against file", f"{measured['original']['bytes'] / measured['packed']['bytes']:.1f}"],
        ["largest difference to the masked network", f"{measured['difference']:.2g}"],
    ]
    return "\n\n".join(map(_aligned, (layers, sizes, listed)))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the first column to the left and the others to the right."""
    columns = []
    for k, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if k else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))
