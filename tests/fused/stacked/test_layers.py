"""Stacked layers against the same networks by themselves, with the kernels and without."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from memwrap import encoders
from memwrap.encoders.blocks import Classifier
from memwrap.encoders.efficientnet import MobileBlock
from memwrap.encoders.mobilenet import InvertedResidual
from memwrap.encoders.resnet import ResidualBlock
from memwrap.fused.stacked.convolution import convolution
from memwrap.fused.stacked.layers import PassContext, stack_layers
from memwrap.fused.stacked.support import unsupported_layer
from memwrap.nn.precision import exact_convolutions
from tests.with_kernels import DEVICE, needs_triton

RUNS, IMAGES, FIRST = 2, 7, 4
TOLERANCE = 1e-4
# Of the millions of values in a large network, some are so near zero that rounding decides whether relu passes their
# gradients.
LARGE_TOLERANCE = 0.05
SIDES = {"mobile": 4, "efficient": 4}  # the interpreter is slow


def network(name: str) -> nn.Module:
    small = {
        "mobile": lambda: nn.Sequential(InvertedResidual(8, 16, 2, 1), InvertedResidual(16, 8, 2, 2)),
        "efficient": lambda: nn.Sequential(MobileBlock(8, 8, 1, 3, 1), MobileBlock(8, 12, 2, 5, 2)),
        "grouped": lambda: nn.Sequential(
            nn.Conv2d(8, 16, 3, groups=4), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1, stride=2), nn.BatchNorm2d(8)
        ),
        "residual": lambda: nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 12, 2)),
        "stem": lambda: nn.Sequential(nn.Conv2d(8, 12, (1, 3), padding=(0, 2)), nn.Conv2d(12, 5, 2, padding=(1, 0))),
        "classifier": lambda: Classifier(nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU()), 12, 3),
        "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8 * 64, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)),
    }
    return small[name]() if name in small else encoders.create(name, 10).features


def names() -> list[str]:
    large = ["mobilenet_v2", "efficientnet_b0", "resnet18", "googlenet", "densenet", "shufflenet_v2"]
    return ["mobile", "efficient", "grouped", "residual", "stem", "classifier", "linear"] + (
        large if torch.cuda.is_available() else []
    )


def in_two_passes(of: nn.Module, images: Tensor, gradient: Tensor) -> Tensor:
    out = torch.cat([of(images[:FIRST]), of(images[FIRST:])])
    out.backward(gradient.to(out))
    return out.detach().double()


@pytest.mark.parametrize(
    "kernels", [pytest.param(True, marks=needs_triton, id="kernels"), pytest.param(False, id="torch")]
)
@pytest.mark.parametrize("name", names())
def test_a_stacked_network_computes_the_same(name: str, kernels: bool) -> None:
    """All runs and both parts in one pass against two passes of each run, relative to torch's own rounding."""
    torch.manual_seed(0)
    plain = [network(name).to(DEVICE).train() for _ in range(RUNS)]
    exact = [copy.deepcopy(each).double() for each in plain]
    stacked = copy.deepcopy(plain[0])
    assert unsupported_layer(stacked) is None
    states = [each.state_dict() for each in plain]
    values = {place: torch.stack([state[place] for state in states]).to(DEVICE) for place in states[0]}
    learning = [place for place, _ in stacked.named_parameters()]
    for place in learning:
        values[place].requires_grad_()
    context = PassContext(torch.zeros(RUNS, dtype=torch.int64, device=DEVICE), FIRST)
    stack_layers(stacked, values, context, kernels)
    channels, side = (3, 32) if name in encoders.names() else (8, SIDES.get(name, 8))
    images = torch.randn(RUNS * IMAGES, channels, side, side, device=DEVICE)
    with exact_convolutions(images):
        compare(
            stacked, values, context, plain, exact, images, LARGE_TOLERANCE if name in encoders.names() else TOLERANCE
        )


def compare(
    stacked: nn.Module,
    values: dict[str, Tensor],
    context: PassContext,
    plain: list[nn.Module],
    exact: list[nn.Module],
    images: Tensor,
    rounded: float,
) -> None:
    out = stacked(images)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    found = out.detach().chunk(RUNS)

    def check(place: str, found: Tensor, wanted: Tensor, torchs_own: Tensor) -> None:
        allowed = 20 * (torchs_own.double() - wanted).norm() + rounded * wanted.norm() + 1e-6
        missed = (found.double() - wanted).norm()
        assert missed < allowed, (place, float(missed), float(allowed), float(wanted.norm()))

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
        assert {place for place, count in counted.items() if count} == context.used
        for place, buffer in exact[run].named_buffers():
            if not place.endswith("num_batches_tracked"):
                check(place, values[place][run], buffer, plain[run].get_buffer(place))


class Standardised(nn.Conv2d):
    def forward(self, maps: Tensor) -> Tensor:
        return self._conv_forward(maps, self.weight - self.weight.mean(), self.bias)


class Doubling(nn.Sequential):
    def forward(self, maps: Tensor) -> Tensor:
        return 2 * super().forward(maps)


class Centred(nn.Module):
    def forward(self, maps: Tensor) -> Tensor:
        return maps - maps.mean(0)


class Activated(nn.BatchNorm2d):
    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps).relu()


def with_a_hook() -> nn.Module:
    network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    network[1].register_forward_hook(lambda *_: None)
    return network


def with_a_weight_in_two_places() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    return network


def with_a_layer_in_two_places() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Conv2d(3, 3, 1), relu, nn.Conv2d(3, 3, 1), relu)


@pytest.mark.parametrize(
    ("made", "reported"),
    [
        (lambda: nn.LayerNorm(3), "a layer of the kind LayerNorm"),
        (lambda: nn.BatchNorm2d(3, affine=False), "a layer of the kind BatchNorm2d"),
        (lambda: nn.BatchNorm2d(3, track_running_stats=False), "a layer of the kind BatchNorm2d"),
        (lambda: nn.BatchNorm2d(3, momentum=None), "a layer of the kind BatchNorm2d"),
        (lambda: nn.Conv2d(3, 3, 3, padding_mode="reflect"), "a layer of the kind Conv2d"),
        (lambda: nn.Conv2d(3, 3, 3, padding="same"), "a layer of the kind Conv2d"),
        (nn.Dropout2d, "a layer of the kind Dropout2d"),
        (nn.RReLU, "a layer of the kind RReLU"),
        (lambda: Standardised(3, 3, 1), "a layer of the kind Standardised"),
        (lambda: Doubling(nn.ReLU()), "a layer of the kind Doubling"),
        (lambda: Activated(3), "a layer of the kind Activated"),
        (Centred, "a layer of the kind Centred"),
        (with_a_hook, "a hook on 0.1"),
        (with_a_weight_in_two_places, "a layer or a weight in two places"),
        (with_a_layer_in_two_places, "a layer or a weight in two places"),
    ],
)
def test_unsupported_layers_are_named(made: Callable[[], nn.Module], reported: str) -> None:
    assert unsupported_layer(nn.Sequential(made(), nn.ReLU())) == reported


@pytest.mark.parametrize("name", [name for name in encoders.names() if not encoders.has_pretrained(name)])
def test_all_our_encoders_can_be_stacked(name: str) -> None:
    assert unsupported_layer(encoders.create(name, 3)) is None


def test_the_gradient_of_a_convolution_with_wide_padding() -> None:
    """Not by a convolution with flipped weights, whose padding would be negative."""
    weight = torch.randn(2, 4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    maps = torch.randn(6, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    out = convolution(maps, weight, None, nn.Conv2d(3, 4, 3, padding=3), kernels=False)
    expected = torch.cat(
        [functional.conv2d(own, each, padding=3) for own, each in zip(maps.chunk(2), weight, strict=True)]
    )
    weighing = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, (maps, weight), weighing),
        torch.autograd.grad(expected, (maps, weight), weighing),
        strict=True,
    ):
        assert_close(one, other)


@needs_triton
def test_image_convolution_is_the_same_with_and_without_kernels() -> None:
    """Images in float32, weights in bfloat16."""
    torch.manual_seed(0)
    weight = torch.randn(2, 4, 3, 3, 3).to(DEVICE, torch.bfloat16).requires_grad_()
    bias = torch.randn(2, 4).to(DEVICE, torch.bfloat16)
    # Integers: Triton's interpreter truncates where a GPU rounds.
    images = torch.randint(-8, 9, (6, 3, 5, 6)).to(DEVICE, torch.float32)
    found, gradients = [], []
    with torch.autocast(DEVICE, torch.bfloat16):
        for kernels in (True, False):
            found.append(convolution(images, weight, bias, nn.Conv2d(3, 4, 3, padding=1), kernels))
            gradients.append(torch.autograd.grad(found[-1].float().square().sum(), weight)[0])
    assert found[0].dtype == torch.bfloat16
    assert found[0].equal(found[1])
    assert gradients[0].equal(gradients[1])
