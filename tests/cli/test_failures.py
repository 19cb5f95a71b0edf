"""What a failing command prints, and the number that it ends with."""

import errno
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from memwrap import errors
from memwrap.cli import predict as command
from memwrap.cli.failures import CODES, DIFFERENT, INTERRUPTED, UNEXPECTED, report
from tests.cli import Result, environment, program, record, run, run_apart
from tests.cli.conftest import Trained


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SettingsError, 2),
        (errors.InputError, 2),
        (errors.WrapError, 2),
        (errors.DataError, 3),
        (errors.RunError, 4),
        (errors.LoadError, 4),
        (errors.TrainingError, 5),
        (errors.SaveError, 5),
        (errors.NonFiniteError, 5),
        (errors.NoMemoryError, 1),
    ],
)
def test_each_error_has_its_code_and_is_reported_in_its_words(
    error: type[errors.MemwrapError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error("the cat is on the mat"), debug=False) == code
    assert capsys.readouterr().err == "memwrap: the cat is on the mat\n"


def test_the_help_explains_every_code() -> None:
    words = " ".join(run("--help").out.split())
    told = re.search(r"Exit codes: (.*)", words)
    assert told is not None
    codes = {0, UNEXPECTED, DIFFERENT, INTERRUPTED, *CODES.values()}
    assert {int(code) for code in re.findall(r"\b(\d+) ", told[1])} == codes


def test_too_little_memory_on_a_gpu_says_what_to_make_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(torch.OutOfMemoryError("CUDA"), debug=False) == 1
    assert "--batch-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried ..."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a memory object"),
        RuntimeError("could not create a primitive"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object: cannot allocate memory"),
    ],
)
def test_too_little_memory_says_so(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(error, debug=False) == 1
    message = capsys.readouterr().err
    assert "too little memory" in message
    assert "unexpected" not in message
    assert "GPU" not in message


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the address space")
def test_too_little_memory_to_import_torch_says_so(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))"
    result = run_apart("train", "digits", "--out", tmp_path / "run", before=limit)
    assert result.code == 1
    assert "too little memory" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, 2),
        (errno.EPERM, 2),
        (errno.ENAMETOOLONG, 2),
        (errno.ELOOP, 2),
        (errno.ENOTDIR, 2),
        (errno.EROFS, 5),
        (errno.EDQUOT, 5),
        (errno.ENOSPC, 5),
        (errno.EMFILE, 1),
    ],
    ids=errno.errorcode.get,
)
def test_what_the_system_refuses_is_no_surprise(number: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OSError(number, os.strerror(number), "some/path" + 5000 * "x"), debug=False) == code
    message = capsys.readouterr().err
    assert "unexpected" not in message
    assert len(message) < 400
    if number not in (errno.ENOSPC, errno.EMFILE):
        assert message.startswith("memwrap: some/path")
        assert os.strerror(number) in message


TOO_LONG = "x" * 300
COMMANDS = [
    ["train", TOO_LONG, "--out", "new"],
    ["train", "digits", "--out", TOO_LONG],
    ["train", "digits", "--out", "new", "--config", TOO_LONG],
    ["train", "digits", "--out", "new", "--encoder", "timm:test_resnet", "--weights", TOO_LONG],
    ["train", "--resume", "--out", TOO_LONG],
    ["evaluate", TOO_LONG],
    ["evaluate", "RUN", "--data", TOO_LONG],
    ["evaluate", "RUN", "--run-data", TOO_LONG],
    ["predict", TOO_LONG, "image.png"],
    ["predict", "RUN", TOO_LONG],
    ["explain", TOO_LONG, "image.png"],
    ["explain", "RUN", TOO_LONG],
    ["explain", "RUN", "--data", TOO_LONG],
    ["explain", "RUN", "--run-data", TOO_LONG],
    ["explain", "RUN", "--html", f"{TOO_LONG}.html"],
    ["explain", "RUN", "--figure", f"{TOO_LONG}.png"],
    ["verify", TOO_LONG],
    ["demo", "--out", TOO_LONG],
    ["bench", "--quick", "--out", TOO_LONG],
    ["reproduce", "--from-records", "--out", TOO_LONG],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(word[:20] for word in words))
@pytest.mark.parametrize("bad", [TOO_LONG, "/".join(["y"] * 3000), "a\0b"], ids=["name", "path", "nul"])
def test_every_command_names_a_path_that_cannot_be(
    trained: Trained, words: list[str], bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(trained.run) if word == "RUN" else word.replace(TOO_LONG, bad) for word in words]
    result = run(*given)
    assert result.code in (2, 3, 4, 5), result.err
    assert "unexpected" not in result.err
    assert "Traceback" not in result.err


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the reason\nand more")

    monkeypatch.setattr(command, "predict", fail)


def test_a_panic_in_a_library_is_an_error_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As that of pyo3, which safetensors is written with."""

    def panic(*_: object) -> None:
        raise PanicException("PyObject pointer is null")

    monkeypatch.setattr(command, "predict", panic)
    result = run("predict", "run", "image.png")
    assert result.code == 1
    assert result.err.startswith("memwrap: ")
    assert "too little memory" in result.err


def test_an_unexpected_error_is_one_line_that_leads_to_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    result = run("predict", "run", "image.png")
    assert result == Result(1, "", "memwrap: unexpected error, ZeroDivisionError: the reason; --debug shows where\n")


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_debug_shows_the_traceback_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    broken(monkeypatch)
    words = ["predict", "run", "image.png"]
    words.insert(place, "--debug")
    result = run(*words)
    assert result.code == 1
    assert "Traceback (most recent call last)" in result.err
    assert "in fail" in result.err


def test_debug_may_be_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWRAP_DEBUG", "1")
    assert "Traceback" in run("evaluate", "nowhere").err


def test_debug_changes_no_code(trained: Trained) -> None:
    result = run("evaluate", trained.data, "--debug")
    assert result.code == 4
    assert "Traceback" in result.err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["train", "--nonsense"],
        ["train", "data", "--epochs", "many"],
        ["train", "data", "--workers", "-1"],
        ["evaluate"],
        ["predict", "run"],
        ["demo", "--seeds", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(words: list[str]) -> None:
    result = run(*words)
    assert result.code == 2
    assert "Usage: memwrap" in result.err + result.out
    assert "Traceback" not in result.err


@pytest.mark.parametrize("debug", [False, True])
def test_warnings_of_libraries_are_for_those_who_look_for_faults(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, debug: bool
) -> None:
    monkeypatch.setattr(command, "predict", lambda *_: warnings.warn("deep inside", stacklevel=1))
    run("predict", "run", "image.png", *["--debug"] * debug)
    assert [str(each.message) for each in recwarn] == ["deep inside"] * debug


def test_ctrl_c_outside_of_training_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "predict", interrupted)
    assert run("predict", "run", "image.png") == Result(130, "", "memwrap: stopped\n")


def test_what_a_stream_cannot_show_is_written_in_another_way() -> None:
    result = run_apart(
        "predict", "run", "x", before="import memwrap.cli.predict as c; c.predict = lambda *_: print('±')",
        PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert result == Result(0, "\\xb1\n", "")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_when_nobody_reads_the_output_the_command_ends_quietly_and_keeps_its_result(
    trained: Trained, tmp_path: Path, flags: list[str]
) -> None:
    path = Path(shutil.copytree(trained.run, tmp_path / "run"))
    (path / "evaluation.json").unlink()
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        program("evaluate", path, *flags), stdout=write, stderr=subprocess.PIPE, text=True, env=environment()
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "reading images ...\n")
    assert record(path, "evaluation.json") == record(trained.run, "evaluation.json") | {"run": str(path)}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_output_that_cannot_be_written_is_no_success(trained: Trained, flags: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            program("evaluate", trained.run, *flags),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert (ended.returncode, ended.stderr) == (
        5,
        "reading images ...\nmemwrap: there is no space left on the device\n",
    )
