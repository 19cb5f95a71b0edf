"""Reports as a knowing attacker forges them, and random changes of a page.

`FORGERIES` and `LOSSY_FORGERIES` map a name to a function that takes a genuine report and returns a forged page, which
`verify` must refuse. `mutate(page, draws)` changes a page at random, for fuzzing.
"""

import base64
import io
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from memwrap.report import Inputs, create_report, render
from memwrap.report.create import hashes
from memwrap.report.pictures import exact_uri, pixels_in, to_image
from tests.report import ReportWorld

Forgery = Callable[[ReportWorld], str]

PNG, WEBP = "data:image/png;base64,", "data:image/webp;base64,"
START = b"\x89PNG\r\n\x1a\n"
INVISIBLE = {
    "right-to-left override": "\u202e",
    "left-to-right embedding": "\u202a",
    "isolate": "\u2067",
    "right-to-left mark": "\u200f",
    "arabic letter mark": "\u061c",
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "word joiner": "\u2060",
    "invisible times": "\u2062",
    "soft hyphen": "\u00ad",
    "grapheme joiner": "\u034f",
    "variation selector": "\ufe0f",
    "variation selector 17": "\U000e0100",
    "tag": "\U000e0041",
    "private use": "\ue000",
    "private plane": "\U00100001",
    "Hangul filler": "\u3164",
    "byte order mark": "\ufeff",
    "line separator": "\u2028",
    "escape": "\x1b",
    "next line": "\x85",
    "line feed": "\n",
    "carriage return": "\r",
    "many marks": "e" + "\u0301" * 40,
    "many Hebrew marks": "ש" + "\u05c4" * 40,
    "many Thai marks": "ก" + "\u0e49" * 40,
}


# Parts of files


def png_part(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def scanlines(pixels: Tensor) -> bytes:
    """Pixels uint8 (C, H, W) as a PNG holds them before compression, without filters."""
    return b"".join(b"\0" + row.numpy().tobytes() for row in pixels.permute(1, 2, 0).contiguous())


def header(pixels: Tensor, **changes: int) -> bytes:
    """The content of IHDR. changes: width, height, bits, colour, compression, filtering, interlace."""
    fields = {
        "width": pixels.shape[2],
        "height": pixels.shape[1],
        "bits": 8,
        "colour": {1: 0, 3: 2}[len(pixels)],
        "compression": 0,
        "filtering": 0,
        "interlace": 0,
    }
    return struct.pack(">IIBBBBB", *{**fields, **changes}.values())


def png(pixels: Tensor, stream: bytes | None = None, **changes: int) -> bytes:
    """A PNG of one IDAT. stream: the compressed scanlines, if others."""
    stream = zlib.compress(scanlines(pixels)) if stream is None else stream
    return START + png_part(b"IHDR", header(pixels, **changes)) + png_part(b"IDAT", stream) + png_part(b"IEND")


def uri(content: bytes, start: str = PNG) -> str:
    return start + base64.b64encode(content).decode()


def content_of(picture: str) -> bytes:
    return base64.b64decode(picture.partition(",")[2])


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def as_pillow_reads(content: bytes) -> Tensor:
    """uint8 (C, H, W)"""
    with Image.open(io.BytesIO(content)) as picture:
        rows = torch.from_numpy(np.array(picture))
    return rows[None] if rows.ndim == 2 else rows.permute(2, 0, 1)


# Changed reports


def with_pictures(world: ReportWorld, pictures: dict[str, str]) -> str:
    """A page with these pictures in place of its own, hashed as the attacker wants them to be read."""
    return world.changed(pictures={**world.record.pictures, **pictures}).page


def report_on(world: ReportWorld, pixels: Tensor | None = None, names: Any = None, **options: Any) -> ReportWorld:
    """A genuine report on other inputs or with other options, which an attacker with the run can make."""
    inputs = Inputs(
        world.inputs.pixels if pixels is None else pixels,
        world.inputs.names if names is None else names,
        world.inputs.labels if pixels is None else None,
    )
    options = {"shown": world.record.shown, "heatmaps": world.record.heatmaps, **options}
    return replace(world, inputs=inputs, record=create_report(world.source, inputs, **options))


def shown_raw(page: str, text: str) -> str:
    """A page in which characters are shown as they are, whatever `render` wrote for them. The JSON stays."""
    start, end = record_span(page)
    body = [page[:start], page[end:]]
    for code in map(ord, set(text)):
        for form in (f"\\x{code:02x}", f"\\u{code:04x}", f"\\U{code:08x}", {10: "\\n", 13: "\\r", 9: "\\t"}.get(code)):
            if form:
                body = [part.replace(form, chr(code)) for part in body]
    return body[0] + page[start:end] + body[1]


def record_span(page: str) -> tuple[int, int]:
    """Where the record's JSON starts and ends."""
    found = re.search(r'<script type="application/json" id="record">([^<]*)</script>', page)
    assert found is not None
    return found.span(1)


def with_json(page: str, change: Callable[[str], str]) -> str:
    """A page with another text for its record."""
    start, end = record_span(page)
    return page[:start] + change(page[start:end]) + page[end:]


def replaced(old: str, new: str) -> Forgery:
    def forge(world: ReportWorld) -> str:
        assert old in world.page
        return world.page.replace(old, new, 1)

    return forge


def in_json(pattern: str, new: str) -> Forgery:
    """The record's text with the first match replaced."""

    def forge(world: ReportWorld) -> str:
        page = with_json(world.page, lambda text: re.sub(pattern, new, text, count=1))
        assert page != world.page
        return page

    return forge


def edited_record(change: Callable[[dict[str, Any]], Any]) -> Forgery:
    """The record changed in place; the page around it stays, as rendering may refuse such values."""

    def edit(text: str) -> str:
        stored = json.loads(text)
        change(stored)
        return json.dumps(stored).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    return lambda world: with_json(world.page, edit)


# Pictures


def input_as(change: Callable[[Tensor], bytes | str]) -> Forgery:
    """The first input in another file, of the pixels that Pillow reads as before."""

    def forge(world: ReportWorld) -> str:
        made = change(world.inputs.pixels[0])
        return with_pictures(world, {"input-1": made if isinstance(made, str) else uri(made)})

    return forge


def memory_as(change: Callable[[Tensor], bytes | str], start: str = PNG) -> Forgery:
    """The first memory picture in another file."""

    def forge(world: ReportWorld) -> str:
        name = next(name for name in world.record.pictures if name.startswith("memory-"))
        made = change(pixels_in(world.record.pictures[name]))
        return with_pictures(world, {name: made if isinstance(made, str) else uri(made, start)})

    return forge


def adam7(pixels: Tensor) -> list[bytes]:
    """The scanlines of each pass."""
    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]
    parts = [pixels[:, top::down, left::right] for top, down, left, right in passes]
    return [scanlines(part) if part.numel() else b"" for part in parts]


def interlaced_png(pixels: Tensor, passes: int = 7) -> bytes:
    """With the first passes only: browsers fill what is missing with what they have, Pillow leaves it black."""
    return png(pixels, zlib.compress(b"".join(adam7(pixels)[:passes])), interlace=1)


def interlaced_and_short(world: ReportWorld) -> str:
    """The run explains the sparse pixels on black that Pillow reads; a browser shows a whole picture."""
    contents = [interlaced_png(pixels, passes=3) for pixels in world.inputs.pixels]
    read = torch.stack([as_pillow_reads(content) for content in contents])
    made = report_on(world, read)
    return with_pictures(made, {f"input-{number}": uri(content) for number, content in enumerate(contents, start=1)})


def short_stream(world: ReportWorld) -> str:
    """The last row is missing: Pillow reads it as black."""
    pixels = world.inputs.pixels
    contents = [png(each, zlib.compress(scanlines(each[:, :-1]))) for each in pixels]
    made = report_on(world, torch.stack([as_pillow_reads(content) for content in contents]))
    return with_pictures(made, {f"input-{number}": uri(content) for number, content in enumerate(contents, start=1)})


def split_stream(pixels: Tensor, between: bytes) -> bytes:
    """Two IDATs with something between them."""
    stream = zlib.compress(scanlines(pixels))
    parts = png_part(b"IDAT", stream[:5]) + between + png_part(b"IDAT", stream[5:])
    return START + png_part(b"IHDR", header(pixels)) + parts + png_part(b"IEND")


def small_window(pixels: Tensor) -> bytes:
    """A stream that claims to need a window of 256 bytes, which decoders may believe."""
    stream = bytearray(zlib.compress(scanlines(pixels)))
    stream[0] = 0x08
    stream[1] = 31 - (stream[0] * 256) % 31
    return png(pixels, bytes(stream))


def odd_block(pixels: Tensor) -> bytes:
    """A stream with a block of nothing, by a code of one word: zlib and Pillow read on, Chromium shows no picture."""
    bits: list[int] = []

    def number(value: int, count: int) -> None:
        bits.extend(value >> place & 1 for place in range(count))

    def word(value: int, count: int) -> None:
        bits.extend(value >> place & 1 for place in reversed(range(count)))

    for value, count in ((0, 1), (2, 2), (0, 5), (0, 5), (14, 4)):  # codes of 257 and 1 words, 18 lengths of lengths
        number(value, count)
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1):
        number({18: 1, 0: 2, 1: 2}.get(symbol, 0), 3)
    for zeros in (138, 118):
        word(0, 1)
        number(zeros - 11, 7)
    word(3, 2)  # the end of a block has a word
    word(3, 2)
    word(0, 1)
    number(1, 1)  # then a last block, by the fixed code
    number(1, 2)
    rows = scanlines(pixels)
    for level in rows:
        word(0x30 + level if level < 144 else 0x190 + level - 144, 8 if level < 144 else 9)
    word(0, 7)
    bits.extend([0] * (-len(bits) % 8))
    content = bytes(sum(bit << place for place, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))
    return png(pixels, b"\x78\x01" + content + struct.pack(">I", zlib.adler32(rows)))


def with_part(name: bytes, data: bytes) -> Callable[[Tensor], bytes]:
    """A PNG with one more part before its pixels."""

    def change(pixels: Tensor) -> bytes:
        content = png(pixels)
        place = content.index(b"IDAT") - 4
        return content[:place] + png_part(name, data) + content[place:]

    return change


def animated(pixels: Tensor) -> bytes:
    """Pillow reads the first picture, browsers show the second."""
    return saved(to_image(pixels), "PNG", save_all=True, append_images=[to_image(255 - pixels)], duration=1)


def wrong_sum(part: bytes) -> Callable[[Tensor], bytes]:
    def change(pixels: Tensor) -> bytes:
        content = bytearray(png(pixels))
        place = content.index(part)
        size = struct.unpack(">I", content[place - 4 : place])[0]
        content[place + 4 + size] ^= 1
        return bytes(content)

    return change


def wrong_stream_sum(pixels: Tensor) -> bytes:
    stream = zlib.compress(scanlines(pixels))
    return png(pixels, stream[:-1] + bytes([stream[-1] ^ 1]))


def palette(pixels: Tensor) -> bytes:
    """Indices are levels, and each is shown as its opposite."""
    indices = Image.fromarray(pixels[0].contiguous().numpy())
    indices = Image.frombytes("P", indices.size, indices.tobytes())
    indices.putpalette([255 - level for level in range(256) for _ in range(3)])
    return saved(indices, "PNG")


def drawn_on(pixels: Tensor, levels: int) -> Tensor:
    """A large 7 drawn on a picture, brighter by some levels, or darker where it is bright."""
    height, width = pixels.shape[1:]
    mask = Image.new("L", (width, height))
    thick = max(1, width // 16)
    places = [(width // 5, height // 5), (4 * width // 5, height // 5), (2 * width // 5, 4 * height // 5)]
    ImageDraw.Draw(mask).line(places, fill=255, width=thick)
    change = torch.from_numpy(np.array(mask)).gt(0) * levels
    return torch.where(pixels < 128, pixels.int() + change, pixels.int() - change).clamp(0, 255).to(torch.uint8)


def with_strokes(pixels: Tensor, levels: int) -> Tensor:
    """Two letters of strokes of one pixel, of another brightness by some levels."""
    height, width = pixels.shape[1:]
    mask = Image.new("L", (width, height))
    top, bottom, letter = 3 * height // 5, height - 6, width // 4
    for left in (width // 8, width // 2):
        places = [(left, bottom), (left, top), (left + letter, top), (left + letter, bottom), (left, bottom)]
        ImageDraw.Draw(mask).line(places, fill=1)
    change = torch.from_numpy(np.array(mask)).int() * levels
    return (pixels.int() + change).clamp(0, 255).to(torch.uint8)


def heatmap_with_a_digit(world: ReportWorld) -> str:
    pictures = {
        name: exact_uri(drawn_on(pixels_in(picture), 15))
        for name, picture in world.record.pictures.items()
        if name.startswith("heatmap") and picture.startswith(PNG)
    }
    assert pictures
    return with_pictures(world, pictures)


def webp(pixels: Tensor, **options: Any) -> bytes:
    return saved(to_image(pixels), "WEBP", **{"quality": 82, "method": 4, **options})


def thin_letters(world: ReportWorld) -> str:
    """On the last memory picture, in a better quality, so that they are all that it misses."""
    name = [name for name in world.record.pictures if name.startswith("memory-")][-1]
    drawn = with_strokes(pixels_in(world.record.pictures[name]), -16)
    return with_pictures(world, {name: uri(webp(drawn, quality=100, method=6), WEBP)})


def riff(*parts: bytes) -> bytes:
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def scaled(pixels: Tensor) -> bytes:
    """With the bits that ask a decoder to show it larger."""
    content = bytearray(webp(pixels))
    content[27] |= 0x40
    return bytes(content)


def transparent(pixels: Tensor) -> Image.Image:
    """Half of it cannot be seen."""
    picture = to_image(pixels)
    picture.putalpha(Image.new("L", picture.size, 128))
    return picture


def exif(pixels: Tensor, kind: str) -> bytes:
    turned = Image.Exif()
    turned[0x0112] = 3
    return saved(to_image(pixels), kind, exif=turned)


# Names, titles, options


def file_name(text: str) -> Forgery:
    """An input whose name shows such characters as they are."""

    def forge(world: ReportWorld) -> str:
        names = (f"a{text}b.png", *world.inputs.names[1:])
        return shown_raw(report_on(world, names=names).page, text)

    return forge


def with_fields(**fields: Any) -> Forgery:
    return lambda world: world.changed(**fields).page


def headline(world: ReportWorld) -> str:
    """The heading that a demo once had, in the page and its record."""
    page = edited_record(lambda stored: stored.update(title="memwrap demo"))(world)
    return page.replace("Why “noise” decided so", "memwrap demo")


def with_options(**options: Any) -> Forgery:
    """Options of heatmaps by which no honest report is made, though the run gives the same with them."""

    def forge(world: ReportWorld) -> str:
        assert world.record.heatmaps is not None
        return world.changed(heatmaps=replace(world.record.heatmaps, **options)).page

    return forge


def everything_converges(world: ReportWorld) -> str:
    """With this tolerance, any map passes its check."""
    assert world.record.heatmaps is not None
    options = replace(world.record.heatmaps, tolerance=1e9)
    made = world.changed(heatmaps=options)
    each = [
        one.model_copy(update={"heatmap": one.heatmap.model_copy(update={"converged": True})})
        for one in made.record.explanations
        if one.heatmap is not None
    ]
    return made.changed(explanations=tuple(each)).page


def explanation(number: int, **fields: Any) -> Forgery:
    """The record with other values of one input, and a page that shows them."""

    def forge(world: ReportWorld) -> str:
        each = list(world.record.explanations)
        each[number] = each[number].model_copy(update=fields)
        return world.changed(explanations=tuple(each)).page

    return forge


def relabelled_hash(world: ReportWorld) -> str:
    """Other labels, without the hash that belongs to them."""
    assert world.inputs.labels is not None
    inputs = replace(world.inputs, labels=[each.prediction for each in world.record.explanations])
    again = create_report(world.source, inputs, shown=world.record.shown, heatmaps=world.record.heatmaps)
    return render(again.model_copy(update={"hashes": hashes(world.source.model, world.inputs)}))


def tomorrow() -> str:
    return (datetime.now(UTC) + timedelta(days=40)).isoformat(timespec="seconds")


FORGERIES: dict[str, Forgery] = {
    # Pictures that a browser shows differently from what Pillow reads
    "interlaced, passes missing": interlaced_and_short,
    "interlaced": input_as(interlaced_png),
    "interlaced memory picture": memory_as(interlaced_png),
    "last row missing": short_stream,
    "interlace method 2": input_as(lambda pixels: png(pixels, interlace=2)),
    "compression method 1": input_as(lambda pixels: png(pixels, compression=1)),
    "filter method 1": input_as(lambda pixels: png(pixels, filtering=1)),
    "filter method 64": memory_as(lambda pixels: png(pixels, filtering=64)),
    "16 bits": input_as(lambda pixels: png(pixels, bits=16)),
    "colour type 7": input_as(lambda pixels: png(pixels, colour=7)),
    "width 0": memory_as(lambda pixels: png(pixels, width=0)),
    "width 2**31": memory_as(lambda pixels: png(pixels, width=1 << 31)),
    "30000 x 30000": memory_as(lambda pixels: png(pixels, width=30000, height=30000)),
    "input of 30000 x 30000": input_as(lambda pixels: png(pixels, width=30000, height=30000)),
    "long header": input_as(
        lambda pixels: png(pixels).replace(png_part(b"IHDR", header(pixels)), png_part(b"IHDR", header(pixels) + b"\0"))
    ),
    "bytes after the stream": input_as(lambda pixels: png(pixels, zlib.compress(scanlines(pixels)) + b"more")),
    "two streams": input_as(
        lambda pixels: png(pixels, zlib.compress(scanlines(pixels)) + zlib.compress(scanlines(255 - pixels)))
    ),
    "a row too many": input_as(lambda pixels: png(pixels, zlib.compress(scanlines(pixels) + scanlines(pixels)[:13]))),
    "stream of 100 MB": input_as(lambda pixels: png(pixels, zlib.compress(scanlines(pixels) + bytes(100_000_000)))),
    "filter 9 of a row": memory_as(lambda pixels: png(pixels, zlib.compress(b"\x09" + scanlines(pixels)[1:]))),
    "small window": input_as(small_window),
    "odd block of the stream": input_as(odd_block),
    "odd block of a memory picture": memory_as(odd_block),
    "compressed": input_as(png),
    "sum of the stream": input_as(wrong_stream_sum),
    "sum of IHDR": input_as(wrong_sum(b"IHDR")),
    "sum of IDAT": input_as(wrong_sum(b"IDAT")),
    "sum of IEND": input_as(wrong_sum(b"IEND")),
    "part between pixels": input_as(lambda pixels: split_stream(pixels, png_part(b"tEXt", b"a\0b"))),
    "end between pixels": input_as(lambda pixels: split_stream(pixels, png_part(b"IEND"))),
    "bytes after the end": input_as(lambda pixels: png(pixels) + b"more"),
    "picture after the end": input_as(lambda pixels: png(pixels) + png(255 - pixels)),
    "content in IEND": input_as(lambda pixels: png(pixels)[:-12] + png_part(b"IEND", b"more")),
    "gamma": input_as(with_part(b"gAMA", struct.pack(">I", 10_000))),
    "chromaticity": input_as(with_part(b"cHRM", struct.pack(">8I", *range(10_000, 90_000, 10_000)))),
    "rendering intent": input_as(with_part(b"sRGB", b"\0")),
    "colour profile": input_as(with_part(b"iCCP", b"x\0\0" + zlib.compress(b"profile"))),
    "code points": input_as(with_part(b"cICP", bytes([9, 16, 0, 1]))),
    "transparency": input_as(with_part(b"tRNS", bytes(6))),
    "background": input_as(with_part(b"bKGD", bytes(6))),
    "orientation": input_as(lambda pixels: exif(pixels, "PNG")),
    "animation": input_as(animated),
    "palette": input_as(palette),
    "JPEG called PNG": input_as(lambda pixels: saved(to_image(pixels), "JPEG", quality=100)),
    "JPEG": memory_as(lambda pixels: uri(saved(to_image(pixels), "JPEG"), "data:image/jpeg;base64,")),
    "drawing": memory_as(lambda _: uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "data:image/svg+xml;base64,")),
    "WebP in place of PNG": memory_as(lambda pixels: uri(webp(pixels), WEBP)),
    "blank in base64": input_as(lambda pixels: uri(png(pixels)).replace("A", " A", 1)),
    "line in base64": input_as(lambda pixels: uri(png(pixels)) + "\n"),
    "percent in base64": input_as(lambda pixels: uri(png(pixels)).replace("=", "%3D").replace("A", "%41", 3)),
    "padding in base64": input_as(lambda pixels: uri(png(pixels)) + "===="),
    "capitals in the kind": input_as(lambda pixels: uri(png(pixels), "data:image/PNG;base64,")),
    "charset in the kind": input_as(lambda pixels: uri(png(pixels), "data:image/png;charset=utf-8;base64,")),
    "fragment": input_as(lambda pixels: uri(png(pixels)) + "#x"),
    "7 drawn on heatmaps": heatmap_with_a_digit,
    # Names
    **{f"name: {name}": file_name(text) for name, text in INVISIBLE.items()},
    "name as markup": lambda world: (
        report_on(world, names=("<b>sure</b>", *world.inputs.names[1:]))
        .page.replace("&lt;b&gt;", "<b>")
        .replace("&lt;/b&gt;", "</b>")
    ),
    # Titles, dates, versions, options
    "headline": headline,
    "name of another run": with_fields(run="/runs/better"),
    "made in the future": lambda world: world.changed(created=tomorrow()).page,
    **{
        f"made by memwrap {version}": with_fields(memwrap_version=version)
        for version in ("99.0.0", "0.1.9", "0.2", "0.2.0rc9999", "0.2.0.post1", "0.2.00", "0.2.0.0")
    },
    "any tolerance": everything_converges,
    "tolerance of 1e-300": with_options(tolerance=1e-300),
    "steps without end": with_options(max_steps=10**9),
    "all shown": with_fields(shown=10**9),
    "another seed": in_json(r'"run": 7', '"run": 8'),
    "labels without their hash": relabelled_hash,
    "no samples": edited_record(lambda stored: stored["explanations"][0].update(samples=[])),
    "a probability below zero": explanation(0, probability=-0.5),
    "steps without an error": edited_record(lambda stored: stored["explanations"][0]["heatmap"].update(error=None)),
    "no weight": edited_record(
        lambda stored: [sample.update(weight=0.0) for each in stored["explanations"] for sample in each["samples"]]
    ),
    "a name of a megabyte": edited_record(
        lambda stored: [each.update(prediction_name="x" * 1_000_000) for each in stored["explanations"]]
    ),
    # The record's text
    "a key twice": in_json(r'"shown": ', '"shown": 9, "shown": '),
    "an explanation twice": in_json(r'"explanations": ', '"explanations": [], "explanations": '),
    "infinity": in_json(r'"probability": [0-9.e-]+', '"probability": 1e999'),
    "NaN": in_json(r'"probability": [0-9.e-]+', '"probability": NaN'),
    "minus zero": in_json(r'"weight": [0-9.e-]+', '"weight": -0.0'),
    "a number of 5000 digits": in_json(r'"shown": \d+', '"shown": ' + "9" * 5000),
    "an index of 4000 digits": in_json(r'"index": \d+', '"index": ' + "9" * 4000),
    "a lone surrogate": in_json(r'"path": "', r'"path": "\\ud800'),
    "depth": in_json(r'"shown": \d+', '"shown": ' + "[" * 100_000 + "]" * 100_000),
    "two records": lambda world: world.page.replace(
        '<script type="application/json"', '<script type="application/json" id="record">{}</script><script type="x"', 1
    ),
    "record in a comment": lambda world: re.sub(
        r'(<script type="application/json".*?</script>)', r"<!--\1-->", world.page, flags=re.DOTALL
    ),
    # The page
    "no security policy": lambda world: re.sub(r'<meta http-equiv="Content-Security[^>]*>', "", world.page),
    "another policy": replaced("default-src 'none'", "default-src *"),
    "refresh": replaced("<title>", '<meta http-equiv="refresh" content="0;url=https://a.b"><title>'),
    "charset": replaced('<meta charset="utf-8">', '<meta charset="utf-7">'),
    "second charset": replaced("<title>", '<meta charset="latin-1"><title>'),
    "base": replaced("<title>", '<base href="https://a.b"><title>'),
    "script": replaced("</body>", "<script>document.title = 1</script></body>"),
    "style": replaced("</body>", "<style>.unsure { display: none }</style></body>"),
    "comment": replaced("</body>", "<!-- seen --></body>"),
    "byte order mark": lambda world: "\ufeff" + world.page,
    "line ends": lambda world: world.page.replace("\n", "\r\n"),
    "NUL": replaced("Summary</h2>", "Sum\0mary</h2>"),
    "first picture in place of the second": lambda world: with_pictures(
        world, {"input-2": world.record.pictures["input-1"]}
    ),
}

# For a report whose memory pictures are stored with loss.
LOSSY_FORGERIES: dict[str, Forgery] = {
    "7 drawn on a memory picture": memory_as(lambda pixels: uri(webp(drawn_on(pixels, 12)), WEBP)),
    "pale 7 drawn on a memory picture": memory_as(lambda pixels: uri(webp(drawn_on(pixels, 8)), WEBP)),
    "thin letters on a flat memory picture": thin_letters,
    "WebP, another size": memory_as(lambda pixels: uri(webp(pixels[:, :-1]), WEBP)),
    "WebP, 16000 x 16000": memory_as(lambda pixels: uri(sized(webp(pixels), 16000), WEBP)),
    "WebP, scaled": memory_as(scaled, WEBP),
    "WebP, bytes after the end": memory_as(lambda pixels: uri(webp(pixels) + b"more", WEBP)),
    "WebP, two pictures": memory_as(lambda pixels: uri(riff(webp(pixels)[12:], webp(255 - pixels)[12:]), WEBP)),
    "WebP, orientation": memory_as(lambda pixels: exif(pixels, "WEBP"), WEBP),
    "WebP, colour profile": memory_as(lambda pixels: webp(pixels, icc_profile=b"profile" * 30), WEBP),
    "WebP, animation": memory_as(
        lambda pixels: webp(pixels, save_all=True, append_images=[to_image(255 - pixels)], duration=1), WEBP
    ),
    "WebP, without loss": memory_as(lambda pixels: webp(pixels, lossless=True), WEBP),
    "WebP, transparent": memory_as(lambda pixels: saved(transparent(pixels), "WEBP", quality=82, exact=True), WEBP),
    "PNG in place of WebP": memory_as(png),
    "PNG called WebP": memory_as(png, WEBP),
}


def sized(content: bytes, side: int) -> bytes:
    """A WebP that claims another size."""
    return content[:26] + struct.pack("<HH", side, side) + content[30:]


# Random changes


def mutate(page: str, draws: random.Random) -> str:
    """A page with one to three random changes: of its bytes, text, numbers, record or pictures. Never the same page."""
    changed = page
    while changed == page:
        for _ in range(draws.randint(1, 3)):
            changed = draws.choice(_MUTATIONS)(changed, draws)
    return changed


def _flip_bits(page: str, draws: random.Random) -> str:
    content = bytearray(page.encode(errors="surrogatepass"))
    for _ in range(draws.randint(1, 8)):
        if content:
            content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
    return content.decode(errors="replace")


def _edit_text(page: str, draws: random.Random) -> str:
    """Insert, remove or double a piece, or put one from elsewhere in its place."""
    start = draws.randrange(len(page) + 1)
    end = min(len(page), start + draws.choice((1, 2, 8, 64, 1024)))
    other = draws.randrange(len(page) + 1)
    new = draws.choice(
        (
            "",
            page[start:end] * 2,
            page[other : other + end - start],
            draws.choice(tuple(INVISIBLE.values())),
            "<!--",
            '"',
        )
    )
    return page[:start] + new + page[end:]


def _edit_number(page: str, draws: random.Random) -> str:
    numbers = list(re.finditer(r"(?<![\w./+-])-?\d+(?:\.\d+)?", page))
    if not numbers:
        return page
    found = draws.choice(numbers)
    new = draws.choice(("0", "-1", "1e999", "NaN", "9" * 40, "0.5", str(draws.random()), found[0] + "0"))
    return page[: found.start()] + new + page[found.end() :]


def _edit_record(page: str, draws: random.Random) -> str:
    """Replace, remove or copy a value anywhere in the record."""
    try:
        start, end = record_span(page)
        stored = json.loads(page[start:end])
    except (AssertionError, ValueError, RecursionError):
        return page
    place, depth = stored, draws.randint(1, 6)
    for _ in range(depth):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draws.choice(keys)
        below = place[key]
        if isinstance(below, dict | list) and below and draws.random() < 0.8:
            place = below
            continue
        choices = [None, True, -1, 0, 10**12, 1.5, -0.0, "", "x" * 500, "\u202e", [], {}, [below], below]
        if draws.random() < 0.2:
            del place[key]
        else:
            place[key] = draws.choice(choices)
        break
    text = json.dumps(stored).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return page[:start] + text + page[end:]


def _edit_picture(page: str, draws: random.Random) -> str:
    """Swap two pictures, or change the bytes of one."""
    found = list(re.finditer(r'href="(data:image/[^"]*)"', page))
    if not found:
        return page
    one, other = draws.choice(found), draws.choice(found)
    new = other[1]
    if draws.random() < 0.7:
        start, _, text = one[1].partition(",")
        try:
            content = bytearray(base64.b64decode(text))
        except ValueError:
            return page
        for _ in range(draws.randint(1, 4)):
            if content:
                place = draws.randrange(min(len(content), draws.choice((40, len(content)))))
                content[place] = draws.choice((0, 1, 255, content[place] ^ (1 << draws.randrange(8))))
        if draws.random() < 0.5:
            content = bytearray(with_right_sums(bytes(content)))
        new = f"{start},{base64.b64encode(content).decode()}"
    return page[: one.start(1)] + new + page[one.end(1) :]


def with_right_sums(content: bytes) -> bytes:
    """A PNG with the check sums that its parts should have, as far as they can be found."""
    if not content.startswith(START):
        return content
    parts, place = [START], len(START)
    while place + 12 <= len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        if place + 12 + size > len(content):
            break
        parts.append(png_part(content[place + 4 : place + 8], content[place + 8 : place + 8 + size]))
        place += 12 + size
    return b"".join(parts) + content[place:]


_MUTATIONS = (_flip_bits, _edit_text, _edit_number, _edit_record, _edit_record, _edit_picture, _edit_picture)
