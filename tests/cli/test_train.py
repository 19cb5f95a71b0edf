"""Training from the command line: what is made, what is said, and what goes where."""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import memwrap
from memwrap.cli import train as train_command
from memwrap.runs.run import open_run
from memwrap.storage import checkpoint
from tests.cli import QUICK, Result, fails, photos, record, run, same_weights, succeeds
from tests.cli.conftest import Trained
from tests.data.test_download import Server
from tests.data.test_download import server as server  # the fixture
from tests.data.test_published import svhn_server as svhn_server  # likewise


def test_a_folder_of_images_becomes_a_run(data: Path, out: Path) -> None:
    result = succeeds("train", data, "--out", out, *QUICK)
    assert record(out)["classes"] == ["cat", "dog"]
    assert record(out)["recipe"] == "default"
    assert record(out, "evaluation.json")["images"] == 4
    assert "evaluated on 4 test images" in result.out
    assert f"the run is in {out}" in result.err


def test_the_log_shows_what_is_trained_and_how_it_continues(data: Path, out: Path) -> None:
    lines = succeeds("train", data, "--out", out, "--encoder", "tiny", "--epochs", "7").err.splitlines()
    assert lines[0] == "reading images ..."
    assert lines[1] == "16 images of 2 classes at 8x8, tiny, memory_wrap, 7 epochs on cpu, recipe default"
    assert "--augment without flip" in lines[2]
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [line.split()[1] for line in epochs] == ["1/7", "7/7"]
    for word in ("loss", "accuracy", "images/s", "left"):
        assert all(word in line for line in epochs)
    assert not any(ord(character) < 32 for line in lines for character in line)


def test_json_on_stdout_is_all_json_and_the_rest_goes_to_stderr(data: Path, out: Path) -> None:
    result = succeeds("train", data, "--out", out, *QUICK, "--json")
    assert result.json["run"] == str(out)
    assert result.json["steps"] == 2
    assert result.json["evaluation"] == record(out, "evaluation.json")
    assert "epoch 2/2" in result.err


def test_the_evaluation_can_be_left_out(data: Path, out: Path) -> None:
    result = succeeds("train", data, "--out", out, *QUICK, "--no-evaluate", "--json")
    assert "evaluation" not in result.json
    assert not (out / "evaluation.json").exists()


def test_without_test_images_nothing_is_evaluated(data: Path, out: Path) -> None:
    result = succeeds("train", data, "--out", out, *QUICK, "--test", "0")
    assert result.out == ""
    assert f"the run is in {out}" in result.err


def test_a_zip_gives_the_same_run_as_its_folder(data: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "photos"), "zip", data)
    for source, out in ((data, "folder"), (archive, "zip")):
        succeeds("train", source, "--out", tmp_path / out, *QUICK, "--no-evaluate")
    assert same_weights(tmp_path / "folder", tmp_path / "zip")


def test_the_same_command_gives_the_same_weights_and_another_seed_gives_others(data: Path, tmp_path: Path) -> None:
    for out, seed in (("one", 0), ("two", 0), ("three", 1)):
        succeeds("train", data, "--out", tmp_path / out, *QUICK, "--no-evaluate", "--seed", seed)
    assert same_weights(tmp_path / "one", tmp_path / "two")
    assert not same_weights(tmp_path / "one", tmp_path / "three")


def test_images_that_are_not_held_in_memory_give_the_same_weights(data: Path, tmp_path: Path) -> None:
    """Both by this process and by workers, which begin with 256 images asked for."""
    for out, flags in (("held", ()), ("alone", ("--hold-mb", 0, "--workers", 0)), ("workers", ("--hold-mb", 0))):
        flags = ("--encoder", "tiny", "--epochs", 20, "--no-evaluate", *flags)
        succeeds("train", data, "--out", tmp_path / out, *flags)
        assert record(tmp_path / out)["data"]["conversion"]["held"] is (out == "held")
    assert same_weights(tmp_path / "held", tmp_path / "alone")
    assert same_weights(tmp_path / "held", tmp_path / "workers")


def test_a_published_name_is_fetched_and_takes_the_papers_recipe(
    svhn_server: Server, tmp_path: Path, out: Path
) -> None:
    """Of which only sizes are changed: the server has six images."""
    sizes = ["--validation", 0, "--batch-size", 2, "--memory-size", 2, "--remember", 2]
    result = succeeds("train", "svhn", "--data-root", tmp_path / "data", "--out", out, *QUICK, *sizes)
    assert record(out)["recipe"] == "svhn"
    assert record(out)["settings"]["mean"] == [0.485, 0.456, 0.406]
    assert "downloading train_32x32.mat ..." in result.err
    assert "evaluated on 3 test images" in result.out
    assert "evaluated on 3 test images" in succeeds("evaluate", out).out, "the run knows where the data lies"


def test_an_embedded_data_set_takes_the_default_recipe(out: Path) -> None:
    succeeds("train", "digits", "--out", out, "--samples", 40, "--epochs", 1, "--no-evaluate")
    assert record(out)["recipe"] == "default"
    assert record(out)["settings"]["encoder"] == "tiny"
    assert "flip" not in record(out)["settings"]["augment"]


def test_a_frozen_encoder_takes_its_recipe(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, "--encoder", "tiny", "--freeze", "--epochs", 1, "--no-evaluate")
    assert record(out)["recipe"] == "frozen"


def test_warnings_about_the_data_come_before_training(data: Path, out: Path) -> None:
    shutil.copy(data / "cat" / "0.png", data / "dog" / "99.png")
    lines = succeeds("train", data, "--out", out, *QUICK).err.splitlines()
    warnings = [line for line in lines if line.startswith("warning:")]
    assert any("2 training images have the pixels of one in another class" in line for line in warnings)
    assert lines.index(warnings[-1]) < next(index for index, line in enumerate(lines) if line.startswith("epoch"))


def test_a_new_folder_may_lie_in_others_that_do_not_exist_yet(data: Path, tmp_path: Path) -> None:
    succeeds("train", data, "--out", tmp_path / "a" / "b" / "run", *QUICK, "--no-evaluate")
    assert (tmp_path / "a" / "b" / "run" / "run.json").exists()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run"]


def test_an_empty_folder_is_taken(data: Path, out: Path) -> None:
    out.mkdir()
    succeeds("train", data, "--out", out, *QUICK, "--no-evaluate")


def test_a_tilde_is_the_home_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    succeeds("train", data, "--out", "~/mine", *QUICK, "--no-evaluate")
    assert (tmp_path / "mine" / "run.json").exists()


def test_a_run_is_not_trained_into(trained: Trained, data: Path) -> None:
    before = record(trained.run, "model.json")
    message = fails(4, "train", data, "--out", trained.run, *QUICK)
    assert "holds a run already; continue it with --resume" in message
    assert "reading" not in message
    assert record(trained.run, "model.json") == before


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_other_things_are_not_trained_into(data: Path, out: Path, kind: str) -> None:
    if kind == "file":
        out.write_text("precious")
    else:
        (out / "precious").mkdir(parents=True)
    assert "exists and is not a run of memwrap" in fails(4, "train", data, "--out", out, *QUICK)
    assert out.read_text() == "precious" if kind == "file" else (out / "precious").exists()


@pytest.mark.parametrize("place", [".", "..", "/"])
def test_the_folder_that_one_stands_in_is_not_replaced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "the current folder" in fails(2, "train", data, "--out", place, *QUICK)


def test_without_a_place_for_the_run_nothing_is_read(data: Path) -> None:
    result = run("train", data)
    message = "memwrap: --out is missing; name the folder of the run, as in --out runs/photos\n"
    assert result == Result(2, "", message)


def test_without_data_nothing_is_trained(out: Path) -> None:
    assert "DATA is missing" in fails(2, "train", "--out", out)


# going on; how a run comes to be stopped is tested in test_signals.py


@pytest.mark.parametrize(
    "words", [["--lr", "0.1"], ["--recipe", "default"], ["--config", "file.yaml"], ["--no-freeze"]]
)
def test_going_on_takes_no_settings(trained: Trained, words: list[str]) -> None:
    message = fails(2, "train", "--resume", "--out", trained.run, *words)
    assert "--resume continues with the settings of the run" in message


def test_a_finished_run_is_not_resumed(trained: Trained) -> None:
    assert "the run is finished" in fails(4, "train", "--resume", "--out", trained.run)


def test_what_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    assert "is not a run" in fails(4, "train", "--resume", "--out", tmp_path / "nowhere")


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands stop after a step, as if by a signal."""
    with monkeypatch.context() as patched:
        patched.setattr(train_command, "stop_on_signals", lambda _: nullcontext(lambda: True))
        yield


def again(result: Result) -> list[str]:
    """The command that a stopped one leaves one with."""
    assert result.code == 130
    assert "everything is saved. Continue with:" in result.err
    name, *words = shlex.split(result.err.splitlines()[-1])
    assert name == "memwrap"
    return words


def test_a_stopped_run_says_how_to_continue(data: Path, tmp_path: Path, stopping: None) -> None:
    out = tmp_path / "my run"
    result = run("train", data, "--out", out, *QUICK)
    assert again(result) == ["train", "--resume", "--out", str(out)]
    assert "stopped after step 1 of 2" in result.err
    assert result.out == ""


def test_what_concerns_the_machine_is_asked_for_again(data: Path, out: Path, stopping: None) -> None:
    own = ["--device", "cpu", "--tensorboard", "--no-evaluate", "--workers", "1", "--json", "--hold-mb", "7"]
    words = again(run("train", data, "--out", out, *QUICK, *own))
    asked = ["train", "--resume", "--out", str(out)]
    assert words[: len(asked)] == asked
    assert sorted(words[len(asked) :]) == sorted(own)


def test_a_run_that_is_not_finished_is_not_evaluated(data: Path, out: Path, stopping: None) -> None:
    run("train", data, "--out", out, *QUICK)
    for command in (["evaluate", out], ["predict", out, data]):
        assert "the run is not finished, 1 steps are done; resume it with: memwrap train" in fails(4, *command)


def test_a_finished_run_is_refused_before_its_images_are_read(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK)
    shutil.rmtree(data)
    assert "nothing to resume" in fails(4, "train", "--resume", "--out", out)


def edit_sessions(path: Path, sessions: list[dict[str, Any]] | None) -> None:
    """Store a run as if it had been trained in these sessions; None: by memwrap 0.1, which recorded none."""
    settings, parts = checkpoint.read(path)
    settings["training"].pop("sessions")
    if sessions is not None:
        settings["training"]["sessions"] = sessions
    open_run(path).write(settings, parts)


def sessions_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = record(path, "model.json")["training"]["sessions"]
    return found


def test_resuming_on_another_device_is_reported(data: Path, out: Path, stopping: None) -> None:
    run("train", data, "--out", out, *QUICK, "--precision", "bf16")
    (here,) = sessions_of(out)
    edit_sessions(out, [here | {"device": "NVIDIA H200"}])
    said = run("train", "--resume", "--out", out).err
    assert "warning: the run was trained on NVIDIA H200 and continues on cpu, slowly, as it is in bf16" in said


@pytest.mark.parametrize(("name", "value"), [("threads", 7), ("torch", "1.0.0"), ("cpu", "ABACUS")])
def test_resuming_in_another_way_is_reported_and_recorded(unfinished: Path, name: str, value: object) -> None:
    (here,) = sessions_of(unfinished)
    edit_sessions(unfinished, [here | {name: value}])
    said = run("train", "--resume", "--out", unfinished).err
    (line,) = [line for line in said.splitlines() if line.startswith("warning: the run was trained")]
    assert f"{value}" in line
    assert f"{here[name]}" in line
    assert sessions_of(unfinished) == [here | {name: value}, here | {"step": 1}]


def test_resuming_in_the_same_way_says_nothing(unfinished: Path) -> None:
    (here,) = sessions_of(unfinished)
    assert here["threads"] == torch.get_num_threads()
    assert "the run was trained" not in run("train", "--resume", "--out", unfinished).err
    assert sessions_of(unfinished) == [here]


def test_a_run_that_does_not_say_in_how_many_threads_it_was_trained_is_resumed(unfinished: Path) -> None:
    (here,) = sessions_of(unfinished)
    edit_sessions(unfinished, None)
    assert "the run was trained" not in run("train", "--resume", "--out", unfinished).err
    assert sessions_of(unfinished) == [here | {"step": 1}]


@pytest.fixture
def unfinished(data: Path, out: Path, stopping: None) -> Path:
    assert run("train", data, "--out", out, *QUICK).code == 130
    return out


def test_going_on_needs_the_data_or_where_it_is_now(unfinished: Path, data: Path, tmp_path: Path) -> None:
    moved = data.rename(tmp_path / "moved")
    message = fails(3, "train", "--resume", "--out", unfinished)
    assert f"no longer at {data}" in message
    assert f"memwrap train DATA --resume --out {unfinished}" in message
    result = run("train", moved, "--resume", "--out", unfinished)
    assert "continuing from step 1 of 2" in result.err
    assert (unfinished / "metrics.jsonl").read_text().count("\n") == 2


def test_a_signal_in_the_last_step_leaves_a_finished_run(unfinished: Path, data: Path) -> None:
    result = run("train", "--resume", "--out", unfinished)
    assert result.code == 130
    assert "stopped after the last step; the run is finished" in result.err
    assert not (unfinished / "evaluation.json").exists()
    succeeds("predict", unfinished, data)


def test_going_on_with_other_data_is_refused(unfinished: Path, data: Path) -> None:
    photos(data, seed=1)
    assert "images were added, removed, changed or renamed since" in fails(3, "train", "--resume", "--out", unfinished)


def test_a_run_can_be_made_again_from_its_record(data: Path, out: Path, tmp_path: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--seed", 3)
    result = succeeds("train", data, "--out", tmp_path / "again", "--config", out / "run.json")
    assert same_weights(out, tmp_path / "again")
    assert "warning" not in result.err


def test_classes_that_a_small_draw_leaves_out_are_named(tmp_path: Path, out: Path) -> None:
    data = photos(tmp_path / "photos", classes=["cat", "dog", "fox"], count=2)
    said = succeeds("train", data, "--out", out, *QUICK, "--test", 1, "--samples", 2).err
    assert "is not trained on: no image of it was drawn" in said
    assert "is not in the test: no image of it was drawn" in said


def test_names_that_are_not_utf_8_serve_for_files_classes_and_folders(data: Path, tmp_path: Path, out: Path) -> None:
    odd = data.rename(tmp_path / os.fsdecode(b"photos-\xe9"))
    (odd / "cat").rename(odd / os.fsdecode(b"ch\xe2t"))
    for number, file in enumerate(sorted((odd / "dog").iterdir())):
        file.rename(file.with_name(os.fsdecode(f"caf{number}".encode() + b"\xe9.png")))
    succeeds("train", odd, "--out", out, *QUICK)
    assert succeeds("evaluate", out, "--json").json["images"] == 4
    assert len(succeeds("explain", out, "--limit", 2, "--json").json) == 2
    assert memwrap.load(out).classes[0] == os.fsdecode(b"ch\xe2t")
