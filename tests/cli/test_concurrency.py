"""Several processes at one folder: one trains, the others are refused or read a whole state."""

import subprocess
from pathlib import Path

import pytest

from memwrap.storage import checkpoint
from tests.cli import QUICK, environment, program, record, run, same_weights, succeeds

pytestmark = pytest.mark.slow


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        program(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, message = process.communicate(timeout=120)
    assert "Traceback" not in message
    assert "unexpected" not in message
    return process.returncode, message


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_of_several_that_begin_in_one_folder_one_trains(data: Path, out: Path) -> None:
    flags = (*QUICK, "--no-evaluate")
    ended = [end(each) for each in [start("train", data, "--out", out, *flags) for _ in range(3)]]
    assert sorted(code for code, _ in ended) == [0, 4, 4], ended
    other = out.with_name("other")
    succeeds("train", data, "--out", other, *flags)
    assert same_weights(out, other)
    assert names(out.parent) == ["other", "photos", "run"]


def test_of_several_that_resume_one_trains_and_the_run_is_as_expected(data: Path, out: Path) -> None:
    flags = ("--encoder", "tiny", "--epochs", 40, "--no-evaluate")
    first = start("train", data, "--out", out, *flags, "--checkpoint-seconds", 0)
    while not (out / "metrics.jsonl").exists():
        assert first.poll() is None
    first.kill()
    first.communicate()
    ended = [end(each) for each in [start("train", "--resume", "--out", out, "--no-evaluate") for _ in range(3)]]
    assert {code for code, _ in ended} <= {0, 4}, ended
    assert [code for code, _ in ended].count(0) == 1, ended
    other = out.with_name("other")
    succeeds("train", data, "--out", other, *flags)
    assert same_weights(out, other)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 40
    assert names(out) == names_of_a_run(out)


def names_of_a_run(path: Path) -> list[str]:
    files = [file.name for file in checkpoint.read_manifest(path).files.values()]
    return sorted([*files, "metrics.jsonl", "model.json", "run.json", "splits.json"])


def test_reading_a_run_while_it_is_trained_gives_a_whole_state(data: Path, out: Path) -> None:
    flags = ("--encoder", "tiny", "--epochs", 60, "--no-evaluate", "--checkpoint-seconds", 0)
    training = start("train", data, "--out", out, *flags)
    while not (out / "model.json").exists():
        assert training.poll() is None
    steps = set()
    while training.poll() is None:
        steps.add(checkpoint.read(out)[0]["training"]["progress"]["step"])
    assert end(training)[0] == 0
    assert len(steps) > 5
    assert run("evaluate", out).code == 0


def test_evaluating_twice_at_once_keeps_one_result(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK)
    before = record(out, "evaluation.json")
    assert [end(each)[0] for each in [start("evaluate", out) for _ in range(3)]] == [0, 0, 0]
    assert record(out, "evaluation.json") == before
    assert names(out) == sorted([*names_of_a_run(out), "evaluation.json"])
