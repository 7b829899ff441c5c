"""Compress a stored run: ``zoo compress RUN`` and ``zoo.compress(run)``."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from zoo.compress.bits import Rule
from zoo.compress.compression import Compression, compress_fit
from zoo.compress.onnx_export import PACKAGES
from zoo.data import Dataset
from zoo.errors import CompressionError
from zoo.fit import store
from zoo.fit.prepare import run_data
from zoo.fit.store import RunDirectory
from zoo.fit.stored import read_fitted
from zoo.workflow.outputs import write_report


def compress_run(
    run: str | Path,
    *,
    threshold: float | Mapping[str, float] | None = None,
    tolerance: float | None = None,
    bits: Rule = "variance",
    complexity: float | None = None,
    onnx: bool | None = None,
    net: nn.Module | None = None,
    dataset: Dataset | None = None,
) -> Compression:
    """Compress a finished run; the network and its measurements are written to the directory.

    Parameters
    ----------
    run
        The run directory.
    threshold, tolerance, bits
        As for `zoo.compress.compression.compress_fit`.
    complexity
        Weight of the complexity at which the network of a hypernetwork is taken; by default the one
        that the run was scored with.
    onnx
        Whether to write ``network.onnx``; by default where the packages for it are installed.
    net
        The network, if the run was made with a network object.
    dataset
        The data, if the run was made from arrays.
    """
    directory = RunDirectory(run)
    has_onnx = all(importlib.util.find_spec(name) for name in PACKAGES)
    if onnx and not has_onnx:
        raise CompressionError(
            f"network.onnx needs {' and '.join(PACKAGES)}: pip install 'pyro-zoo[onnx]'."
        )
    fitted = read_fitted(run, net=net)
    if dataset is None and fitted.config.data is None:
        raise CompressionError("this run was made from arrays: pass them as dataset=.")
    data, validation = run_data(fitted.config, dataset)
    if complexity is not None:
        fitted = fitted.at(complexity, data)
    metrics = {} if complexity is not None else directory.read_json(store.METRICS)
    parts = {name: name.split(".") for name in metrics}
    known = {p[1]: metrics[k] for k, p in parts.items() if p[0] == "test" and len(p) == 2}
    with directory.locked():
        compression = compress_fit(
            fitted,
            data,
            threshold=threshold,
            tolerance=tolerance,
            bits=bits,
            validation=validation,
            posterior_scores=known or None,
        )
        compression.save(directory.path / store.COMPRESSED, onnx=has_onnx if onnx is None else onnx)
        directory.write_json(store.COMPRESSION, compression.summary)
    write_report(directory)
    return compression
