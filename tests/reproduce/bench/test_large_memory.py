"""Memories of many encodings: those that fit are measured, the others are named."""

import pytest
import torch

from memwrap.nn.layer import MemoryWrap
from memwrap.nn.reading import PreparedMemory
from memwrap.reproduce.bench import large_memory
from memwrap.reproduce.bench.record import Finding, Measurement, Skipped
from tests.reproduce.bench import CPU, make_context, seen

SIZES = (10, 5_000)


def measured(**amounts: object) -> list[Finding]:
    return list(large_memory.measure(make_context(memories=SIZES, **amounts), "tiny"))


def test_each_size_is_compared_with_no_memory() -> None:
    rows = [row for row in measured() if isinstance(row, Measurement)]
    assert [(row.name, row.base) for row in rows] == [
        ("Memory Wrap, 10 encodings", "Standard"),
        ("Memory Wrap, 5,000 encodings", "Standard"),
    ]
    assert [row.facts["memory"] for row in rows] == list(SIZES)
    assert {row.facts["length"] for row in rows} == {128}
    assert all(1 <= row.facts["samples_used"] <= row.facts["memory"] for row in rows)


def test_peak_memory_is_measured_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([100, 200, 300])  # of no memory first, when there is none

    def peak(device: torch.device, task: object) -> int:
        task()  # type: ignore[operator]
        return next(peaks)

    monkeypatch.setattr(large_memory, "peak_bytes", peak)
    assert [(row.peak, row.base_peak) for row in measured() if isinstance(row, Measurement)] == [(200, 100), (300, 100)]


def test_what_cannot_fit_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_memory, "free_bytes", lambda _: 2**20)
    row, left_out = measured()
    assert isinstance(row, Measurement)
    assert row.facts["memory"] == 10
    assert isinstance(left_out, Skipped)
    assert left_out.subject == "tiny, memory of 5,000, 4 images"
    assert left_out.reason == "it needs about 0.00507 GiB, and 0.000977 GiB are free"


def test_if_nobody_knows_what_is_free_all_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_memory, "free_bytes", lambda _: None)
    assert [type(each) for each in measured()] == [Measurement, Measurement]


def test_a_million_encodings_of_mobilenet_need_ten_gigabytes_and_their_scores_one() -> None:
    assert large_memory.needed_bytes(1_000_000, 1280, 500) / 2**30 == pytest.approx(10.5, abs=0.1)
    assert large_memory.needed_bytes(100, 1280, 500) == 4 * (2 * 100 * 1280 + 4 * 100 * 500)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("not enough memory: you ...")]
)
def test_what_did_not_fit_after_all_is_left_out(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    real = large_memory.random_encodings

    def encodings(size: int, length: int, device: torch.device) -> torch.Tensor:
        if size == 10:
            raise error
        return real(size, length, device)

    monkeypatch.setattr(large_memory, "random_encodings", encodings)
    left_out, row = measured()
    assert isinstance(left_out, Skipped)
    assert left_out.reason.startswith("there was not enough memory")
    assert isinstance(row, Measurement)


def test_other_failures_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def encodings(*_: object) -> torch.Tensor:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(large_memory, "random_encodings", encodings)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        measured()


def test_encodings_are_about_as_long_as_one() -> None:
    assert large_memory.random_encodings(50, 128, CPU).norm(dim=1).mean().item() == pytest.approx(1, abs=0.05)


def test_the_memory_is_what_predictions_are_made_with() -> None:
    where = make_context(memories=(200,))
    (row,) = large_memory.measure(where, "tiny")
    assert isinstance(row, Measurement)
    model = large_memory.memory_model(where, "tiny")
    images = where.normalised(model, 4)
    prepared = model.layer.prepare(large_memory.random_encodings(200, 128, CPU))
    with torch.no_grad():
        used = (model.layer.read(model.encode(images), prepared).weights > 0).sum(dim=1).float().mean()
    assert used < 100
    assert row.facts["samples_used"] == pytest.approx(used.item(), abs=0.06)
    assert set(seen(where)) == {"Standard", "Memory Wrap, 200 encodings"}


def test_what_is_timed_encodes_all_images_and_classifies_them_by_the_whole_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, predicted = make_context(memories=(10, 200)), []
    list(large_memory.measure(where, "tiny"))
    plain = MemoryWrap.forward

    def forward(self: MemoryWrap, encodings: torch.Tensor, prepared: PreparedMemory) -> torch.Tensor:
        predicted.append((encodings.shape, len(prepared)))
        return plain(self, encodings, prepared)

    monkeypatch.setattr(MemoryWrap, "forward", forward)
    for size in (10, 200):
        predicted.clear()
        seen(where)[f"Memory Wrap, {size} encodings"].run()
        assert predicted == [((4, 128), size)]
