"""The kernels against torch's own layers, on a GPU; without one, slowly, by Triton's interpreter."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from memwrap import InputError, encoders
from memwrap.encoders.efficientnet import MobileBlock
from memwrap.encoders.mobilenet import InvertedResidual

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Triton decides when it is imported whether it compiles or interprets: without a GPU, another process runs these.
runs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="needs a GPU, or Triton's interpreter, which another test starts",
)


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="the tests below run by themselves")
def test_the_kernels_by_the_interpreter() -> None:
    pytest.importorskip("triton")
    here = Path(__file__)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout


def maps_of(*shape: int, mean: float = 0.0) -> Tensor:
    torch.manual_seed(sum(shape))
    maps = 2 * torch.randn(*shape, device=DEVICE) + mean
    return maps.contiguous(memory_format=torch.channels_last).requires_grad_()


def twin(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()


def with_gradients(out: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """What came out, and the gradients of what went in, for a gradient that is nowhere the same."""
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return (out.detach(), *torch.autograd.grad(out, inputs, gradient))


@runs_kernels
@pytest.mark.parametrize(
    ("channels", "side", "mean", "first", "activation"),
    [
        (24, 6, 0.0, 5, "none"),
        (24, 6, 0.0, 3, "relu"),
        (24, 6, 0.0, 1, "silu"),
        (96, 3, 50.0, 5, "relu"),  # far from zero
        (96, 3, 50.0, 2, "silu"),
        (20, 4, -3.0, 4, "relu"),  # rows that no wide load fits
        (3, 1, 0.0, 3, "none"),
        (65, 5, 1.0, 3, "silu"),
    ],
)
def test_normalisation_and_activation_of_both_parts(
    channels: int, side: int, mean: float, first: int, activation: str
) -> None:
    from memwrap.kernels.normalisation import batch_norm

    maps = maps_of(5, channels, side, side, mean=mean)
    weight, bias = (torch.randn(channels, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.randn(channels, device=DEVICE), torch.rand(channels, device=DEVICE)
    slow_running = tuple(each.double() for each in running)
    slow = {"none": lambda z: z, "relu": functional.relu, "silu": functional.silu}[activation]
    inputs = [twin(each.double()) for each in (maps, weight, bias)]
    parts = [part for part in (inputs[0][:first], inputs[0][first:]) if len(part)]
    expected = torch.cat(
        [slow(functional.batch_norm(part, *slow_running, *inputs[1:], True, 0.1, 1e-5)) for part in parts]
    )
    out = batch_norm(maps, weight, bias, *running, 0.1, 1e-5, activation, first)
    found, wanted = with_gradients(out, maps, weight, bias), with_gradients(expected, *inputs)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, atol=2e-4, rtol=1e-4)
    assert_close(running[0].double(), slow_running[0], atol=1e-5, rtol=1e-5)
    assert_close(running[1].double(), slow_running[1], atol=1e-5, rtol=1e-4)


@runs_kernels
def test_a_map_higher_than_a_strip() -> None:
    from memwrap.kernels.depthwise import _STRIP

    check_depthwise(8, 2 * _STRIP + 1, 3, kernel=3, stride=1)


@runs_kernels
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize(("channels", "height", "width"), [(24, 8, 8), (20, 5, 7), (65, 2, 1)])
def test_depthwise_convolutions(channels: int, height: int, width: int, kernel: int, stride: int) -> None:
    check_depthwise(channels, height, width, kernel, stride)


def check_depthwise(channels: int, height: int, width: int, kernel: int, stride: int) -> None:
    from memwrap.kernels.depthwise import depthwise

    maps = maps_of(3, channels, height, width)
    weight = torch.randn(channels, 1, kernel, kernel, device=DEVICE, requires_grad=True)
    slow_maps, slow_weight = twin(maps.double()), twin(weight.double())
    expected = functional.conv2d(slow_maps, slow_weight, None, stride, kernel // 2, groups=channels)
    out = depthwise(maps, weight, stride)
    assert out.is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(
        with_gradients(out, maps, weight), with_gradients(expected, slow_maps, slow_weight), strict=True
    ):
        assert_close(one.double(), other, atol=1e-4, rtol=1e-4)


@runs_kernels
def test_maps_that_the_kernels_cannot_count_are_refused() -> None:
    from memwrap.kernels.depthwise import depthwise

    maps = torch.zeros(1, 1, 1, 1).expand(2**16, 2**15, 1, 1)
    with pytest.raises(InputError, match="hold 2147483648 numbers; the kernels take fewer than 2147483648: give"):
        depthwise(maps, torch.zeros(2**15, 1, 3, 3))


@runs_kernels
def test_dropout_draws_from_its_seed() -> None:
    from memwrap.kernels.dropout import dropout

    values = torch.ones(40, 50, device=DEVICE, requires_grad=True)
    seed = torch.tensor([7], device=DEVICE)
    out = dropout(values, 0.2, seed, 0)
    assert set(out.unique().tolist()) == {0.0, 1.25}
    assert 0.15 < float((out == 0).float().mean()) < 0.25
    drawn = out.detach().clone()
    seed.add_(5)  # before the way back, as in a graph the next step's seed may lie there
    assert torch.autograd.grad(out.sum(), values)[0].equal(drawn)
    assert not dropout(values, 0.2, seed, 0).equal(drawn)
    assert dropout(values, 0.2, torch.tensor([7], device=DEVICE), 0).equal(drawn)
    assert not dropout(values, 0.2, torch.tensor([7], device=DEVICE), 1).equal(drawn)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    small = {
        "mobile": nn.Sequential(InvertedResidual(8, 16, 2, 1), InvertedResidual(16, 16, 2, 2)),
        "efficient": nn.Sequential(MobileBlock(8, 8, 1, 3, 1), MobileBlock(8, 12, 2, 5, 2)),
        "grouped": nn.Sequential(nn.Conv2d(8, 16, 3, groups=4), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1, stride=2)),
    }
    if not torch.cuda.is_available():
        return small
    names = ("mobilenet_v2", "efficientnet_b0", "resnet18", "googlenet", "densenet", "shufflenet_v2")
    return {**small, **{name: encoders.create(name, 10).features for name in names}}


def in_two_passes(network: nn.Module, images: Tensor, first: int, gradient: Tensor) -> Tensor:
    out = torch.cat([network(images[:first]), network(images[first:])])
    out.backward(gradient.to(out))
    return out.detach().double()


@runs_kernels
@pytest.mark.parametrize("name", networks())
def test_a_swapped_network_is_the_same_function(name: str) -> None:
    """Both parts in one pass, against two passes of the network as it was; how exactly, torch's own rounding says."""
    from memwrap.kernels.swapping import swap

    network = networks()[name].to(DEVICE).train()
    plain, exact = copy.deepcopy(network), copy.deepcopy(network).double()
    channels, side = (3, 32) if torch.cuda.is_available() and name in encoders.names() else (8, 8)
    images = maps_of(7, channels, side, side).detach()
    swapped = swap(network, torch.device(DEVICE))
    assert swapped.in_parts
    swapped.first = 4
    out = network(images)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    swapped.count(2)
    expected, rounded = in_two_passes(exact, images.double(), 4, gradient), in_two_passes(plain, images, 4, gradient)

    def check(place: str, found: Tensor, wanted: Tensor, torchs_own: Tensor) -> None:
        allowed = 20 * (torchs_own.double() - wanted).norm() + 1e-4 * wanted.norm() + 1e-6
        assert (found.double() - wanted).norm() < allowed, place

    check("out", out.detach(), expected, rounded)
    for (place, one), two, three in zip(
        network.named_parameters(), exact.parameters(), plain.parameters(), strict=True
    ):
        assert (one.grad is None) == (two.grad is None), place
        if two.grad is not None:
            check(place, one.grad, two.grad, three.grad)
    for (place, one), two, three in zip(network.named_buffers(), exact.buffers(), plain.buffers(), strict=True):
        check(place, one, two.double(), three)


@runs_kernels
def test_a_network_that_normalises_elsewhere_needs_two_passes() -> None:
    from memwrap.kernels.swapping import swap

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, maps: Tensor) -> Tensor:
            return self.norm(maps)

    assert not swap(nn.Sequential(nn.Conv2d(3, 3, 1), Own()), torch.device(DEVICE)).in_parts
    assert swap(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), torch.device(DEVICE)).in_parts
    without_own_statistics = nn.BatchNorm2d(3, track_running_stats=False)
    assert not swap(nn.Sequential(nn.Conv2d(3, 3, 1), without_own_statistics), torch.device(DEVICE)).in_parts
