"""memwrap check: what is proved of a run, and what a knowing hand has changed in it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import memwrap
from memwrap.report import read_record
from tests.cli import fails, run, succeeds
from tests.cli.conftest import Trained
from tests.sealing import seal


@pytest.fixture
def copy(trained: Trained, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(trained.run, tmp_path / "run"))


def states(result: Any) -> dict[str, str]:
    return {finding["what"]: finding["state"] for finding in result.json["findings"]}


WHOLE = ("root hash", "tensors", "model", "memory", "data", "splits", "memory images")


def test_a_genuine_run_is_right_in_all_that_is_checked(trained: Trained) -> None:
    result = succeeds("check", trained.run, "--json")
    assert states(result) == dict.fromkeys(WHOLE, "right")
    assert result.json["right"] is True
    assert result.json["root"] == json.loads((trained.run / "model.json").read_text())["root"]
    assert succeeds("check", trained.run, "--expect", result.json["root"]).out.count("right") >= len(WHOLE)


def test_a_report_names_the_hashes_that_check_prints(trained: Trained, tmp_path: Path) -> None:
    succeeds("explain", trained.run, "--shown", 2, "--html", tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text()
    found = succeeds("check", trained.run, "--json").json
    hashes = read_record(page).hashes
    assert (hashes.model, hashes.memory) == (found["model"], found["memory"])
    assert found["memory"] in page


def test_another_root_hash_than_the_expected_one_is_wrong(trained: Trained) -> None:
    result = run("check", trained.run, "--expect", "0" * 64)
    assert result.code == 4
    assert "wrong" in result.out


def test_without_its_data_a_run_is_checked_as_far_as_possible(copy: Path, trained: Trained, tmp_path: Path) -> None:
    record = json.loads((copy / "run.json").read_text())
    record["data"]["source"] = str(tmp_path / "gone")
    (copy / "run.json").write_text(json.dumps(record))
    seal(copy)
    result = succeeds("check", copy, "--json")
    assert states(result)["data"] == "not checked"
    moved = succeeds("check", copy, "--run-data", trained.data, "--json")
    assert states(moved) == dict.fromkeys(WHOLE, "right")


def edit_memory(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    (file,) = folder.glob("memory.*.safetensors")
    tensors = load_file(file)
    change(tensors)
    file.unlink()
    save_file(tensors, file)


def edit_json(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def swap_images(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["images"] = tensors["images"].roll(1, 0)

    edit_memory(folder, change)


def swap_images_with_encodings(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("images", "encodings"):
            tensors[name] = tensors[name].roll(1, 0)

    edit_memory(folder, change)


def swap_labels(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["labels"] = 1 - tensors["labels"]

    edit_memory(folder, change)


def push_background_beyond_black(folder: Path) -> None:
    """Pictures of the memory stay as they are; what the model sees does not, with all that it computes from it."""
    model = memwrap.load(folder)
    memory = model.remembered
    assert memory is not None
    images = model.get_transform()(memory.images)
    images[model.get_transform().invert(images) == 0] -= 20
    model.remember(images, memory.labels)
    changed = {name: tensor.contiguous() for name, tensor in model.remembered.tensors().items()}  # type: ignore[union-attr]
    edit_memory(folder, lambda tensors: tensors.update(changed))


def forget_which_images_are_remembered(folder: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["training"]["remembered"] = None

    edit_json(folder, "model.json", change)


def claim_other_data(folder: Path) -> None:
    edit_json(folder, "run.json", lambda content: content["data"].update(fingerprint="0" * 64))


def rename_memory_images(folder: Path) -> None:
    edit_json(folder, "model.json", lambda content: content["memory_names"].reverse())


def reverse_all_classes(folder: Path) -> None:
    for name in ("run.json", "model.json"):
        edit_json(folder, name, lambda content: content["classes"].reverse())


def change_seed(folder: Path) -> None:
    edit_json(folder, "run.json", lambda content: content["settings"].update(seed=7))


def exchange_test_images(folder: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["train"][0], content["test"][0] = content["test"][0], content["train"][0]

    edit_json(folder, "splits.json", change)


@pytest.mark.parametrize(
    ("forge", "where"),
    [
        (swap_images, "model"),
        (swap_images_with_encodings, "memory images"),
        (swap_labels, "memory images"),
        (push_background_beyond_black, "memory images"),
        (forget_which_images_are_remembered, "memory images"),
        (claim_other_data, "data"),
        (rename_memory_images, "memory images"),
        (reverse_all_classes, "data"),
        (change_seed, "splits"),
        (exchange_test_images, "model"),
    ],
)
def test_what_fits_all_hashes_is_found_all_the_same(forge: Callable[[Path], None], where: str, copy: Path) -> None:
    root = memwrap.runs.open_run(copy).manifest.root
    forge(copy)
    assert run("check", copy).code == 4  # by the hashes
    seal(copy)
    result = run("check", copy, "--json")
    assert result.code == 4
    assert states(result)[where] == "wrong"
    assert result.json["root"] != root


def test_a_model_that_was_saved_without_a_run_is_checked(trained: Trained, tmp_path: Path) -> None:
    memwrap.load(trained.run).save(tmp_path / "model")
    found = states(succeeds("check", tmp_path / "model", "--json"))
    assert found == {**dict.fromkeys(WHOLE[:4], "right"), "data": "not checked"}


def test_a_copy_of_only_the_model_of_a_run_is_checked_and_names_what_is_not_there(copy: Path) -> None:
    for file in copy.iterdir():
        if file.name != "model.json" and file.suffix != ".safetensors":
            file.unlink()
    memwrap.load(copy)
    result = succeeds("check", copy, "--json")
    assert states(result) == {
        **dict.fromkeys(WHOLE[:4], "right"),
        **dict.fromkeys(("documents", "data"), "not checked"),
    }
    (absent,) = (each["detail"] for each in result.json["findings"] if each["what"] == "documents")
    assert "run.json" in absent
    assert "splits.json" in absent


@pytest.mark.parametrize("name", ["run.json", "splits.json"])
def test_a_run_that_lacks_one_of_its_files_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert name in fails(4, "check", copy)


def test_data_that_has_changed_or_is_not_where_it_is_said_to_be_is_wrong(trained: Trained, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(trained.data, tmp_path / "photos"))
    next(changed.rglob("*.png")).unlink()
    for place in (changed, tmp_path / "nowhere"):
        result = run("check", trained.run, "--run-data", place, "--json")
        assert result.code == 4
        assert states(result)["data"] == "wrong"


def test_a_report_of_a_memory_that_pictures_do_not_show_is_refused(copy: Path, tmp_path: Path) -> None:
    succeeds("explain", copy, "--shown", 2, "--html", tmp_path / "before.html")
    push_background_beyond_black(copy)
    seal(copy)
    for act in (("explain", copy, "--html", tmp_path / "why.html"), ("verify", tmp_path / "before.html")):
        assert run(*act).code != 0


def test_a_root_hash_in_capitals_is_the_same(trained: Trained) -> None:
    root = memwrap.runs.open_run(trained.run).manifest.root
    assert root is not None
    succeeds("check", trained.run, "--expect", root.upper())
