"""Attention by one kernel against torch in float64."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

from memwrap import encoders, wrap
from memwrap.nn import similarity
from memwrap.nn.layer import MemoryWrap
from memwrap.nn.similarity import EPSILON, CosineSimilarity
from tests.with_kernels import DEVICE, needs_triton

SIZES = [(1, 1, 3), (5, 100, 64), (37, 7, 130), (20, 300, 512), (16, 512, 33)]  # inputs, samples, length
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def vectors(count: int, length: int, seed: int) -> Tensor:
    return torch.randn(count, length, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def found(queries: Tensor, keys: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    from memwrap.nn.attention_kernel import attend

    return attend(queries, keys, CosineSimilarity().vectors(keys).inverse_norms, EPSILON, scale)


def exact_weights(queries: Tensor, keys: Tensor, scale: float = 1.0) -> Tensor:
    cosine = CosineSimilarity(scale)
    return cosine.attend(queries.double(), cosine.vectors(keys.double()))[0]


@needs_triton
@pytest.mark.parametrize("scale", [1.0, 12.5])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_weights_are_sparsemax_of_scaled_cosine_similarity(sizes: tuple[int, int, int], scale: float) -> None:
    inputs, samples, length = sizes
    queries, keys = vectors(inputs, length, 1), vectors(samples, length, 2)
    weights, inverse_norms = found(queries, keys, scale)
    assert_close(weights.double(), exact_weights(queries, keys, scale), atol=1e-6 * scale, rtol=0)
    assert_close(weights.sum(dim=1), torch.ones(inputs, device=DEVICE), atol=1e-5, rtol=0)
    assert_close(inverse_norms, CosineSimilarity().vectors(queries).inverse_norms)


@needs_triton
def test_all_alike_share_alike_and_one_that_stands_out_takes_all() -> None:
    keys = torch.eye(3, device=DEVICE).repeat(20, 1)
    weights, _ = found(keys[:2], keys)
    assert_close(weights[0].reshape(20, 3), torch.tensor([1 / 20, 0, 0], device=DEVICE).expand(20, 3))
    alone, _ = found(keys[:1], torch.tensor([[1.0, 0, 0], [-1, 0, 0], [-1, 1, 0]], device=DEVICE))
    assert alone.tolist() == [[1, 0, 0]]
    nothing, _ = found(torch.zeros(1, 3, device=DEVICE), keys)
    assert_close(nothing, torch.full((1, 60), 1 / 60, device=DEVICE))


@needs_triton
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_does_not_become_a_weight(value: float) -> None:
    queries, keys = vectors(20, 40, 1), vectors(30, 40, 2)
    queries[17, 3] = value
    weights, scales = found(queries, keys)
    assert weights.isnan().any(dim=1).nonzero().flatten().tolist() == [17]
    assert not scales[17] > 0
    assert bool((scales[:17] > 0).all())


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is none, its kernel is interpreted."""
    if DEVICE == "cpu":
        monkeypatch.setattr(similarity, "_kernel_applies", lambda _, keys: len(keys) <= similarity.SMALL_MEMORY)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


@needs_triton
@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("head", ["mlp", "linear"])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("project", [None, 24])
def test_a_layer_uses_it_for_a_small_memory(
    variant: str, head: str, project: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = MemoryWrap(40, 5, variant, head, project).to(DEVICE)
    encodings, memory = vectors(33, 40, 1), vectors(100, 40, 2)
    prepared, keep = layer.prepare(memory), torch.arange(100, device=DEVICE) % 3 > 0
    with torch.no_grad():
        reading, kept = layer.read(encodings, prepared), layer.read(encodings, prepared, keep)
        monkeypatch.setattr(similarity, "SMALL_MEMORY", 0)
        expected, expected_kept = (layer.read(encodings, prepared, each) for each in (None, keep))
    assert_close(reading.weights, expected.weights, atol=1e-6, rtol=0)
    assert_close(reading.memory_vector, expected.memory_vector, atol=1e-5, rtol=1e-4)
    assert_close(reading.logits, expected.logits, atol=1e-5, rtol=1e-4)
    assert not torch.equal(reading.weights, expected.weights), "else both were computed in one way"
    assert torch.equal(kept.weights, expected_kept.weights), "a mask is beyond the kernel"


def test_where_it_cannot_be_compiled_torch_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwrap.nn.gpu.kernels_run_on", lambda _: True)
    nowhere = torch.device("cuda", 99)
    similarity._kernel_compiles.cache_clear()
    with pytest.warns(UserWarning, match="cuda:99"):
        assert not similarity._kernel_compiles(nowhere)
    assert not similarity._kernel_compiles(nowhere), "the warning is printed once"
    similarity._kernel_compiles.cache_clear()


@pytest.mark.parametrize("way", ["backward", "forward", "func"])
def test_differentiated_tensors_are_noticed(way: str) -> None:
    seen: list[bool] = []

    def looked_at(queries: Tensor) -> Tensor:
        seen.append(similarity._is_differentiated(queries))
        return queries.sum()

    queries = torch.randn(2, 3)
    looked_at(queries)
    if way == "backward":
        looked_at(queries.requires_grad_())
    elif way == "forward":
        with forward_ad.dual_level():
            looked_at(forward_ad.make_dual(queries, torch.ones(2, 3)))
    else:
        torch.func.jvp(looked_at, (queries,), (torch.ones(2, 3),))
    assert seen == [False, True]


@needs_gpu
def test_whoever_asks_for_a_gradient_gets_it() -> None:
    model = wrap(encoders.create("tiny", 3), example=torch.zeros(2, 3, 8, 8)).cuda().eval()
    model.remember(torch.randn(20, 3, 8, 8), [0, 1] * 10)
    model.layer.requires_grad_(False)
    images = torch.randn(4, 3, 8, 8, device="cuda", requires_grad=True)
    model(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
