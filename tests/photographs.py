"""Folders of pictures that are taken for photographs, whose classes an encoder of things can tell apart."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("discs", "stripes", "checks")
COLOURS = {"discs": (200, 40, 40), "stripes": (40, 170, 60), "checks": (50, 70, 210), "rings": (220, 200, 40)}


def photograph(kind: str, seed: int, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """A pattern of its kind in its colour, on noise; place and width vary with the seed. size: width, height"""
    width, height = size
    draw = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    step = int(draw.integers(7, 11))
    distance = np.hypot(rows - draw.integers(height // 3, 2 * height // 3), columns - width // 2)
    shapes = {
        "discs": distance < min(size) / 3,
        "rings": distance // step % 2 == 0,
        "stripes": (columns + draw.integers(step)) // step % 2 == 0,
        "checks": (rows // step + columns // step) % 2 == 0,
    }
    pixels = draw.integers(90, 160, (height, width, 3)).astype(np.float64)
    pixels[shapes[kind]] = np.array(COLOURS[kind]) + draw.normal(0, 12, (int(shapes[kind].sum()), 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def photographs(
    path: Path, classes: Sequence[str] = CLASSES, count: int = 12, size: tuple[int, int] = (96, 72), seed: int = 0
) -> Path:
    """A folder with a folder of pictures for each class."""
    for number, name in enumerate(classes):
        (path / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            photograph(name, seed + 1000 * number + index, size).save(path / name / f"{index}.png")
    return path
