"""Memory that threads share, so that many large images at once do not take more than a few of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """An amount of bytes. Each thread takes its part, and waits while others have too much of it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, amount: int) -> Iterator[None]:
        """Hold this amount. One that exceeds the total is held alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken == 0 or self._taken + amount <= self.total)
            self._taken += amount
        try:
            yield
        finally:
            with self._changed:
                self._taken -= amount
                self._changed.notify_all()
