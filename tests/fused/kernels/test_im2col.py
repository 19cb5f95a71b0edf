"""im2col by a kernel against torch's `unfold`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from memwrap import InputError
from tests.with_kernels import DEVICE, INTERPRETED, needs_triton

Pair = tuple[int, int]

CASES = [  # the shape of images, kernel, padding
    ((1, 1, 1, 1), (1, 1), (0, 0)),
    ((2, 3, 9, 11), (3, 3), (1, 1)),  # more positions than a program takes, not a multiple
    ((2, 3, 16, 8), (3, 3), (1, 1)),  # just a multiple
    ((3, 1, 7, 5), (3, 3), (1, 1)),
    ((2, 3, 5, 4), (2, 2), (1, 0)),
    ((2, 3, 4, 6), (4, 2), (0, 2)),
    ((2, 8, 8, 8), (1, 3), (0, 2)),  # 24 columns, not a power of two
    ((3, 3, 3, 2), (3, 2), (4, 0)),  # patches outside the image
    ((2, 1, 9, 8), (8, 8), (3, 4)),  # the most columns used
    ((2, 5, 1, 6), (1, 1), (0, 0)),
]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def zero_columns_for(shape: tuple[int, ...], kernel: Pair) -> int:
    """Columns up to the next multiple of 8."""
    return -shape[1] * kernel[0] * kernel[1] % 8


def expected(maps: Tensor, kernel: Pair, padding: Pair, zero_columns: int, dtype: torch.dtype) -> Tensor:
    count, channels, *sides = maps.shape
    down, across = (side + 2 * own - length + 1 for side, own, length in zip(sides, padding, kernel, strict=True))
    unfolded = functional.unfold(maps.float(), kernel, padding=padding).unflatten(1, (channels, -1))
    taps_first = unfolded.permute(0, 3, 2, 1).reshape(count, down, across, -1)
    return functional.pad(taps_first, (0, zero_columns)).to(dtype)


def assert_rounded(found: Tensor, wanted: Tensor) -> None:
    """The same number, rounded as torch rounds."""
    assert found.dtype == wanted.dtype
    assert found.is_contiguous()
    # The interpreter truncates, a GPU rounds.
    cut = torch.finfo(found.dtype).eps if INTERPRETED and found.dtype == torch.bfloat16 else 0
    assert_close(found, wanted, rtol=cut, atol=0)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "kernel", "padding"), CASES)
def test_patches(shape: tuple[int, ...], kernel: Pair, padding: Pair, dtype: torch.dtype) -> None:
    from memwrap.fused.kernels.im2col import im2col

    maps, zero_columns = numbers(*shape), zero_columns_for(shape, kernel)
    found = im2col(maps, kernel, padding, zero_columns, dtype)
    assert_rounded(found, expected(maps, kernel, padding, zero_columns, dtype))


@needs_triton
@pytest.mark.parametrize("zero_columns", [0, 3])
def test_any_number_of_zero_columns(zero_columns: int) -> None:
    from memwrap.fused.kernels.im2col import im2col

    maps = numbers(2, 3, 4, 5)
    found = im2col(maps, (3, 3), (1, 1), zero_columns, torch.float32)
    assert found.equal(expected(maps, (3, 3), (1, 1), zero_columns, torch.float32))


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint8])
def test_images_may_have_another_dtype(dtype: torch.dtype) -> None:
    from memwrap.fused.kernels.im2col import im2col

    maps = (20 * numbers(2, 3, 4, 5)).abs().to(dtype)
    found = im2col(maps, (3, 3), (1, 1), 5, torch.float32)
    assert found.equal(expected(maps, (3, 3), (1, 1), 5, torch.float32))


@needs_triton
@pytest.mark.parametrize(
    "laid",
    [
        pytest.param(lambda maps: maps.contiguous(memory_format=torch.channels_last), id="channels last"),
        pytest.param(lambda maps: maps.mT.contiguous().mT, id="columns before rows"),
        pytest.param(lambda maps: maps[1:, 1:, 1:, 1:], id="a part that begins anywhere"),
        pytest.param(lambda maps: maps[::2, :, ::3, ::2], id="not side by side"),
        pytest.param(lambda maps: maps[:1, :, :, :1].expand(3, -1, -1, 5), id="the same in many places"),
    ],
)
def test_images_may_have_any_layout(laid: Callable[[Tensor], Tensor]) -> None:
    from memwrap.fused.kernels.im2col import im2col

    maps = laid(numbers(4, 3, 7, 9))
    found = im2col(maps, (3, 2), (1, 2), 6, torch.float32)
    assert found.equal(expected(maps.contiguous(), (3, 2), (1, 2), 6, torch.float32))


@needs_triton
@pytest.mark.parametrize("step", [2**29, 2**30])
def test_images_may_be_far_apart_in_memory(step: int) -> None:
    """So far that a thread without a position would read outside, or that offsets exceed 32 bits."""
    from memwrap.fused.kernels.im2col import im2col

    near = (20 * numbers(3, 1, 4, 5)).abs().to(torch.uint8)
    room = torch.empty(2 * step + near[0].numel(), dtype=torch.uint8, device=DEVICE)  # hardly any of it is touched
    far = room.as_strided(near.shape, (step, *near.stride()[1:])).copy_(near)
    found = im2col(far, (3, 3), (1, 1), 7, torch.float32)
    assert found.equal(expected(near, (3, 3), (1, 1), 7, torch.float32))


@needs_triton
def test_too_many_elements_are_refused() -> None:
    from memwrap.fused.kernels.im2col import im2col

    maps = torch.zeros(1, 1, 1, 1, device=DEVICE)
    with pytest.raises(InputError, match="2147483648"):
        im2col(maps.expand(2**16, 2**15, 1, 1), (1, 1), (0, 0), 0, torch.bfloat16)
    with pytest.raises(InputError, match=r"\(65536, 64, 32, 16\) .*2147483648"):
        im2col(maps.expand(2**16, 1, 64, 32), (3, 3), (1, 1), 7, torch.bfloat16)
