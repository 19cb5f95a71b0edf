"""From the names of files to classes and splits, by the folders that the files lie in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memwrap.errors import DataError

TRAIN = "train"
TESTS = ("test", "val", "valid", "validation")  # the first that holds labelled images is the test split
LAYOUTS = """expected a folder for each class, or train/ and test/ with these:
  cat/1.jpg          train/cat/1.jpg
  dog/2.jpg          train/dog/2.jpg
                     test/cat/3.jpg"""

# Only to tell images that lie in no class folder from other files; in class folders, all files are meant to be images.
_IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".tif", ".tiff"),
    *(".webp", ".avif", ".heic", ".jp2", ".ppm", ".pgm", ".pbm"),
)


@dataclass(frozen=True)
class Entry:
    """A file that is meant to be an image, and its class."""

    name: str
    label: int


@dataclass(frozen=True)
class Listing:
    """Entries in the order of their names. test is None where there is no test split."""

    classes: tuple[str, ...]
    train: list[Entry]
    test: list[Entry] | None
    notes: tuple[str, ...]  # how the layout was understood, and what was left out


@dataclass(frozen=True)
class _Place:
    """A folder, by its path with "/" at the end ("" for the top), and all that lies in it at any depth."""

    path: str
    names: Sequence[str]
    folders: Sequence[str]

    def subfolders(self) -> list[str]:
        """The folders directly in this one, in natural order."""
        below = (folder.removeprefix(self.path) for folder in self.folders)
        return sorted((folder for folder in below if "/" not in folder), key=natural)

    def images(self) -> list[str]:
        """The files directly in this folder that are called as images are."""
        below = (name for name in self.names if "/" not in name.removeprefix(self.path))
        return [name for name in below if _is_image(name)]

    def into(self, folder: str) -> "_Place":
        path = f"{self.path}{folder}/"
        return _Place(path, _starting(self.names, path), _starting(self.folders, path))


def arranged(names: Iterable[str], folders: Iterable[str], least_classes: int = 2) -> Listing:
    """Classes and splits of files, given by their relative names and those of all folders that hold them.

    Class folders lie at the top, or in `train` and `test` (or `val`, `valid`, `validation`); one folder may wrap all.
    """
    top = _Place("", sorted(names), sorted(folders))
    place = _unwrapped(top)
    if _is_split(place):
        return _split_listing(top, place, least_classes)
    if _has_split_names(place):
        raise DataError(
            f"{place.path}{_splits(place)[TRAIN]}/ holds images outside of class folders, or none; {LAYOUTS}"
        )
    classes = _classes(place, least_classes)
    return Listing(classes, _entries(place, classes), None, (*_note_loose(top.images()), *_note_alike(place)))


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key that sorts names as people do: "9" before "10"."""
    parts = re.split("([0-9]+)", name)  # text and digits by turns
    numbers = [part.lstrip("0") if place % 2 else part for place, part in enumerate(parts)]
    return [(len(part) if place % 2 else 0, part) for place, part in enumerate(numbers)], name


def _unwrapped(place: _Place) -> _Place:
    """The folder that holds classes or splits: this one, or the only one in it where that is but a wrapping."""
    while len(place.subfolders()) == 1:
        inner = place.into(place.subfolders()[0])
        is_class = bool(inner.images()) or not inner.subfolders()
        if is_class or (_is_split(place) and not _is_split(inner)):
            break
        place = inner
    return place


def _is_split(place: _Place) -> bool:
    """Whether the folders here are splits with class folders in them."""
    if not _has_split_names(place) or len(_splits(place)) < len(place.subfolders()):
        return False
    train = place.into(_splits(place)[TRAIN])
    return bool(train.subfolders()) and not train.images()


def _has_split_names(place: _Place) -> bool:
    """Whether all folders here are called as splits are; "train" among other names is a class, next to "bus"."""
    return TRAIN in _splits(place) and _splits(place).keys() <= {TRAIN, *TESTS}


def _splits(place: _Place) -> dict[str, str]:
    """The folders here by their names in small letters."""
    return {folder.lower(): folder for folder in place.subfolders()}


def _split_listing(top: _Place, place: _Place, least_classes: int) -> Listing:
    train = place.into(_splits(place)[TRAIN])
    classes = _classes(train, least_classes)
    chosen, notes = _test_split(place)
    loose = top.images() + (chosen.images() if chosen else [])
    if chosen:
        _refuse_unknown_classes(chosen, classes)
    test = _entries(chosen, classes) if chosen else None
    return Listing(classes, _entries(train, classes), test, (*_note_loose(loose), *notes))


def _test_split(place: _Place) -> tuple[_Place | None, list[str]]:
    """The folder of the test split, if there is any, and what to say about it and the others."""
    folders = [place.into(_splits(place)[name]) for name in TESTS if name in _splits(place)]
    labelled = [folder for folder in folders if _filled(folder)]
    notes = [
        f"{folder.path} is left out: no class folder in it holds images" for folder in folders if not _filled(folder)
    ]
    if not labelled:
        return None, notes
    chosen, *others = labelled
    if chosen.path.split("/")[-2].lower() != TESTS[0]:
        notes.append(f"{chosen.path} is taken as the test split, as there is no test/ with images in class folders")
    notes += [f"{folder.path} is left out, as {chosen.path} is the test split" for folder in others]
    return chosen, notes


def _classes(place: _Place, least: int) -> tuple[str, ...]:
    classes, filled = place.subfolders(), _filled(place)
    if not filled:
        raise DataError(f"there are no images in class folders; {LAYOUTS}")
    if empty := [folder for folder in classes if folder not in filled]:
        raise DataError(
            f"classes without images: {_some(empty)}; give each images of its own, or remove its folder "
            "(links to folders are not followed)"
        )
    if len(classes) < least:
        raise DataError(
            f"there is one class only, {classes[0]!r}; two are needed at least, each in a folder of its own"
        )
    return tuple(classes)


def _refuse_unknown_classes(test: _Place, classes: tuple[str, ...]) -> None:
    if unknown := sorted(_filled(test) - set(classes), key=natural):
        raise DataError(
            f"{test.path} holds classes that are not in the training split: {_some(unknown)}; "
            f"remove them there, or add training images; known are {_some(classes)}"
        )


def _entries(place: _Place, classes: tuple[str, ...]) -> list[Entry]:
    labels = {folder: label for label, folder in enumerate(classes)}
    below = ((name, name.removeprefix(place.path).split("/")) for name in place.names)
    return [Entry(name, labels[parts[0]]) for name, parts in below if len(parts) > 1]


def _filled(place: _Place) -> set[str]:
    """The folders directly in this one that hold files, at any depth."""
    below = (name.removeprefix(place.path) for name in place.names)
    return {name.split("/")[0] for name in below if "/" in name}


def _note_loose(images: list[str]) -> list[str]:
    if not images:
        return []
    return [f"left out, as they lie in no class folder: {_some(images)}"]


def _note_alike(place: _Place) -> list[str]:
    """A warning where the classes look like splits under other names, such as "training" and "testing"."""
    classes = [place.into(folder) for folder in place.subfolders()]
    inner = {tuple(folder.subfolders()) for folder in classes}
    if len(inner) > 1 or len(min(inner)) < 2 or any(folder.images() for folder in classes):
        return []
    return [
        f"{_some(place.subfolders())} are taken as classes, though all hold the same folders ({_some(min(inner))}); "
        "if they are splits, call them train and test"
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _starting(names: Sequence[str], path: str) -> list[str]:
    return [name for name in names if name.startswith(path)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(_IMAGE_SUFFIXES)
