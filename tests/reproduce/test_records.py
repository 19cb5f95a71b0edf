"""Records: appended to by several processes, read whatever their state, and never changed."""

import errno
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwrap.errors import RunError, SaveError
from memwrap.reproduce.record_files import append_record, check_writable
from memwrap.reproduce.records import NEWER_SETTINGS, Records, parse_line, read_records, score, to_json
from memwrap.reproduce.tasks import Task
from memwrap.runs.drawn import SUBSET, WHOLE
from memwrap.storage.locks import exclusive
from memwrap.training.settings import Settings
from tests.reproduce.records import TASK, drawn, failed, metrics_for, recorded

STANDARD = Task("svhn", 1000, "mobilenet_v2", "standard", 0, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "records.jsonl"


def seed(number: int) -> Task:
    return replace(TASK, seed=number)


# Written and read


@pytest.mark.parametrize("entry", [recorded(), recorded(STANDARD), failed()], ids=["wrapped", "standard", "failed"])
def test_a_record_comes_back_as_it_was(entry: Any) -> None:
    assert parse_line(json.dumps(to_json(entry)).encode()) == entry


def test_what_was_added_is_read_in_its_order(path: Path) -> None:
    for number in (2, 0, 1):
        append_record(path, recorded(seed(number)))
    found = read_records([path])
    assert list(found.results.values()) == [recorded(seed(number)) for number in (2, 0, 1)]
    assert (found.failures, found.problems) == ((), ())
    assert path.read_bytes().count(b"\n") == 3
    assert [each.name for each in path.parent.iterdir()] == ["records.jsonl"], "no lock is left"


def test_several_may_add_at_the_same_time(path: Path) -> None:
    path.parent.mkdir()
    metrics = metrics_for(TASK, 0.5) | {"long": "x" * 100_000}
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(append_record, path, recorded(seed(number), metrics=metrics)) for number in range(24)]:
            done.result()
    found = read_records([path])
    assert sorted(task.seed for task in found.results) == list(range(24))
    assert found.problems == ()


def test_who_adds_waits_for_another_who_does(path: Path) -> None:
    path.parent.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with exclusive(path):
            adding = pool.submit(append_record, path, recorded())
            wait([adding], timeout=0.5)
            assert not adding.done()
            assert path.read_bytes() == b""
        adding.result()
    assert list(read_records([path]).results) == [TASK]


def test_a_file_that_is_not_there_holds_nothing(path: Path) -> None:
    assert read_records([path]) == Records()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=re.escape(f"{tmp_path}: cannot be read")):
        read_records([tmp_path])


def test_a_full_disk_is_reported_and_the_next_record_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_record(path, recorded(seed(0)))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SaveError, match=r"records.jsonl: .*-seed1 .*No space"):
            append_record(path, recorded(seed(1)))
    with path.open("rb+") as file:  # what a full disk leaves
        file.truncate(path.stat().st_size - 100)
    append_record(path, recorded(seed(2)))
    assert [task.seed for task in read_records([path]).results] == [0, 2]


def test_a_record_that_was_cut_short_does_not_swallow_the_next(path: Path) -> None:
    append_record(path, recorded(seed(0)))
    append_record(path, recorded(seed(1)))
    cut = path.read_bytes()[:-200]
    path.write_bytes(cut)
    append_record(path, recorded(seed(2)))
    assert path.read_bytes().startswith(cut), "nothing is rewritten"
    found = read_records([path])
    assert [task.seed for task in found.results] == [0, 2]
    (problem,) = found.problems
    assert problem.startswith(f"{path}, line 2: ")


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
FIELDS = ("task", "settings", "images", "subset", "origin", "seconds", "date", "metrics")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        *((without(name), f"{name} is missing") for name in FIELDS),
        (without("outcome"), "outcome is None"),
        (without("task", "seed"), "task.seed is missing"),
        (without("settings", "lr"), "settings: lr is missing"),
        (without("origin", "commit"), "origin.commit is missing"),
        (without(*ACCURACY), "no accuracy"),
        (without("metrics", "drawn"), "KeyError: 'drawn'"),
        (with_value(66.9, *ACCURACY), "accuracy is 66.9"),
        (with_value(float("nan"), *ACCURACY), "accuracy is nan"),
        (with_value(TOO_MUCH, "metrics", "drawn", "published_share"), "explanation_accuracy is 2.0"),
        (with_value("high", *ACCURACY), "accuracy is 'high'"),
        (with_value({"accuracy": 0.5}, "metrics", "standard"), "variant memory_wrap"),
        (with_value(0.7, *ACCURACY), "0.7 for a score whose parts give 0.6"),
        (with_value(1e10, "seconds", "training"), "seconds.training is 10000000000.0"),
        (with_value(-1, "seconds", "training"), "seconds.training is -1"),
        (with_value(True, "seconds", "training"), "seconds.training is True"),
        (with_value(10**400, "seconds", "training"), "seconds.training"),
        (with_value(2, "format_version"), "format version 2"),
        (without("format_version"), "format version None"),
        (with_value("another", "format"), "not a record"),
        (with_value("lost", "outcome"), "outcome is 'lost'"),
        (with_value([], "outcome"), r"outcome is \[\]"),
        (with_value([1], "task"), "task is "),
        (with_value(7, "date"), "date is 7"),
        (with_value("x", "metrics"), "metrics is 'x'"),
        (with_value({"drawn": []}, "metrics"), "metrics are damaged"),
        (with_value("wrapped", "task", "variant"), "variant is 'wrapped'"),
        (with_value("much", "settings", "lr"), "lr is 'much'"),
        (with_value(1, "settings", "colour"), "colour"),
        (with_value(1, "task", "colour"), "task.colour"),
        (with_value([1], "task", "samples"), "task.samples"),
        (with_value({}, "task", "seed"), "task.seed"),
        (with_value(123, "origin", "commit"), "origin.commit is 123"),
        (with_value({"torch": None}, "origin", "versions"), "origin.versions.torch is None"),
        (with_value("5", "origin", "side_by_side"), "origin.side_by_side is '5'"),
        (with_value("many", "images", "training"), "images.training is 'many'"),
        (with_value("H\udce9", "origin", "device"), "surrogates"),
    ],
)
def test_a_damaged_record_is_reported_and_skipped(damage: Callable[..., None], why: str, path: Path) -> None:
    append_record(path, recorded(seed(0)))
    stored = json.loads(json.dumps(to_json(recorded(seed(1)))))
    damage(stored)
    with path.open("a") as file:
        file.write(json.dumps(stored) + "\n")
    append_record(path, recorded(seed(2)))
    before = path.read_bytes()
    found = read_records([path])
    assert [task.seed for task in found.results] == [0, 2]
    (problem,) = found.problems
    assert problem.startswith(f"{path}, line 2: ")
    assert re.search(why, problem), problem
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", NEWER_SETTINGS)
def test_records_from_before_a_setting_existed_are_read(name: str, path: Path) -> None:
    stored = json.loads(json.dumps(to_json(recorded())))
    del stored["settings"][name]
    path.parent.mkdir()
    path.write_text(json.dumps(stored))
    assert read_records([path]).results == {TASK: recorded()}


@pytest.mark.parametrize("line", [b"\x00\xff\xfe", b"{", b"[1, 2]", b"null", b"[" * 100_000, b'{"format": "memwrap'])
def test_lines_that_hold_anything_are_reported_and_skipped(line: bytes, path: Path) -> None:
    append_record(path, recorded(seed(0)))
    with path.open("ab") as file:
        file.write(b"\n" + line + b"\n\n")
    append_record(path, recorded(seed(1)))
    found = read_records([path])
    assert [task.seed for task in found.results] == [0, 1]
    (problem,) = found.problems
    assert problem.startswith(f"{path}, line 3: ")


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
    append_record(path, replace(recorded(), settings=recorded().settings.replace(**{name: value})))
    found = read_records([path])
    assert found.results == {}
    (problem,) = found.problems
    assert re.search(f"line 1: .*{TASK.name} .*: {why}$", problem)


def test_an_accuracy_that_contradicts_the_confusion_matrix_is_reported(path: Path) -> None:
    metrics = {"images": 4, "standard": {"accuracy": 0.75, "confusion": [[2, 1], [0, 1]]}}
    append_record(path, recorded(STANDARD, metrics=metrics))
    path.write_text(path.read_text() + path.read_text().replace("0.75", "0.99"))
    found = read_records([path])
    assert [record.metrics["standard"]["accuracy"] for record in found.results.values()] == [0.75]
    assert re.search("line 2: .*0.99 .* 0.75", found.problems[0])


def test_all_samples_are_not_any_number_of_them(path: Path) -> None:
    task = replace(TASK, samples=None)
    append_record(path, recorded(task))
    append_record(
        path, replace(recorded(replace(task, seed=4)), settings=recorded().settings.replace(samples=1000, seed=4))
    )
    assert list(read_records([path]).results) == [task]


def test_either_precision_will_do(path: Path) -> None:
    append_record(path, replace(recorded(), settings=recorded().settings.replace(precision="bf16")))
    assert list(read_records([path]).results) == [TASK]


def test_other_settings_may_be_asked_for(path: Path) -> None:
    settings = recorded().settings.replace(epochs=1)
    append_record(path, replace(recorded(), settings=settings))
    asked = Settings(**dict(settings))
    assert list(read_records([path], lambda _: asked).results) == [TASK]


# Merged


def test_two_machines_records_are_merged(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append_record(here, recorded(seed(0), 0.5))
    append_record(there, recorded(seed(1), 0.7))
    assert read_records([here, there]).results == {seed(0): recorded(seed(0), 0.5), seed(1): recorded(seed(1), 0.7)}


def test_the_same_results_twice_count_once(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append_record(here, recorded())
    append_record(there, recorded(date="2027-01-01T00:00:00+00:00"))
    found = read_records([here, there])
    assert found.results == {TASK: recorded()}
    assert found.problems == ()


def test_of_different_results_of_a_run_the_older_counts_and_the_other_is_reported(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    append_record(here, recorded(accuracy=0.5))
    append_record(there, recorded(seed(0)))
    append_record(there, recorded(accuracy=0.9, date="2027-01-01T00:00:00+00:00"))
    for paths in ([here, there], [there, here]):
        found = read_records(paths)
        assert found.results[TASK] == recorded(accuracy=0.5)
        (problem,) = found.problems
        assert problem.startswith(f"{there}, line 2: ")
        assert f"{TASK.name} has different results in {here}, line 1" in problem


def test_a_run_on_other_images_is_not_the_same(tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    one = recorded(seed(0))
    append_record(here, one)
    append_record(there, replace(one, images=replace(one.images, fingerprint="another")))
    (problem,) = read_records([here, there]).problems
    assert f"different images in {here}, line 1" in problem


def test_a_place_that_cannot_be_written_is_reported_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="cannot be written there"):
        check_writable(tmp_path / "file" / "records.jsonl")
    check_writable(tmp_path / "new" / "records.jsonl")
    assert read_records([tmp_path / "new" / "records.jsonl"]).problems == ()


def test_a_full_disk_is_reported_before(path: Path) -> None:
    append_record(path, recorded(seed(0)))
    resource = pytest.importorskip("resource", reason="needs limits of file sizes, as Unix has them")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python itself ignores the signal that comes with it
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1000, limits[1]))
    try:
        with pytest.raises(SaveError, match="cannot be written there"):
            check_writable(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    check_writable(path)
    assert [task.seed for task in read_records([path]).results] == [0]


def test_batch_as_memory_is_another_run(path: Path) -> None:
    batch = replace(TASK, memory="batch")
    append_record(path, recorded(accuracy=0.5))
    append_record(path, recorded(batch, 0.9))
    found = read_records([path])
    assert found.results == {TASK: recorded(accuracy=0.5), batch: recorded(batch, 0.9)}


def test_failures_are_kept_apart_until_there_is_a_result(path: Path) -> None:
    append_record(path, failed(seed(0)))
    append_record(path, failed(seed(0), "out of memory"))
    append_record(path, failed(seed(1)))
    append_record(path, recorded(seed(1)))
    append_record(path, failed(seed(1), "tried again"))
    found = read_records([path])
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
