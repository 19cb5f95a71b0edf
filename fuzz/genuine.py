"""What the cases change: small runs, saved models, reports, images and zips, made once at the start."""

import io
import os
import pickle
import random
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from memwrap.report.create import Inputs
from tests.report import ReportWorld

RUNS = ("digits", "only_memory", "standard", "vote", "stopped")
MODELS = ("timm", "transformers", "torchvision")
REPORTS = ("digits", "heatmaps", "photos")  # pictures without loss, with heatmaps, with loss
SIDE = 80  # of the photos: pictures of more than 64 are stored with loss
CLASSES = ("cat", "dog", "owl")


@dataclass(frozen=True)
class Genuine:
    """The folder that `make` filled."""

    folder: Path

    def run(self, name: str) -> Path:
        """A run of RUNS, or a saved model of MODELS."""
        return self.folder / "runs" / name

    def report(self, name: str) -> Path:
        return self.folder / "reports" / f"{name}.html"

    def run_of_report(self, name: str) -> Path:
        return self.run("transformers" if name == "photos" else "digits")

    @property
    def picture(self) -> Path:
        """A digit, as a file."""
        return self.folder / "digit.png"

    @property
    def bait(self) -> Path:
        """A file that nothing but hostile input names. Unpickled, it would make the folder `bait-was-run`."""
        return self.folder / "bait.pth"

    @cached_property
    def images(self) -> dict[str, bytes]:
        """Image files by name, in all formats and variants that Pillow writes."""
        return {path.name: path.read_bytes() for path in sorted((self.folder / "images").iterdir())}

    @cached_property
    def photos(self) -> bytes:
        """A small PNG."""
        return self.images["rgb.png"]

    @cached_property
    def zip(self) -> bytes:
        """A zip of class folders."""
        return (self.folder / "photos.zip").read_bytes()

    @cached_property
    def worlds(self) -> dict[str, ReportWorld]:
        """The reports with what they were made from."""
        return {name: _read_world(self, name) for name in REPORTS}

    def state(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file, which no case may change."""
        return {
            str(path): ((status := path.lstat()).st_size, status.st_mtime_ns) for path in sorted(self.folder.rglob("*"))
        }


def make(folder: Path) -> Genuine:
    """Train, save and report; some seconds."""
    warm_up()
    torch.manual_seed(0)
    genuine = Genuine(folder)
    for name in ("runs", "reports", "images"):
        (folder / name).mkdir(parents=True)
    _make_images(folder / "images")
    (folder / "photos.zip").write_bytes(make_zip())
    genuine.bait.write_bytes(_torch_file(_Bait(str(folder / "bait-was-run"))))
    _make_runs(genuine)
    _make_models(genuine)
    _make_reports(genuine)
    assert genuine.worlds  # now, once for all cases
    return genuine


def warm_up() -> None:
    """Import what the cases use, so that no case has to."""
    import importlib

    import timm
    import torchvision
    import transformers
    import yaml

    for name in ("train", "evaluate", "explain", "verify", "predict", "check", "edit", "app"):
        importlib.import_module(f"memwrap.cli.{name}")
    Image.init()
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    assert all((timm, torchvision, transformers, yaml))


def picture(level: int, side: int = 12, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(level).integers(0, 60, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(noise + np.uint8(level)).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def make_zip() -> bytes:
    """Two classes of four pictures each, and a file that an operating system left."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(8):
            name = f"photos/{CLASSES[number % 2]}/{number}.png"
            entry = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, encoded(picture(20 * number), "PNG"))
        archive.writestr(zipfile.ZipInfo("photos/.DS_Store", (2024, 1, 1, 0, 0, 0)), b"x")
    return stream.getvalue()


def _make_images(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [picture(level, mode="P") for level in (0, 50, 100)]
    files = {
        "rgb.png": encoded(picture(50), "PNG"),
        "grey.png": encoded(picture(50, mode="L"), "PNG"),
        "palette.png": encoded(picture(50, mode="P"), "PNG", transparency=3),
        "alpha.png": encoded(picture(50, mode="RGBA"), "PNG"),
        "deep.png": encoded(Image.fromarray(np.arange(144, dtype=np.uint16).reshape(12, 12) * 400), "PNG"),
        "turned.png": encoded(picture(50), "PNG", exif=exif),
        "bits.png": encoded(picture(50, mode="1"), "PNG"),
        "large.png": encoded(picture(50, side=300), "PNG"),
        "plain.jpg": encoded(picture(50, side=40), "JPEG"),
        "progressive.jpg": encoded(picture(50, side=40), "JPEG", progressive=True),
        "cmyk.jpg": encoded(picture(50, side=40, mode="CMYK"), "JPEG"),
        "turned.jpg": encoded(picture(50, side=40), "JPEG", exif=exif),
        "still.gif": encoded(picture(50, mode="P"), "GIF"),
        "moving.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50),
        "lossy.webp": encoded(picture(50), "WEBP"),
        "exact.webp": encoded(picture(50, mode="RGBA"), "WEBP", lossless=True),
        "moving.webp": encoded(picture(0), "WEBP", save_all=True, append_images=[picture(90)]),
        "plain.tif": encoded(picture(50), "TIFF"),
        "lzw.tif": encoded(picture(50), "TIFF", compression="tiff_lzw"),
        "deflate.tif": encoded(picture(50), "TIFF", compression="tiff_adobe_deflate"),
        "group4.tif": encoded(picture(50, mode="1"), "TIFF", compression="group4"),
        "jpeg.tif": encoded(picture(50), "TIFF", compression="jpeg"),
        "pages.tif": encoded(picture(50), "TIFF", save_all=True, append_images=[picture(90)]),
        "float.tif": encoded(picture(50, mode="F"), "TIFF"),
        "plain.bmp": encoded(picture(50), "BMP"),
        "palette.bmp": encoded(picture(50, mode="P"), "BMP"),
        "plain.ppm": encoded(picture(50), "PPM"),
        "plain.tga": encoded(picture(50), "TGA", compression="tga_rle"),
        "plain.ico": encoded(picture(50, side=32), "ICO"),
        "plain.icns": encoded(picture(50, side=32), "ICNS"),
        "plain.pcx": encoded(picture(50), "PCX"),
        "plain.sgi": encoded(picture(50), "SGI"),
        "plain.dds": encoded(picture(50), "DDS"),
        "plain.im": encoded(picture(50), "IM"),
        "plain.xbm": encoded(picture(50, mode="1"), "XBM"),
        "plain.jp2": _encoded_if_possible(picture(50, side=32), "JPEG2000"),
        "plain.avif": _encoded_if_possible(picture(50, side=32), "AVIF"),
        "plain.qoi": b"qoif"
        + (12).to_bytes(4, "big") * 2
        + b"\x03\x00"
        + b"\xfe\x10\x20\x30" * 144
        + b"\0" * 7
        + b"\1",
        "plain.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 12 12\n%%EndComments\nshowpage\n",
    }
    for name, content in files.items():
        if content:
            (folder / name).write_bytes(content)


def _encoded_if_possible(image: Image.Image, kind: str) -> bytes:
    try:
        return encoded(image, kind)
    except (KeyError, OSError):  # Pillow was built without it
        return b""


class _Bait:
    """Pickled as a call of os.mkdir."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def _torch_file(content: object) -> bytes:
    """What torch.save would write for content that is not made of tensors."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        archive.writestr("archive/version", b"3\n")
    return stream.getvalue()


def _make_runs(genuine: Genuine) -> None:
    from memwrap.data import digits
    from memwrap.runs.evaluation import evaluate_run
    from memwrap.runs.training import begin
    from memwrap.training.recipes import DEFAULT, recipe
    from memwrap.training.settings import with_changes

    data = digits()
    for name in RUNS:
        variant = name if name in ("only_memory", "standard", "vote") else "memory_wrap"
        changes = {"encoder": "tiny", "samples": 60, "epochs": 2, "variant": variant, "remember": 24, "batch_size": 20}
        training = begin(genuine.run(name), data, with_changes(recipe(DEFAULT), changes, "fuzz"), "default")
        training.train((lambda: True) if name == "stopped" else (lambda: False))
        if name != "stopped":
            training.run.write_json(
                "evaluation.json", evaluate_run(training.run, training.run.model(), data, None, "test")
            )
    (image,) = data.train.images.batches([torch.tensor([0])])
    Image.fromarray(image[0, 0].numpy()).save(genuine.picture)


def _make_models(genuine: Genuine) -> None:
    import memwrap
    from memwrap import Transform

    images = torch.from_numpy(np.stack([np.array(picture(18 * number, SIDE)) for number in range(10)])).permute(
        0, 3, 1, 2
    )
    for name in MODELS:
        model = memwrap.wrap(_classifier(name), example=torch.zeros(1, 3, SIDE, SIDE)).eval()
        model.classes = CLASSES
        model.transform = Transform((3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3)
        model.remember(model.transform(images), torch.arange(len(images)) % 3)
        model.save(genuine.run(name))


def _classifier(name: str) -> nn.Module:
    classifier: nn.Module
    if name == "timm":
        import timm

        classifier = timm.create_model("test_resnet", num_classes=3)
    elif name == "torchvision":
        from torchvision.models import shufflenet_v2_x0_5

        classifier = shufflenet_v2_x0_5(weights=None, num_classes=3)
    else:
        from transformers import ViTConfig, ViTForImageClassification

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        classifier = ViTForImageClassification(ViTConfig(image_size=SIDE, patch_size=16, num_labels=3, **sizes))
    return classifier


def _make_reports(genuine: Genuine) -> None:
    from memwrap.data import digits
    from memwrap.report.create import create_report
    from memwrap.report.page import render
    from memwrap.report.record import HeatmapOptions
    from memwrap.runs.reporting import source_of
    from memwrap.runs.run import open_model

    data = digits()
    (shown,) = data.train.images.batches([torch.arange(100, 104)])
    photos = torch.from_numpy(np.stack([np.array(picture(30 + 50 * number, SIDE)) for number in range(3)])).permute(
        0, 3, 1, 2
    )
    inputs = {
        "digits": Inputs(shown, [f"digit {number}" for number in range(4)], data.train.labels[100:104]),
        "heatmaps": Inputs(shown[:2], ["one.png", "two.png"]),
        "photos": Inputs(photos, ["a.jpg", "b.jpg", "c.jpg"], [0, 1, 2]),
    }
    for name in REPORTS:
        source = source_of(open_model(genuine.run_of_report(name)))
        options = HeatmapOptions(max_steps=4, tolerance=0.1) if name == "heatmaps" else None
        genuine.report(name).write_text(render(create_report(source, inputs[name], shown=4, heatmaps=options)))


def _read_world(genuine: Genuine, name: str) -> ReportWorld:
    from memwrap.report.page import read_record
    from memwrap.report.pictures import pixels_in
    from memwrap.runs.reporting import source_of
    from memwrap.runs.run import open_model

    record = read_record(genuine.report(name).read_text())
    pixels = torch.stack([pixels_in(record.pictures[f"input-{number}"]) for number, _ in record.numbered])
    labels = [each.label for each in record.explanations if each.label is not None] or None
    inputs = Inputs(pixels, [str(each.path) for each in record.explanations], labels)
    return ReportWorld(source_of(open_model(genuine.run_of_report(name))), inputs, record)


def random_of(kind: str, case: int) -> random.Random:
    """The generator that decides everything in a case."""
    return random.Random(f"{kind} {case}")
