"""Images."""

import zlib
from pathlib import Path
from random import Random

from fuzz.genuine import CLASSES, Genuine
from fuzz.kinds.targets import command, read_as_data
from fuzz.sandbox import Case
from tests.data.hostile import hostile_image, mutate, png_of_size
from tests.report.forgeries import with_right_sums


def make_images(draw: Random, genuine: Genuine, folder: Path) -> Case:
    """Changed images among genuine ones, read as a data set or for predictions."""
    names = draw.sample(sorted(genuine.images), draw.choice((1, 1, 2, 4)))
    given = folder / "photos"
    for name in CLASSES[:2]:
        (given / name).mkdir(parents=True)
        (given / name / "genuine.png").write_bytes(genuine.images["rgb.png"])
    files = []
    for name in names:
        path = given / draw.choice(CLASSES[:2]) / (name if draw.random() < 0.8 else name.split(".")[0] + ".jpg")
        path.write_bytes(_changed_image(draw, name, genuine.images[name]))
        files.append(path)
    words = f"changed {', '.join(names)}"
    if draw.random() < 0.5:
        run = genuine.run(draw.choice(("digits", "transformers")))
        return Case(lambda: command("predict", run, *files), f"{words}, for predict")
    options = {
        "skip_bad": draw.random() < 0.5,
        "channels": draw.choice((1, 3)),
        "size": draw.choice((None, 8, 64, 224)),
    }
    return Case(lambda: read_as_data(given, options), f"{words}, read as a data set {options}")


def _changed_image(draw: Random, name: str, content: bytes) -> bytes:
    match draw.randrange(6):
        case 0 | 1:
            return hostile_image(draw)
        case 2 if name.endswith(".png"):
            return with_right_sums(mutate(content, draw))
        case 3 if name.endswith(".png"):
            bomb = b"x\0\0" + zlib.compress(bytes(draw.choice((10, 64 << 20))))
            return png_of_size(9, 9, chunks=[(draw.choice((b"iCCP", b"zTXt", b"iTXt", b"acTL", b"tRNS")), bomb)])
        case 4 if draw.random() < 0.1:
            return draw.choice((b"", draw.randbytes(1000), content * 50, content + bytes(30 << 20)))
    return mutate(content, draw)
