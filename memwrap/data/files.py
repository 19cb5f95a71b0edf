"""Single image files, read for prediction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from memwrap.data.containers import Folder
from memwrap.data.decoding import decode_image
from memwrap.errors import DataError, InputError


@dataclass(frozen=True)
class UnreadableFile:
    """A file that could not be read as an image, and the reason."""

    path: str
    reason: str


def list_image_files(paths: Iterable[Path]) -> list[Path]:
    """The given files, with each folder replaced by all files in it."""
    files: list[Path] = []
    for path in paths:
        try:
            is_there = path.exists()
        except OSError as error:  # a name that is too long, or a folder on the way that may not be entered
            raise InputError(f"{str(path)[:200]}: cannot be read ({error.strerror}); expected images") from error
        if not is_there:
            raise InputError(f"{path}: there is no such file or folder; expected images")
        files += [path / name for name in Folder(path).names()] if path.is_dir() else [path]
    return files


def read_image_files(
    files: Sequence[Path], shape: tuple[int, int, int], fit: str
) -> tuple[dict[Path, Tensor], list[UnreadableFile]]:
    """The pixels of each file, uint8 of this shape, and the files that could not be read."""
    pixels, unreadable = {}, []
    for file in files:
        try:
            pixels[file] = decode_image(Folder(file.parent).read(file.name), shape, fit)
        except DataError as error:
            unreadable.append(UnreadableFile(str(file), str(error)))
        except MemoryError as error:  # which is not the file's fault
            raise DataError(f"{file}: there is too little memory to decode it; free some") from error
    return pixels, unreadable
