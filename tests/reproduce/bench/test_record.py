"""The record of memwrap bench: written atomically, and refused if anything in it is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from memwrap.errors import RunError, SaveError
from memwrap.reproduce.bench.formatting import to_markdown
from memwrap.reproduce.bench.record import BenchRecord, read_bench, to_json, write_bench
from memwrap.reproduce.bench.suite import PARTS, BenchOptions, make_record
from tests.reproduce.bench import CPU, ROW, SKIPPED, make_context


@pytest.fixture
def record() -> BenchRecord:
    return make_record(BenchOptions().resolve(CPU), make_context(), [ROW, SKIPPED], complete=True)


def test_a_record_holds_device_versions_and_options(record: BenchRecord) -> None:
    assert record.origin.device == "cpu"
    assert {"torch", "memwrap", "memorywrap", "entmax"} <= record.origin.versions.keys()
    assert len(record.origin.code) == 64
    assert record.threads == torch.get_num_threads()
    assert record.asked["parts"] == PARTS
    assert record.amounts["batch"] == make_context().sizes.batch
    assert "random pixels" in record.images
    assert (record.rows, record.left_out, record.complete) == ((ROW,), (SKIPPED,), True)


def test_a_record_survives_writing_and_reading(record: BenchRecord, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "bench.json"
    write_bench(path, record)
    assert json.dumps(to_json(read_bench(path))) == json.dumps(to_json(record))


def set_value(value: Any, *names: Any) -> Callable[[Any], None]:
    def change(stored: Any) -> None:
        for name in names[:-1]:
            stored = stored[name]
        stored[names[-1]] = value

    return change


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (set_value(0, "rows", 0, "ratio", "median"), "rows[0].ratio.median"),
        (set_value(-1.0, "rows", 0, "seconds", "lower"), "rows[0].seconds.lower"),
        (set_value(float("nan"), "rows", 0, "seconds", "upper"), "rows[0].seconds.upper"),
        (set_value(float("inf"), "rows", 0, "base_seconds", "upper"), "rows[0].base_seconds.upper"),
        (set_value(0, "rows", 0, "rounds"), "rows[0].rounds"),
        (set_value("1 s", "rows", 0, "seconds"), "rows[0].seconds"),
        (set_value("1", "rows", 0, "peak"), "rows[0].peak"),
        (lambda stored: stored["rows"][0].pop("unit"), "rows[0].unit"),
        (set_value(1, "rows", 0, "new"), "rows[0].new"),
        (set_value("no", "complete"), "complete"),
        (set_value(None, "date"), "date"),
        (set_value([], "origin", "device"), "origin.device"),
        (set_value({"torch": 2}, "origin", "versions"), "origin.versions.torch"),
        (set_value("\ud800", "images"), "surrogates"),
        (set_value("memwrap record", "format"), "not a record of memwrap bench"),
        (set_value(2, "format_version"), "format version 2"),
        *((lambda stored, name=name: stored.pop(name), name) for name in ("rows", "origin", "complete")),
    ],
)
def test_a_damaged_record_is_refused(
    damage: Callable[[Any], object], where: str, record: BenchRecord, tmp_path: Path
) -> None:
    stored = json.loads(json.dumps(to_json(record)))
    damage(stored)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(RunError) as caught:
        read_bench(path)
    assert str(path) in str(caught.value)
    assert where in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "memwrap bench"}', "[" * 100_000])
def test_other_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(RunError, match=r"bench\.json"):
        read_bench(path)


def test_a_missing_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="memwrap bench --out"):
        read_bench(tmp_path / "bench.json")


def test_a_place_that_cannot_be_written_is_reported(record: BenchRecord, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="cannot be written"):
        write_bench(tmp_path / "file" / "bench.json", record)


def test_markdown_has_measurements_conditions_and_what_was_skipped(record: BenchRecord) -> None:
    text = to_markdown("a name", record)
    assert "| entmax | 4 s | 0.250 | 0.200 to 0.300 | 4.00 | 3 | 0 MiB |  |" in text
    assert "batch 1" in text
    assert "a memory of 10 (too large)" in text
