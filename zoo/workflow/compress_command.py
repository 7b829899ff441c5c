"""`zoo.compress`, which loads compressed networks with torch and safetensors alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compress import load
from zoo.compress.loader import Network

if TYPE_CHECKING:
    from zoo.compress.compression import Compression


class Compress:
    """Called with a run it compresses it; `load` reads what was compressed."""

    def __call__(self, run: str | Path, **options: Any) -> "Compression":
        """Compress a finished run, see `zoo.workflow.compressing.compress_run`."""
        from zoo.workflow.compressing import compress_run

        return compress_run(run, **options)

    @staticmethod
    def load(path: str | Path) -> Network:
        """Load a compressed network as a torch module, see `zoo.compress.load`."""
        return load(path)


compress = Compress()
