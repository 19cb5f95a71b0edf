"""The kernels against torch's own layers, on a GPU; without one, slowly, by Triton's interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from memwrap import InputError
from memwrap.fused.kernels.norm import Norm
from tests.with_kernels import DEVICE, INTERPRETED, run_by_the_interpreter, runs_kernels, starts_the_interpreter


@starts_the_interpreter
def test_the_kernels_by_the_interpreter() -> None:
    run_by_the_interpreter(__file__)


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


IMAGES = 5  # of each run in the tests of normalisation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": functional.relu,
    "silu": functional.silu,
}


def normalised_one_by_one(
    maps: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor], activation: str, first: int
) -> Tensor:
    """Each part of each run by torch's own function, in a pass by itself."""
    done = []
    for run, images in enumerate(maps.split(IMAGES)):
        own = running[0][run], running[1][run], weight[run], bias[run]
        parts = [part for part in (images[:first], images[first:]) if len(part)]
        done += [ACTIVATIONS[activation](functional.batch_norm(part, *own, True, 0.1, 1e-5)) for part in parts]
    return torch.cat(done)


def check_normalisation(runs: int, channels: int, side: int, mean: float, first: int, activation: str) -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    own_means = mean * torch.arange(1, runs + 1, device=DEVICE).repeat_interleave(IMAGES).view(-1, 1, 1, 1)
    maps = twin(maps_of(runs * IMAGES, channels, side, side) + own_means)
    weight, bias = (torch.randn(runs, channels, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.randn(runs, channels, device=DEVICE), torch.rand(runs, channels, device=DEVICE)
    slow_running = running[0].double(), running[1].double()
    inputs = [twin(each.double()) for each in (maps, weight, bias)]
    expected = normalised_one_by_one(*inputs, slow_running, activation, first)
    out = batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5), activation, None if first == IMAGES else first)
    found, wanted = with_gradients(out, maps, weight, bias), with_gradients(expected, *inputs)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, atol=2e-4, rtol=1e-4)
    assert_close(running[0].double(), slow_running[0], atol=1e-5, rtol=1e-5)
    assert_close(running[1].double(), slow_running[1], atol=1e-5, rtol=1e-4)


@runs_kernels
@pytest.mark.parametrize(
    ("runs", "channels", "side", "mean", "first", "activation"),
    [
        (1, 24, 6, 0.0, 5, "none"),
        (2, 24, 6, 0.0, 3, "relu"),
        (1, 24, 6, 0.0, 1, "silu"),
        (1, 96, 3, 50.0, 5, "silu"),  # far from zero
        (2, 40, 3, 300.0, 2, "relu"),
        (3, 20, 4, -3.0, 4, "relu"),  # rows that no wide load fits
        (3, 3, 1, 0.0, 3, "none"),
        (1, 65, 5, 1.0, 3, "silu"),
    ],
)
def test_normalisation_and_activation_of_both_parts(
    runs: int, channels: int, side: int, mean: float, first: int, activation: str
) -> None:
    check_normalisation(runs, channels, side, mean, first, activation)


@runs_kernels
@pytest.mark.parametrize(("activation", "first"), [("none", 2), ("relu", IMAGES), ("silu", 3)])
def test_maps_in_bfloat16_are_rounded_once(activation: str, first: int) -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    maps = maps_of(2 * IMAGES, 24, 3, 3).detach().bfloat16().requires_grad_()
    weight, bias = (torch.randn(2, 24, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.zeros(2, 24, device=DEVICE), torch.ones(2, 24, device=DEVICE)
    inputs = [twin(each.double()) for each in (maps, weight, bias)]
    expected = normalised_one_by_one(*inputs, (running[0].double(), running[1].double()), activation, first)
    out = batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5), activation, first)
    assert out.dtype == torch.bfloat16
    once = torch.finfo(torch.bfloat16).eps / (1 if INTERPRETED else 2)  # the interpreter cuts off what a GPU rounds
    assert_close(out.double(), expected, atol=1e-5, rtol=once + 1e-5)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    found = torch.autograd.grad(out, (maps, weight, bias), gradient)
    wanted = torch.autograd.grad(expected, inputs, gradient.double())
    assert_close(found[0].double(), wanted[0], atol=1e-4, rtol=once + 1e-4)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert_close(one.double(), other, atol=1e-3, rtol=1e-4)


@runs_kernels
@pytest.mark.parametrize(("activation", "first"), [("none", IMAGES), ("none", 2), ("relu", IMAGES), ("relu", 3)])
def test_a_shortcut_is_added_before_the_activation(activation: str, first: int) -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    runs, channels = 2, 20
    maps, added = maps_of(runs * IMAGES, channels, 3, 2), twin(maps_of(runs * IMAGES, channels, 2, 3).mT)
    weight, bias = (torch.randn(runs, channels, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.zeros(runs, channels, device=DEVICE), torch.ones(runs, channels, device=DEVICE)
    inputs = [twin(each.double()) for each in (maps, weight, bias, added)]
    slow_running = running[0].double(), running[1].double()
    expected = normalised_one_by_one(*inputs[:3], slow_running, "none", first) + inputs[3]
    if activation == "relu":
        expected = expected.relu()
    out = batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5), activation, first, added)
    found, wanted = with_gradients(out, maps, weight, bias, added), with_gradients(expected, *inputs)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, atol=2e-4, rtol=1e-4)


@runs_kernels
def test_normalisation_of_many_chunks_of_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As large maps are cut up, with less of each at a time."""
    from memwrap.fused.kernels import batch_norm as module

    monkeypatch.setattr(module, "_TILE", 256)
    monkeypatch.setitem(module._REDUCING, "tile", 256)
    monkeypatch.setitem(module._REDUCING, "programs", 10)
    monkeypatch.setattr(module, "_PARTIALS", 2)
    split = module.RowGrid(2, IMAGES * 16, 3 * 16, 24)
    assert (split.chunk, split.first_chunks, split.chunks) == (2 * split.reduced_r, 3, 5)
    check_normalisation(2, 24, 4, 100.0, 3, "relu")


@runs_kernels
def test_weights_may_lie_apart_but_not_what_is_updated() -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    maps, room = maps_of(4, 8, 2, 2), torch.rand(2, 2 * 8, device=DEVICE)
    weight, bias = room[:, :8], room[:, 8:]
    running = torch.zeros(2, 8, device=DEVICE), torch.ones(2, 8, device=DEVICE)
    expected = batch_norm(maps, Norm(weight.clone(), bias.clone(), *running, 0.1, 1e-5))
    assert batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5)).equal(expected)
    with pytest.raises(InputError, match="running statistics"):
        batch_norm(maps, Norm(weight, bias, running[0], room[:, :8], 0.1, 1e-5))


@runs_kernels
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize(
    ("runs", "channels", "height", "width", "dtype"),
    [
        (1, 24, 8, 6, torch.float32),
        (2, 20, 3, 5, torch.bfloat16),  # rows that no wide load fits
        (1, 8, 1, 1, torch.float32),
        (3, 12, 2, 3, torch.float32),
    ],
)
def test_depthwise_convolutions(
    runs: int, channels: int, height: int, width: int, dtype: torch.dtype, kernel: int, stride: int
) -> None:
    check_depthwise(runs, channels, height, width, kernel, stride, dtype)


@runs_kernels
@pytest.mark.parametrize(
    ("height", "width", "kernel", "stride"),
    [(5, 1, 3, 1), (9, 3, 3, 1), (9, 3, 3, 2), (5, 2, 5, 2), (8, 7, 3, 2)],
)
def test_depthwise_convolutions_that_end_within_a_strip(height: int, width: int, kernel: int, stride: int) -> None:
    check_depthwise(1, 8, height, width, kernel, stride)


@runs_kernels
def test_depthwise_convolutions_of_maps_in_bfloat16() -> None:
    """As autocast has them: what comes out is rounded once."""
    from memwrap.fused.kernels.depthwise import depthwise

    maps, weight = maps_of(2, 8, 4, 3).detach().bfloat16(), torch.randn(1, 8, 1, 3, 3, device=DEVICE).bfloat16()
    expected = functional.conv2d(maps.double(), weight[0].double(), None, 1, 1, groups=8)
    out = depthwise(maps, weight)
    assert out.dtype == torch.bfloat16
    assert_close(out.double(), expected, atol=1e-3, rtol=torch.finfo(torch.bfloat16).eps)


@runs_kernels
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions_of_several_blocks_of_channels(stride: int) -> None:
    check_depthwise(2, 33, 2, 1, 3, stride)


def cut_small(monkeypatch: pytest.MonkeyPatch, tile: int, rows: int, programs: int) -> None:
    """Strips of convolutions, as large maps are cut up, with less of each at a time."""
    from memwrap.fused.kernels import depthwise_kernels

    for stride in (1, 2):
        there = {"tile": tile, "warps": 2, "rows": 4 // stride}
        back = {"tile": tile, "warps": 2, "rows": rows, "programs": programs}
        monkeypatch.setitem(depthwise_kernels._FORWARD, (3, stride), there)
        monkeypatch.setitem(depthwise_kernels._BACKWARD, (3, stride), back)


@runs_kernels
@pytest.mark.parametrize(("stride", "tile"), [(1, 64), (2, 32)])
def test_depthwise_of_many_tiles_and_chunks_of_several_strips(
    stride: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large maps are cut up, with less of each at a time: each run into 2 x 2 strips, in chunks of 3 and 1."""
    from memwrap.fused.kernels import depthwise, depthwise_kernels

    cut_small(monkeypatch, tile, rows=4, programs=3)
    monkeypatch.setattr(depthwise_kernels, "_PARTIALS", 2)
    chunks = []
    merge_weight_gradient = depthwise.merge_weight_gradient

    def noted(partial: Tensor, weight: Tensor) -> Tensor:
        chunks.append(partial.shape[1])
        return merge_weight_gradient(partial, weight)

    monkeypatch.setattr(depthwise, "merge_weight_gradient", noted)
    check_depthwise(2, 8, 5, 3, 3, stride)
    assert chunks == [2]


@runs_kernels
def test_chunks_are_added_up_in_the_order_and_dtype_of_the_weight() -> None:
    """In one kernel: autograd would bring a gradient to the weight's dtype too, but with one more."""
    from memwrap.fused.kernels.depthwise_kernels import merge_weight_gradient

    partial, weight = torch.randn(2, 3, 9, 4, device=DEVICE), torch.zeros(2, 4, 1, 3, 3, device=DEVICE)
    expected = partial.sum(1).transpose(1, 2).reshape(weight.shape)
    assert_close(merge_weight_gradient(partial, weight), expected)
    assert_close(merge_weight_gradient(partial, weight.bfloat16()), expected.bfloat16())


def check_depthwise(
    runs: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Against torch's own function, run by run. dtype: the weight's, which may be shorter than that of the maps."""
    from memwrap.fused.kernels.depthwise import depthwise

    maps = maps_of(runs * 3, channels, height, width)
    weight = torch.randn(runs, channels, 1, kernel, kernel, device=DEVICE).to(dtype).requires_grad_()
    slow_maps, slow_weight = twin(maps.double()), twin(weight.double())
    expected = torch.cat(
        [
            functional.conv2d(images, own, None, stride, kernel // 2, groups=channels)
            for images, own in zip(slow_maps.split(3), slow_weight, strict=True)
        ]
    )
    out = depthwise(maps, weight, stride)
    assert out.is_contiguous(memory_format=torch.channels_last)
    found = with_gradients(out, maps, weight)
    wanted = with_gradients(expected, slow_maps, slow_weight)
    for one, other in zip(found[:2], wanted[:2], strict=True):
        assert_close(one.double(), other, atol=1e-4, rtol=1e-4)
    assert_close(found[2].double(), wanted[2], atol=1e-4, rtol=max(1e-4, torch.finfo(dtype).eps))


# Triton's interpreter tells of what a factor of zero makes of a number that stands for nothing; relu makes zero of it.
quietly = pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")


@quietly
@runs_kernels
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("runs", "channels", "height", "width", "kernel", "first", "activation"),
    [
        (1, 24, 8, 6, 3, IMAGES, "relu"),
        (2, 20, 3, 5, 3, 3, "relu"),  # rows that no wide load fits
        (2, 8, 5, 3, 5, 2, "silu"),
        (1, 33, 4, 1, 3, 2, "none"),
        (3, 8, 9, 7, 3, 4, "relu"),
        (1, 8, 1, 3, 5, 0, "silu"),
        (1, 24, 8, 4, 3, 2, "none"),  # strips that are whole, in programs with room for more
    ],
)
def test_a_depthwise_convolution_between_two_normalisations(
    runs: int, channels: int, height: int, width: int, kernel: int, first: int, activation: str, stride: int
) -> None:
    check_normalised_depthwise(runs, channels, height, width, kernel, first, activation, stride)


@quietly
@runs_kernels
@pytest.mark.parametrize("stride", [1, 2])
def test_one_between_two_normalisations_of_many_chunks_of_several_pieces(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch, 32, rows=2, programs=5)
    check_normalised_depthwise(2, 8, 5, 3, 3, 2, "relu", stride)


@quietly
@runs_kernels
@pytest.mark.parametrize("first", [IMAGES, 2])
def test_moments_of_what_lies_far_from_zero(first: int) -> None:
    """Of 1 x 1 maps, whose numbers are all multiplied by the same: from zero, half of their digits would be lost."""
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    maps, ones = maps_of(2 * IMAGES, 8, 1, 1), torch.ones(2, 8, device=DEVICE)
    own = Norm(ones, 1000 * ones, 0 * ones, 1 * ones, 0.1, 1e-5)
    taps = torch.randn(2, 8, 1, 3, 3, device=DEVICE)
    found, moments = normalised_depthwise(maps, own, "relu", first, taps, 1)
    after = Norm(ones, 0 * ones, ones.clone(), ones.clone(), 0.1, 1e-5)
    exact = [each.double() if isinstance(each, Tensor) else each for each in after]
    expected = normalised_one_by_one(found.double(), *exact[:2], (exact[2], exact[3]), "none", first)
    assert_close(batch_norm(found, after, "none", first, moments=moments).double(), expected, atol=1e-2, rtol=1e-2)


@quietly
@runs_kernels
@pytest.mark.parametrize("gamma", [0.0, 0.01, 1.0])
def test_moments_are_of_maps_as_they_are_rounded(gamma: float) -> None:
    """Where all numbers are nearly the same, normalisation would make much of the difference."""
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    maps, ones = maps_of(2 * IMAGES, 8, 1, 1).detach().bfloat16(), torch.ones(2, 8, device=DEVICE)
    own = Norm(gamma * ones, 1.3 * ones, 0 * ones, 1 * ones, 0.1, 1e-5)
    found, moments = normalised_depthwise(maps, own, "relu", 3, torch.randn(2, 8, 1, 3, 3, device=DEVICE).bfloat16(), 1)
    after = [Norm(ones, 0 * ones, 0 * ones, 1 * ones, 0.1, 1e-5) for _ in range(2)]
    expected = batch_norm(found, after[0], "none", 3)
    assert_close(batch_norm(found, after[1], "none", 3, moments=moments), expected, atol=2e-3, rtol=0.01)


def check_normalised_depthwise(
    runs: int, channels: int, height: int, width: int, kernel: int, first: int, activation: str, stride: int
) -> None:
    """Against torch's own functions, part by part, in double precision: what comes out, gradients and statistics."""
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    maps = maps_of(runs * IMAGES, channels, height, width)
    weights = [torch.randn(runs, channels, device=DEVICE) for _ in range(4)]
    weights[0][:, 1] = 0  # all that is seen of this channel is its bias, within the maps
    weights[1][:, 1] = 1
    weights[1][:, 2] = -30  # and of this one hardly anything, if relu follows: rounding must not decide on its variance
    weights = [twin(each) for each in weights]
    running = [torch.rand(runs, channels, device=DEVICE) for _ in range(4)]
    taps = torch.randn(runs, channels, 1, kernel, kernel, device=DEVICE, requires_grad=True)
    inputs = [twin(each.double()) for each in (maps, *weights, taps)]
    slow = [each.double() for each in running]
    before = normalised_one_by_one(*inputs[:3], (slow[0], slow[1]), activation, first)
    between = torch.cat(
        [
            functional.conv2d(images, own, None, stride, kernel // 2, groups=channels)
            for images, own in zip(before.split(IMAGES), inputs[5], strict=True)
        ]
    )
    expected = normalised_one_by_one(between, inputs[3], inputs[4], (slow[2], slow[3]), "relu", first)
    part = None if first == IMAGES else first
    found, moments = normalised_depthwise(
        maps, Norm(*weights[:2], *running[:2], 0.1, 1e-5), activation, part, taps, stride
    )
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_close(found.double(), between, atol=2e-4, rtol=1e-4)
    out = batch_norm(found, Norm(*weights[2:], *running[2:], 0.1, 1e-5), "relu", part, moments=moments)
    for one, other in zip(with_gradients(out, maps, *weights, taps), with_gradients(expected, *inputs), strict=True):
        assert_close(one.double(), other, atol=1e-3, rtol=1e-3)
    for one, other in zip(running, slow, strict=True):
        assert_close(one.double(), other, atol=1e-4, rtol=1e-4)


@runs_kernels
def test_maps_that_the_kernels_cannot_count_are_refused() -> None:
    from memwrap.fused.kernels.depthwise import depthwise

    maps = torch.zeros(1, 1, 1, 1).expand(2**16, 2**15, 1, 1)
    with pytest.raises(InputError, match="2147483648"):
        depthwise(maps, torch.zeros(1, 2**15, 1, 3, 3))


# Tensors are made on the device: to move one there makes it contiguous.
@runs_kernels
@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (lambda: {"first": 3}, "3 images in runs of 2"),
        (lambda: {"first": -1}, "-1 images in runs of 2"),
        (lambda: {"activation": "gelu"}, "'gelu'; expected one of none, relu, silu"),
        (lambda: {"running_var": torch.ones(2, 16, device=DEVICE)[:, :8]}, "running statistics are not contiguous"),
        (lambda: {"kernel": torch.ones(1, 8, 1, 3, 3, device=DEVICE)}, "kernels of 1 runs .* of 2 runs"),
        (lambda: {"stride": 3}, "stride 3"),
    ],
)
def test_invalid_arguments_are_refused(changes: Callable[[], dict[str, Any]], reported: str) -> None:
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    norm = Norm(*(torch.ones(2, 8, device=DEVICE) for _ in range(4)), 0.1, 1e-5)
    given = {"activation": "relu", "first": 1, "stride": 1, "kernel": torch.ones(2, 8, 1, 3, 3, device=DEVICE)}
    given |= changes()
    norm = norm._replace(running_var=given.pop("running_var", norm.running_var))
    with pytest.raises(InputError, match=reported):
        normalised_depthwise(maps_of(4, 8, 2, 2), norm, **given)


@runs_kernels
def test_batches_that_runs_cannot_share_are_refused() -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import depthwise
    from memwrap.fused.kernels.dropout import dropout

    maps, weight = maps_of(5, 8, 2, 2), torch.ones(2, 8, device=DEVICE)
    uneven = "5 images for 2 runs"
    with pytest.raises(InputError, match=uneven):
        batch_norm(maps, Norm(weight, weight, weight, weight, 0.1, 1e-5))
    with pytest.raises(InputError, match=uneven):
        depthwise(maps, torch.ones(2, 8, 1, 3, 3, device=DEVICE))
    with pytest.raises(InputError, match=uneven):
        dropout(maps, 0.2, torch.tensor([1, 2], device=DEVICE), 0)
    with pytest.raises(InputError, match="3 images in runs of 2"):
        batch_norm(maps[:4], Norm(weight, weight, weight, weight, 0.1, 1e-5), first=3)


@runs_kernels
def test_dropout_draws_from_its_seed() -> None:
    from memwrap.fused.kernels.dropout import dropout

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


@runs_kernels
def test_a_run_draws_what_it_draws_alone() -> None:
    from memwrap.fused.kernels.dropout import dropout

    values = torch.randn(3 * 20, 70, device=DEVICE, requires_grad=True)  # 1400 numbers of each run: no whole blocks
    seeds = torch.tensor([7, 1000, 7], device=DEVICE)
    together = with_gradients(dropout(values, 0.2, seeds, 3), values)
    alone = torch.cat([dropout(own, 0.2, seed, 3) for own, seed in zip(values.split(20), seeds.split(1), strict=True)])
    for one, other in zip(together, with_gradients(alone, values), strict=True):
        assert one.equal(other)
    kept = (together[0] != 0).split(20)
    assert kept[0].equal(kept[2])
    assert not kept[0].equal(kept[1])


@runs_kernels
@pytest.mark.parametrize(("shape", "stride"), [((1, 8, 1, 7, 7), 1), ((1, 8, 1, 3, 3), 3), ((1, 4, 1, 3, 3), 1)])
def test_what_the_depthwise_kernels_cannot_do_is_refused(shape: tuple[int, ...], stride: int) -> None:
    from memwrap.fused.kernels.depthwise import depthwise

    with pytest.raises(InputError, match=r"expected \(runs, 8, 1, 3, 3\) or \(runs, 8, 1, 5, 5\), and stride 1 or 2"):
        depthwise(maps_of(2, 8, 4, 4), torch.zeros(shape, device=DEVICE), stride)
