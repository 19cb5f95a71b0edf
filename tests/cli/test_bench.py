"""memwrap bench: tables, a record for scripts, and reports of what is missing."""

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import memwrap.cli.bench as command
from memwrap.reproduce.bench.formatting import format_bytes, format_seconds
from memwrap.reproduce.bench.record import Finding, Skipped, read_bench
from tests.cli import fails, run, succeeds
from tests.reproduce.bench import ROW, SKIPPED

QUICK = ("bench", "--device", "cpu", "--quick", "--rounds", 1)


def measuring(monkeypatch: pytest.MonkeyPatch, *found: Finding, then: BaseException | None = None) -> None:
    """Nothing is measured; these are found."""

    def findings(*_: object) -> Iterator[Finding]:
        yield from found
        if then is not None:
            raise then

    monkeypatch.setattr(command, "measure", findings)


def test_all_of_it_runs_and_is_shown(tmp_path: Path) -> None:
    result = succeeds(*QUICK, "--out", tmp_path / "bench.json")
    head = result.out.splitlines()[0]
    assert head.startswith("cpu, memwrap ")
    assert ", torch 2." in head
    assert "CPU threads, 20" in head
    for title in ("Training, per step", "Whole trainings, per training", "Prediction, per batch"):
        assert f"\n{title}\n" in result.out
    assert "random pixels" in result.out
    assert "skipped: tiny, runs side by side (needs a GPU and Triton)" in result.out
    assert "measuring steps, tiny ..." in result.err
    record = read_bench(tmp_path / "bench.json")
    assert record.complete
    assert {row.part for row in record.rows} == {"steps", "sizes", "training", "inference", "attention", "memory"}
    assert record.asked["quick"] is True


def test_a_line_has_times_ratio_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, ROW, SKIPPED)
    result = succeeds(*QUICK)
    (line,) = [line for line in result.out.splitlines() if line.startswith("sparsemax")]
    assert " ".join(line.split()) == "sparsemax ours 1 s entmax 4 s 0.250 0.200 to 0.300 4.00 0 MiB"
    assert "skipped: a memory of 10 (too large)" in result.out
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


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("entmax", "memorywrap"):
        monkeypatch.setitem(sys.modules, name, None)
    result = succeeds(*QUICK, "--only", "attention", "--only", "inference")
    assert (
        "skipped: sparsemax versus entmax's (sparsemax cannot be imported from entmax (ModuleNotFoundError"
        in result.out
    )
    assert "pip install memorywrap" in result.out
    assert "Memory Wrap, 8 remembered" in result.out


@pytest.mark.parametrize("broken", ["raise OSError('libcuda.so.1: no such file')", "sparsemax_ = None"])
def test_a_package_that_is_broken_is_reported_and_the_rest_measured(
    broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "entmax.py").write_text(broken)
    monkeypatch.delitem(sys.modules, "entmax", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    result = succeeds(*QUICK, "--only", "attention", "--only", "inference")
    assert "skipped: sparsemax versus entmax's (sparsemax cannot be imported from entmax" in result.out
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


def test_a_place_that_cannot_be_written_is_reported_before_the_first_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measuring(monkeypatch, then=AssertionError("it was measured"))
    (tmp_path / "file").touch()
    assert "cannot be written" in fails(5, *QUICK, "--out", tmp_path / "file" / "bench.json")


def test_what_was_measured_before_a_stop_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def findings(*_: object) -> Iterator[Finding]:
        yield ROW
        os.kill(os.getpid(), signal.SIGINT)
        yield Skipped("memory", "never", "never")

    monkeypatch.setattr(command, "measure", findings)
    result = run(*QUICK, "--out", tmp_path / "bench.json")
    assert result.code == 130
    assert f"Finished measurements are in {tmp_path / 'bench.json'}" in result.err
    record = read_bench(tmp_path / "bench.json")
    assert (record.rows, record.left_out, record.complete) == ((ROW,), (), False)


def test_what_was_measured_before_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measuring(monkeypatch, ROW, then=RuntimeError("a kernel failed"))
    assert run(*QUICK, "--out", tmp_path / "bench.json").code == 1
    assert read_bench(tmp_path / "bench.json").rows == (ROW,)


def test_a_record_of_before_stays_until_the_new_one_is_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, partial = tmp_path / "bench.json", tmp_path / "bench.json.part"
    measuring(monkeypatch, ROW)
    succeeds(*QUICK, "--out", out)
    before = out.read_bytes()
    measuring(monkeypatch, ROW, ROW, then=RuntimeError("a kernel failed"))
    result = run(*QUICK, "--out", out)
    assert result.code == 1
    assert f"Finished measurements are in {partial}" in result.err
    assert out.read_bytes() == before
    assert len(read_bench(partial).rows) == 2
    measuring(monkeypatch, ROW, ROW, ROW)
    succeeds(*QUICK, "--out", out)
    assert len(read_bench(out).rows) == 3
    assert not partial.exists()


def test_what_would_not_be_measured_again_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, partial = tmp_path / "bench.json", tmp_path / "bench.json.part"
    measuring(monkeypatch, ROW, replace(ROW, part="memory", encoder="small"))
    succeeds(*QUICK, "--encoder", "small", "--out", out)
    for flags, lost in ((("--only", "memory", "--encoder", "small"), "attention"), ((), "memory of small")):
        message = " ".join(fails(2, *QUICK, *flags, "--out", out).split())
        assert f"{out} holds measurements that would not be repeated: {lost}; name another file" in message
    assert len(read_bench(out).rows) == 2
    out.rename(partial)
    assert f"{partial} holds" in " ".join(fails(2, *QUICK, "--out", out).split())


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "which is not a file; name one, or use --json" in fails(2, *QUICK, "--out", tmp_path / "pipe")


def test_a_file_that_is_no_record_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measuring(monkeypatch, then=AssertionError("it was measured"))
    (tmp_path / "notes.txt").write_text("precious")
    assert "exists and is not a record" in fails(2, *QUICK, "--out", tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "precious"


def test_nor_is_one_where_findings_would_be_kept_partial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measuring(monkeypatch, ROW)
    succeeds(*QUICK, "--out", tmp_path / "bench.json")
    (tmp_path / "bench.json.part").write_text("precious")
    assert "exists and is not a record" in fails(2, *QUICK, "--out", tmp_path / "bench.json")
    assert (tmp_path / "bench.json.part").read_text() == "precious"


def test_times_and_sizes_are_shown_in_fitting_units() -> None:
    assert [format_seconds(each) for each in (2e-5, 0.0123, 4.5, 1234.0)] == ["20 µs", "12.3 ms", "4.5 s", "1234 s"]
    assert [format_bytes(each) for each in (None, 3 * 2**30)] == ["", "3,072 MiB"]
