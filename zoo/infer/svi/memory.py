"""Keep freed memory for the next step instead of returning it to the system.

Training steps allocate and free the same large blocks. glibc returns them to the kernel, which
clears every page before handing it out again; this takes up to a fifth of the time of a step.
Accelerators have their own caching allocators.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

#: Settings of glibc, from malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
#: Blocks up to this size come from the heap, and the heap is never trimmed.
KEPT_BLOCK, KEPT_HEAP = 2**30, 2**31 - 1
#: Upper limit of glibc's automatic adjustment of the two settings.
USUAL_BLOCK, USUAL_HEAP = 2**25, 2**26


@contextlib.contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory within the context, and return it to the system at the end.

    Does nothing if the C library is not glibc.
    """
    library = _glibc()
    if library is None:
        yield
        return
    _set_thresholds(library, KEPT_BLOCK, KEPT_HEAP)
    try:
        yield
    finally:
        _set_thresholds(library, USUAL_BLOCK, USUAL_HEAP)
        library.malloc_trim(0)


def _set_thresholds(library: Any, block: int, heap: int) -> None:
    library.mallopt(MMAP_THRESHOLD, block)
    library.mallopt(TRIM_THRESHOLD, heap)


def _glibc() -> Any:
    """Return the C library of this process if it is glibc."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it
    except (OSError, TypeError, AttributeError):
        return None
    return library
