"""What tables of measurements say: heads, and a row's times, ratio and room in fitting units."""

from memwrap.reproduce.bench.record import Row
from memwrap.reproduce.bench.timing import Spread

HEADS = (
    "encoder",
    "what",
    "measured",
    "time",
    "beside",
    "its time",
    "ratio",
    "quartiles",
    "times as fast",
)
QUICK = "By --quick: it shows that all works, and little of how fast."
ROOM_HEADS = ("peak memory", "beside it")
TITLES = {
    "steps": "Training",
    "sizes": "Training with memories of several sizes",
    "training": "Whole trainings",
    "inference": "Predicting",
    "attention": "Sparsemax",
    "memory": "Predicting with large memories",
}


def columns_of(row: Row) -> tuple[str, ...]:
    """What stands under `HEADS`."""
    return (
        row.encoder or "",
        row.subject,
        row.name,
        seconds_shown(row.seconds.median),
        row.base,
        seconds_shown(row.base_seconds.median),
        f"{row.ratio.median:.3f}",
        _quartiles(row.ratio),
        f"{1 / row.ratio.median:.2f}",
    )


def room_of(row: Row) -> tuple[str, ...]:
    """What stands under `ROOM_HEADS`."""
    return bytes_shown(row.peak), bytes_shown(row.base_peak)


def _quartiles(spread: Spread) -> str:
    return f"{spread.lower:.3f} to {spread.upper:.3f}"


def seconds_shown(seconds: float) -> str:
    """In the unit that suits it: 12.3 µs, 45.6 ms, 7.89 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def bytes_shown(count: int | None) -> str:
    """In MiB; nothing if nothing was measured."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"
