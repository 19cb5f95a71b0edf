"""A report read back: what it carries, and files and manifests that are damaged, told by the name of the field."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from memwrap import DataError, MemoryClassifier
from memwrap.report.page import FORMAT_VERSION
from memwrap.report.pictures import exact_uri
from memwrap.report.reading import read
from tests.report import STEPS, ReportWorld, noise, told


def manifest_of(page: str) -> tuple[int, int]:
    match = re.search(r'<script type="application/json" id="manifest">(.*?)</script>', page, re.DOTALL)
    return match.start(1), match.end(1)


def with_manifest(page: str, change: Callable[[dict[str, Any]], Any]) -> str:
    start, end = manifest_of(page)
    stored = json.loads(page[start:end])
    other = change(stored)
    text = json.dumps(stored if other is None else other)
    return page[:start] + text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") + page[end:]


def test_what_a_report_carries_is_read_back(reported: ReportWorld) -> None:
    report = read(reported.page)
    assert report.manifest == reported.manifest
    assert report.pixels.equal(reported.pictures.pixels)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda stored: bool(stored.pop("names")),
            "damaged one: the field names is missing in its manifest; expected a list of texts, not empty",
        ),
        (lambda stored: stored.update(extra=1), "damaged one: its manifest has a field extra, which no report of this"),
        (
            lambda stored: stored.update(format="a letter"),
            "damaged one: the field format of its manifest is 'a letter'; expected 'memwrap report'",
        ),
        (lambda stored: stored["names"].pop(), "its manifest has 2 labels and 1 names; expected as many"),
        (lambda stored: (stored["names"].pop(), stored["labels"].pop()), "it names 1 images and holds 2"),
        (
            lambda stored: stored["seeds"].pop("run"),
            "the field seeds of its manifest is {'deletion': 0}; expected whole numbers by their names, run and",
        ),
        (
            lambda stored: stored["heatmaps"].update(baseline=3),
            "the field heatmaps.baseline of its manifest is 3; expected one of white, black, mean, blur",
        ),
        (
            lambda stored: stored["heatmaps"].update(method="magic"),
            "the field heatmaps.method of its manifest is 'magic'; expected one of integrated_gradients, ",
        ),
        (
            lambda stored: stored["heatmaps"].update(tolerance=float("inf")),
            "the field heatmaps.tolerance of its manifest is inf; expected a number above 0",
        ),
        (
            lambda stored: stored.update(format_version=str(FORMAT_VERSION)),
            f"the report has format version '{FORMAT_VERSION}', made by memwrap 0.1.0",
        ),
        (
            lambda stored: bool(stored["heatmaps"].pop("max_steps")),
            "the field heatmaps.max_steps is missing in its manifest; expected a whole number above 0",
        ),
        (
            lambda stored: stored.update(labels=[0, 10**30]),
            f"the field labels of its manifest is [0, {10**30}]; expected null, or a list of whole numbers from 0 on",
        ),
        (
            lambda stored: stored.update(format_version=FORMAT_VERSION + 1, memwrap_version="9.9"),
            f"the report has format version {FORMAT_VERSION + 1}, made by memwrap 9.9; memwrap 0.1.0 makes and "
            f"verifies version {FORMAT_VERSION}: verify it with the memwrap that made it",
        ),
        (lambda stored: [len(stored)], "damaged one: its manifest is [12]; expected fields and their values"),
    ],
    ids=[
        *("less", "more", "format", "labels", "names", "seed", "heatmap", "method", "tolerance", "version as text"),
        *("less of a heatmap", "a large label", "version", "list"),
    ],
)
def test_a_damaged_manifest_is_told(model: MemoryClassifier, change: Callable[..., Any], words: str) -> None:
    world = told(model, noise(2), heatmaps=replace(STEPS, max_steps=1))

    def changed(stored: dict[str, Any]) -> Any:
        other = change(stored)
        return other if isinstance(other, list) else None

    with pytest.raises(DataError, match=re.escape(words)):
        read(with_manifest(world.page, changed))


@pytest.mark.parametrize("value", [None, 3.5, True, "x", [], {}, [None], {"run": "x"}])
def test_what_is_wrong_in_a_manifest_is_told_by_the_name_of_its_field(model: MemoryClassifier, value: Any) -> None:
    """And without words that only Python speaks."""
    page = told(model, noise(2), heatmaps=replace(STEPS, max_steps=1)).page
    start, end = manifest_of(page)
    stored = json.loads(page[start:end])
    fitting = {
        None: ("labels", "heatmaps"),
        "x": ("run",),
    }.get(value if value is None or value == "x" else 0, ())
    checked = 0
    for name in stored.keys() - {"format", "format_version", *fitting}:
        if (name, value) in (("hashes", {}), ("hashes", {"run": "x"}), ("heatmaps", {}), ("heatmaps", {"run": "x"})):
            continue  # which are of the right kind
        if (name, value) == ("labels", []):
            continue  # of which there are too few, which is told otherwise
        checked += 1
        with pytest.raises(DataError) as error:
            read(with_manifest(page, lambda stored, name=name: stored.update({name: value})))
        assert f"the field {name} of its manifest is " in str(error.value)
        assert "; expected " in str(error.value)
        assert "Error" not in str(error.value)
    assert checked >= 6


def test_images_of_two_sizes_are_told(reported: ReportWorld) -> None:
    page = reported.page
    uri = exact_uri(reported.pictures.pixels[1])
    with pytest.raises(DataError, match=re.escape("one of its images is of shape (3, 4, 4), another of (1, 5, 6)")):
        read(page.replace(uri, exact_uri(noise(1, (1, 5, 6))[0])))


def test_a_report_with_more_inputs_than_names_is_damaged(reported: ReportWorld) -> None:
    page = reported.page
    (first, *_) = re.findall(r'<img class="pic[^>]*>', page)
    with pytest.raises(DataError, match=r"it names 6 images and holds 7: the report is damaged"):
        read(page.replace(first, first + first))


@pytest.mark.parametrize(
    "text",
    ["", "a letter", "<html></html>", "{}", '<script id="manifest">{}</script>', '<script id="manifest">[1</script>',
     '<script id="manifest">' + "[" * 100_000 + "</script>"],
    ids=["empty", "text", "page", "json", "no manifest", "half a manifest", "deep"],
)  # fmt: skip
def test_a_file_that_is_no_report_is_told(text: str) -> None:
    with pytest.raises(DataError, match="it is no report of memwrap's, or a damaged one"):
        read(text)
