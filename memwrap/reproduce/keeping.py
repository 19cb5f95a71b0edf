"""Keeps what comes of runs, on a disk that may be full."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memwrap.errors import SaveError
from memwrap.reproduce.records import Failure, Record, append


@dataclass
class Keeper:
    """Adds entries to a file of records; those that it has no room for to another, where there may be some.

    Runs that were trained side by side are there at once, and must not be lost with the first that cannot be written.
    """

    records: Path
    failed: SaveError | None = None
    elsewhere: Path | None = None  # the other file, once it is needed
    rescued: int = 0  # entries in it

    def keep(self, entry: Record | Failure) -> None:
        """Add it to the records, or to what lies elsewhere; a SaveError if neither has room."""
        if self.failed is None:
            try:
                append(self.records, entry)
                return
            except SaveError as error:
                self.failed = error
        self.elsewhere = self.elsewhere or self._new_file()
        append(self.elsewhere, entry)
        self.rescued += 1

    @property
    def files(self) -> list[Path]:
        """Those that hold something."""
        found = [self.records, *([self.elsewhere] if self.elsewhere and self.rescued else [])]
        return [path for path in found if path.exists()]

    def check(self) -> None:
        """A SaveError that says where entries are instead, if it came to that."""
        if self.failed is not None:
            raise SaveError(
                f"{self.failed}; entries of the last runs ({self.rescued}) are in {self.elsewhere} instead: make room, "
                f"and give that file, too: --records {self.records} --records {self.elsewhere}"
            ) from self.failed

    def _new_file(self) -> Path:
        try:
            number, name = tempfile.mkstemp(prefix="memwrap-records-", suffix=".jsonl")
        except OSError as error:
            raise SaveError(f"{self.failed}; nor can it be kept elsewhere ({error})") from error
        os.close(number)
        return Path(name)
