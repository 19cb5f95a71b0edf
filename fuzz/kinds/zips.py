"""Zips of images."""

import re
import shutil
from pathlib import Path
from random import Random

from fuzz.genuine import Genuine
from fuzz.kinds.targets import command, read_as_data
from fuzz.sandbox import Case
from tests.data.hostile import EXTREMES, ZIPS, hostile_zip, mutate


def make_zips(draw: Random, genuine: Genuine, folder: Path) -> Case:
    """A changed zip, or one made to be hostile, read as a data set, for an explanation or to add its images."""
    path = folder / "photos.zip"
    content, words = _zip(draw, genuine)
    path.write_bytes(content)
    if draw.random() < 0.2:
        run = genuine.run("transformers")
        return Case(lambda: command("explain", run, "--data", path, "--limit", 2, "--json"), f"{words}, for explain")
    if draw.random() < 0.1:
        run = folder / "run"
        shutil.copytree(genuine.run("vote"), run)
        return Case(lambda: command("add", run, path), f"{words}, added to a memory")
    options = {"skip_bad": draw.random() < 0.7, "size": draw.choice((None, 8))}
    return Case(lambda: read_as_data(path, options), f"{words}, read as a data set {options}")


def _zip(draw: Random, genuine: Genuine) -> tuple[bytes, str]:
    match draw.randrange(5):
        case 0:
            return mutate(genuine.zip, draw), "a zip with other bytes"
        case 1 | 2:
            return _changed_headers(draw, genuine.zip), "a zip with other headers"
        case 3:
            name = draw.choice(sorted(ZIPS))
            return ZIPS[name](draw), f"a zip of {name}"
        case _:
            return hostile_zip(draw), "a hostile zip"


def _changed_headers(draw: Random, content: bytes) -> bytes:
    """A zip with another value in a header: of an entry, of the directory or at the end."""
    changed = bytearray(content)
    starts = [match.start() for match in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", content)]
    for _ in range(draw.choice((1, 1, 2))):
        place, size = draw.choice(starts) + draw.randrange(4, 46), draw.choice((1, 2, 4))
        value = draw.choice((*EXTREMES, 8, 12, 14, 0xA1FF0000, len(content), draw.randrange(1 << 32)))
        changed[place : place + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(changed)
