"""Kernels compile for an H200, on any machine: the interpreter accepts code that the compiler refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memwrap.encoders.efficientnet import MobileBlock
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.fused.stacked.layers import PassContext, stack_layers
from tests.with_kernels import INTERPRETED

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")

RUNS, IMAGES, FIRST = 2, 4, 3
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Compile kernels instead of launching them, and collect their names."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.runtime.jit import JITFunction

    names, done = set[str](), set[str]()

    def compile_only(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
        bound = dict(zip(kernel.arg_names, given, strict=False)) | named
        signature, constants, aligned = dict[str, str](), dict[tuple[int, ...], Any](), dict[tuple[int, ...], Any]()
        for place, parameter in enumerate(kernel.params):
            value = bound.pop(parameter.name)
            if parameter.is_constexpr:
                signature[parameter.name], constants[place,] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[parameter.name] = TYPES[value.dtype]
                aligned[place,] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        assert bound["enable_fp_fusion"]  # or Triton warns
        options = {name: value for name, value in bound.items() if value is not None}
        if (key := f"{kernel} {signature} {constants} {options}") not in done:
            source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
            assert "cubin" in compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm
            done.add(key)
            names.add(kernel.fn.__name__)

    monkeypatch.setattr(JITFunction, "run", compile_only)
    return names


def pass_through(network: nn.Module, channels: int, side: int) -> None:
    """Forward and backward, with maps in bfloat16 and images of both parts, as in training."""
    values = {name: torch.stack([value] * RUNS) for name, value in network.state_dict().items()}
    multiplied = {
        f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
    }
    for name, _ in network.named_parameters():
        value = values[name].bfloat16() if name in multiplied else values[name]
        values[name] = value.requires_grad_()
    stack_layers(network, values, PassContext(torch.zeros(RUNS, dtype=torch.int64), FIRST), kernels=True)
    maps = torch.zeros(RUNS * IMAGES, channels, side, side, dtype=torch.bfloat16).requires_grad_()
    network(maps).sum().backward()


DEPTHWISE = {"_moments", "_finish_statistics", "_first_outputs", "_convolve_strip", "_apply"} | {
    "_backward_sums", "_finish_backward", "_apply_backward", "_convolve_strips_backward", "_merge_taps"
}  # fmt: skip


@pytest.mark.parametrize("side", [8, 7])
def test_the_kernels_of_mobilenet(side: int, compiled: set[str]) -> None:
    """With whole strips, and with others."""
    blocks = [InvertedResidual(8, 16, 2, 1), InvertedResidual(16, 8, 2, 2)]
    pass_through(nn.Sequential(*blocks), 8, side)
    assert compiled == DEPTHWISE


def test_the_kernels_of_efficientnet(compiled: set[str]) -> None:
    blocks = [MobileBlock(8, 8, 1, 3, 1), MobileBlock(8, 12, 2, 5, 2), MobileBlock(12, 12, 2, 5, 1)]
    pass_through(nn.Sequential(*blocks), 8, 8)
    assert compiled == DEPTHWISE | {"_scale", "_scale_backward", "_pool", "_pool_backward"}


def test_the_other_kernels(compiled: set[str]) -> None:
    from memwrap.fused.kernels.dropout import dropout
    from memwrap.fused.kernels.im2col import im2col
    from memwrap.fused.kernels.sgd import MultiTensorSGD
    from memwrap.nn.attention_kernel import attend

    weight = torch.zeros(RUNS, 8, 4)
    leaf = torch.zeros_like(weight, dtype=torch.bfloat16)
    update = MultiTensorSGD([weight], [leaf], 0.9, 5e-4)
    gradients = update.collect([torch.zeros_like(leaf)])
    update.step(gradients, torch.tensor(0.1), update.gradient_norms(gradients))
    dropout(torch.zeros(RUNS * 4, 8), 0.2, torch.zeros(RUNS, dtype=torch.int64), 0)
    im2col(torch.zeros(2, 3, 8, 8), (3, 3), (1, 1), 5, torch.bfloat16)
    for samples in (100, 300):
        attend(torch.zeros(4, 64), torch.zeros(samples, 64), torch.zeros(samples), 1e-8, scale=1.0)
    assert compiled == {"_sgd_step", "_squared_norm", "_mask", "_im2col", "_attend"}
