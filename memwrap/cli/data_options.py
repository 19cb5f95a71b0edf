"""Options for reading image files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwrap.cli.callbacks import reading_bars
from memwrap.cli.terminal import errors


@dataclass(frozen=True)
class DataOptions:
    """root: of published data sets. hold_mb: larger data is read from disk by `workers` processes."""

    root: Path | None
    hold_mb: int
    workers: int

    def options(self) -> dict[str, Any]:
        """Arguments of `open_data`."""
        return {
            "root": self.root,
            "workers": self.workers,
            "hold_bytes": self.hold_mb << 20,
            "progress": reading_bars(errors),
        }
