"""Records: added to by several, read whatever has become of them, and never changed."""

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwrap.errors import RunError, SaveError
from memwrap.reproduce import records
from memwrap.reproduce.grid import Task
from memwrap.reproduce.records import append, as_json, check_writable, from_json, origin_of, read, score
from memwrap.runs.drawn import SUBSET, WHOLE
from memwrap.storage.locks import alone
from memwrap.training.settings import Settings
from tests.reproduce.recorded import TASK, drawn, failed, metrics_for, recorded

STANDARD = Task("svhn", 1000, "mobilenet_v2", "standard", 0, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "records.jsonl"


def seed(number: int) -> Task:
    return replace(TASK, seed=number)


# Written and read


@pytest.mark.parametrize("entry", [recorded(), recorded(STANDARD), failed()], ids=["wrapped", "standard", "failed"])
def test_a_record_comes_back_as_it_was(entry: Any) -> None:
    assert from_json(json.loads(json.dumps(as_json(entry)))) == entry


def test_what_was_added_is_read_in_its_order(path: Path) -> None:
    for number in (2, 0, 1):
        append(path, recorded(seed(number)))
    found = read([path])
    assert list(found.results.values()) == [recorded(seed(number)) for number in (2, 0, 1)]
    assert (found.failures, found.problems) == ((), ())
    assert path.read_bytes().count(b"\n") == 3
    assert [each.name for each in path.parent.iterdir()] == ["records.jsonl"], "no lock is left"


def test_several_may_add_at_the_same_time(path: Path) -> None:
    path.parent.mkdir()
    metrics = metrics_for(TASK, 0.5) | {"long": "x" * 100_000}
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(append, path, recorded(seed(number), metrics=metrics)) for number in range(24)]:
            done.result()
    found = read([path])
    assert sorted(task.seed for task in found.results) == list(range(24))
    assert found.problems == ()


def test_who_adds_waits_for_another_who_does(path: Path) -> None:
    path.parent.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with alone(path):
            adding = pool.submit(append, path, recorded())
            wait([adding], timeout=0.5)
            assert not adding.done()
            assert not path.exists()
        adding.result()
    assert list(read([path]).results) == [TASK]


def test_a_file_that_is_not_there_holds_nothing(path: Path) -> None:
    assert read([path]) == records.Records()


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=re.escape(f"{tmp_path}: cannot be read")):
        read([tmp_path])


def test_a_full_disk_is_told_and_the_next_record_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, recorded(seed(0)))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SaveError, match=r"records.jsonl: the record of svhn-.*-seed1 cannot be written .*No space"):
            append(path, recorded(seed(1)))
    with path.open("rb+") as file:  # what a full disk leaves
        file.truncate(path.stat().st_size - 100)
    append(path, recorded(seed(2)))
    assert [task.seed for task in read([path]).results] == [0, 2]


def test_a_record_that_was_cut_short_does_not_swallow_the_next(path: Path) -> None:
    append(path, recorded(seed(0)))
    append(path, recorded(seed(1)))
    cut = path.read_bytes()[:-200]
    path.write_bytes(cut)
    append(path, recorded(seed(2)))
    assert path.read_bytes().startswith(cut), "nothing is rewritten"
    found = read([path])
    assert [task.seed for task in found.results] == [0, 2]
    (problem,) = found.problems
    assert problem.startswith(f"{path}, line 2: is passed over, as it is damaged or cut short (")


# Damaged


def without(*names: str) -> Callable[[dict[str, Any]], None]:
    def remove(stored: dict[str, Any]) -> None:
        for name in names[:-1]:
            stored = stored[name]
        del stored[names[-1]]

    return remove


def with_value(value: Any, *names: str) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        for name in names[:-1]:
            stored = stored[name]
        stored[names[-1]] = value

    return change


ACCURACY = ("metrics", "drawn", "training_subset", "accuracy", "mean")
TOO_MUCH = {"explanation_accuracy": {"mean": 2.0}}


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        *((without(name), f"as it has no {name}$") for name in ("task", "settings", "images", "subset", "origin")),
        *((without(name), f"as it has no {name}$") for name in ("seconds", "date", "metrics", "outcome")),
        (without("task", "seed"), r"as it has no task\.seed$"),
        (without("settings", "lr"), r"as it has no settings\.lr$"),
        (without("origin", "commit"), r"as it has no origin\.commit$"),
        (without(*ACCURACY), "as it has no metrics: accuracy$"),
        (without("metrics", "drawn"), "as it has no drawn$"),
        (with_value(66.9, *ACCURACY), "as it has 66.9 as accuracy; expected a share from 0 to 1$"),
        (with_value(float("nan"), *ACCURACY), "as it has nan as accuracy; expected a share"),
        (
            with_value(TOO_MUCH, "metrics", "drawn", "published_share"),
            "as it has 2.0 as explanation_accuracy",
        ),
        (with_value("high", *ACCURACY), "as it has 'high' as accuracy; expected a share"),
        (with_value({"accuracy": 0.5}, "metrics", "standard"), "has metrics of another variant than memory_wrap$"),
        (with_value(0.7, *ACCURACY), "has 0.7 as a share that its own parts make 0.6"),
        (with_value(1e10, "seconds", "training"), "has 10000000000.0 seconds of training$"),
        (with_value(2, "format_version"), r"has format version 2; memwrap \S+ reads 1$"),
        (without("format_version"), "has format version None"),
        (with_value("another", "format"), "is no record of memwrap's$"),
        (with_value("lost", "outcome"), "has the outcome 'lost'; expected done or failed$"),
        (with_value([1], "task"), r"is damaged \(TypeError: task is a list\)$"),
        (with_value(7, "date"), r"is damaged \(TypeError: date is a int\)$"),
        (with_value("x", "metrics"), "is damaged"),
        (with_value("wrapped", "task", "variant"), "is damaged .*variant is 'wrapped'"),
        (with_value("much", "settings", "lr"), "is damaged .*lr is 'much'"),
        (with_value(-1, "seconds", "training"), "has -1 seconds of training$"),
        (with_value(1, "task", "colour"), "is damaged .*colour"),
        (with_value([1], "task", "samples"), r"is damaged \(TypeError: task.samples is \[1\]\)$"),
        (with_value({}, "task", "seed"), r"is damaged \(TypeError: task.seed is \{\}\)$"),
        (with_value(123, "origin", "commit"), "is damaged .*origin.commit is 123"),
        (with_value([1], "origin", "versions"), "is damaged .*origin.versions is"),
        (with_value({"torch": None}, "origin", "versions"), "is damaged .*origin.versions is"),
        (with_value("5", "origin", "side_by_side"), "is damaged .*origin.side_by_side is '5'"),
        (with_value(None, "origin", "device"), "is damaged .*origin.device is None"),
        (with_value("many", "images", "training"), "is damaged .*images.training is 'many'"),
        (with_value(None, "images", "fingerprint"), "is damaged .*images.fingerprint is None"),
        (with_value(True, "seconds", "training"), "is damaged .*seconds.training is True"),
        (with_value(10**400, "seconds", "training"), "seconds of training$"),
        (with_value("H\udce9", "origin", "device"), "is damaged or cut short .*UnicodeEncodeError"),
    ],
)
def test_a_damaged_record_is_told_and_passed_over(damage: Callable[..., None], why: str, path: Path) -> None:
    append(path, recorded(seed(0)))
    stored = as_json(recorded(seed(1)))
    stored = json.loads(json.dumps(stored))
    damage(stored)
    with path.open("a") as file:
        file.write(json.dumps(stored) + "\n")
    append(path, recorded(seed(2)))
    before = path.read_bytes()
    found = read([path])
    assert [task.seed for task in found.results] == [0, 2]
    (problem,) = found.problems
    assert problem.startswith(f"{path}, line 2: is passed over, as it ")
    assert re.search(why, problem), problem
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", [b"\x00\xff\xfe", b"{", b"[1, 2]", b"null", b"[" * 100_000, b'{"format": "memwrap'])
def test_lines_that_hold_anything_are_told_and_passed_over(line: bytes, path: Path) -> None:
    append(path, recorded(seed(0)))
    with path.open("ab") as file:
        file.write(b"\n" + line + b"\n\n")
    append(path, recorded(seed(1)))
    found = read([path])
    assert [task.seed for task in found.results] == [0, 1]
    (problem,) = found.problems
    assert problem.startswith(f"{path}, line 3: is passed over")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("epochs", 1, "epochs 1, expected 40"),
        ("lr", 0.2, "lr 0.2, expected 0.1"),
        ("seed", 4, "seed 4, expected 3"),
        ("samples", None, "samples None, expected 1000"),
        ("augment", ["flip"], r"augment \('flip',\), expected \(\)"),
        ("memory", "batch", "memory batch, expected random"),
        ("project", 16, "project 16, expected None"),
    ],
)
def test_a_run_of_other_settings_is_no_part_of_the_paper_s_table(name: str, value: Any, why: str, path: Path) -> None:
    append(path, replace(recorded(), settings=recorded().settings.replace(**{name: value})))
    found = read([path])
    assert found.results == {}
    (problem,) = found.problems
    assert re.search(f"line 1: {TASK.name} is passed over, as it was made by other settings: {why}$", problem)


def test_an_accuracy_that_its_confusions_do_not_have_is_told(path: Path) -> None:
    for accuracy in (0.75, 0.99):
        standard = {"accuracy": accuracy, "confusion": [[2, 1], [0, 1]]}
        append(path, recorded(STANDARD, metrics={"images": 4, "standard": standard}))
    found = read([path])
    assert [record.metrics["standard"]["accuracy"] for record in found.results.values()] == [0.75]
    assert "line 2: is passed over, as it has 0.99 as a share that its own parts make 0.75" in found.problems[0]


def test_all_samples_are_not_any_number_of_them(path: Path) -> None:
    task = replace(TASK, samples=None)
    append(path, recorded(task))
    append(path, replace(recorded(replace(task, seed=4)), settings=recorded().settings.replace(samples=1000, seed=4)))
    assert list(read([path]).results) == [task]


def test_either_precision_will_do(path: Path) -> None:
    append(path, replace(recorded(), settings=recorded().settings.replace(precision="bf16")))
    assert list(read([path]).results) == [TASK]


def test_other_settings_may_be_asked_for(path: Path) -> None:
    settings = recorded().settings.replace(epochs=1)
    append(path, replace(recorded(), settings=settings))
    asked = Settings(**dict(settings))
    assert list(read([path], lambda _: asked).results) == [TASK]


# Merged


def test_two_machines_records_are_merged(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(here, recorded(seed(0), 0.5))
    append(there, recorded(seed(1), 0.7))
    assert read([here, there]).results == {seed(0): recorded(seed(0), 0.5), seed(1): recorded(seed(1), 0.7)}


def test_the_same_results_twice_count_once(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(here, recorded())
    append(there, recorded(date="2027-01-01T00:00:00+00:00"))
    found = read([here, there])
    assert found.results == {TASK: recorded()}
    assert found.problems == ()


def test_of_different_results_of_a_run_the_older_counts_and_that_is_told(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append(here, recorded(accuracy=0.5))
    append(there, recorded(seed(0)))
    append(there, recorded(accuracy=0.9, date="2027-01-01T00:00:00+00:00"))
    for paths in ([here, there], [there, here]):
        found = read(paths)
        assert found.results[TASK] == recorded(accuracy=0.5)
        assert found.problems == (
            f"{there}, line 2: {TASK.name} is passed over, as it is in {here}, line 1, too, with other results; "
            "the older counts",
        )


def test_a_run_on_other_images_is_not_the_same(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    one = recorded(seed(0))
    append(here, one)
    append(there, replace(one, images=replace(one.images, fingerprint="another")))
    (problem,) = read([here, there]).problems
    assert problem.endswith("too, with other images; the older counts")


def test_where_nothing_can_be_written_is_told_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"records cannot be written there .* name another file"):
        check_writable(tmp_path / "file" / "records.jsonl")
    check_writable(tmp_path / "new" / "records.jsonl")
    assert read([tmp_path / "new" / "records.jsonl"]).problems == ()


def test_that_there_is_no_room_is_told_before(path: Path) -> None:
    append(path, recorded(seed(0)))
    resource = pytest.importorskip("resource", reason="needs limits of file sizes, as Unix has them")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python itself ignores the signal that comes with it
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1000, limits[1]))
    try:
        with pytest.raises(SaveError, match="make room, or name another file"):
            check_writable(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check_writable(path)
    assert [task.seed for task in read([path]).results] == [0]


def test_batch_as_memory_is_another_run(path: Path) -> None:
    batch = replace(TASK, memory="batch")
    append(path, recorded(accuracy=0.5))
    append(path, recorded(batch, 0.9))
    found = read([path])
    assert found.results == {TASK: recorded(accuracy=0.5), batch: recorded(batch, 0.9)}


def test_failures_are_kept_apart_until_there_is_a_result(path: Path) -> None:
    append(path, failed(seed(0)))
    append(path, failed(seed(0), "out of memory"))
    append(path, failed(seed(1)))
    append(path, recorded(seed(1)))
    append(path, failed(seed(1), "tried again"))
    found = read([path])
    assert list(found.results) == [seed(1)]
    assert found.failures == (failed(seed(0), "out of memory"),)


# Scores


def test_scores_by_metric_and_source() -> None:
    metrics = {"drawn": {SUBSET: drawn(0.6, 0.9, None), WHOLE: drawn(0.5, 0.8, 0.4)}}
    assert score(metrics, "accuracy") == 0.6
    assert score(metrics, "explanation_accuracy", WHOLE) == 0.8
    assert score(metrics, "counterfactual_accuracy", SUBSET) is None, "no counterfactual was ever on top"
    assert score({"drawn": {SUBSET: drawn(0.6, 0.9, 0.4)}}, "accuracy", WHOLE) is None


def test_without_a_memory_there_is_an_accuracy_and_nothing_else() -> None:
    metrics = metrics_for(STANDARD, 0.4)
    assert score(metrics, "accuracy") == score(metrics, "accuracy", WHOLE) == 0.4
    assert score(metrics, "explanation_accuracy") is None


# The program itself


@pytest.fixture
def _forgotten() -> Any:
    """What is found once is kept; here it changes."""
    records._commit.cache_clear()
    yield
    records._commit.cache_clear()


def test_where_a_run_was_made() -> None:
    origin = origin_of("NVIDIA H200", "graph", 5)
    assert (origin.device, origin.engine, origin.side_by_side) == ("NVIDIA H200", "graph", 5)
    assert {"memwrap", "python", "torch"} <= origin.versions.keys()
    assert re.fullmatch("[0-9a-f]{64}", origin.code)


@pytest.mark.usefixtures("_forgotten")
def test_the_commit_is_that_of_the_repository_that_the_program_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.setattr(records, "_package", lambda: tmp_path)
    git("init")
    git("commit", "--allow-empty", "-m", "of something else")
    assert records._commit() == (None, None), "a package that lies in a repository without being a part of it"
    (tmp_path / "version.py").touch()
    git("add", "version.py")
    git("commit", "-m", "first")
    records._commit.cache_clear()
    assert records._commit() == (git("rev-parse", "HEAD"), False)
    (tmp_path / "new.py").touch()
    records._commit.cache_clear()
    assert records._commit() == (git("rev-parse", "HEAD"), True)


@pytest.mark.usefixtures("_forgotten")
def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert records._commit() == (None, None)
