"""The standing attack: some of its cases, and that it finds what it is there to find."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fuzz import shown
from fuzz.campaign import Campaign, Count, table
from fuzz.genuine import Genuine, make
from fuzz.kinds import KINDS
from fuzz.kinds.reports import verify_and_compare
from fuzz.kinds.runs import rehash
from fuzz.sandbox import Case, Limits, Outcome, WrongError, run_case
from memwrap.errors import DataError
from memwrap.report.page import render
from tests.report.forgeries import with_pictures

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cases run in forked processes with limits of Linux")

CASES = 10  # of each kind


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> Genuine:
    return make(tmp_path_factory.mktemp("genuine"))


def outcome_of(target: Callable[[], object], folder: Path, bait: Path | None = None, **limits: float) -> Outcome:
    case = Case(lambda: bool(target()), "a case")
    return run_case(lambda: case, folder, replace(Limits(), **limits), [bait] if bait else [])


@pytest.mark.parametrize("kind", KINDS)
def test_some_cases_of_each_kind_are_refused_or_accepted_and_nothing_else(
    kind: str, genuine: Genuine, tmp_path: Path
) -> None:
    campaign = Campaign(genuine, tmp_path, keep=None)
    count = campaign.run([kind], seed=0, until=time.monotonic() + 600, cases=CASES)[kind]
    assert count.findings == []
    assert count.cases == CASES
    assert count.cases - count.accepted > 0


def test_genuine_files_are_accepted(genuine: Genuine, tmp_path: Path) -> None:
    page = genuine.report("heatmaps").read_text()
    (path := tmp_path / "report.html").write_text(page)
    assert outcome_of(lambda: verify_and_compare(path, genuine.run("digits"), page), tmp_path).accepted


def test_a_case_is_the_same_every_time(genuine: Genuine, tmp_path: Path) -> None:
    for kind, make_case in KINDS.items():
        for number in range(3):
            found = []
            for attempt in ("first", "second"):
                (folder := tmp_path / kind / str(number) / attempt).mkdir(parents=True)
                words = make_case(Random(number), genuine, folder).words
                files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
                found.append((words, [(str(path.relative_to(folder)), path.read_bytes()) for path in files]))
            assert found[0] == found[1], kind


# What a case must not do. Each of these runs in the child.


def hang() -> None:
    time.sleep(60)


def hang_in_native_code() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    time.sleep(60)


def fill_memory() -> None:
    block = bytearray(800 << 20)
    block[:: 1 << 12] = b"x" * len(block[:: 1 << 12])


def write_elsewhere() -> None:
    (Path.cwd().parent / "elsewhere").write_text("x")


def write_above() -> None:
    Path("../elsewhere").write_text("x")


def write_through_a_link() -> None:
    Path("link").symlink_to(Path.cwd().parent)
    os.open("link/elsewhere", os.O_WRONLY | os.O_CREAT)


def make_a_folder_elsewhere() -> None:
    Path("../made").mkdir()


def remove_elsewhere() -> None:
    Path("../not-there").unlink(missing_ok=True)


def connect() -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=1)


def look_a_name_up() -> None:
    socket.getaddrinfo("localhost", 80)


def start_a_program() -> None:
    subprocess.run(["true"], check=False)


def start_a_shell() -> None:
    os.system("true")


def fork() -> None:
    os.fork()


def unpickle() -> None:
    pickle.loads(pickle.dumps(Path))


def run_code_of_its_input() -> None:
    Path("plugin.py").write_text("x = 1")
    exec(compile("x = 1", str(Path("plugin.py").absolute()), "exec"))


def raise_another_error() -> None:
    raise KeyError("x")


def leave() -> None:
    sys.exit(0)


def end_the_process() -> None:
    os._exit(0)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def recurse() -> None:
    recurse()


def confirm_a_forgery() -> None:
    raise WrongError("it shows another picture")


FAULTS = {
    hang: "hangs",
    hang_in_native_code: "hangs",
    fill_memory: "MB",
    write_elsewhere: "writes",
    write_above: "writes",
    write_through_a_link: "writes",
    make_a_folder_elsewhere: "changes",
    remove_elsewhere: "changes",
    connect: "network",
    look_a_name_up: "network",
    start_a_program: "program",
    start_a_shell: "program",
    fork: "program",
    unpickle: "unpickles",
    run_code_of_its_input: "code of its input",
    raise_another_error: "KeyError",
    leave: "SystemExit",
    end_the_process: "ends the process",
    crash: "SIGSEGV",
    recurse: "RecursionError",
    confirm_a_forgery: "WrongError",
}


@pytest.mark.parametrize("target", FAULTS, ids=lambda target: target.__name__)
def test_every_fault_is_found(target: Callable[[], object], tmp_path: Path) -> None:
    (folder := tmp_path / "case").mkdir()
    # Of this process the child has everything but mapped files, so what it may take is counted from there.
    resident, mapped = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    used = (resident - mapped) * os.sysconf("SC_PAGESIZE") >> 20
    outcome = outcome_of(target, folder, seconds=2 if "hang" in target.__name__ else 60, megabytes=used + 400)
    assert any(FAULTS[target] in fault for fault in outcome.faults), outcome
    assert [path.name for path in tmp_path.iterdir()] == ["case"]


def test_a_fault_is_found_even_if_its_error_is_caught(tmp_path: Path) -> None:
    def hide_it() -> None:
        try:
            connect()
        except OSError as error:
            raise DataError("the network is not there") from error

    outcome = outcome_of(hide_it, tmp_path)
    assert any("network" in fault for fault in outcome.faults)


def test_an_error_of_memwrap_and_files_in_its_own_folder_are_no_fault(tmp_path: Path) -> None:
    def refuse() -> None:
        Path("own").mkdir()
        Path("own/file").write_text("x")
        Path("own/file").replace("own/other")
        raise DataError("not an image")

    outcome = outcome_of(refuse, tmp_path)
    assert outcome.faults == ()
    assert not outcome.accepted
    assert outcome.message == "not an image"


def test_reading_the_bait_is_found(genuine: Genuine, tmp_path: Path) -> None:
    outcome = outcome_of(genuine.bait.read_bytes, tmp_path, genuine.bait)
    assert any("only its input names" in fault for fault in outcome.faults)


def test_the_bait_runs_when_it_is_unpickled_and_that_is_found(genuine: Genuine, tmp_path: Path) -> None:
    import torch

    outcome = outcome_of(lambda: torch.load(genuine.bait, weights_only=False), tmp_path)
    assert any("unpickles" in fault for fault in outcome.faults)
    assert not (genuine.folder / "bait-was-run").exists()


def test_a_change_by_native_code_is_found(genuine: Genuine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    system = ctypes.CDLL(None).mkdir  # as a decoder would do it: no audit event

    def targets(draw: Random, genuine: Genuine, folder: Path) -> Case:
        return Case(lambda: system(os.fsencode(folder.parent / "stray"), 0o700) == 0, "stray")

    monkeypatch.setitem(KINDS, "images", targets)
    count = Count()
    Campaign(genuine, tmp_path, keep=None).run_one("images", 0, count)
    assert len(count.findings) == 1
    assert "stray" in count.findings[0].faults[0]


def test_findings_are_kept_with_the_command_that_repeats_them(
    genuine: Genuine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(draw: Random, genuine: Genuine, folder: Path) -> Case:
        (folder / "given").write_text("hostile")
        os.mkfifo(folder / "pipe")
        return Case(lambda: bool(1 / 0), "a division")

    monkeypatch.setitem(KINDS, "yaml", broken)
    (cases := tmp_path / "cases").mkdir()
    said: list[str] = []
    campaign = Campaign(genuine, cases, keep=tmp_path / "findings", say=said.append)
    counts = campaign.run(["yaml"], seed=2, until=time.monotonic() + 60, cases=1)
    assert "python -m fuzz --only yaml --case 20000000" in said[0]
    assert "ZeroDivisionError" in said[0]
    assert (tmp_path / "findings" / "yaml-20000000" / "given").read_text() == "hostile"
    assert (tmp_path / "findings" / "yaml-20000000" / "pipe").is_fifo()
    assert list(cases.iterdir()) == []
    assert table(counts).splitlines()[1].split()[-1] == "1"


def test_a_harness_that_fails_is_a_finding(genuine: Genuine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "yaml", lambda *_: 1 / 0)
    count = Count()
    Campaign(genuine, tmp_path, keep=None, say=lambda _: None).run_one("yaml", 0, count)
    assert any("ZeroDivisionError" in fault for fault in count.findings[0].faults)


# Whether a page shows what its run gives.


def test_the_genuine_reports_show_what_their_runs_give(genuine: Genuine) -> None:
    for world in genuine.worlds.values():
        assert shown.differences(world.page, world.source) == []


def test_a_report_on_another_image_is_genuine_too(genuine: Genuine) -> None:
    world = genuine.worlds["digits"]
    page = render(world.record.model_copy(update={"created": "2026-01-01T00:00:00+00:00"}))
    assert page != world.page
    assert shown.differences(page, world.source) == []


@pytest.mark.parametrize("name", ["digits", "photos"])
def test_changed_pictures_numbers_and_words_are_differences(genuine: Genuine, name: str) -> None:
    world = genuine.worlds[name]
    first, *others = world.record.explanations
    other_number = first.model_copy(update={"probability": first.probability + 1e-3})
    memory = [picture for picture in world.record.pictures if picture.startswith("memory")]
    forged = {
        "number in the record": render(world.record.model_copy(update={"explanations": (other_number, *others)})),
        "number on the page": world.page.replace("%", "1%", 1),
        "word": world.page.replace("<h1", "<h1 hidden", 1),
        "style": world.page.replace("</style>", ".unsure{display:none}</style>", 1),
        "picture": with_pictures(world, {memory[0]: world.record.pictures[memory[1]]}),
        "input": with_pictures(world, {"input-1": world.record.pictures["input-2"]}),
    }
    for what, page in forged.items():
        assert page != world.page
        assert shown.differences(page, world.source), what


def test_a_wrongly_confirmed_report_is_found(genuine: Genuine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = genuine.worlds["digits"]
    (path := tmp_path / "report.html").write_text(world.page.replace("<h1", "<h1 hidden", 1))
    monkeypatch.setattr("fuzz.kinds.reports.command", lambda *_: True)  # a verification that confirms everything
    outcome = outcome_of(lambda: verify_and_compare(path, genuine.run("digits"), world.page), tmp_path)
    assert any("WrongError" in fault for fault in outcome.faults)


def test_made_hashes_let_a_changed_run_through_to_what_reads_it(genuine: Genuine, tmp_path: Path) -> None:
    """Otherwise most cases would end at the first hash."""
    import json
    import shutil

    import memwrap

    shutil.copytree(genuine.run("digits"), run := tmp_path / "run")
    manifest = json.loads((run / "model.json").read_text())
    manifest["classes"] = manifest["classes"][::-1]
    (run / "model.json").write_text(json.dumps(manifest))
    rehash(run)
    assert memwrap.load(run).classes == tuple(manifest["classes"])
