"""The one door: which name or path leads where, and what comes out at which size."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from memwrap.data import published, sources
from memwrap.data.dataset import DataSet, InMemoryImages, LabelledImages
from memwrap.data.progress import Report
from memwrap.data.published import CINIC10, PUBLISHED
from memwrap.data.sources import default_root, open_data
from memwrap.errors import DataError

OPTIONS = {
    "size": None,
    "fit": "crop",
    "channels": 3,
    "skip_bad": False,
    "workers": 0,
    "hold_bytes": 1 << 30,
    "least_classes": 2,
    "progress": None,
}


class FolderReader:
    """Stands in for `read_folder`: keeps what it was called with, and gives back two images."""

    def __init__(self) -> None:
        self.calls: list[tuple[Path, dict[str, Any]]] = []
        self.classes: tuple[str, ...] = ("cat", "dog")

    def __call__(self, path: Path, **options: Any) -> DataSet:
        self.calls.append((path, options))
        if options["progress"]:
            options["progress"](2, 2)
        return DataSet(str(path), self.classes, two_images(options["size"] or 32), None, "print", {"kind": "folder"})


def two_images(size: int) -> LabelledImages:
    pixels = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    return LabelledImages(InMemoryImages(pixels), torch.tensor([0, 1]), ("cat/a.png", "dog/b.png"))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> FolderReader:
    replacement = FolderReader()
    monkeypatch.setattr(sources, "read_folder", replacement)
    return replacement


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has an empty working directory, and its own home and data folders."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "data"))


def all_pixels(split: LabelledImages) -> torch.Tensor:
    return next(split.images.batches([torch.arange(len(split))]))


# Names and paths


def test_every_published_name_leads_to_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str, *arguments: Any) -> DataSet:
        assert arguments[:1] == (() if name == "digits" else (tmp_path / "data",))
        return DataSet(name, (), two_images(32), None, "", {"root": None})

    for name in PUBLISHED:
        monkeypatch.setattr(published, name, lambda *arguments, name=name: named(name, *arguments))
    assert [open_data(name).name for name in PUBLISHED] == list(PUBLISHED)


@pytest.mark.parametrize("source", ["pictures", "./pictures", "pictures.zip"])
def test_another_name_is_the_path_of_a_folder_or_zip(source: str, reader: FolderReader) -> None:
    Path("pictures").mkdir()
    Path("pictures.zip").touch()
    open_data(source)
    assert reader.calls == [(Path(source), OPTIONS)]


def test_options_reach_the_reader_of_folders(reader: FolderReader) -> None:
    Path("pictures").mkdir()
    given = {"size": 64, "fit": "pad", "channels": 1, "skip_bad": True, "workers": 3, "hold_bytes": 5}
    given |= {"least_classes": 1}
    open_data("pictures", **given)  # type: ignore[arg-type]
    assert reader.calls == [(Path("pictures"), {**given, "progress": None})]


def test_a_tilde_is_the_home_folder(tmp_path: Path, reader: FolderReader) -> None:
    (tmp_path / "home" / "pictures").mkdir(parents=True)
    open_data("~/pictures")
    assert reader.calls[0][0] == tmp_path / "home" / "pictures"


def test_a_published_name_wins_over_a_folder_here_which_its_path_still_names(reader: FolderReader) -> None:
    Path("digits").mkdir()
    data = open_data("digits")
    assert len(data.train) == 1797
    assert data.warnings == ("digits is the published data set; to read the local file or folder, give './digits'",)
    assert open_data("./digits").fingerprint == "print"


def test_no_warning_where_nothing_else_has_the_name() -> None:
    assert open_data("digits").warnings == ()


def test_cinic10_is_read_with_the_options_from_its_own_folder_here(reader: FolderReader) -> None:
    Path("cinic10/train").mkdir(parents=True)
    reader.classes = CINIC10
    data = open_data("cinic10", root=Path.cwd(), size=16, workers=2)
    assert reader.calls == [(Path.cwd() / "cinic10", {**OPTIONS, "size": 16, "workers": 2})]
    assert data.name == "cinic10"
    assert not any("published data set" in warning for warning in data.warnings)


def test_cinic10_as_it_is_unpacked_gives_train_and_test_and_leaves_valid_out() -> None:
    for split in ("train", "valid", "test"):
        for number, name in enumerate(CINIC10):
            folder = Path("CINIC-10", split, name)
            folder.mkdir(parents=True)
            Image.new("RGB", (32, 32), (number, len(split), 0)).save(folder / "cifar10-train-1.png")
    for name in ("README.md", "imagenet-contributors.csv", "synsets-to-cifar-10-classes.txt"):
        Path("CINIC-10", name).write_text("as published")
    data = open_data("cinic10", root=Path.cwd())
    assert data.test is not None
    assert data.train.images.shape == data.test.images.shape == (3, 32, 32)
    for split, colour in ((data.train, 5), (data.test, 4)):
        assert split.labels.tolist() == list(range(10))
        assert all_pixels(split)[:, :, 0, 0].tolist() == [[number, colour, 0] for number in range(10)]
    assert (data.record["kind"], data.record["root"]) == ("published", str(Path("CINIC-10").absolute()))
    assert any("valid" in warning for warning in data.warnings)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("cifar-10", "; did you mean 'cifar10'?"),
        ("SVHN", "; did you mean 'svhn'?"),
        ("my pictures", "; check the path"),
    ],
)
def test_what_is_neither_name_nor_path_is_refused_with_the_known_names(source: str, hint: str) -> None:
    message = (
        f"{source!r} is neither a published data set (digits, svhn, cifar10, cinic10) nor a folder or zip "
        f"({Path.cwd() / source} does not exist){hint}"
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        open_data(source)


def test_an_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(DataError, match="'' is neither a published data set"):
        open_data("")


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(DataError, match="size is 0; expected the height and width of images in pixels, at least 1"):
        open_data("digits", size=0)


def test_progress_is_titled_and_reaches_the_reader_of_folders(reader: FolderReader) -> None:
    Path("pictures").mkdir()
    seen: list[object] = []

    @contextmanager
    def progress(title: str) -> Iterator[Report]:
        seen.append(title)
        yield lambda done, total: seen.append((done, total))
        seen.append("end")

    open_data("pictures", progress=progress)
    assert seen == ["reading images", (2, 2), "end"]


# Where published files are kept


@pytest.mark.skipif(sys.platform != "linux", reason="the cache folder of Linux")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MEMWRAP_DATA": "/mnt/data", "XDG_CACHE_HOME": "/cache"}, "/mnt/data"),
        ({"MEMWRAP_DATA": "~/data"}, "{home}/data"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/memwrap"),
        ({"MEMWRAP_DATA": "", "XDG_CACHE_HOME": ""}, "{home}/.cache/memwrap"),
    ],
)
def test_the_default_root_is_memwrap_data_or_the_cache_folder(
    environment: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MEMWRAP_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_root() == Path(expected.format(home=tmp_path / "home"))


def test_an_unknown_home_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", "~somebody-who-is-not-here/data")
    with pytest.raises(DataError, match="~somebody-who-is-not-here/data"):
        default_root()


def test_opening_a_published_data_set_writes_nothing_to_the_working_directory() -> None:
    open_data("digits", size=16)
    assert list(Path().iterdir()) == []


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="File name too long"):
        open_data(str(tmp_path / ("n" * 300)))
