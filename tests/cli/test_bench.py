"""memwrap bench: tables for people, a record for scripts, and words for what is missing."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import memwrap.cli.bench as command
from memwrap.reproduce.bench.record import Finding, LeftOut, read
from memwrap.reproduce.bench.words import bytes_shown, seconds_shown
from tests.cli import fails, run, succeeds
from tests.reproduce.bench.test_running import LEFT_OUT, ROW

QUICK = ("bench", "--device", "cpu", "--quick", "--rounds", 1)


def measuring(monkeypatch: pytest.MonkeyPatch, *found: Finding, then: BaseException | None = None) -> None:
    """Nothing is measured; these are found."""

    def findings(*_: object) -> Iterator[Finding]:
        yield from found
        if then is not None:
            raise then

    monkeypatch.setattr(command, "findings", findings)


def test_all_of_it_runs_and_is_shown(tmp_path: Path) -> None:
    result = succeeds(*QUICK, "--out", tmp_path / "bench.json")
    head = result.out.splitlines()[0]
    assert head.startswith("cpu, torch 2.")
    assert ", memwrap " in head
    assert "CPU threads, 20" in head
    for title in ("Training, for each step", "Whole trainings, for each training", "Predicting, for each batch"):
        assert f"\n{title}\n" in result.out
    assert "random pixels" in result.out
    assert "left out: tiny, runs side by side (they need a GPU, and Triton)" in result.out
    assert "measuring steps, tiny ..." in result.err
    record = read(tmp_path / "bench.json")
    assert record.complete
    assert {row.part for row in record.rows} == {"steps", "sizes", "training", "inference", "attention", "memory"}
    assert record.asked["quick"] is True


def test_a_line_has_times_ratio_and_room(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, ROW, LEFT_OUT)
    result = succeeds(*QUICK)
    (line,) = [line for line in result.out.splitlines() if line.startswith("sparsemax")]
    assert " ".join(line.split()) == "sparsemax ours 1 s entmax 4 s 0.250 0.200 to 0.300 4.00 0 MiB"
    assert "left out: a memory of 10 (there is no room)" in result.out
    assert "sparsemax: ours / entmax = 0.250" in result.err


def test_json_is_all_that_is_on_stdout() -> None:
    result = succeeds(*QUICK, "--only", "attention", "--json")
    assert result.json["format"] == "memwrap bench"
    assert result.json["complete"] is True
    assert {row["part"] for row in result.json["rows"]} == {"attention"}
    ratio = result.json["rows"][0]["ratio"]
    assert 0 < ratio["lower"] <= ratio["median"] <= ratio["upper"]


def test_only_what_is_asked_for_is_measured() -> None:
    result = succeeds(*QUICK, "--only", "memory", "--only", "attention", "--encoder", "small", "--json")
    assert {(row["part"], row["encoder"]) for row in result.json["rows"]} == {("attention", None), ("memory", "small")}


def test_missing_packages_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("entmax", "memorywrap"):
        monkeypatch.setitem(sys.modules, name, None)
    result = succeeds(*QUICK, "--only", "attention", "--only", "inference")
    assert "left out: sparsemax beside entmax's (sparsemax cannot be had from entmax (ModuleNotFoundError" in result.out
    assert "pip install memorywrap" in result.out
    assert "Memory Wrap, 8 remembered" in result.out


@pytest.mark.parametrize("broken", ["raise OSError('libcuda.so.1: no such file')", "sparsemax_ = None"])
def test_a_package_that_is_broken_is_said_and_the_rest_measured(
    broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "entmax.py").write_text(broken)
    monkeypatch.delitem(sys.modules, "entmax", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    result = succeeds(*QUICK, "--only", "attention", "--only", "inference")
    assert "left out: sparsemax beside entmax's (sparsemax cannot be had from entmax" in result.out
    assert "Memory Wrap, 8 remembered" in result.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--only", "speed"), "part is 'speed'"),
        (("--encoder", "resnet81"), "encoder is 'resnet81'"),
        (("--device", "tpu"), "device is 'tpu'"),
        (("--rounds", 0), "equal to"),
        (("--side-by-side", 0), "equal to"),
        (("--out", "."), "which is a folder"),
    ],
)
def test_wrong_usage_ends_with_2(flags: tuple[object, ...], words: str) -> None:
    assert words in " ".join(fails(2, "bench", "--quick", *flags).split())


def test_a_place_that_cannot_be_written_shows_itself_before_the_first_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measuring(monkeypatch, then=AssertionError("it was measured"))
    (tmp_path / "file").touch()
    assert "cannot be written" in fails(5, *QUICK, "--out", tmp_path / "file" / "bench.json")


def test_what_was_measured_before_a_stop_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def findings(*_: object) -> Iterator[Finding]:
        yield ROW
        os.kill(os.getpid(), signal.SIGINT)
        yield LeftOut("memory", "never", "never")

    monkeypatch.setattr(command, "findings", findings)
    result = run(*QUICK, "--out", tmp_path / "bench.json")
    assert result.code == 130
    assert f"What was measured so far is in {tmp_path / 'bench.json'}" in result.err
    record = read(tmp_path / "bench.json")
    assert (record.rows, record.left_out, record.complete) == ((ROW,), (), False)


def test_what_was_measured_before_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measuring(monkeypatch, ROW, then=RuntimeError("a kernel failed"))
    assert run(*QUICK, "--out", tmp_path / "bench.json").code == 1
    assert read(tmp_path / "bench.json").rows == (ROW,)


def test_a_record_of_before_stays_until_the_new_one_is_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, meanwhile = tmp_path / "bench.json", tmp_path / "bench.json.part"
    measuring(monkeypatch, ROW)
    succeeds(*QUICK, "--out", out)
    before = out.read_bytes()
    measuring(monkeypatch, ROW, ROW, then=RuntimeError("a kernel failed"))
    result = run(*QUICK, "--out", out)
    assert result.code == 1
    assert f"What was measured so far is in {meanwhile}" in result.err
    assert out.read_bytes() == before
    assert len(read(meanwhile).rows) == 2
    measuring(monkeypatch, ROW, ROW, ROW)
    succeeds(*QUICK, "--out", out)
    assert len(read(out).rows) == 3
    assert not meanwhile.exists()


def test_what_would_not_be_measured_again_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, meanwhile = tmp_path / "bench.json", tmp_path / "bench.json.part"
    measuring(monkeypatch, ROW, replace(ROW, part="memory", encoder="small"))
    succeeds(*QUICK, "--encoder", "small", "--out", out)
    for flags, lost in ((("--only", "memory", "--encoder", "small"), "attention"), ((), "memory of small")):
        message = " ".join(fails(2, *QUICK, *flags, "--out", out).split())
        assert f"{out} has what would not be measured again: {lost}; name another file" in message
    assert len(read(out).rows) == 2
    out.rename(meanwhile)
    assert f"{meanwhile} has what" in " ".join(fails(2, *QUICK, "--out", out).split())


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "which is no file; name one, or take --json" in fails(2, *QUICK, "--out", tmp_path / "pipe")


def test_a_file_that_is_no_record_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measuring(monkeypatch, then=AssertionError("it was measured"))
    (tmp_path / "notes.txt").write_text("precious")
    assert "is no record that this could replace" in fails(2, *QUICK, "--out", tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "precious"


def test_nor_is_one_where_findings_would_be_kept_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measuring(monkeypatch, ROW)
    succeeds(*QUICK, "--out", tmp_path / "bench.json")
    (tmp_path / "bench.json.part").write_text("precious")
    assert "is no record that this could replace" in fails(2, *QUICK, "--out", tmp_path / "bench.json")
    assert (tmp_path / "bench.json.part").read_text() == "precious"


def test_times_and_sizes_are_shown_in_fitting_units() -> None:
    assert [seconds_shown(each) for each in (2e-5, 0.0123, 4.5, 1234.0)] == ["20 µs", "12.3 ms", "4.5 s", "1234 s"]
    assert [bytes_shown(each) for each in (None, 3 * 2**30)] == ["", "3,072 MiB"]
