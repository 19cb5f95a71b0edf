"""How a command reads image files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwrap.cli.callbacks import reading_bars
from memwrap.cli.terminal import errors


@dataclass(frozen=True)
class Reading:
    """root: where published data lies. hold_mb: images that need more memory are streamed, by so many workers."""

    root: Path | None
    hold_mb: int
    workers: int

    def options(self) -> dict[str, Any]:
        """The arguments of `open_data` and of what calls it."""
        return {
            "root": self.root,
            "workers": self.workers,
            "hold_bytes": self.hold_mb << 20,
            "progress": reading_bars(errors),
        }
