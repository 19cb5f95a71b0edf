"""Reports."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image

from fuzz import shown
from fuzz.genuine import REPORTS, Genuine, encoded
from fuzz.kinds.targets import command
from fuzz.mutations import change_json, nudge_json
from fuzz.sandbox import Case, WrongError
from memwrap.errors import MemwrapError
from memwrap.report.page import read_record, render
from memwrap.runs.reporting import source_of
from memwrap.runs.run import open_model
from tests.data import hostile
from tests.report.forgeries import FORGERIES, LOSSY_FORGERIES, interlaced_png, mutate, record_span, with_right_sums


def make_reports(draw: Random, genuine: Genuine, folder: Path) -> Case:
    """A changed report, verified against its genuine run."""
    name = draw.choice(REPORTS)
    page, words = _changed_page(draw, genuine, name)
    path = folder / "report.html"
    path.write_bytes(page.encode(errors="surrogatepass"))
    run, original = genuine.run_of_report(name), genuine.report(name).read_text()
    options = ("--run", run) if draw.random() < 0.7 else ()  # otherwise the report names its run
    return Case(lambda: verify_and_compare(path, run, original, options), f"{name}: {words}; verify {options[:1]}")


def verify_and_compare(path: Path, run: Path, original: str, options: Sequence[object] = ()) -> bool:
    """Whether `memwrap verify` confirms a report; a WrongError if it does and should not."""
    if not command("verify", path, *options):
        return False
    page = path.read_bytes().decode()
    if page != original and (found := shown.differences(page, source_of(open_model(run)))):
        raise WrongError("verify confirms a report that is not what the run gives: " + "; ".join(found))
    return True


def _changed_page(draw: Random, genuine: Genuine, name: str) -> tuple[str, str]:
    page = genuine.report(name).read_text()
    match draw.randrange(8):
        case 0 | 1:
            return mutate(page, draw), "changed at random"
        case 2 | 3 | 4:
            return _change_record(draw, page)
        case 5 | 6:
            return _change_picture(draw, page)
        case _:
            return _forge(draw, genuine, name)


def _forge(draw: Random, genuine: Genuine, name: str) -> tuple[str, str]:
    """A known forgery, sometimes changed at random once more."""
    known = {**FORGERIES, **(LOSSY_FORGERIES if name == "photos" else {})}
    forgery = draw.choice(sorted(known))
    try:
        page = known[forgery](genuine.worlds[name])
    except Exception:  # from an assertion to a missing heatmap
        return _change_picture(draw, genuine.report(name).read_text())  # the forgery does not go with this report
    return (mutate(page, draw), f"{forgery}, changed at random") if draw.random() < 0.3 else (page, forgery)


def _change_record(draw: Random, page: str) -> tuple[str, str]:
    """Another record; often with the page that it renders to, as someone with memwrap at hand would make it."""
    start, end = record_span(page)
    value = json.loads(page[start:end])
    changed = nudge_json(draw, value) if draw.random() < 0.7 else change_json(draw, value)
    text = json.dumps(changed).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    forged = page[:start] + text + page[end:]
    if draw.random() < 0.25:
        return forged, "record changed"
    try:
        return render(read_record(forged)), "record changed and rendered"
    except (MemwrapError, ValueError, TypeError, OverflowError):
        return forged, "record changed"


def _change_picture(draw: Random, page: str) -> tuple[str, str]:
    """Another picture in place of one: other pixels, another encoding of the same ones, or a damaged file."""
    found = shown.pictures_in(page)
    name = draw.choice(sorted(found))
    kind = draw.choice(("pixels", "pixels", "faint", "parts", "bytes", "other", "encoding", "interlaced"))
    if kind == "other":
        new = found[draw.choice(sorted(found))]
    else:
        start, _, text = found[name].partition(",")
        new = start + "," + base64.b64encode(_changed_pixels(draw, base64.b64decode(text), kind)).decode()
    return page.replace(f'href="{found[name]}"', f'href="{new}"', 1), f"picture {name}: {kind}"


def _changed_pixels(draw: Random, content: bytes, kind: str) -> bytes:
    if kind in ("bytes", "parts"):
        changed = hostile.mutate(content, draw)
        return with_right_sums(changed) if kind == "parts" else changed
    with Image.open(io.BytesIO(content)) as image:
        lossy, pixels = image.format == "WEBP", np.array(image)
    if kind == "interlaced":
        rows = torch.from_numpy(pixels)
        return interlaced_png(rows[None] if rows.ndim == 2 else rows.permute(2, 0, 1), draw.randrange(1, 8))
    if kind != "encoding":
        change = draw.choice((1, -1)) if kind == "faint" else draw.choice((8, 16, 17, 40, 60, 128, 255))
        row, column = (draw.randrange(length) for length in pixels.shape[:2])
        side = draw.choice((1, 2, 8, 100))
        square = pixels[row : row + side, column : column + side]
        square[:] = np.clip(square.astype(np.int64) + change, 0, 255)
    image = Image.fromarray(pixels)
    if lossy:
        return encoded(image, "WEBP", quality=draw.choice((82, 82, 80, 60, 100)), method=draw.choice((4, 0, 6)))
    if kind == "encoding" and draw.random() < 0.3:
        return encoded(image.convert(draw.choice(("RGBA", "P", "RGB", "L", "1"))), "PNG")
    return encoded(image, "PNG", compress_level=draw.choice((0, 1, 9)), optimize=draw.random() < 0.3)
