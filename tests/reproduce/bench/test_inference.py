"""What predicting is compared with."""

import sys

import pytest
import torch

from memwrap.nn.layer import MemoryWrap
from memwrap.nn.reading import PreparedMemory
from memwrap.reproduce.bench import inference
from memwrap.reproduce.bench.record import Measurement, Skipped
from tests.reproduce.bench import PretendGpu, make_context, seen

REMEMBERED, ENCODED = "Memory Wrap, 4 remembered", "published layer, 4 encoded with each batch"


def test_remembered_samples_are_compared_with_no_memory() -> None:
    rows = [row for row in inference.measure(make_context(), "tiny") if isinstance(row, Measurement)]
    assert [(row.name, row.base, row.unit) for row in rows] == [
        (REMEMBERED, "Standard", "batch"),
        (ENCODED, "Standard", "batch"),
    ]
    assert {(row.facts["batch"], row.facts["memory"], row.base_facts["memory"]) for row in rows} == {(4, 4, 0)}


def test_on_a_gpu_also_without_waiting_for_the_classes() -> None:
    rows = [row for row in inference.measure(make_context(PretendGpu), "tiny") if isinstance(row, Measurement)]
    assert [(row.name, row.subject, row.facts["classes_read"], row.base_facts["classes_read"]) for row in rows] == [
        (REMEMBERED, "predicting 4 images", True, True),
        (ENCODED, "predicting 4 images", True, True),
        (REMEMBERED, "predicting 4 images, none read", False, False),
        (ENCODED, "predicting 4 images, none read", False, False),
    ]


def test_a_turn_is_of_several_batches_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    where, calls = make_context(batches=3), []

    def logits() -> torch.Tensor:
        calls.append(torch.is_inference_mode_enabled())
        return torch.zeros(1, 2)

    candidate = inference.predicting(where, "it", logits)
    candidate.run()
    assert calls == [True] * candidate.units == [True] * 3


def test_without_the_published_package_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memorywrap", None)
    left_out, row = inference.measure(make_context(), "tiny")
    assert isinstance(left_out, Skipped)
    assert "pip install memorywrap" in left_out.reason
    assert isinstance(row, Measurement)
    assert row.name == REMEMBERED


def test_each_encodes_all_images_and_only_ours_looks_into_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    where, encoded, memories = make_context(inference_batch=5), [], []
    list(inference.measure(where, "tiny"))
    first = torch.nn.Conv2d.forward
    plain = MemoryWrap.forward

    def forward(self: torch.nn.Conv2d, images: torch.Tensor) -> torch.Tensor:
        if images.shape[1] == 3:
            encoded.append(len(images))
        return first(self, images)

    def forward_layer(self: MemoryWrap, encodings: torch.Tensor, memory: PreparedMemory | torch.Tensor) -> torch.Tensor:
        if isinstance(memory, PreparedMemory):
            memories.append((len(encodings), len(memory)))
        return plain(self, encodings, memory)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", forward)
    monkeypatch.setattr(MemoryWrap, "forward", forward_layer)
    expected = {"Standard": ([5], []), REMEMBERED: ([5], [(5, 4)]), ENCODED: ([5, 4], [])}
    for name, found in expected.items():
        encoded.clear()
        memories.clear()
        seen(where)[name].run()
        assert (encoded, memories) == found, name


def test_all_are_in_evaluation_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    where, modes = make_context(), []
    real = torch.nn.BatchNorm2d.forward

    def forward(self: torch.nn.BatchNorm2d, images: torch.Tensor) -> torch.Tensor:
        modes.append(self.training)
        return real(self, images)

    list(inference.measure(where, "tiny"))
    monkeypatch.setattr(torch.nn.BatchNorm2d, "forward", forward)
    for candidate in seen(where).values():
        candidate.run()
    assert modes
    assert not any(modes)
