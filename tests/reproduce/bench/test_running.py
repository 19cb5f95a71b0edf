"""What is asked for is what is measured, and the record tells all of it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from memwrap.data import DataSet, InMemoryImages, LabelledImages
from memwrap.errors import DataError, RunError, SaveError, SettingsError
from memwrap.reproduce.bench import running
from memwrap.reproduce.bench.amounts import CPU_ENCODERS, CUDA, QUICK, amounts_for, encoders_for
from memwrap.reproduce.bench.record import BenchRecord, Finding, LeftOut, Row, as_json, from_json, read, write
from memwrap.reproduce.bench.running import PARTS, Asked, findings, record_of, resolve_settings, stand_for
from memwrap.reproduce.bench.stand import BenchContext
from memwrap.reproduce.bench.timing import Spread
from memwrap.reproduce.published import published
from tests.reproduce.bench import CPU, stand

ROW = Row(
    part="attention",
    subject="sparsemax",
    encoder=None,
    unit="call",
    name="ours",
    base="entmax",
    seconds=Spread(1, 0.5, 2),
    base_seconds=Spread(4, 3, 5),
    ratio=Spread(0.25, 0.2, 0.3),
    rounds=3,
    facts={"batch": 1},
    peak=7,
)
LEFT_OUT = LeftOut("memory", "a memory of 10", "there is no room")


@pytest.fixture
def record() -> BenchRecord:
    return record_of(resolve_settings(Asked(), CPU), stand(), [ROW, LEFT_OUT], complete=True)


# Asked for


def test_all_parts_are_measured_for_the_devices_usual_encoders() -> None:
    asked = resolve_settings(Asked(), CPU)
    assert asked.parts == PARTS == ("steps", "sizes", "training", "inference", "attention", "memory")
    assert asked.encoders == CPU_ENCODERS == ("tiny",)
    assert encoders_for("cuda") == ("mobilenet_v2", "resnet18")


def test_parts_come_in_their_order_and_once() -> None:
    asked = resolve_settings(Asked(parts=("memory", "training", "memory"), encoders=("small", "tiny", "small")), CPU)
    assert asked.parts == ("training", "memory")
    assert asked.encoders == ("small", "tiny")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            Asked(parts=("speed",)),
            "part is 'speed'; expected one of steps, sizes, training, inference, attention, memory",
        ),
        (Asked(encoders=("resnet81",)), "encoder is 'resnet81'; expected one of efficientnet_b0, .*resnet18"),
        (Asked(side_by_side=0), "side_by_side is 0"),
        (Asked(rounds=0), "rounds is 0"),
    ],
)
def test_what_is_not_known_is_refused(asked: Asked, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        resolve_settings(asked, CPU)


def test_a_gpu_does_the_most_and_quick_the_least() -> None:
    assert amounts_for("cuda", quick=False, rounds=None) == CUDA
    assert amounts_for("cuda", quick=True, rounds=None) == amounts_for("cpu", quick=True, rounds=None) == QUICK
    assert amounts_for("cuda", quick=False, rounds=99) == replace(CUDA, rounds=99)
    assert amounts_for("cpu", quick=False, rounds=None).images < CUDA.images
    assert (CUDA.batch, CUDA.memory, CUDA.inference_batch) == (128, 100, 500)  # as in the paper
    assert CUDA.memory_sizes == tuple(dict.fromkeys(cell.memory_size for cell in published("memory-size")))
    assert CUDA.scores == ((128, 100), (500, 50_000))
    assert CUDA.memories == (100, 1_000, 10_000, 50_000, 100_000, 1_000_000)


def test_each_part_is_measured_for_each_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(part: str) -> object:
        def measure(stand: BenchContext, encoder: str = "") -> Iterator[Finding]:
            yield LeftOut(part, encoder, "")

        return measure

    monkeypatch.setattr(running, "_BY_ENCODER", {part: fake(part) for part in PARTS if part != "attention"})
    monkeypatch.setattr("memwrap.reproduce.bench.attention.measure", fake("attention"))
    told: list[str] = []
    asked = resolve_settings(Asked(encoders=("tiny", "small")), CPU)
    found = [(each.part, each.subject) for each in findings(asked, stand(), told.append) if isinstance(each, LeftOut)]
    assert found == [
        ("steps", "tiny"),
        ("steps", "small"),
        ("sizes", "tiny"),
        ("sizes", "small"),
        ("training", "tiny"),
        ("training", "small"),
        ("inference", "tiny"),
        ("inference", "small"),
        ("attention", ""),
        ("memory", "tiny"),
        ("memory", "small"),
    ]
    assert told == [f"{part}, {encoder}".removesuffix(", ") for part, encoder in found]


# The record


def test_the_record_tells_where_by_what_and_how_much(record: BenchRecord) -> None:
    assert record.origin.device == "cpu"
    assert {"torch", "memwrap", "memorywrap", "entmax"} <= record.origin.versions.keys()
    assert len(record.origin.code) == 64
    assert record.threads == torch.get_num_threads()
    assert record.asked["parts"] == PARTS
    assert record.amounts["batch"] == stand().amounts.batch
    assert record.date.startswith("20")
    assert "random pixels" in record.images
    assert (record.rows, record.left_out, record.complete) == ((ROW,), (LEFT_OUT,), True)


def test_a_record_is_read_as_it_was_written(record: BenchRecord, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "bench.json"
    write(path, record)
    again = read(path)
    assert again.rows == record.rows
    assert again.left_out == record.left_out
    assert again.origin == record.origin
    assert json.loads(json.dumps(as_json(again))) == json.loads(json.dumps(as_json(record)))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "memwrap record"}', '{"format": "memwrap bench"}'])
def test_what_is_no_record_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(RunError, match=r"bench\.json: the record is damaged or something else"):
        read(path)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda stored: stored["rows"][0]["ratio"].update(median=0), "row 0 has a time, a ratio or a number of rounds"),
        (lambda stored: stored["rows"][0]["seconds"].update(lower=-1.0), "row 0 has a time"),
        (lambda stored: stored["rows"][0]["seconds"].update(upper=float("nan")), "row 0 has a time"),
        (lambda stored: stored["rows"][0]["base_seconds"].update(upper=float("inf")), "row 0 has a time"),
        (lambda stored: stored["rows"][0].update(rounds=0), "row 0 has a time"),
        (lambda stored: stored["rows"][0].update(seconds="1 s"), r"record.rows\[0\].seconds is a str"),
        (lambda stored: stored["rows"][0].update(peak="1"), r"record.rows\[0\].peak is '1'"),
        (lambda stored: stored["rows"][0].pop("unit"), r"record.rows\[0\].unit"),
        (lambda stored: stored["rows"][0].update(new=1), "new"),
        (lambda stored: stored.update(complete="no"), "record.complete is 'no'"),
        (lambda stored: stored.update(date=None), "record.date is None"),
        (lambda stored: stored["origin"].update(device=[]), r"record.origin.device is \[\]"),
        (lambda stored: stored["origin"].update(versions={"torch": 2}), "record.origin.versions is"),
        (lambda stored: stored.update(images="\ud800"), "surrogates"),
    ],
)
def test_a_record_that_was_tampered_with_is_refused(
    damage: Callable[[Any], object], why: str, record: BenchRecord, tmp_path: Path
) -> None:
    stored = json.loads(json.dumps(as_json(record)))
    damage(stored)
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(RunError, match=why):
        read(path)


def test_a_missing_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="memwrap bench --out"):
        read(tmp_path / "bench.json")


def test_a_record_of_something_else_is_refused(record: BenchRecord) -> None:
    with pytest.raises(ValueError, match="no record of memwrap bench"):
        from_json({**as_json(record), "format": "memwrap record"})


def test_a_record_of_a_later_version_is_refused(record: BenchRecord) -> None:
    with pytest.raises(ValueError, match=r"format version 2; memwrap .* reads 1"):
        from_json({**as_json(record), "format_version": 2})


@pytest.mark.parametrize("name", ["rows", "origin", "complete"])
def test_a_record_with_a_part_missing_is_refused(record: BenchRecord, name: str) -> None:
    with pytest.raises(KeyError, match=name):
        from_json({key: value for key, value in as_json(record).items() if key != name})


def test_a_place_that_cannot_be_written_is_told(record: BenchRecord, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="the record cannot be written"):
        write(tmp_path / "file" / "bench.json", record)


# Images


def real(count: int, classes: int = 10, side: int = 32) -> DataSet:
    """Images that say by their first pixel which they are, class by class."""
    pixels = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(count)
    images = LabelledImages(InMemoryImages(pixels), torch.arange(count) * classes // count, ("",) * count)
    return DataSet("/home/me/own.zip", tuple(map(str, range(classes))), images, None, "f00d")


def test_images_may_be_given_and_are_taken_from_all_classes() -> None:
    where = stand_for(Asked(quick=True), CPU, real(100))
    taken = where.supply.take(20)
    assert isinstance(taken.images, InMemoryImages)
    assert taken.images.pixels[:, 0, 0, 0].tolist() == list(range(0, 100, 5))
    assert taken.labels.tolist() == sorted(2 * list(range(10)))
    record = record_of(resolve_settings(Asked(quick=True), CPU), where, [], complete=True)
    assert record.images == "own.zip, of 100 training images, uint8 3x32x32, 10 classes; held in memory"
    assert "/home" not in json.dumps(as_json(record))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (real(20), "has 20 training images; expected at least 32"),
        (real(100, classes=2), "and 2 classes; expected .* and 10 classes"),
        (real(100, side=28), r"has images of shape \(3, 28, 28\)"),
    ],
)
def test_images_that_will_not_do_are_refused(data: DataSet, words: str) -> None:
    with pytest.raises(DataError, match=words):
        stand_for(Asked(quick=True), CPU, data)


def test_all_parts_can_be_measured_with_given_images() -> None:
    asked = resolve_settings(Asked(quick=True, parts=("steps", "inference", "memory")), CPU)
    found = list(findings(asked, stand_for(asked, CPU, real(100))))
    assert {each.part for each in found if isinstance(each, Row)} == {"steps", "inference", "memory"}
