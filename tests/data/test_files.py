"""Image files that people name: themselves, those of a folder, and those that are none."""

from pathlib import Path

import pytest

from memwrap import InputError
from memwrap.data.decoding import decode_image
from memwrap.data.files import UnreadableFile, list_image_files, read_image_files
from tests.cli import picture

SHAPE = (3, 8, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two pictures, one of them deeper, and what is none."""
    picture(tmp_path / "b.png", 0, seed=1)
    picture(tmp_path / "deep" / "a.png", 100, seed=2, size=12)
    (tmp_path / "letter.jpg").write_text("Dear Sir or Madam")
    return tmp_path


def test_folders_stand_for_all_files_in_them_in_the_order_given(folder: Path) -> None:
    files = list_image_files([folder / "deep" / "a.png", folder])
    assert files == [folder / "deep" / "a.png", folder / "b.png", folder / "deep" / "a.png", folder / "letter.jpg"]


def test_what_systems_leave_behind_is_left_out(folder: Path) -> None:
    (folder / "Thumbs.db").touch()
    (folder / ".DS_Store").touch()
    assert len(list_image_files([folder])) == 3


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"none\.png: there is no such file or folder; expected images"):
        list_image_files([folder / "b.png", folder / "none.png"])


def test_good_files_are_read_and_the_bad_ones_kept_apart_with_the_reason(folder: Path) -> None:
    files = list_image_files([folder])
    pixels, unreadable = read_image_files(files, SHAPE, "crop")
    assert list(pixels) == [folder / "b.png", folder / "deep" / "a.png"]
    for file, found in pixels.items():
        assert found.shape == SHAPE
        assert found.equal(decode_image(file.read_bytes(), SHAPE, "crop"))
    assert unreadable == [UnreadableFile(str(folder / "letter.jpg"), "not an image")]


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("shape", [(3, 4, 8), (1, 5, 5)])
def test_a_picture_is_fitted_as_requested(folder: Path, shape: tuple[int, int, int], fit: str) -> None:
    file = folder / "b.png"
    (pixels, _) = read_image_files([file], shape, fit)
    assert pixels[file].equal(decode_image(file.read_bytes(), shape, fit))


def test_files_that_cannot_be_opened_have_a_reason(folder: Path) -> None:
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    (folder / "empty.png").touch()
    (folder / "other").symlink_to(folder / "deep", target_is_directory=True)
    _, unreadable = read_image_files([folder / name for name in ("gone.png", "empty.png", "other")], SHAPE, "crop")
    assert [each.reason for each in unreadable] == [
        "cannot be read: No such file or directory",
        "empty file",
        "a link to a folder, which is not followed",
    ]


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="File name too long"):
        list_image_files([tmp_path / ("n" * 300)])
