"""How long operations report their progress."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

# Called with how much is done and the total, None if unknown.
Report = Callable[[int, int | None], None]

# Called with a title when an operation begins; the context ends with it.
Progress = Callable[[str], AbstractContextManager[Report]]


def track_progress(progress: Progress | None, title: str) -> AbstractContextManager[Report | None]:
    """The context that reports the progress of an operation; it gives None where nobody listens."""
    return nullcontext() if progress is None else progress(title)
