"""Pixels as pictures that a page holds within itself."""

import base64
import binascii
import functools
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from memwrap.errors import DataError, brief
from memwrap.report.plain_files import check_png, check_webp

EXACT_SIDE = 64  # pixels: up to this all pictures are stored without loss, so none can be changed unnoticed
LOSSY = 82  # WebP's quality for pictures that only have to look right
LARGEST_HEATMAP = 112  # pixels: heatmaps are grainy, and a page has many

_PNG = "data:image/png;base64,"
_WEBP = "data:image/webp;base64,"


def exact_uri(pixels: Tensor) -> str:
    """Pixels uint8 (C, H, W), without loss."""
    return _PNG + _encoded(picture_of(pixels), "PNG", optimize=True)


def small_uri(pixels: Tensor) -> str:
    """Pixels uint8 (C, H, W), to look at; without loss where that takes little."""
    if pixels.numel() <= 3 * EXACT_SIDE**2:
        return exact_uri(pixels)
    return _WEBP + _encoded(picture_of(pixels), "WEBP", quality=LOSSY, method=4)


def small_copy_uri(pixels: Tensor) -> str:
    """Pixels uint8 (C, H, W), as large as a heatmap of them, to be put beside it."""
    return small_uri(_at_most(pixels, LARGEST_HEATMAP))


def heatmap_uri(pixels: Tensor, heat: Tensor, colours: Tensor) -> str:
    """Heat (H, W) from 0 to 1 in colours (256, 3), uint8, over the picture uint8 (C, H, W) in pale grey."""
    return small_uri(blended(_at_most(pixels, LARGEST_HEATMAP), _at_most(heat[None], LARGEST_HEATMAP)[0], colours))


@functools.cache
def heat_colours() -> Tensor:
    """256 colours from cold to hot, uint8 (256, 3): even in brightness, so they survive colour blindness and print."""
    from matplotlib import colormaps  # a heavy import

    return torch.from_numpy(colormaps["plasma"](np.arange(256), bytes=True)[:, :3].copy())


def blended(pixels: Tensor, heat: Tensor, colours: Tensor) -> Tensor:
    """The same as pixels uint8 (3, H, W)."""
    grey = pixels.float().mean(dim=0) * 0.6 + 90  # pale, so that no grey is taken for a colour
    hot = colours[(heat.clamp(0, 1) * 255).round().long()].permute(2, 0, 1).float()
    share = heat.clamp(0, 1) ** 0.5 * 0.85
    return (grey * (1 - share) + hot * share).round().clamp(0, 255).to(torch.uint8)


def scale_colours(count: int) -> Tensor:
    """So many colours of heatmaps from no heat to most, over a picture of middle grey; uint8 (count, 3)."""
    grey = torch.full((1, 1, count), 128, dtype=torch.uint8)
    return blended(grey, torch.linspace(0, 1, count)[None], heat_colours())[:, 0].T


def picture_of(pixels: Tensor) -> Image.Image:
    """Pixels uint8 (1, H, W) or (3, H, W) as Pillow has them."""
    return Image.fromarray(pixels.permute(1, 2, 0).squeeze(-1).contiguous().numpy())


def pixels_in(uri: str) -> Tensor:
    """What `exact_uri` was given, nearly what `small_uri` was; a DataError if a browser might show something else."""
    try:
        content = _plain_content(uri)
    except ValueError as error:
        raise DataError(f"a picture in the report cannot be trusted: {error}") from error
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "WEBP")) as picture:
            rows = torch.from_numpy(np.array(picture))
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"a picture in the report cannot be read ({brief(error)})") from error
    return rows.unsqueeze(0) if rows.ndim == 2 else rows.permute(2, 0, 1)


def _plain_content(uri: str) -> bytes:
    """Of a picture as a report writes it."""
    for start, check in ((_PNG, check_png), (_WEBP, check_webp)):
        if uri.startswith(start):
            try:
                content = base64.b64decode(uri.removeprefix(start), validate=True)
            except binascii.Error as error:
                raise ValueError(f"it is not written in base64 ({error})") from error
            check(content)
            return content
    raise ValueError(f"it begins with {uri[:30]!r}; expected {_PNG} or {_WEBP}")


def is_exact(uri: str) -> bool:
    """Whether a picture was stored without loss."""
    return uri.startswith(_PNG)


def _at_most(pixels: Tensor, side: int) -> Tensor:
    """(C, H, W), made smaller if it is larger than that."""
    largest = max(pixels.shape[1:])
    if largest <= side:
        return pixels
    size = [max(1, round(length * side / largest)) for length in pixels.shape[1:]]
    smaller = torch.nn.functional.interpolate(pixels[None].float(), size=size, mode="area")[0]
    return smaller.round().to(pixels.dtype) if pixels.dtype == torch.uint8 else smaller


def _encoded(picture: Image.Image, kind: str, **options: int | bool) -> str:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return base64.b64encode(stream.getvalue()).decode("ascii")
