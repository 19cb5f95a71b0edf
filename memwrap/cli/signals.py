"""SIGINT and SIGTERM: an exception, or while training a request to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_received: list[int] = []


def interrupt_on_signals() -> None:
    """Make both signals raise KeyboardInterrupt."""

    def interrupt(number: int, frame: object) -> None:
        _received.append(number)
        raise KeyboardInterrupt

    _received.clear()
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, interrupt)


def interrupt_if_asked() -> None:
    """Raise a KeyboardInterrupt that Python dropped, as it does in destructors and import callbacks."""
    if _received:
        raise KeyboardInterrupt


@contextmanager
def stop_on_signals(message: bytes) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a signal has come; the first one prints `message`, a second interrupts."""
    interrupt_if_asked()
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        # Not through rich or Python's buffers: the signal may have interrupted either while it held a lock.
        with suppress(OSError):
            os.write(2, message)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
