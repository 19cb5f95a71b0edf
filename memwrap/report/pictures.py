"""Pixels as data URLs that a page holds, and back."""

import base64
import functools
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from memwrap.errors import DataError, brief
from memwrap.report.picture_files import Shape, check_webp, decode_png, encode_png, largest_file, png_size

EXACT_SIDE = 64  # pixels: up to this all pictures are stored without loss
LOSSY = 82  # the quality of larger WebP pictures
LARGEST_HEATMAP = 112  # pixels: heatmaps are grainy, and a page has many

_PNG = "data:image/png;base64,"
_WEBP = "data:image/webp;base64,"


def exact_uri(pixels: Tensor) -> str:
    """A PNG of pixels uint8 (C, H, W), without loss."""
    return _PNG + base64.b64encode(encode_png(pixels)).decode()


def exact_size(shape: Shape) -> int:
    """Characters of what `exact_uri` makes of pixels (C, H, W)."""
    return len(_PNG) + 4 * -(-png_size(shape) // 3)


def small_uri(pixels: Tensor) -> str:
    """A picture of pixels uint8 (C, H, W) to look at; small ones are stored without loss."""
    if pixels.numel() <= 3 * EXACT_SIDE**2:
        return exact_uri(pixels)
    stream = io.BytesIO()
    to_image(pixels).save(stream, "WEBP", quality=LOSSY, method=4)
    return _WEBP + base64.b64encode(stream.getvalue()).decode()


def heatmap_pixels(pixels: Tensor, heat: Tensor, colours: Tensor) -> Tensor:
    """Heat (H, W) from 0 to 1 in colours (256, 3), uint8, over the picture uint8 (C, H, W) in pale grey.

    Pixels uint8 (3, h, w), no side longer than LARGEST_HEATMAP.
    """
    return blend(_at_most(pixels, LARGEST_HEATMAP), _at_most(heat[None], LARGEST_HEATMAP)[0], colours)


@functools.cache
def heat_colours() -> Tensor:
    """256 colours from cold to hot, uint8 (256, 3), even in brightness, for print and the colour-blind."""
    from matplotlib import colormaps  # a heavy import

    return torch.from_numpy(colormaps["plasma"](np.arange(256), bytes=True)[:, :3].copy())


def blend(pixels: Tensor, heat: Tensor, colours: Tensor) -> Tensor:
    """The picture in pale grey with heat over it, as pixels uint8 (3, H, W)."""
    grey = pixels.float().mean(dim=0) * 0.6 + 90  # pale, so that no grey looks like a colour
    hot = colours[(heat.clamp(0, 1) * 255).round().long()].permute(2, 0, 1).float()
    share = heat.clamp(0, 1) ** 0.5 * 0.85
    return (grey * (1 - share) + hot * share).round().clamp(0, 255).to(torch.uint8)


def scale_colours(count: int) -> Tensor:
    """Colours of heatmaps from no heat to most, over a picture of middle grey: uint8 (count, 3)."""
    grey = torch.full((1, 1, count), 128, dtype=torch.uint8)
    return blend(grey, torch.linspace(0, 1, count)[None], heat_colours())[:, 0].T


def to_image(pixels: Tensor) -> Image.Image:
    """Pixels uint8 (1, H, W) or (3, H, W) as a Pillow image."""
    return Image.fromarray(pixels.permute(1, 2, 0).squeeze(-1).contiguous().numpy())


def pixels_in(uri: str, shape: Shape | None = None) -> Tensor:
    """The pixels uint8 (C, H, W) of a picture; a DataError if it is none, or a browser might show something else.

    shape: (C, H, W) that it has to have, which is checked before it is decoded.
    """
    try:
        for start, read in ((_PNG, decode_png), (_WEBP, _decode_webp)):
            if uri.startswith(start):
                return read(_content(uri.removeprefix(start), shape), shape)
        raise ValueError(f"it starts with {uri[:30]!r}; expected {_PNG} or {_WEBP}")
    except ValueError as error:
        raise DataError(f"a picture in the report cannot be trusted: {error}") from error


def _content(text: str, shape: Shape | None) -> bytes:
    """The bytes of a file of pixels of this shape, as reports write them."""
    if shape is not None and len(text) > 4 * largest_file(shape) // 3 + 4:
        raise ValueError(f"it has {len(text):,} characters, too many for a picture of shape {tuple(shape)}")
    content = base64.b64decode(text, validate=True)
    if base64.b64encode(content).decode() != text:
        raise ValueError("its base64 is written in an unusual way")
    return content


def _decode_webp(content: bytes, shape: Shape | None) -> Tensor:
    check_webp(content, shape)
    try:
        with Image.open(io.BytesIO(content), formats=("WEBP",)) as picture:
            return torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"it cannot be read ({brief(error)})") from error


def is_exact(uri: str) -> bool:
    """Whether a picture was stored without loss."""
    return uri.startswith(_PNG)


def _at_most(pixels: Tensor, side: int) -> Tensor:
    """Shrink pixels (C, H, W) so that no side is longer than this."""
    largest = max(pixels.shape[1:])
    if largest <= side:
        return pixels
    size = [max(1, round(length * side / largest)) for length in pixels.shape[1:]]
    smaller = torch.nn.functional.interpolate(pixels[None].float(), size=size, mode="area")[0]
    return smaller.round().to(pixels.dtype) if pixels.dtype == torch.uint8 else smaller
