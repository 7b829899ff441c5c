"""Handle Ctrl-C between two steps."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopSignal:
    """While active, the first SIGINT or SIGTERM sets `requested`; a second one interrupts at once.

    The loop checks the flag between steps, because an exception during an optimizer step would
    leave parameters partly updated.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
