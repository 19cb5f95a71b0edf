"""SIGINT, SIGTERM and SIGHUP: an exception, or while training a request to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

# A terminal that is closed sends SIGHUP, which Windows does not have.
HANGUP: int | None = getattr(signal, "SIGHUP", None)
SIGNALS = (signal.SIGINT, signal.SIGTERM, *(() if HANGUP is None else (signal.Signals(HANGUP),)))

_received: list[int] = []


def interrupt_on_signals() -> None:
    """Make the signals raise KeyboardInterrupt."""

    def interrupt(number: int, frame: object) -> None:
        if number == HANGUP and _received:
            return  # a shell passes on what its terminal has sent already: what ends now may end in order
        _received.append(number)
        raise KeyboardInterrupt

    _received.clear()
    if threading.current_thread() is threading.main_thread():
        for number in _handled_signals():
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
        # A hangup may come twice, and a SIGTERM with it: none of them is impatience.
        if number != HANGUP and any(each != HANGUP for each in received):
            raise KeyboardInterrupt
        received.append(number)
        # Not through rich or Python's buffers: the signal may have interrupted either while it held a lock.
        if len(received) == 1:
            with suppress(OSError):
                os.write(2, message)

    before = {number: signal.signal(number, note) for number in _handled_signals()}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handled_signals() -> list[signal.Signals]:
    """The signals to handle: all but a SIGHUP that is ignored, as nohup arranges it."""
    return [number for number in SIGNALS if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN]
