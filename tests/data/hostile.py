"""Image files and zips made to do harm: to take hours or gigabytes, or to lead out of a folder. Small, and by a seed.

`hostile_image(random)` and `hostile_zip(random)` draw one of all kinds; `IMAGES` and `ZIPS` hold the kinds by name.
`mutate(content, random)` changes any bytes at random. `honest_images()` are small valid files to begin with.
"""

import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from PIL import Image

FORMATS: dict[str, dict[str, object]] = {
    **{name: {} for name in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF")},
    **{name: {} for name in ("TGA", "ICO", "JPEG2000", "PCX")},
    "progressive JPEG": {"progressive": True},
    "TIFF in LZW": {"compression": "tiff_lzw"},
    "TIFF in JPEG": {"compression": "jpeg"},
    "TIFF in deflate": {"compression": "tiff_adobe_deflate"},
}
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


# Images


@cache
def honest_images() -> dict[str, bytes]:
    """A small valid file of each format that Pillow writes here, by the names in FORMATS."""
    picture = Image.radial_gradient("L").resize((40, 30)).convert("RGB")
    found = {}
    for name, options in FORMATS.items():
        file = io.BytesIO()
        kind = name.split(" in ")[0].split(" ")[-1]
        try:
            picture.save(file, kind, **options)
        except (KeyError, OSError, ValueError):  # Pillow was built without it
            continue
        found[name] = file.getvalue()
    return found


def mutate(content: bytes, random: Random) -> bytes:
    """Flip, overwrite, insert, repeat, remove and cut off some of the bytes, more often near the beginning."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        place = min(int(random.expovariate(8 / max(len(data), 1))), len(data)) if random.random() < 0.7 else 0
        place = place or random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0 if place < len(data):
                data[place] ^= 1 << random.randrange(8)
            case 1:
                number, size = random.choice(EXTREMES), random.choice((1, 2, 4))
                order = random.choice(("little", "big"))
                data[place : place + size] = (number % (1 << (8 * size))).to_bytes(size, order)
            case 2:
                data[place:place] = random.randbytes(random.randrange(1, 20))
            case 3:
                part = data[place : place + random.randrange(1, 200)]
                data[place:place] = part * random.randrange(1, 50)
            case 4:
                del data[place : place + random.randrange(1, 50)]
            case 5 if random.random() < 0.3:
                del data[place:]
    return bytes(data)


def jpeg_of_scans(width: int, height: int, scans: int, progressive: bool = True) -> bytes:
    """A gray JPEG whose pixels are sent `scans` times. A scan takes 10 bytes and a pass over the whole image."""
    header = b"".join(
        (
            b"\xff\xd8",
            _jpeg_segment(0xDB, b"\0" + bytes([1] * 64)),
            _jpeg_segment(0xC2 if progressive else 0xC0, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"),
            _jpeg_segment(0xC4, b"\x00" + bytes([1, *[0] * 15]) + b"\0"),
            _jpeg_segment(0xC4, b"\x10" + bytes([1, *[0] * 15]) + b"\0"),
        )
    )
    first = _jpeg_segment(0xDA, b"\x01\x01\x00" + (b"\x00\x00\x00" if progressive else b"\x00\x3f\x00"))
    later = _jpeg_segment(0xDA, b"\x01\x01\x00" + (b"\x01\x3f\x00" if progressive else b"\x00\x3f\x00"))
    return header + first + later * (scans - 1) + b"\xff\xd9"


def png_of_size(width: int, height: int, colours: int = 2, chunks: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A valid PNG of zeros, of a thousandth of its pixels' size. colours: PNG's colour type, 0, 2, 4 or 6."""
    row = bytes(1 + width * {0: 1, 2: 3, 4: 2, 6: 4}[colours])
    packer, pixels = zlib.compressobj(9), bytearray()
    for _ in range(height):
        pixels += packer.compress(row)
    pixels += packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", bytes(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def webp_of_size(width: int, height: int) -> bytes:
    """A valid lossless WebP of one colour, 28 bytes for any number of pixels up to 16383 by 16383."""
    bits, length = 0, 0
    for value, count in (
        *((width - 1, 14), (height - 1, 14), (0, 1), (0, 3)),
        *((0, 1), (0, 1), (0, 1)),  # no transform, colour cache or groups
        *((0b0001, 4),) * 5,  # five codes of one symbol, which takes no bits
    ):
        bits |= value << length
        length += count
    data = b"\x2f" + bits.to_bytes((length + 7) // 8, "little")
    data += b"\0" * (len(data) % 2)
    chunk = b"VP8L" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def jpeg_2000_of_blocks(side: int) -> tuple[bytes, bytes]:
    """A gray JPEG 2000 of as many precincts as pixels, bare and in boxes. A hundred bytes; OpenJPEG takes gigabytes."""
    size = struct.pack(">HIIIIIIIIH", 0, side, side, 0, 0, side, side, 0, 0, 1) + b"\x07\x01\x01"
    parts = ((0x51, size), (0x52, struct.pack(">BBHB5BB", 1, 0, 1, 0, 0, 0, 0, 0, 1, 0)), (0x5C, b"\x40\x40"))
    tile = struct.pack(">HHHIBB", 0xFF90, 10, 0, 30, 0, 1) + b"\xff\x93" + bytes(16)
    code = b"\xff\x4f" + b"".join(_jpeg_segment(*part) for part in parts) + tile + b"\xff\xd9"
    head = struct.pack(">IIHBBBB", side, side, 1, 7, 7, 0, 0)
    boxes = (
        (b"jP  ", b"\r\n\x87\n"),
        (b"ftyp", b"jp2 \0\0\0\0jp2 "),
        (b"jp2h", struct.pack(">I", 22) + b"ihdr" + head),
    )
    return code, b"".join(struct.pack(">I", len(data) + 8) + kind + data for kind, data in (*boxes, (b"jp2c", code)))


def gif_of_size(width: int, height: int) -> bytes:
    """A valid GIF of zeros, of a few thousandths of its pixels' size."""
    file = io.BytesIO()
    Image.new("P", (width, height)).save(file, "GIF")
    return file.getvalue()


def gif_of_comments(blocks: int) -> bytes:
    """A GIF with a comment of many short blocks before the first image."""
    return b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0, 0, 0) + b"!\xfe" + b"\x01x" * blocks + b"\0;"


def tiff(entries: Sequence[tuple[int, int, int, int]], data: bytes = b"") -> bytes:
    """A TIFF (little-endian) with one directory of entries (tag, type, count, value), and data after it."""
    packed = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + bytes(4) + data


def tiff_of_tiles(width: int, height: int, tile: int, compression: int = 5) -> bytes:
    """A compressed TIFF of this size in one tile, whose side is `tile`."""
    tags = {256: width, 257: height, 258: 8, 259: compression, 262: 1, 277: 1, 322: tile, 323: tile, 324: 160, 325: 64}
    return tiff([(tag, 4, 1, value) for tag, value in tags.items()], bytes(200))


def tiff_of_strips(
    strips: int,
    part: bytes,
    compression: int = 32773,
    kind: int = 4,
    more: Sequence[tuple[int, int, int, int]] = (),
    counts: int = 279,
) -> bytes:
    """A compressed TIFF one pixel wide, whose strips are all the same bytes. kind: the type of their lengths."""
    start = 10 + 12 * (9 + len(more)) + 4
    where, lengths = start + len(part), start + len(part) + 4 * strips
    tags = {256: 1, 257: strips, 258: 8, 259: compression, 262: 1, 277: 1, 278: 1}
    entries = [(tag, 4, 1, value) for tag, value in tags.items()]
    entries += [(273, 4, strips, where), (counts, kind, strips, lengths), *more]
    packed = len(part).to_bytes({3: 2, 4: 4, 9: 4, 16: 8, 17: 8}[kind], "little")
    return tiff(entries, part + struct.pack("<I", start) * strips + packed * strips)


def tiff_of_tags(tags: int, length: int, compression: int = 1) -> bytes:
    """A TIFF with many tags, all of which claim the same `length` bytes."""
    size = [(256, 4, 1, 1), (257, 4, 1, 1), (258, 4, 1, 8), (259, 4, 1, compression), (262, 4, 1, 1)]
    offset = 10 + 12 * (tags + len(size)) + 4
    many = [(1000 + tag, 7, length, offset) for tag in range(tags)]
    return tiff([*size, *many], bytes(length))


def png_with_exif(tags: int, length: int) -> bytes:
    """A PNG whose EXIF data have many tags that all claim the same bytes."""
    return png_of_size(1, 1, chunks=[(b"eXIf", tiff_of_tags(tags, length))])


def png_with_long_tag(numbers: int) -> bytes:
    """A PNG whose EXIF data give its orientation by this many numbers."""
    data = tiff([(274, 4, numbers, 26)], b"\0\1\2\3" * numbers)
    return png_of_size(1, 1, chunks=[(b"eXIf", data)])


def icon(inner: bytes) -> bytes:
    """An ICO of 256 by 256 pixels, it says, with any file inside."""
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(inner), 22) + inner


def plain_ppm(width: int, height: int) -> bytes:
    """A PGM in decimal text, which Pillow reads in Python."""
    return b"P2 %d %d 255\n" % (width, height) + b"0 " * (width * height)


def ppm_of_comments(length: int) -> bytes:
    return b"P6\n#" + b"x" * length + b"\n1 1 255\n\0\0\0"


def bmp_of_runs(width: int, height: int) -> bytes:
    """A BMP of run lengths, which Pillow reads in Python."""
    rows = (b"\xff\x00" * (width // 255) + (bytes([width % 255, 0]) if width % 255 else b"") + b"\0\0") * height
    data = rows + b"\0\1"
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 0, 0, 256, 0) + bytes(1024)
    return b"BM" + struct.pack("<IHHI", 14 + len(info) + len(data), 0, 0, 14 + len(info)) + info + data


def tga_of_runs(width: int, height: int) -> bytes:
    """A TGA of run lengths: 4 bytes for 128 pixels."""
    header = struct.pack("<BBBHHBHHHHBB", 0, 0, 10, 0, 0, 0, 0, 0, width, height, 24, 0x20)
    runs, rest = divmod(width, 128)
    return header + (b"\xff\0\0\0" * runs + (bytes([0x7F + rest]) + b"\0\0\0" if rest else b"")) * height


def png_of_chunks(count: int) -> bytes:
    """A PNG with many small chunks of text."""
    return png_of_size(1, 1, chunks=[(b"tEXt", b"k%d\0v" % number) for number in range(count)])


def _side(random: Random) -> int:
    return random.choice((1, 7, 300, 2000, 9000, 16383, 65500))


IMAGES: dict[str, Callable[[Random], bytes]] = {
    "jpeg of scans": lambda random: jpeg_of_scans(
        _side(random), _side(random), random.choice((2, 50, 2000, 20000)), random.random() < 0.7
    ),
    "large png": lambda random: png_of_size(
        random.choice((1, 3000, 9000)), random.choice((1, 3000, 9000)), random.choice((0, 2, 4, 6))
    ),
    "large webp": lambda random: webp_of_size(random.choice((1, 9000, 16383)), random.choice((1, 9000, 16383))),
    "jpeg 2000": lambda random: random.choice(jpeg_2000_of_blocks(random.choice((8, 2000, 9000)))),
    "large gif": lambda random: gif_of_size(random.choice((3, 3000)), random.choice((3, 3000))),
    "gif of comments": lambda random: gif_of_comments(random.choice((10, 100_000))),
    "tiff of tiles": lambda random: tiff_of_tiles(_side(random), _side(random), random.choice((16, 8192, 60000))),
    "tiff of tags": lambda random: tiff_of_tags(
        random.choice((10, 5000, 60000)), random.choice((8, 100_000)), random.choice((1, 8))
    ),
    "tiff of strips": lambda random: tiff_of_strips(
        random.choice((1, 1000, 100_000)),
        b"\x80" * random.choice((1, 60_000)) + b"\0\7",
        random.choice((5, 6, 7, 8, 32773)),
        random.choice((3, 4, 16, 17)),
        random.choice(((), ((279, 4, 1, 1),), ((300, 7, 500_000, 0),))),
        random.choice((279, 325)),
    ),
    "png with exif": lambda random: png_with_exif(random.choice((10, 5000, 60000)), random.choice((8, 100_000))),
    "icon": lambda random: icon(
        random.choice((png_of_size(3000, 3000), png_of_size(9000, 9000), *honest_images().values()))
    ),
    "plain ppm": lambda random: plain_ppm(random.choice((3, 1000)), random.choice((3, 1000))),
    "ppm of comments": lambda random: ppm_of_comments(random.choice((10, 1_000_000))),
    "bmp of runs": lambda random: bmp_of_runs(random.choice((3, 9000)), random.choice((3, 9000))),
    "tga of runs": lambda random: tga_of_runs(random.choice((3, 9000)), random.choice((3, 9000))),
    "png of chunks": lambda random: png_of_chunks(random.choice((3, 20_000))),
}


def hostile_image(random: Random) -> bytes:
    """An image file of any of IMAGES, or an honest one or one of IMAGES with some bytes changed."""
    if random.random() < 0.7:
        return mutate(random.choice(list(honest_images().values())), random)
    content = IMAGES[random.choice(list(IMAGES))](random)
    return mutate(content, random) if random.random() < 0.3 else content


# Zips


@dataclass(frozen=True)
class Entry:
    """A file in a zip. Sizes and offset that are None are the true ones."""

    name: bytes
    content: bytes = b"x"
    method: int = zipfile.ZIP_STORED
    unpacked: int | None = None
    packed: int | None = None
    offset: int | None = None
    attributes: int = 0
    flags: int = 0
    extra: bytes = b""


def zip_of_entries(
    entries: Sequence[Entry],
    count: int | None = None,
    directory_size: int | None = None,
    directory_offset: int | None = None,
    comment: bytes = b"",
    zip64: tuple[int, int, int] | None = None,
) -> bytes:
    """A zip with these entries, and other values in its end record where they are given.

    zip64: the number of entries, size and offset of the directory in the larger end record.
    """
    body, directory = bytearray(), bytearray()
    for entry in entries:
        offset = len(body) if entry.offset is None else entry.offset
        packed = zlib.compress(entry.content, wbits=-15) if entry.method == zipfile.ZIP_DEFLATED else entry.content
        sizes = (
            len(packed) if entry.packed is None else entry.packed,
            len(entry.content) if entry.unpacked is None else entry.unpacked,
        )
        common = (entry.flags, entry.method, 0, 0x21, zlib.crc32(entry.content), *sizes, len(entry.name))
        if entry.offset is None:
            body += struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, *common, 0) + entry.name + packed
        directory += struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 0x314, 20, *common, len(entry.extra), 0, 0, 0, entry.attributes, offset
        )
        directory += entry.name + entry.extra
    where = len(body)
    end = b""
    if zip64 is not None:
        end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, zip64[0], *zip64)
        end += struct.pack("<4sIQI", b"PK\6\7", 0, where + len(directory), 1)
    end += struct.pack(
        "<4sHHHHIIH",
        b"PK\5\6",
        0,
        0,
        min(len(entries), 0xFFFF) if count is None else count,
        min(len(entries), 0xFFFF) if count is None else count,
        len(directory) if directory_size is None else directory_size,
        where if directory_offset is None else directory_offset,
        len(comment),
    )
    return bytes(body + directory) + end + comment


def zip_of_names(names: Iterable[bytes]) -> bytes:
    """A zip of files of one byte; any number of them, as their data are in a directory of 64 bits."""
    entries = [Entry(name) for name in names]
    plain = zip_of_entries(entries)
    if len(entries) < 0xFFFF:
        return plain
    end = plain[-22:]
    size, offset = struct.unpack("<II", end[12:20])
    return zip_of_entries(entries, zip64=(len(entries), size, offset))


def zip_of_deep_names(count: int, depth: int) -> bytes:
    """A zip of `count` files, each in `depth` folders of its own."""
    return zip_of_names(b"%d/" % number + b"a/" * (depth - 1) + b"x.png" for number in range(count))


def zip_bomb(size: int) -> bytes:
    """A zip of one file of zeros."""
    return zip_of_entries([Entry(b"cat/1.png", bytes(size), zipfile.ZIP_DEFLATED)])


def zip_of_shared_data(count: int) -> bytes:
    """A zip whose entries all have the data of the first."""
    first = Entry(b"cat/0.png", bytes(1 << 20), zipfile.ZIP_DEFLATED)
    packed = len(zlib.compress(first.content, wbits=-15))
    later = [Entry(b"cat/%d.png" % n, b"", zipfile.ZIP_DEFLATED, 1 << 20, packed, offset=0) for n in range(1, count)]
    return zip_of_entries([first, *later])


def _random_name(random: Random) -> bytes:
    parts = (b"cat", b"dog", b"..", b".", b"", b"\0", b"C:", b"\\", b"train", b"test", b"\xff", "é".encode(), b"x.png")
    name = b"/".join(random.choices(parts, k=random.choice((1, 2, 2, 3, 9))))
    return name * random.choice((1, 1, 1, 1, 400))


ZIPS: dict[str, Callable[[Random], bytes]] = {
    "deep names": lambda random: zip_of_deep_names(random.choice((1, 5, 300)), random.choice((2, 33, 1200, 30000))),
    "long names": lambda random: zip_of_names([b"cat/" + b"n" * random.choice((1000, 65000))] * random.choice((1, 20))),
    "odd names": lambda random: zip_of_names([_random_name(random) for _ in range(random.choice((1, 10, 100)))]),
    "many names": lambda random: zip_of_names(b"cat/%d" % number for number in range(random.choice((10, 70000)))),
    "bomb": lambda random: zip_bomb(random.choice((1 << 20, 300 << 20))),
    "shared data": lambda random: zip_of_shared_data(random.choice((2, 1000))),
    "a lying end": lambda random: zip_of_entries(
        [Entry(b"cat/1.png"), Entry(b"dog/2.png")],
        random.choice((None, 0, 1, 3, 0xFFFF)),
        random.choice((None, *EXTREMES)),
        random.choice((None, *EXTREMES)),
        zip64=random.choice((None, tuple(random.choices((*EXTREMES, 1 << 40, (1 << 64) - 1), k=3)))),
    ),
    "lying entries": lambda random: zip_of_entries(
        [
            Entry(
                b"cat/%d.png" % number,
                random.choice(list(honest_images().values())),
                random.choice((0, 0, 8, 8, 12, 14, 99)),
                random.choice((None, None, *EXTREMES)),
                random.choice((None, None, *EXTREMES)),
                random.choice((None, None, *EXTREMES)),
                random.choice((0, 0o120777 << 16, 0o040755 << 16)),
                random.choice((0, 0, 1, 8, 0x41, 0x800)),
            )
            for number in range(random.choice((1, 5)))
        ]
    ),
}


def honest_zip(classes: int = 2, images: int = 5) -> bytes:
    """A zip of small images in class folders, of all formats in turn."""
    contents = itertools.cycle(honest_images().values())
    return zip_of_entries(
        [
            Entry(b"class %d/%d.img" % (label, number), next(contents), zipfile.ZIP_DEFLATED)
            for label in range(classes)
            for number in range(images)
        ]
    )


def hostile_zip(random: Random) -> bytes:
    """A zip of any of ZIPS, a zip of hostile images, or an honest zip with some bytes changed."""
    match random.randrange(4):
        case 0:
            return mutate(honest_zip(), random)
        case 1:
            contents = (hostile_image(random) for _ in range(4))
            return zip_of_entries(
                [
                    Entry(b"cat/%d" % n if n % 2 else b"dog/%d" % n, each, zipfile.ZIP_DEFLATED)
                    for n, each in enumerate(contents)
                ]
            )
        case _:
            content = ZIPS[random.choice(list(ZIPS))](random)
            return mutate(content, random) if random.random() < 0.2 else content


def _jpeg_segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data
