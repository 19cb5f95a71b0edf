"""Classes and splits from names: the layouts that people have, and clear words for those that cannot be used."""

import re
import time
from pathlib import PurePosixPath

import pytest

from memwrap.data.layout import LabelledFile, Layout, natural_key, parse_layout
from memwrap.errors import DataError


def listed(*names: str, empty: tuple[str, ...] = ()) -> Layout:
    """The listing of these files; the folders are those they lie in, and empty ones."""
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
    return parse_layout(names, folders | set(empty))


def test_class_folders_at_the_top() -> None:
    listing = listed("dog/2.jpg", "cat/1.jpg", "dog/1.jpg")
    assert listing.classes == ("cat", "dog")
    assert listing.train == [LabelledFile("cat/1.jpg", 0), LabelledFile("dog/1.jpg", 1), LabelledFile("dog/2.jpg", 1)]
    assert listing.test is None
    assert listing.notes == ()


def test_train_and_test_with_class_folders() -> None:
    listing = listed("train/cat/1.jpg", "train/dog/2.jpg", "test/dog/3.jpg")
    assert listing.classes == ("cat", "dog")
    assert listing.train == [LabelledFile("train/cat/1.jpg", 0), LabelledFile("train/dog/2.jpg", 1)]
    assert listing.test == [LabelledFile("test/dog/3.jpg", 1)]
    assert listing.notes == ()


def test_train_alone_has_no_test_split() -> None:
    listing = listed("train/cat/1.jpg", "train/dog/2.jpg")
    assert listing.classes == ("cat", "dog")
    assert listing.test is None


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
def test_validation_serves_as_test_where_there_is_none_with_a_note(name: str) -> None:
    listing = listed("train/cat/1.jpg", "train/dog/2.jpg", f"{name}/cat/3.jpg")
    assert listing.test == [LabelledFile(f"{name}/cat/3.jpg", 0)]
    assert [note for note in listing.notes if f"{name}/ is used as the test split" in note]


def test_validation_next_to_test_is_left_out_with_a_note() -> None:
    listing = listed("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg", "test/cat/4.jpg")
    assert listing.test == [LabelledFile("test/cat/4.jpg", 0)]
    assert listing.notes == ("val/ is left out, as test/ is the test split",)


def test_a_test_folder_without_classes_gives_way_with_a_note() -> None:
    listing = listed("train/cat/1.jpg", "train/dog/2.jpg", "test/3.jpg", "valid/cat/4.jpg")
    assert listing.test == [LabelledFile("valid/cat/4.jpg", 0)]
    assert listing.notes[0] == "test/ is left out: no class folder in it holds images"
    assert listed("train/cat/1.jpg", "train/dog/2.jpg", "test/3.jpg").test is None


def test_splits_may_be_written_large() -> None:
    assert listed("Train/cat/1.jpg", "Train/dog/2.jpg", "TEST/dog/3.jpg").test == [LabelledFile("TEST/dog/3.jpg", 1)]


def test_a_class_may_be_called_train() -> None:
    listing = listed("bus/1.jpg", "car/2.jpg", "train/3.jpg", "train/old/4.jpg")
    assert listing.classes == ("bus", "car", "train")
    assert listing.test is None


@pytest.mark.parametrize(
    "names",
    [
        ("train/cat.1.jpg", "train/dog.1.jpg", "test/1.jpg"),
        ("train/cat/1.jpg", "train/dog/2.jpg", "train/stray.jpg", "test/cat/3.jpg"),
        ("train/cat/1.jpg", "Train/dog/2.jpg"),
    ],
)
def test_splits_are_never_mistaken_for_classes(names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=r"rain/ holds images outside of class folders, or none; expected a folder"):
        listed(*names)


def test_folders_that_look_like_splits_under_other_names_are_pointed_out() -> None:
    listing = listed("training/0/1.jpg", "training/1/2.jpg", "testing/0/3.jpg", "testing/1/4.jpg")
    assert listing.classes == ("testing", "training")
    assert len(listing.notes) == 1
    assert "testing, training are used as classes, though all hold the same folders (0, 1)" in listing.notes[0]
    assert listed("cat/small/1.jpg", "dog/large/2.jpg").notes == ()
    assert listed("cat/small/1.jpg", "dog/small/2.jpg").notes == ()


@pytest.mark.parametrize("wrapping", ["photos", "a/b/c", "train", "cat"])
def test_a_folder_around_everything_is_looked_through(wrapping: str) -> None:
    names = ["README.md", f"{wrapping}/labels.csv", f"{wrapping}/train/cat/1.jpg", f"{wrapping}/train/dog/2.jpg"]
    listing = listed(*names, f"{wrapping}/test/dog/3.jpg")
    assert listing.classes == ("cat", "dog")
    assert listing.train[0] == LabelledFile(f"{wrapping}/train/cat/1.jpg", 0)
    assert listing.test == [LabelledFile(f"{wrapping}/test/dog/3.jpg", 1)]
    assert listed("photos/cat/1.jpg", "photos/dog/2.jpg").classes == ("cat", "dog")


def test_subfolders_belong_to_their_class() -> None:
    listing = listed("cat/1.jpg", "cat/train/2.jpg", "dog/a/b/3.jpg")
    assert [entry.label for entry in listing.train] == [0, 0, 1]


def test_every_file_in_a_class_folder_is_meant_to_be_an_image() -> None:
    assert LabelledFile("cat/notes.txt", 0) in listed("cat/notes.txt", "cat/1", "dog/2.jpg").train


def test_files_at_the_top_are_left_out_and_images_among_them_named() -> None:
    assert listed("README.txt", "labels.csv", "cat/1.jpg", "dog/2.jpg").notes == ()
    listing = listed("x.JPG", "README.txt", "cat/1.jpg", "dog/2.jpg")
    assert len(listing.train) == 2
    assert listing.notes == ("left out, as they are in no class folder: x.JPG",)
    split = listed("x.png", "train/cat/1.jpg", "train/dog/2.jpg", "test/y.png", "test/cat/1.jpg")
    assert split.notes == ("left out, as they are in no class folder: x.png, test/y.png",)


def test_classes_are_in_natural_order() -> None:
    names = [f"{name}/1.jpg" for name in ("10", "9", "1", "01", "a10b", "a9c", "a")]
    assert listed(*names).classes == ("01", "1", "9", "10", "a", "a9c", "a10b")


def test_natural_order_bears_names_of_any_length() -> None:
    assert natural_key("9" * 10_000) < natural_key("1" + "0" * 10_000)


@pytest.mark.parametrize("names", [(), ("1.jpg", "2.jpg"), ("README.txt",)])
def test_without_class_folders_the_layouts_are_shown(names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="there are no images in class folders") as error:
        listed(*names)
    assert "  cat/1.jpg          train/cat/1.jpg\n" in str(error.value)


def test_folders_without_any_image_are_no_classes() -> None:
    with pytest.raises(DataError, match="there are no images in class folders"):
        listed(empty=("cat", "dog"))


@pytest.mark.parametrize(
    "names", [("cat/1.jpg", "cat/2.jpg"), ("photos/cat/1.jpg",), ("train/cat/1.jpg", "test/cat/2.jpg")]
)
def test_one_class_is_refused_by_name(names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=re.escape("there is only one class, 'cat'")):
        listed(*names)


@pytest.mark.parametrize(
    "names",
    [
        ("cat/0001", "cat/0002"),
        ("cat/1.jpg", "cat/young/2.jpg", "cat/old/3.jpg"),
        ("train/cat/young/2.jpg", "train/cat/old/3.jpg"),
    ],
)
def test_one_class_is_not_mistaken_for_a_folder_around_classes(names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="only one class, 'cat'"):
        listed(*names)


def test_empty_classes_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="classes without images: dog, fish;"):
        listed("cat/1.jpg", "owl/2.jpg", empty=("fish", "dog", "dog/puppies"))
    with pytest.raises(DataError, match="classes without images: dog;"):
        listed("train/cat/1.jpg", "train/owl/2.jpg", "test/dog/3.jpg", empty=("train/dog",))


def test_a_class_may_be_missing_from_test() -> None:
    assert listed("train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg", empty=("test/dog", "test/fish")).test


def test_a_class_in_test_that_train_lacks_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="test/ holds classes that are not in the training split: fish, owl;"):
        listed("train/cat/1.jpg", "train/dog/2.jpg", "test/cat/3.jpg", "test/owl/4.jpg", "test/fish/5.jpg")


def test_many_classes_take_time_in_proportion() -> None:
    folders = [f"c{number}" for number in range(20000)]
    started = time.process_time()
    found = parse_layout([f"{folder}/x.png" for folder in folders], folders)
    assert time.process_time() - started < 5
    assert len(found.classes) == len(found.train) == 20000


def test_folders_whose_names_begin_alike_are_kept_apart() -> None:
    names = ["a b/1.png", "a/2.png", "a0/3.png", "a-/4.png", "a/b/5.png"]
    found = parse_layout(names, ["a b", "a", "a0", "a-", "a/b"])
    assert set(found.classes) == {"a", "a b", "a-", "a0"}
    assert {file.name: found.classes[file.label] for file in found.train} == {
        name: name.split("/")[0] for name in names
    }
