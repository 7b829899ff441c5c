"""`zoo.compress`; its `load` imports only torch and safetensors."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compress import load

if TYPE_CHECKING:
    from zoo.compress.compression import Compression


class Compress:
    """A function that compresses a run, with the attribute `load` for compressed networks."""

    def __call__(self, run: str | Path, **options: Any) -> "Compression":
        """Compress a finished run, see `zoo.workflow.compressing.compress_run`."""
        from zoo.workflow.compressing import compress_run

        return compress_run(run, **options)

    load = staticmethod(load)


compress = Compress()
