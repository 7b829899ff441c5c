"""Tables of the measurements of ``zoo compress``; missing or invalid values are omitted."""

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
    """Return the tables of sizes and scores, of rates, and of layers."""
    return [_sizes(measured), _rates(measured), _layers(measured)]


def _sizes(measured: Mapping[str, Any]) -> Table | None:
    stages = [_mapping(measured, stage) for stage in STAGES]
    rows: list[list[Any]] = [
        [title, *(_number(stage.get(key)) for stage in stages)] for key, title in COUNTS.items()
    ]
    for size in _mapping(stages[0], "latency_ms"):
        times = [_mapping(stage, "latency_ms").get(size) for stage in stages]
        rows.append([f"milliseconds for {size} rows", *map(_number, times)])
    for score in _mapping(stages[0], "test"):
        values = [_mapping(stage, "test").get(score) for stage in stages]
        rows.append([f"{NAMES.get(score, score)}, test rows", *map(_number, values)])
    rows = [row for row in rows if any(value is not None for value in row[1:])]
    columns = ["quantity", *STAGES.values()]
    return table("Before and after", columns, rows, "text", "number")


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
            _shape(layer.get("original")),
            _shape(layer.get("smaller")),
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


def _shape(sizes: Any) -> str:
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    return " × ".join(map(str, sizes)) if is_list else ""
