"""Write a compressed network as ONNX; needs the packages of the extra ``onnx``."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from zoo.compress.graph import LayerGraph
from zoo.compress.loader import INPUT
from zoo.errors import CompressionError
from zoo.fit.store import atomic_path

ONNX_FILE = "network.onnx"
#: Packages needed besides torch.
PACKAGES = ("onnx", "onnxscript")
#: The first version of the operators with Gelu, and a file format that onnxruntime 1.17 reads.
OPSET = 20
IR_VERSION = 9


def write_onnx(graph: LayerGraph, directory: Path) -> Path:
    """Write ``network.onnx``, whose input and output have any number of rows."""
    path = directory / ONNX_FILE
    model = onnx_model(graph)
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return path


def onnx_model(graph: LayerGraph) -> Any:
    """Return the network as an ONNX model in float32."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CompressionError(
            f"ONNX needs the package {missing[0]}: pip install 'pyro-zoo[onnx]'."
        )
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    with _quiet():
        program = torch.onnx.export(
            graph.network(torch.float32),
            (torch.zeros(2, *graph.input.shape),),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=["output"],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
        )
    assert program is not None  # only exports by TorchScript return nothing
    ClearMetadataAndDocStringPass()(program.model)  # stack traces, with the paths of source files
    program.model.ir_version, program.model.producer_name = IR_VERSION, "pyro-zoo"
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of torch about its own deprecated code and about missing torchvision."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
