"""Attention by one kernel against torch in float64, on a GPU; without one, slowly, by Triton's interpreter."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap import attention, encoders, wrap
from memwrap.attention import EPSILON, content_weights, inverse_norms
from memwrap.layer import MemoryWrap
from tests.with_kernels import DEVICE, run_by_the_interpreter, runs_kernels, starts_the_interpreter

SIZES = [(1, 1, 3), (5, 100, 64), (37, 7, 130), (20, 300, 512), (16, 512, 33)]  # inputs, samples, length
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@starts_the_interpreter
def test_attention_by_the_interpreter() -> None:
    run_by_the_interpreter(__file__)


def vectors(count: int, length: int, seed: int) -> Tensor:
    return torch.randn(count, length, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def found(queries: Tensor, keys: Tensor, with_queries: bool = False) -> tuple[Tensor, Tensor]:
    from memwrap.kernels.attention import weights_and_queries

    return weights_and_queries(queries, keys, inverse_norms(keys), EPSILON, with_queries)


def exact_weights(queries: Tensor, keys: Tensor) -> Tensor:
    queries, keys = queries.double(), keys.double()
    return content_weights(queries, inverse_norms(queries), keys, inverse_norms(keys))


@runs_kernels
@pytest.mark.parametrize("with_queries", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_weights_are_sparsemax_of_cosine_similarity(sizes: tuple[int, int, int], with_queries: bool) -> None:
    inputs, samples, length = sizes
    queries, keys = vectors(inputs, length, 1), vectors(samples, length, 2)
    joined, scales = found(queries, keys, with_queries)
    weights, behind = joined[:, :samples], joined[:, samples:]
    assert_close(weights.double(), exact_weights(queries, keys), atol=1e-6, rtol=0)
    assert_close(weights.sum(dim=1), torch.ones(inputs, device=DEVICE), atol=1e-5, rtol=0)
    assert torch.equal(behind, queries if with_queries else queries[:, :0])
    assert_close(scales, inverse_norms(queries))


@runs_kernels
def test_all_alike_share_alike_and_one_that_stands_out_takes_all() -> None:
    keys = torch.eye(3, device=DEVICE).repeat(20, 1)
    weights, _ = found(keys[:2], keys)
    assert_close(weights[0].reshape(20, 3), torch.tensor([1 / 20, 0, 0], device=DEVICE).expand(20, 3))
    alone, _ = found(keys[:1], torch.tensor([[1.0, 0, 0], [-1, 0, 0], [-1, 1, 0]], device=DEVICE))
    assert alone.tolist() == [[1, 0, 0]]
    nothing, _ = found(torch.zeros(1, 3, device=DEVICE), keys)
    assert_close(nothing, torch.full((1, 60), 1 / 60, device=DEVICE))


@runs_kernels
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_does_not_become_a_weight(value: float) -> None:
    queries, keys = vectors(20, 40, 1), vectors(30, 40, 2)
    queries[17, 3] = value
    weights, scales = found(queries, keys)
    assert weights.isnan().any(dim=1).nonzero().flatten().tolist() == [17]
    assert not scales[17] > 0
    assert bool((scales[:17] > 0).all())


@needs_gpu
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("project", [None, 24])
def test_a_layer_uses_it_for_a_small_memory(variant: str, project: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = MemoryWrap(40, 5, variant, project=project).cuda()
    encodings, memory = vectors(33, 40, 1), vectors(100, 40, 2)
    prepared = layer.prepare(memory)
    with torch.no_grad():
        reading = layer.read_prepared(encodings, prepared)
        monkeypatch.setattr(attention, "SMALL_MEMORY", 0)
        expected = layer.read_prepared(encodings, prepared)
    assert_close(reading.weights, expected.weights, atol=1e-6, rtol=0)
    assert_close(reading.memory_vector, expected.memory_vector, atol=1e-5, rtol=1e-4)
    assert_close(reading.logits, expected.logits, atol=1e-5, rtol=1e-4)
    assert not torch.equal(reading.weights, expected.weights), "else both were computed in one way"


@needs_gpu
def test_whoever_asks_for_a_gradient_gets_it() -> None:
    model = wrap(encoders.create("tiny", 3), example=torch.zeros(2, 3, 8, 8)).cuda().eval()
    model.remember(torch.randn(20, 3, 8, 8), [0, 1] * 10)
    model.layer.requires_grad_(False)
    images = torch.randn(4, 3, 8, 8, device="cuda", requires_grad=True)
    model(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
