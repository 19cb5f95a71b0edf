"""Stacked layers against the same networks by themselves, with the kernels and without."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from memwrap import encoders
from memwrap.encoders.blocks import Classifier
from memwrap.encoders.efficientnet import MobileBlock
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.encoders.resnet import ResidualBlock
from memwrap.precision import exact_convolutions
from memwrap.stacked.layers import Told, stack_layers, unstackable

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS, IMAGES, FIRST = 2, 7, 4


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="the tests below run by themselves")
def test_the_networks_by_the_interpreter() -> None:
    pytest.importorskip("triton")
    here = Path(__file__)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "kernels", str(here)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout


def network(name: str) -> nn.Module:
    small = {
        "mobile": lambda: nn.Sequential(
            InvertedResidual(8, 16, 2, 1), InvertedResidual(16, 16, 2, 1), InvertedResidual(16, 8, 2, 2)
        ),
        "efficient": lambda: nn.Sequential(MobileBlock(8, 8, 1, 3, 1), MobileBlock(8, 12, 2, 5, 2)),
        "grouped": lambda: nn.Sequential(
            nn.Conv2d(8, 16, 3, groups=4), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1, stride=2), Normalised(8)
        ),
        "residual": lambda: nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 12, 2)),
        "stem": lambda: nn.Sequential(nn.Conv2d(8, 12, (1, 3), padding=(0, 2)), nn.Conv2d(12, 5, 2, padding=(1, 0))),
        "classifier": lambda: Classifier(nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU()), 12, 3),
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)),
    }
    return small[name]() if name in small else encoders.create(name, 10).features


class Normalised(nn.Module):
    """A normalisation that is in no chain."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, maps: Tensor) -> Tensor:
        return self.norm(maps).relu()


def names() -> list[str]:
    large = ["mobilenet_v2", "efficientnet_b0", "resnet18", "googlenet", "densenet", "shufflenet_v2"]
    return ["mobile", "efficient", "grouped", "residual", "stem", "classifier", "linear"] + (
        large if torch.cuda.is_available() else []
    )


def in_two_passes(of: nn.Module, images: Tensor, gradient: Tensor) -> Tensor:
    out = torch.cat([of(images[:FIRST]), of(images[FIRST:])])
    out.backward(gradient.to(out))
    return out.detach().double()


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("name", names())
def test_a_stacked_network_is_the_same_function(name: str, kernels: bool) -> None:
    """All runs and both parts in one pass, against two passes of each; how exactly, torch's own rounding says."""
    if kernels and not (INTERPRETED or torch.cuda.is_available()):
        pytest.skip("needs a GPU, or Triton's interpreter, which another test starts")
    torch.manual_seed(0)
    plain = [network(name).to(DEVICE).train() for _ in range(RUNS)]
    exact = [copy.deepcopy(each).double() for each in plain]
    stacked = copy.deepcopy(plain[0])
    assert unstackable(stacked) is None
    states = [each.state_dict() for each in plain]
    values = {place: torch.stack([state[place] for state in states]).to(DEVICE) for place in states[0]}
    learning = [place for place, _ in stacked.named_parameters()]
    for place in learning:
        values[place].requires_grad_()
    told = Told(torch.zeros(RUNS, dtype=torch.int64, device=DEVICE), FIRST)
    stack_layers(stacked, values, told, kernels)
    channels, side = (3, 32) if name in encoders.names() else (8, 8)
    images = torch.randn(RUNS * IMAGES, channels, side, side, device=DEVICE)
    with exact_convolutions(images):
        compare(stacked, values, told, plain, exact, images)


def compare(
    stacked: nn.Module,
    values: dict[str, Tensor],
    told: Told,
    plain: list[nn.Module],
    exact: list[nn.Module],
    images: Tensor,
) -> None:
    out = stacked(images)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    found = out.detach().chunk(RUNS)

    def check(place: str, found: Tensor, wanted: Tensor, torchs_own: Tensor) -> None:
        allowed = 20 * (torchs_own.double() - wanted).norm() + 1e-4 * wanted.norm() + 1e-6
        assert (found.double() - wanted).norm() < allowed, place

    for run, (own, own_gradient) in enumerate(zip(images.chunk(RUNS), gradient.chunk(RUNS), strict=True)):
        expected = in_two_passes(exact[run], own.double(), own_gradient)
        check("out", found[run], expected, in_two_passes(plain[run], own, own_gradient))
        of_plain = dict(plain[run].named_parameters())
        for place, parameter in exact[run].named_parameters():
            assert (values[place].grad is None) == (parameter.grad is None), place
            if parameter.grad is not None:
                check(place, values[place].grad[run], parameter.grad, of_plain[place].grad)
        normalisations = {place for place, module in exact[run].named_modules() if isinstance(module, nn.BatchNorm2d)}
        counted = {place: int(exact[run].get_buffer(f"{place}.num_batches_tracked")) for place in normalisations}
        assert {place for place, count in counted.items() if count} == told.used
        for place, buffer in exact[run].named_buffers():
            if not place.endswith("num_batches_tracked"):
                check(place, values[place][run], buffer, plain[run].get_buffer(place))


def test_what_cannot_be_stacked_is_named() -> None:
    assert unstackable(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Dropout(), nn.MaxPool2d(2))) is None
    assert unstackable(nn.Sequential(nn.Conv2d(3, 3, 1), nn.LayerNorm(3))) == "LayerNorm"
    assert unstackable(nn.BatchNorm2d(3, affine=False)) == "BatchNorm2d"
    assert unstackable(nn.BatchNorm2d(3, track_running_stats=False)) == "BatchNorm2d"
    assert unstackable(nn.BatchNorm2d(3, momentum=None)) == "BatchNorm2d"
    assert unstackable(nn.Conv2d(3, 3, 3, padding_mode="reflect")) == "Conv2d"
    assert unstackable(nn.Conv2d(3, 3, 3, padding="same")) == "Conv2d"
    assert unstackable(nn.Dropout2d()) == "Dropout2d"
