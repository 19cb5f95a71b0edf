"""From a run to a report, and from what a report carries to the same one again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from memwrap import InputError, MemoryClassifier, Transform, __version__
from memwrap.attribution import deletion, heatmaps
from memwrap.data import generator
from memwrap.report import making
from memwrap.report.content import Pictures
from memwrap.report.making import content_for, hashes, new_manifest, page_for, pictures_of, report_of, report_on
from memwrap.report.page import HeatmapOptions
from memwrap.report.reading import read
from memwrap.report.verifying import verify
from tests.report import COLOUR, STEPS, ReportWorld, network, noise, told

PICTURES = Pictures(noise(2), ("a.png", "b.png"), torch.tensor([0, 3]))


# The manifest


def test_a_manifest_holds_what_the_report_was_made_of(model: MemoryClassifier) -> None:
    world = told(model, noise(3), heatmaps=STEPS)
    manifest = new_manifest(world.source, world.pictures, "a title", 5, STEPS)
    assert manifest.memwrap_version == __version__
    assert (manifest.run, manifest.title, manifest.shown, manifest.heatmaps) == ("/runs/noise", "a title", 5, STEPS)
    assert manifest.seeds == {"run": 7, "deletion": 0}
    assert manifest.names == ("picture 0.png", "picture 1.png", "picture 2.png")
    assert manifest.labels == (0, 1, 2)
    assert manifest.hashes == hashes(model, world.pictures)
    assert manifest.created.endswith("+00:00")


def test_pictures_come_back_from_a_manifest(reported: ReportWorld) -> None:
    again = pictures_of(reported.manifest, reported.pictures.pixels)
    assert again.names == reported.pictures.names
    assert again.labels.equal(reported.pictures.labels)
    assert len(again) == 6
    assert pictures_of(replace(reported.manifest, labels=None), reported.pictures.pixels).labels is None


def change_weight(model: MemoryClassifier) -> None:
    with torch.no_grad():
        model.layer.head.first.weight[0, 0] += 1e-3


def change_class(model: MemoryClassifier) -> None:
    model.classes = ("cat", *model.classes[1:])


def change_transform(model: MemoryClassifier) -> None:
    model.transform = Transform(COLOUR, mean=(0.5, 0.5, 0.501), std=(0.25,) * 3)


def change_label(model: MemoryClassifier) -> None:
    model.remembered.labels[3] = 0


def change_memory_pixel(model: MemoryClassifier) -> None:
    model.remembered.images[0, 0, 0, 0] += 1e-3


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (change_weight, "model"),
        (change_class, "model"),
        (change_transform, "model"),
        (change_label, "memory"),
        (change_memory_pixel, "memory"),
    ],
)
def test_a_change_of_the_run_changes_one_hash(
    model: MemoryClassifier, change: Callable[[MemoryClassifier], None], name: str
) -> None:
    before = hashes(model, PICTURES)
    assert before == hashes(network(), PICTURES)
    change(model)
    after = hashes(model, PICTURES)
    assert {each for each in before if before[each] != after[each]} == {name}


@pytest.mark.parametrize(
    "others",
    [
        replace(PICTURES, pixels=noise(2, seed=6)),
        replace(PICTURES, names=("a.png", "c.png")),
        replace(PICTURES, labels=torch.tensor([0, 2])),
        replace(PICTURES, labels=None),
    ],
    ids=["pixels", "names", "labels", "no labels"],
)
def test_other_inputs_have_another_hash(model: MemoryClassifier, others: Pictures) -> None:
    before, after = hashes(model, PICTURES), hashes(model, others)
    assert {each for each in before if before[each] != after[each]} == {"inputs"}


def test_a_model_without_a_memory_has_hashes_too(model: MemoryClassifier) -> None:
    before = hashes(model, PICTURES)
    model.forget()
    assert hashes(model, PICTURES)["memory"] != before["memory"]


# The content


def test_heatmaps_are_those_of_the_memory_images_shown(reported: ReportWorld) -> None:
    model = reported.source.model
    images = model.transform(reported.pictures.pixels)
    for row, card in enumerate(reported.content.cards):
        moved = [sample.index for sample in card.samples]
        (expected,) = heatmaps(model, images[row : row + 1], [moved], max_steps=4)
        assert card.heatmap.moved == expected.moved
        assert_close(card.heatmap.input, expected.input)
        assert_close(card.heatmap.samples, expected.samples)


def test_options_of_heatmaps_are_heeded(model: MemoryClassifier) -> None:
    options = HeatmapOptions("input_x_gradient", "black", tolerance=0.5, max_steps=3)
    card = told(model, noise(1), heatmaps=options).content.cards[0]
    assert (card.heatmap.method, card.heatmap.baseline) == ("input_x_gradient", "black")
    for tolerance, most, steps in ((1e9, 64, 32), (1e-12, 64, 64), (1e-12, 3, 3)):
        options = HeatmapOptions(tolerance=tolerance, max_steps=most)
        assert told(model, noise(1), heatmaps=options).content.cards[0].heatmap.steps == steps


def test_pixels_are_deleted_in_orders_that_the_seed_draws(reported: ReportWorld) -> None:
    model = reported.source.model
    images = model.transform(reported.pictures.pixels)
    for row, card in enumerate(reported.content.cards):
        draws = generator(0, "deletion", row)
        expected = deletion(model, images[row], card.heatmap.input, draws, "white", making.RANDOM_ORDERS)
        assert card.deletion.score == pytest.approx(expected.score)
        assert card.deletion.random_score == pytest.approx(expected.random_score)


def test_without_heatmaps_there_are_none(model: MemoryClassifier) -> None:
    assert [card.heatmap for card in told(model, noise(2)).content.cards] == [None, None]


def test_the_same_report_is_made_again(reported: ReportWorld) -> None:
    content = content_for(reported.manifest, reported.source, reported.pictures.pixels)
    assert page_for(reported.manifest, content, reported.source) == reported.page


def test_a_report_is_made_in_full_precision(model: MemoryClassifier) -> None:
    """Whatever the one who calls has allowed."""
    expected = told(model, noise(3), heatmaps=STEPS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        content = content_for(expected.manifest, expected.source, expected.pictures.pixels)
    assert page_for(expected.manifest, content, expected.source) == expected.page


def test_a_report_is_made_in_one_call(reported: ReportWorld) -> None:
    titles: list[str] = []

    @contextmanager
    def progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
        titles.append(title)
        yield lambda *_: None

    made = report_of(reported.source, reported.pictures, "noise", 3, STEPS, progress)
    assert titles == ["heatmaps", "deleting pixels"], "the page is not made before one asks for it"
    assert replace(made.manifest, created=reported.manifest.created) == reported.manifest
    assert made.page().replace(made.manifest.created, reported.manifest.created) == reported.page
    assert titles[2:] == ["looking for what would change predictions"]
    assert [card.heatmap for card in report_of(reported.source, PICTURES, "", 1, None).content.cards] == [None, None]


def test_progress_is_told_for_all_that_takes_time(model: MemoryClassifier) -> None:
    told_of: dict[str, list[tuple[int, int | None]]] = {}

    @contextmanager
    def progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
        told_of[title] = []
        yield lambda done, total: told_of[title].append((done, total))

    world = told(model, noise(2), heatmaps=STEPS)
    content = content_for(world.manifest, world.source, world.pictures.pixels, progress)
    page_for(world.manifest, content, world.source, progress)
    assert list(told_of) == ["heatmaps", "deleting pixels", "looking for what would change predictions"]
    assert list(told_of.values()) == [[(1, 2), (2, 2)]] * 3


# From Python


def test_a_report_of_a_model_at_hand_takes_one_call(model: MemoryClassifier, tmp_path: Path) -> None:
    report = report_on(model, noise(3), ("a", "b", "c"), [0, 1, 2], saved_at=tmp_path / "mine", shown=2)
    world = told(
        model, noise(3), names=("a", "b", "c"), shown=2, path=str(tmp_path / "mine"), memory_names=None, seed=0
    )
    created = report.manifest.created
    assert report.manifest == replace(world.manifest, title="mine", created=created)
    assert report.page() == replace(world, manifest=report.manifest).page
    assert verify(read(report.page()), report.source) == []


def test_heatmaps_and_missing_labels_are_heeded(model: MemoryClassifier) -> None:
    report = report_on(model, noise(1), ["a"], saved_at="mine", heatmaps=STEPS)
    assert report.content.cards[0].heatmap.steps == 4
    assert not report.content.labelled
    assert report.manifest.run == str(Path("mine").absolute())


@pytest.mark.parametrize(
    ("pixels", "names", "labels", "words"),
    [
        (
            noise(2).float(),
            "ab",
            None,
            r"pixels is of torch.float32 and shape \(2, 3, 4, 4\); expected torch.uint8 and",
        ),
        (noise(2, (1, 4, 4)), "ab", None, r"shape \(2, 1, 4, 4\); expected torch.uint8 and \('N', 3, 4, 4\)"),
        (noise(2)[:0], "", None, r"shape \(0, 3, 4, 4\)"),
        (noise(2), "a", None, "names has 1 entries; expected one for each of the 2 pictures"),
        (noise(2), "ab", [0], "labels has 1 entries; expected one for each of the 2 pictures"),
    ],
)
def test_what_cannot_be_reported_on_is_told(
    model: MemoryClassifier, pixels: torch.Tensor, names: str, labels: list[int] | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        report_on(model, pixels, tuple(names), labels, saved_at="mine")
