"""Ctrl-C and a polite kill, which are treated alike: as an exception, or while training as a wish to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_received: list[int] = []


def interrupt_on_signals() -> None:
    """From now on, either raises KeyboardInterrupt wherever the program is."""

    def interrupt(number: int, frame: object) -> None:
        _received.append(number)
        raise KeyboardInterrupt

    _received.clear()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, interrupt)


def interrupt_if_asked() -> None:
    """Raise what Python drops where it cannot be raised: in a destructor, or in a callback of its imports."""
    if _received:
        raise KeyboardInterrupt


@contextmanager
def stop_on_signals(say: bytes) -> Iterator[Callable[[], bool]]:
    """Either is noted, and `say` written to stderr; whoever asks learns of it. A second one interrupts."""
    interrupt_if_asked()
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        # Past rich and Python's buffers: this may have interrupted either while it held a lock.
        with suppress(OSError):
            os.write(2, say)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
