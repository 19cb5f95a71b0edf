"""File names to classes and splits, by the folders that hold the files."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from memwrap.errors import DataError

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")  # the first that holds labelled images is the test split
LAYOUTS = """expected a folder for each class, or train/ and test/ with these:
  cat/1.jpg          train/cat/1.jpg
  dog/2.jpg          train/dog/2.jpg
                     test/cat/3.jpg"""

# Tells images outside of class folders from other files; in class folders, every file has to be an image.
_IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff"),
    *(".webp", ".avif", ".heic", ".jp2", ".ppm", ".pgm", ".pbm"),
)


@dataclass(frozen=True)
class LabelledFile:
    """The relative name of a file in a class folder, and its class."""

    name: str
    label: int


@dataclass(frozen=True)
class Layout:
    """Classes in natural order, and the files of each split sorted by name."""

    classes: tuple[str, ...]
    train: list[LabelledFile]
    test: list[LabelledFile] | None  # None: there is no test split
    notes: tuple[str, ...]  # how the folders were understood, and what was left out


@dataclass(frozen=True)
class _Folder:
    """A folder, by its path with a trailing "/" ("" for the top), and all files and folders below it, sorted.

    There may be millions of names and many thousands of classes: nothing here looks at every name for every class.
    """

    path: str
    names: Sequence[str]
    folders: Sequence[str]

    @cached_property
    def subfolders(self) -> list[str]:
        """The folders directly in this one, in natural order."""
        start = len(self.path)
        return sorted((folder[start:] for folder in self.folders if folder.find("/", start) < 0), key=natural_key)

    def subfolders_with_files(self) -> set[str]:
        """The folders directly in this one that hold files at any depth."""
        below = (name.removeprefix(self.path) for name in self.names)
        return {name.split("/")[0] for name in below if "/" in name}

    def images(self) -> list[str]:
        """The files directly in this folder that have an image's suffix."""
        start = len(self.path)
        return [name for name in self.names if name.find("/", start) < 0 and name.lower().endswith(_IMAGE_SUFFIXES)]

    def labelled_files(self, classes: Sequence[str]) -> list[LabelledFile]:
        """The files in class folders, at any depth."""
        labels = {folder: label for label, folder in enumerate(classes)}
        below = ((name, name.removeprefix(self.path).split("/")) for name in self.names)
        return [LabelledFile(name, labels[parts[0]]) for name, parts in below if len(parts) > 1]

    def splits(self) -> dict[str, str]:
        """The folders directly in this one by their lower-case names."""
        return {folder.lower(): folder for folder in self.subfolders}

    def has_split_names(self) -> bool:
        """Whether all folders are named as splits; "train" next to "bus" is a class."""
        return TRAIN in self.splits() and self.splits().keys() <= {TRAIN, *TESTS}

    def has_splits(self) -> bool:
        """Whether the folders are splits that hold class folders."""
        if not self.has_split_names() or len(self.splits()) < len(self.subfolders):
            return False
        train = self.open(self.splits()[TRAIN])
        return bool(train.subfolders) and not train.images()

    def open(self, folder: str) -> "_Folder":
        path = f"{self.path}{folder}/"
        after = f"{self.path}{folder}0"  # "0" follows "/"
        names, folders = (
            group[bisect_left(group, path) : bisect_left(group, after)] for group in (self.names, self.folders)
        )
        return _Folder(path, names, folders)


def parse_layout(names: Iterable[str], folders: Iterable[str], least_classes: int = 2) -> Layout:
    """Find classes and splits in the relative names of all files and folders.

    Class folders lie at the top, or in `train` and `test` (or `val`, `valid`, `validation`); one folder may wrap all.
    """
    top = _Folder("", sorted(names), sorted(folders))
    root = _unwrap(top)
    if root.has_splits():
        return _parse_splits(top, root, least_classes)
    if root.has_split_names():
        raise DataError(f"{root.path}{root.splits()[TRAIN]}/ holds images outside of class folders, or none; {LAYOUTS}")
    classes = _find_classes(root, least_classes)
    notes = (*_note_images_outside(top.images()), *_note_possible_splits(root))
    return Layout(classes, root.labelled_files(classes), None, notes)


def natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """A sort key for natural order: "9" before "10"."""
    parts = re.split("([0-9]+)", name)  # text and digits in turn
    # Digits compare by their length first, which no number of digits can overflow.
    numbers = [part.lstrip("0") if place % 2 else part for place, part in enumerate(parts)]
    return [(len(part) if place % 2 else 0, part) for place, part in enumerate(numbers)], name


def _unwrap(folder: _Folder) -> _Folder:
    """The folder that holds classes or splits: this one, or the only one in it if that merely wraps them."""
    while len(folder.subfolders) == 1:
        inner = folder.open(folder.subfolders[0])
        is_class = bool(inner.images()) or not inner.subfolders
        if is_class or (folder.has_splits() and not inner.has_splits()):
            break
        folder = inner
    return folder


def _parse_splits(top: _Folder, root: _Folder, least_classes: int) -> Layout:
    train = root.open(root.splits()[TRAIN])
    classes = _find_classes(train, least_classes)
    test, notes = _find_test_split(root)
    if test is None:
        return Layout(classes, train.labelled_files(classes), None, (*_note_images_outside(top.images()), *notes))
    if unknown := sorted(test.subfolders_with_files() - set(classes), key=natural_key):
        raise DataError(
            f"{test.path} holds classes that are not in the training split: {_list_some(unknown)}; "
            f"remove them there, or add training images; known are {_list_some(classes)}"
        )
    notes = [*_note_images_outside(top.images() + test.images()), *notes]
    return Layout(classes, train.labelled_files(classes), test.labelled_files(classes), tuple(notes))


def _find_test_split(root: _Folder) -> tuple[_Folder | None, list[str]]:
    """The folder of the test split, if there is one, and notes on it and the other folders."""
    folders = [root.open(root.splits()[name]) for name in TESTS if name in root.splits()]
    labelled = [folder for folder in folders if folder.subfolders_with_files()]
    notes = [f"{each.path} is left out: no class folder in it holds images" for each in folders if each not in labelled]
    if not labelled:
        return None, notes
    test, *others = labelled
    if test.path.split("/")[-2].lower() != TESTS[0]:
        notes.append(f"{test.path} is used as the test split, as there is no test/ with images in class folders")
    return test, notes + [f"{folder.path} is left out, as {test.path} is the test split" for folder in others]


def _find_classes(folder: _Folder, least: int) -> tuple[str, ...]:
    classes, filled = folder.subfolders, folder.subfolders_with_files()
    if not filled:
        raise DataError(f"there are no images in class folders; {LAYOUTS}")
    if empty := [name for name in classes if name not in filled]:
        raise DataError(
            f"classes without images: {_list_some(empty)}; add images, or remove the folder (links to folders are not "
            "followed)"
        )
    if len(classes) < least:
        raise DataError(f"there is only one class, {classes[0]!r}; expected at least two, each in its own folder")
    return tuple(classes)


def _note_images_outside(images: list[str]) -> list[str]:
    return [f"left out, as they are in no class folder: {_list_some(images)}"] if images else []


def _note_possible_splits(root: _Folder) -> list[str]:
    """A note if the classes look like splits under other names, such as "training" and "testing"."""
    classes = [root.open(folder) for folder in root.subfolders]
    inner = {tuple(folder.subfolders) for folder in classes}
    if len(inner) > 1 or len(min(inner)) < 2 or any(folder.images() for folder in classes):
        return []
    return [
        f"{_list_some(root.subfolders)} are used as classes, though all hold the same folders "
        f"({_list_some(min(inner))}); if they are splits, name them train and test"
    ]


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
