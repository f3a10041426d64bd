"""SIGTERM and SIGINT: the first asks to stop, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ASKING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopping_on_signals(stopping: threading.Event, *, kill: Callable[[], None]) -> Iterator[None]:
    """Set `stopping` at the first signal; at the second call `kill`, and end the process as the signal would."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            kill()
            os._exit(128 + number)
        stopping.set()

    before = [signal.signal(number, asked) for number in _ASKING]
    try:
        yield
    finally:
        for number, handler in zip(_ASKING, before, strict=True):
            signal.signal(number, handler)
