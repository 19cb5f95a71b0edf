"""Own images as a data set: what was done to them, what was left out, and what makes a result doubtful."""

import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from memwrap.data import folders
from memwrap.data.dataset import InMemoryImages, LabelledImages
from memwrap.data.folders import read_folder
from memwrap.data.streaming import StreamedImages
from memwrap.errors import DataError

Files = dict[str, bytes]


def picture(level: int, width: int = 8, height: int = 8, mode: str = "RGB", kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (level, level, level)).convert(mode).save(file, kind)
    return file.getvalue()


def split_files() -> Files:
    return {
        "train/cat/1.png": picture(10),
        "train/cat/2.png": picture(20, 16, 8),
        "train/dog/1.png": picture(30, 16, 16, "L"),
        "test/cat/1.png": picture(40),
        "test/dog/1.png": picture(50),
    }


def two_classes() -> Files:
    return {
        f"{name}/{number}.png": picture(number + shift)
        for name, shift in (("cat", 0), ("dog", 9))
        for number in range(3)
    }


def folder_of(path: Path, files: Files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def zip_of(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture(params=["folder", "zip"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Files], Path]:
    """Stores files in a folder or zip."""
    if request.param == "folder":
        return lambda files: folder_of(tmp_path / "photos", files)
    return lambda files: zip_of(tmp_path / "photos.zip", files)


def pixels(images: LabelledImages) -> Tensor:
    return torch.cat(list(images.images.batches([torch.arange(len(images))])))


def test_a_data_set_has_its_images_in_order_with_labels_and_names(stored: Callable[[Files], Path]) -> None:
    path = stored(split_files())
    data = read_folder(path, size=8)
    assert data.name == str(path)
    assert data.classes == ("cat", "dog")
    assert data.train.names == ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png")
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.train.labels.dtype == torch.int64
    assert pixels(data.train).shape == (3, 3, 8, 8)
    assert [image.unique().tolist() for image in pixels(data.train)] == [[10], [20], [30]]
    assert data.test is not None
    assert data.test.labels.tolist() == [0, 1]
    assert [image.unique().tolist() for image in pixels(data.test)] == [[40], [50]]
    assert data.warnings == ()


def test_the_record_describes_the_conversion(stored: Callable[[Files], Path]) -> None:
    path = stored(split_files())
    record = read_folder(path, size=8).record
    assert json.loads(json.dumps(record)) == {
        "kind": "zip" if path.suffix else "folder",
        "path": str(path),
        "size": [8, 8],
        "channels": 3,
        "fit": "crop",
        "adjusted": {"as they were": 3, "cropped": 1, "scaled": 1},
        "modes": {"RGB": 4, "L": 1},
        "left_out": {},
        "held": True,
        "notes": [],
    }
    assert read_folder(path, size=8, fit="pad").record["adjusted"]["padded"] == 1
    assert read_folder(path, size=8, fit="stretch").record["adjusted"]["stretched"] == 1


def test_the_recorded_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "photos", two_classes())
    monkeypatch.chdir(tmp_path)
    assert read_folder(Path("photos")).record["path"] == str(tmp_path / "photos")


def test_one_channel_gives_gray_images(tmp_path: Path) -> None:
    data = read_folder(folder_of(tmp_path, two_classes()), channels=1)
    assert data.train.images.shape == (1, 8, 8)


def test_without_a_size_the_median_shorter_side_is_used(tmp_path: Path) -> None:
    sizes = [(10, 40), (50, 12), (90, 90)]
    files = {f"cat/{width}.png": picture(width, width, height) for width, height in sizes}
    folder_of(tmp_path, files | {"dog/1.png": picture(1, 11, 11), "dog/2.png": picture(2, 30, 30)})
    assert read_folder(tmp_path).record["size"] == [12, 12]


def test_the_size_that_is_chosen_has_a_limit_and_one_that_is_given_has_none(tmp_path: Path) -> None:
    folder_of(tmp_path, {"cat/1.png": picture(1, 90, 90), "dog/1.png": picture(2, 90, 90)})
    assert read_folder(tmp_path).record["size"] == [64, 64]
    assert read_folder(tmp_path, size=80).record["size"] == [80, 80]


def test_the_size_is_chosen_from_images_all_over_the_training_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"train/cat/{number}.png": picture(number, 6, 6) for number in range(10)}
    files |= {f"train/dog/{number}.png": picture(50 + number, 9, 9) for number in range(20)}
    folder_of(tmp_path, files | {f"test/cat/{number}.png": picture(99, 30, 30) for number in range(40)})
    monkeypatch.setattr(folders, "AUTO_SIZE_SAMPLE", 3)
    assert read_folder(tmp_path).record["size"] == [9, 9]


def bad_files() -> Files:
    return {
        "cat/empty.png": b"",
        "cat/notes.txt": b"my notes",
        "dog/cut.png": picture(7, 64, 64, kind="BMP")[:-500],
    }


def test_all_bad_files_are_named_with_reasons(stored: Callable[[Files], Path]) -> None:
    path = stored(two_classes() | bad_files())
    with pytest.raises(DataError) as error:
        read_folder(path)
    first, *bad, last = str(error.value).splitlines()
    assert first == f"{path}: 3 of 9 files in class folders cannot be used as images:"
    assert bad[:2] == ["  cat/empty.png: empty file", "  cat/notes.txt: not an image"]
    assert bad[2].startswith("  dog/cut.png: truncated or damaged: ")
    assert "--skip-bad" in last


def test_a_file_that_cannot_be_read_is_bad(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes())
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"cat/gone.png: cannot be read: No such file"):
        read_folder(tmp_path)


@pytest.mark.parametrize(("count", "ending"), [(20, "19.png: empty file"), (21, "  and 1 more")])
def test_of_many_bad_files_twenty_are_named(tmp_path: Path, count: int, ending: str) -> None:
    folder_of(tmp_path, two_classes() | {f"cat/bad{number:02}.png": b"" for number in range(count)})
    with pytest.raises(DataError) as error:
        read_folder(tmp_path)
    lines = str(error.value).splitlines()
    assert len([line for line in lines if "empty file" in line]) == 20
    assert lines[-2].endswith(ending)


@pytest.mark.parametrize("hold_bytes", [1 << 30, 0])
def test_bad_files_are_left_out_on_request_and_recorded(stored: Callable[[Files], Path], hold_bytes: int) -> None:
    path = stored(two_classes() | bad_files())
    data = read_folder(path, skip_bad=True, hold_bytes=hold_bytes)
    assert data.record["left_out"].keys() == bad_files().keys()
    assert data.record["left_out"]["cat/notes.txt"] == "not an image"
    assert data.train.names == tuple(two_classes())
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert pixels(data.train)[:, 0, 0, 0].tolist() == [0, 1, 2, 9, 10, 11]
    assert len(data.warnings) == 1
    assert data.warnings[0].startswith("3 files are left out, as they cannot be used as images, such as cat/empty.png")


def test_bad_files_do_not_mix_up_the_splits(tmp_path: Path) -> None:
    folder_of(tmp_path, split_files() | {"train/cat/0.png": b"", "test/cat/0.png": b""})
    data = read_folder(tmp_path, skip_bad=True)
    assert data.test is not None
    assert data.train.names[0] == "train/cat/1.png"
    assert pixels(data.train)[:, 0, 4, 4].tolist() == [10, 20, 30]
    assert pixels(data.test)[:, 0, 4, 4].tolist() == [40, 50]


def test_a_class_without_good_files_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes() | {"fish/1.png": b"", "fish/2.png": b"text"})
    with pytest.raises(DataError, match=r"no training images are left of fish:\n  fish/1.png: empty file"):
        read_folder(tmp_path, skip_bad=True)


def test_a_test_split_without_good_files_is_refused(tmp_path: Path) -> None:
    files = {f"train/{name}": content for name, content in two_classes().items()}
    folder_of(tmp_path, files | {"test/cat/1.png": b""})
    with pytest.raises(DataError, match=r"no test images are left:\n  test/cat/1.png: empty file"):
        read_folder(tmp_path, skip_bad=True)


def test_errors_of_the_layout_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: there is only one class, 'cat'")):
        read_folder(folder_of(tmp_path, {"cat/1.png": picture(1)}))


def test_an_empty_class_folder_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes())
    (tmp_path / "fish").mkdir()
    with pytest.raises(DataError, match="classes without images: fish"):
        read_folder(tmp_path)


def test_a_linked_class_folder_is_not_passed_over(tmp_path: Path) -> None:
    folder_of(tmp_path / "photos", two_classes())
    (tmp_path / "photos" / "fish").symlink_to(folder_of(tmp_path / "fish", {"1.png": picture(1)}))
    with pytest.raises(DataError, match=r"classes without images: fish; .*links to folders are not followed"):
        read_folder(tmp_path / "photos")


def test_notes_on_the_layout_are_warnings(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes() | {"stray.png": picture(1)})
    data = read_folder(tmp_path)
    assert data.warnings == ("left out, as they are in no class folder: stray.png",)
    assert data.record["notes"] == list(data.warnings)


def test_test_images_that_are_training_images_are_counted(tmp_path: Path) -> None:
    train = {f"train/{name}": content for name, content in two_classes().items()}
    leaked = {f"test/cat/{number}.png": picture(number % 3) for number in range(5)}
    again = {"train/cat/again.png": picture(1)}  # the first of equals is named
    folder_of(tmp_path, train | again | leaked | {"test/dog/new.png": picture(200)})
    (warning,) = read_folder(tmp_path).warnings
    assert warning == (
        "5 of 6 test images are training images too, pixel for pixel: train/cat/0.png = test/cat/0.png, "
        "train/cat/1.png = test/cat/1.png, train/cat/2.png = test/cat/2.png"
    )


def test_the_same_picture_in_another_file_format_is_found(tmp_path: Path) -> None:
    train = {f"train/{name}": content for name, content in two_classes().items()}
    folder_of(tmp_path, train | {"test/cat/x.bmp": picture(1, kind="BMP")})
    assert "train/cat/1.png = test/cat/x.bmp" in read_folder(tmp_path).warnings[0]


def test_training_images_with_two_labels_are_counted(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes() | {"dog/x.png": picture(1), "dog/y.png": picture(1), "dog/z.png": picture(9)})
    assert (
        "3 training images have the pixels of one in another class, such as cat/1.png" in read_folder(tmp_path).warnings
    )


def test_copies_are_counted_where_no_test_images_are_set_apart_yet(tmp_path: Path) -> None:
    folder_of(tmp_path / "all", two_classes() | {"cat/x.png": picture(1)})
    (warning,) = read_folder(tmp_path / "all").warnings
    assert warning.startswith("2 images occur more than once, pixel for pixel, such as cat/1.png")
    split = {f"train/{name}": content for name, content in (two_classes() | {"cat/x.png": picture(1)}).items()}
    folder_of(tmp_path / "split", split | {"test/cat/99.png": picture(99)})
    assert read_folder(tmp_path / "split").warnings == ()


def fingerprint(path: Path, **options: object) -> str:
    return read_folder(path, **options).fingerprint  # type: ignore[arg-type]


def test_the_fingerprint_survives_a_copy(tmp_path: Path) -> None:
    folder_of(tmp_path / "a", split_files())
    shutil.copytree(tmp_path / "a", tmp_path / "elsewhere" / "b", copy_function=shutil.copyfile)
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "elsewhere" / "b", hold_bytes=0, workers=2)


def test_the_fingerprint_changes_with_whatever_changes_the_images(tmp_path: Path) -> None:
    files = split_files()
    variants = [
        files,
        files | {"train/cat/1.png": picture(10, 99, 99)},  # another file size
        {name.replace("cat/2", "cat/3"): content for name, content in files.items()},  # another name
        {name.replace("train/cat/2", "train/dog/2"): content for name, content in files.items()},  # another class
        {name.replace("dog", "wolf"): content for name, content in files.items()},  # another class name
        {name.replace("test/dog/1", "train/dog/2"): content for name, content in files.items()},  # another split
    ]
    found = [fingerprint(folder_of(tmp_path / str(number), variant), size=8) for number, variant in enumerate(variants)]
    found += [fingerprint(tmp_path / "0", size=9), fingerprint(tmp_path / "0", size=8, fit="pad")]
    found += [fingerprint(tmp_path / "0", size=8, channels=1)]
    assert len(set(found)) == len(found) == 9


def test_a_file_left_out_is_not_in_the_fingerprint(tmp_path: Path) -> None:
    folder_of(tmp_path / "a", two_classes())
    folder_of(tmp_path / "b", two_classes() | {"cat/bad.png": b""})
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b", skip_bad=True)


def varied_files() -> Files:
    """Noise in many sizes and formats, enough for workers to start."""
    random = np.random.default_rng(0)
    files = {}
    for number in range(290):
        file, kind = io.BytesIO(), ("PNG", "JPEG", "BMP")[number % 3]
        height, width = random.integers(4, 40, 2)
        Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file, kind)
        files[f"{'train' if number < 270 else 'test'}/{'cat' if number % 2 else 'dog'}/{number}"] = file.getvalue()
    return files


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_streamed_images_are_bit_for_bit_those_held(stored: Callable[[Files], Path], fit: str) -> None:
    path = stored(varied_files())
    held = read_folder(path, size=10, fit=fit)
    assert isinstance(held.train.images, InMemoryImages)
    assert held.test is not None
    for workers in (0, 1, 2):
        streamed = read_folder(path, size=10, fit=fit, hold_bytes=290 * 300 - 1, workers=workers)
        assert isinstance(streamed.train.images, StreamedImages)
        assert streamed.test is not None
        assert streamed.record == held.record | {"held": False}
        assert streamed.fingerprint == held.fingerprint
        assert torch.equal(pixels(streamed.train), pixels(held.train))
        assert torch.equal(pixels(streamed.test), pixels(held.test))


def test_exactly_as_many_bytes_as_allowed_are_held(tmp_path: Path) -> None:
    folder_of(tmp_path, split_files())
    assert read_folder(tmp_path, size=2, hold_bytes=5 * 3 * 2 * 2).record["held"]
    assert not read_folder(tmp_path, size=2, hold_bytes=5 * 3 * 2 * 2 - 1).record["held"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0; expected a number of pixels"),
        ({"size": 32.0}, "size is 32.0; expected a number of pixels"),
        ({"size": True}, "size is True; expected a number of pixels"),
        ({"fit": "zoom"}, "fit is 'zoom'; expected one of crop, pad, stretch"),
        ({"channels": 4}, "channels is 4; expected 3"),
        ({"workers": -1}, "workers is -1; expected a number of processes"),
    ],
)
def test_options_are_checked_before_anything_is_read(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read_folder(Path("nowhere"), **options)  # type: ignore[arg-type]


def test_files_with_names_in_no_known_encoding_are_read(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes())
    strange = "cat/caf\udce9.png"  # how Python shows a byte that is not UTF-8
    try:
        (tmp_path / strange).write_bytes(picture(99))
    except OSError:
        pytest.skip("this file system knows no such names")
    data = read_folder(tmp_path)
    assert strange in data.train.names
    json.dumps(data.record)
