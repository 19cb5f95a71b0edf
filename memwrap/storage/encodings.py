"""A cache of encodings on disk: an image that an encoder has seen before is not encoded again.

One SQLite file for each encoder, which several processes may use at a time. It can be removed whenever one likes.
"""

import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from memwrap.errors import MemwrapWarning, brief
from memwrap.storage.files import make_folder

FILE_LIMIT = 1 << 30  # bytes of a file: from there on, its older half is dropped
BUSY_SECONDS = 30.0  # to wait for another process that writes
AT_ONCE = 500  # encodings looked up by one statement


class EncodingCache:
    """Encodings (D,), float32, by the digest of their image. key: names the encoder, and all that it depends on.

    Whatever goes wrong with the file, images are encoded as if there were none, with a warning.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / f"{key}.sqlite"

    def find(self, digests: Sequence[bytes], length: int) -> dict[bytes, Tensor]:
        """The encodings of this length that are there, by digest."""
        with self._tolerant():
            if self.path.exists():
                return self._find(digests, length)
        return {}

    def _find(self, digests: Sequence[bytes], length: int) -> dict[bytes, Tensor]:
        found: dict[bytes, Tensor] = {}
        with self._open() as database:
            # Another process may have just made the file.
            if not database.execute("SELECT name FROM sqlite_master WHERE name = 'encodings'").fetchall():
                return {}
            for start in range(0, len(digests), AT_ONCE):
                part = digests[start : start + AT_ONCE]
                marks = ",".join("?" * len(part))
                rows = database.execute(f"SELECT digest, encoding FROM encodings WHERE digest IN ({marks})", part)
                for digest, content in rows:
                    if not isinstance(content, bytes) or len(content) != length * torch.float32.itemsize:
                        continue
                    encoding = torch.frombuffer(bytearray(content), dtype=torch.float32)
                    if bool(encoding.isfinite().all()):
                        found[digest] = encoding
        return found

    def add(self, encodings: Mapping[bytes, Tensor]) -> None:
        """Keep encodings (D,) by the digest of their image."""
        rows = [(digest, each.detach().cpu().float().numpy().tobytes()) for digest, each in encodings.items()]
        with self._tolerant():
            make_folder(self.path.parent)
            with self._open() as database:
                database.execute("CREATE TABLE IF NOT EXISTS encodings (digest BLOB PRIMARY KEY, encoding BLOB)")
                database.executemany("INSERT OR REPLACE INTO encodings VALUES (?, ?)", rows)
                if _bytes_used(database) > FILE_LIMIT:
                    database.execute(
                        "DELETE FROM encodings WHERE rowid IN "
                        "(SELECT rowid FROM encodings ORDER BY rowid LIMIT (SELECT COUNT(*) / 2 FROM encodings))"
                    )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The database, in one transaction."""
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as database, database:
            yield database

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            message = f"{self.path}: the cache of encodings cannot be used ({brief(error)}); images are encoded again"
            warnings.warn(message, MemwrapWarning, stacklevel=4)


def _bytes_used(database: sqlite3.Connection) -> int:
    """Without the pages that what was dropped has left, which are used again: the file never shrinks."""
    pages, free, size = (
        int(database.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
