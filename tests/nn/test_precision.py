"""Compiled, exported, autocast, double precision, channels_last: all agree with eager float32."""

import shutil
import warnings
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import memwrap
from memwrap import MemoryClassifier, MemoryWrap, sparsemax

# The default backend writes C++; without a compiler the graph is captured all the same.
BACKEND = "inductor" if shutil.which("g++") or shutil.which("clang++") else "aot_eager"


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


def gradients(model: torch.nn.Module, logits: Tensor) -> list[Tensor]:
    labels = torch.arange(len(logits)) % logits.shape[1]
    return list(torch.autograd.grad(cross_entropy(logits, labels), list(model.parameters())))


def test_sparsemax_compiles_to_one_graph_in_training() -> None:
    scores = torch.randn(6, 40, requires_grad=True)
    compiled = torch.compile(sparsemax, fullgraph=True, backend=BACKEND)
    assert_close(compiled(scores), sparsemax(scores))
    (ours,) = torch.autograd.grad(compiled(scores).square().sum(), scores)
    (expected,) = torch.autograd.grad(sparsemax(scores).square().sum(), scores)
    assert_close(ours, expected)


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("backend", sorted({BACKEND, "aot_eager"}))
def test_the_layer_compiles_to_one_graph_in_training(variant: str, backend: str) -> None:
    layer = MemoryWrap(16, 3, variant, project=8)
    encodings, memory = torch.randn(5, 16), torch.randn(9, 16)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    assert_close(compiled(encodings, memory), layer(encodings, memory))
    for ours, expected in zip(
        gradients(layer, compiled(encodings, memory)), gradients(layer, layer(encodings, memory)), strict=True
    ):
        assert_close(ours, expected)


def test_read_with_a_mask_and_a_memory_per_row_compiles_to_one_graph() -> None:
    layer = MemoryWrap(16, 3)
    encodings, memory, keep = torch.randn(5, 16), torch.randn(5, 9, 16), torch.rand(5, 9) > 0.2
    compiled = torch.compile(layer.read, fullgraph=True, backend="aot_eager")
    reading, expected = compiled(encodings, memory, keep), layer.read(encodings, memory, keep)
    assert_close(reading.logits, expected.logits)
    assert_close(reading.weights, expected.weights)


def test_the_model_compiles_to_one_graph_in_training(images: Tensor, memory: Tensor) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).train()
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    for ours, expected in zip(
        gradients(model, compiled(images, memory=memory)), gradients(model, model(images, memory=memory)), strict=True
    ):
        assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_the_model_compiles_to_one_graph_with_a_remembered_memory(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    with torch.no_grad():
        assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("decide", ["vote", "head"])
def test_a_memory_next_to_a_classifier_is_compiled_traced_and_exported(
    decide: Literal["vote", "head"], images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model = memwrap.attach(memwrap.encoders.create("tiny", num_classes=4).eval(), decide=decide)
    model.remember(memory, labels)
    batch = torch.export.Dim("batch", min=1, max=512)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    program = torch.export.export(model, (images,), dynamic_shapes={"images": {0: batch}}).module()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, images)
        for made in (compiled, program, traced):
            assert_close(made(images).exp(), model(images).exp(), atol=1e-5, rtol=1e-4)
        assert_close(program(images[:2]).exp(), model(images[:2]).exp(), atol=1e-5, rtol=1e-4)


def test_the_model_is_exported_with_a_dynamic_batch(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    batch = torch.export.Dim("batch", min=1, max=512)
    program = torch.export.export(model, (images,), dynamic_shapes={"images": {0: batch}})
    used = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in used if "memwrap" in name]
    with torch.no_grad():
        for count in (1, 2, 7):
            fresh = torch.randn(count, 3, 8, 8)
            assert_close(program.module()(fresh), model(fresh), atol=1e-5, rtol=1e-4)


def test_the_model_is_exported_with_a_dynamic_memory(model: MemoryClassifier, images: Tensor, memory: Tensor) -> None:
    batch, samples = torch.export.Dim("batch", min=2, max=512), torch.export.Dim("samples", min=2, max=5000)
    shapes = {"images": {0: batch}, "memory": {0: samples}}
    program = torch.export.export(model, (images, memory), dynamic_shapes=shapes)
    fresh, more = torch.randn(3, 3, 8, 8), torch.randn(2000, 3, 8, 8)
    with torch.no_grad():
        assert_close(program.module()(fresh, more), model(fresh, memory=more), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
def test_autocast_agrees_within_its_precision(
    dtype: torch.dtype, tolerance: float, model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    expected = model.read(images, memory=memory)
    exact = torch.cat([gradient.flatten() for gradient in gradients(model, expected.logits)])
    with torch.autocast("cpu", dtype=dtype):
        reading = model.read(images, memory=memory)
        rounded = torch.cat([gradient.flatten() for gradient in gradients(model, reading.logits.float())])
        model.remember(memory, labels)
        with torch.no_grad():
            remembered = model.read(images)
    assert torch.cosine_similarity(rounded, exact, dim=0) > 1 - tolerance
    for other in (reading, remembered):
        assert other.weights.dtype == torch.float32
        assert_close(other.weights.sum(1), torch.ones(5))
        assert_close(other.logits.float(), expected.logits, atol=tolerance, rtol=0)


def test_autocast_trains_in_one_graph(images: Tensor, memory: Tensor) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = compiled(images, memory=memory)
        expected = model(images, memory=memory)
    assert_close(logits.float(), expected.float(), atol=5e-2, rtol=0)
    assert all(gradient.isfinite().all() for gradient in gradients(model, logits.float()))


def test_the_support_given_bfloat16_encodings_is_that_of_float32() -> None:
    layer = MemoryWrap(64, 3)
    encodings, memory = torch.randn(20, 64).bfloat16(), torch.randn(300, 64).bfloat16()
    expected = layer.read(encodings.float(), memory.float()).weights
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(layer.read(encodings, memory).weights, expected, atol=0, rtol=0)


def test_double_precision_agrees(model: MemoryClassifier, images: Tensor, memory: Tensor) -> None:
    expected = model.read(images, memory=memory)
    reading = model.double().read(images.double(), memory=memory.double())
    found = {name: tensor.dtype for name, tensor in vars(reading).items() if tensor is not None}
    assert found == dict.fromkeys(("logits", "weights", "memory_vector"), torch.float64)
    assert_close(reading.logits.float(), expected.logits)
    assert_close(reading.weights.float(), expected.weights, atol=1e-5, rtol=0)


def test_channels_last_agrees(model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor) -> None:
    expected = model(images, memory=memory)
    model.to(memory_format=torch.channels_last)
    images, memory = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (images, memory))
    assert_close(model(images, memory=memory), expected)
    model.remember(memory, labels)
    with torch.no_grad():
        assert_close(model(images), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_traced_sparsemax_does_not_depend_on_the_scores_that_it_was_traced_with() -> None:
    traced = torch.jit.trace(sparsemax, 5 * torch.randn(2, 2000))
    scores = 1e-4 * torch.randn(2, 2000)
    assert_close(traced(scores), sparsemax(scores))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_tf32_does_not_touch_similarities_on_a_gpu(compiled: bool) -> None:
    layer = MemoryWrap(512, 3).cuda()
    encodings, memory = torch.randn(64, 512, device="cuda"), torch.randn(500, 512, device="cuda")
    exact = layer.double().read(encodings.double(), memory.double()).weights.float()
    layer.float()
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        read = torch.compile(layer.read, fullgraph=True) if compiled else layer.read
        assert_close(read(encodings, memory).weights, exact, atol=1e-6, rtol=0)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_training_step_is_captured_in_a_cuda_graph() -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).cuda().train()
    images, memory = torch.randn(8, 3, 8, 8, device="cuda"), torch.randn(12, 3, 8, 8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(images, memory=memory).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad()
    with torch.cuda.graph(graph):
        logits = model(images, memory=memory)
        logits.sum().backward()
    graph.replay()
    assert_close(logits, model(images, memory=memory), atol=1e-4, rtol=1e-3)
