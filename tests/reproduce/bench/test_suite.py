"""memwrap bench measures the parts and encoders that are asked for."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from memwrap.data import DataSet, InMemoryImages, LabelledImages
from memwrap.errors import DataError, SettingsError
from memwrap.reproduce.bench import suite
from memwrap.reproduce.bench.context import BenchContext
from memwrap.reproduce.bench.record import Finding, Measurement, Skipped, to_json
from memwrap.reproduce.bench.sizes import CPU_ENCODERS, CUDA, QUICK, default_encoders, sizes_for
from memwrap.reproduce.bench.suite import PARTS, BenchOptions, make_record, measure
from memwrap.reproduce.published import published_table
from tests.reproduce.bench import CPU, make_context


def test_all_parts_are_measured_for_the_devices_default_encoders() -> None:
    options = BenchOptions().resolve(CPU)
    assert options.parts == PARTS == ("steps", "sizes", "training", "inference", "attention", "memory")
    assert options.encoders == CPU_ENCODERS == ("tiny",)
    assert default_encoders("cuda") == ("mobilenet_v2", "resnet18")


def test_parts_come_in_their_order_and_once() -> None:
    given = BenchOptions(parts=("memory", "training", "memory"), encoders=("small", "tiny", "small"))
    options = given.resolve(CPU)
    assert options.parts == ("training", "memory")
    assert options.encoders == ("small", "tiny")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BenchOptions(parts=("speed",)), "part is 'speed'.*steps, sizes, training, inference, attention, memory"),
        (BenchOptions(encoders=("resnet81",)), "encoder is 'resnet81'.*efficientnet_b0, .*resnet18"),
        (BenchOptions(side_by_side=0), "side_by_side is 0"),
        (BenchOptions(rounds=0), "rounds is 0"),
    ],
)
def test_unknown_options_are_refused(options: BenchOptions, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        options.resolve(CPU)


def test_a_gpu_measures_most_and_quick_least() -> None:
    assert sizes_for("cuda", quick=False, rounds=None) == CUDA
    assert sizes_for("cuda", quick=True, rounds=None) == sizes_for("cpu", quick=True, rounds=None) == QUICK
    assert sizes_for("cuda", quick=False, rounds=99) == replace(CUDA, rounds=99)
    assert sizes_for("cpu", quick=False, rounds=None).images < CUDA.images
    assert (CUDA.batch, CUDA.memory, CUDA.inference_batch) == (128, 100, 500)  # as in the paper
    assert CUDA.memory_sizes == tuple(dict.fromkeys(cell.memory_size for cell in published_table("memory-size")))


def test_each_part_is_measured_for_each_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(part: str) -> object:
        def measure_part(context: BenchContext, encoder: str = "") -> Iterator[Finding]:
            yield Skipped(part, encoder, "")

        return measure_part

    monkeypatch.setattr(suite, "_BY_ENCODER", {part: fake(part) for part in PARTS if part != "attention"})
    monkeypatch.setattr("memwrap.reproduce.bench.sparsemax.measure", fake("attention"))
    announced: list[str] = []
    options = BenchOptions(encoders=("tiny", "small")).resolve(CPU)
    findings = list(measure(options, make_context(), announced.append))
    found = [(each.part, each.subject) for each in findings]
    encoders = {part: [""] if part == "attention" else ["tiny", "small"] for part in PARTS}
    assert found == [(part, encoder) for part in PARTS for encoder in encoders[part]]
    assert announced == [f"{part}, {encoder}".removesuffix(", ") for part, encoder in found]


def data_set(count: int, classes: int = 10, side: int = 32) -> DataSet:
    """Images whose first pixel is their index, class by class."""
    pixels = torch.zeros(count, 3, side, side, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(count)
    images = LabelledImages(InMemoryImages(pixels), torch.arange(count) * classes // count, ("",) * count)
    return DataSet("/home/me/own.zip", tuple(map(str, range(classes))), images, None, "f00d")


def test_given_images_are_taken_from_all_classes() -> None:
    context = suite.make_context(BenchOptions(quick=True), CPU, data_set(100))
    taken = context.images.take(20)
    assert isinstance(taken.images, InMemoryImages)
    assert taken.images.pixels[:, 0, 0, 0].tolist() == list(range(0, 100, 5))
    assert taken.labels.tolist() == sorted(2 * list(range(10)))
    record = make_record(BenchOptions(quick=True).resolve(CPU), context, [], complete=True)
    assert record.images.startswith("own.zip, of 100 training images")
    assert "/home" not in json.dumps(to_json(record))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_set(20), "has 20 training images; expected at least 32"),
        (data_set(100, classes=2), "and 2 classes; expected .* and 10 classes"),
        (data_set(100, side=28), r"has images of shape \(3, 28, 28\)"),
    ],
)
def test_images_of_another_shape_or_number_are_refused(data: DataSet, message: str) -> None:
    with pytest.raises(DataError, match=message):
        suite.make_context(BenchOptions(quick=True), CPU, data)


def test_all_parts_can_be_measured_with_given_images() -> None:
    options = BenchOptions(quick=True, parts=("steps", "inference", "memory")).resolve(CPU)
    found = list(measure(options, suite.make_context(options, CPU, data_set(100))))
    assert {each.part for each in found if isinstance(each, Measurement)} == {"steps", "inference", "memory"}
