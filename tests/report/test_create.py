"""From a run to the record of a report: hashes, explanations, heatmaps and pictures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from memwrap import InputError, MemoryClassifier, NoMemoryError, Transform, __version__
from memwrap.attribution import deletion, heatmaps
from memwrap.data import generator
from memwrap.nn.probabilities import TemperatureCalibration
from memwrap.report import HeatmapOptions, Inputs, Source, create, create_report, verify
from memwrap.report.create import RANDOM_ORDERS, explain_inputs, hashes, memory_pixels
from memwrap.report.pictures import blend, exact_uri, heat_colours, pixels_in
from memwrap.report.record import MOST_IMAGES, MOST_SHOWN, MOST_STEPS
from tests.report import COLOUR, GRAY, STEPS, ReportWorld, make_report, network, noise

INPUTS = Inputs(noise(2), ("a.png", "b.png"), torch.tensor([0, 3]))


def test_a_record_holds_what_the_report_was_made_from(model: MemoryClassifier) -> None:
    world = make_report(model, noise(3), shown=5, heatmaps=STEPS)
    record = world.record
    assert (record.format, record.format_version, record.memwrap_version) == ("memwrap report", 4, __version__)
    assert (record.run, record.shown, record.heatmaps) == ("/runs/noise", 5, STEPS)
    assert (record.seeds.run, record.seeds.deletion, record.image_size) == (7, 0, (4, 4))
    assert [each.path for each in record.explanations] == ["picture 0.png", "picture 1.png", "picture 2.png"]
    assert [each.label for each in record.explanations] == [0, 1, 2]
    assert record.hashes == hashes(model, world.inputs)


# Hashes


def change_weight(model: MemoryClassifier) -> None:
    with torch.no_grad():
        model.layer.head.first.weight[0, 0] += 1e-3


def change_class(model: MemoryClassifier) -> None:
    model.classes = ("cat", *model.classes[1:])


def change_transform(model: MemoryClassifier) -> None:
    model.transform = Transform(COLOUR, mean=(0.5, 0.5, 0.501), std=(0.25,) * 3)


def change_calibration(model: MemoryClassifier) -> None:
    model.calibration = TemperatureCalibration(1.001)


def change_encoding(model: MemoryClassifier) -> None:
    model.remembered.encodings[2, 0] += 1e-3


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
        (change_calibration, "model"),
        (change_encoding, "memory"),
        (change_label, "memory"),
        (change_memory_pixel, "memory"),
        (MemoryClassifier.forget, "memory"),
    ],
)
def test_a_change_of_the_run_changes_one_hash(
    model: MemoryClassifier, change: Callable[[MemoryClassifier], None], name: str
) -> None:
    before = hashes(model, INPUTS)
    assert before == hashes(network(), INPUTS)
    change(model)
    assert changed_hashes(before, hashes(model, INPUTS)) == {name}


def changed_hashes(before: Any, after: Any) -> set[str]:
    return {name for name in ("model", "memory", "inputs") if getattr(before, name) != getattr(after, name)}


@pytest.mark.parametrize(
    "change",
    [{"pixels": noise(2, seed=6)}, {"names": ("a.png", "c.png")}, {"labels": [0, 2]}, {"labels": None}],
    ids=["pixels", "names", "labels", "no labels"],
)
def test_other_inputs_have_another_hash(model: MemoryClassifier, change: dict[str, Any]) -> None:
    assert changed_hashes(hashes(model, INPUTS), hashes(model, replace(INPUTS, **change))) == {"inputs"}
    assert hashes(model, INPUTS) == hashes(model, replace(INPUTS, labels=[0, 3]))


# Explanations and heatmaps


def test_images_are_explained_each_by_itself(model: MemoryClassifier) -> None:
    inputs = Inputs(noise(5), tuple("abcde"))
    source = Source("run", model)
    together, _ = explain_inputs(source, inputs, 3, None)
    (alone,), _ = explain_inputs(source, Inputs(noise(5)[3:4], ("d",)), 3, None)
    assert together[3] == alone
    assert [each.prediction for each in together] == model(model.transform(noise(5))).argmax(1).tolist()


def test_heatmaps_are_of_the_memory_images_shown_and_tested_by_seeded_deletion(reported: ReportWorld) -> None:
    model, memory = reported.source.model, noise(30, seed=1)
    images, pictures = model.transform(reported.inputs.pixels), reported.record.pictures
    for row, (number, each) in enumerate(reported.record.numbered):
        shown = [sample.index for sample in each.shown_samples(3)]
        (expected,) = heatmaps(model, images[row : row + 1], [shown], max_steps=4)
        assert each.heatmap.moved == expected.moved == tuple(shown)
        assert sorted((*each.heatmap.moved, *each.heatmap.still)) == sorted(sample.index for sample in each.samples)
        assert (each.heatmap.steps, each.heatmap.converged) == (4, expected.converged)
        assert each.heatmap.error == pytest.approx(expected.relative_error, abs=1e-6)
        draws = generator(0, "deletion", row)
        deleted = deletion(model, images[row], expected.input, draws, "white", RANDOM_ORDERS)
        assert each.heatmap.deletion.score == pytest.approx(deleted.score)
        assert each.heatmap.deletion.random_score == pytest.approx(deleted.random_score)
        maps = {f"heatmap-{number}": (reported.inputs.pixels[row], expected.input)}
        for place, index in enumerate(shown):
            maps[f"heatmap-{number}-{index}"] = memory[index], expected.samples[place]
        for name, (pixels, attributions) in maps.items():
            positive = attributions.sum(0).clamp(min=0)
            scale = positive[positive > 0].quantile(0.99) if (positive > 0).any() else torch.tensor(1.0)
            heat = blend(pixels, (positive / scale).clamp(max=1), heat_colours())
            assert_close(pixels_in(pictures[name]), heat, atol=1, rtol=0)


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"tolerance": 0.1, "max_steps": 64}, 32),
        ({"tolerance": 1e-4, "max_steps": 64}, 64),
        ({"tolerance": 1e-4, "max_steps": 3}, 3),
        ({"method": "input_x_gradient", "baseline": "black"}, None),
    ],
)
def test_options_of_heatmaps_are_used(model: MemoryClassifier, options: dict[str, Any], steps: int | None) -> None:
    heatmap = make_report(model, noise(1), heatmaps=HeatmapOptions(**options)).record.explanations[0].heatmap
    assert heatmap.steps == steps
    assert heatmap.method == options.get("method", "integrated_gradients")
    assert heatmap.baseline == options.get("baseline", "white")
    if steps is None:
        assert (heatmap.error, heatmap.converged) == (None, None)


@pytest.mark.parametrize(
    ("shown", "options", "value"),
    [
        (MOST_SHOWN + 1, HeatmapOptions(), "shown is 101"),
        (1, HeatmapOptions(max_steps=MOST_STEPS + 1), "max_steps is 4097"),
        (1, HeatmapOptions(tolerance=0.2), "tolerance is 0.2"),
        (1, HeatmapOptions(tolerance=1e-9), "tolerance is 1e-09"),
    ],
)
def test_options_that_no_report_may_have_are_refused_before_the_work(
    model: MemoryClassifier, monkeypatch: pytest.MonkeyPatch, shown: int, options: HeatmapOptions, value: str
) -> None:
    monkeypatch.setattr(create, "explain_inputs", lambda *_: pytest.fail("the work has begun"))
    with pytest.raises(InputError, match=value):
        make_report(model, noise(1), shown=shown, heatmaps=options)


def test_a_report_is_of_a_bounded_number_of_images(model: MemoryClassifier) -> None:
    with pytest.raises(InputError, match="images is 1001"):
        make_report(model, noise(MOST_IMAGES + 1))


def test_a_report_is_made_in_full_precision(model: MemoryClassifier) -> None:
    expected = make_report(model, noise(3), heatmaps=STEPS).record
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = make_report(model, noise(3), heatmaps=STEPS).record
    assert found.model_copy(update={"created": expected.created}) == expected


def test_progress_is_reported_for_all_that_takes_time(model: MemoryClassifier) -> None:
    seen: dict[str, list[tuple[int, int | None]]] = {}

    @contextmanager
    def progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
        seen[title] = []
        yield lambda done, total: seen[title].append((done, total))

    create_report(Source("run", model), INPUTS, heatmaps=STEPS, progress=progress)
    assert list(seen) == ["explaining", "heatmaps", "deleting pixels"]
    assert list(seen.values()) == [[(1, 2), (2, 2)]] * 3


# Pictures


def test_inputs_and_memory_images_are_stored_once_and_exactly(reported: ReportWorld) -> None:
    pictures, memory = reported.record.pictures, noise(30, seed=1)
    for number, pixels in enumerate(reported.inputs.pixels, start=1):
        assert pictures[f"input-{number}"] == exact_uri(pixels)
    shown = {int(name.removeprefix("memory-")) for name in pictures if name.startswith("memory-")}
    assert all(pixels_in(pictures[f"memory-{index}"]).equal(memory[index]) for index in shown)
    used = {sample.index for each in reported.record.explanations for sample in each.shown_samples(3)}
    assert used | {image.index for image in reported.record.unused} <= shown
    assert len(set(pictures.values())) == len(pictures)


def test_gray_pictures_stay_gray() -> None:
    pictures = make_report(network(shape=GRAY), noise(2, GRAY), heatmaps=STEPS).record.pictures
    assert pixels_in(pictures["input-1"]).equal(noise(2, GRAY)[0])
    assert pixels_in(pictures["heatmap-1"]).shape == (3, 4, 4)


def test_memory_pixels_are_those_remembered(model: MemoryClassifier) -> None:
    assert memory_pixels(model).equal(noise(12, seed=1))
    model.forget()
    with pytest.raises(NoMemoryError):
        memory_pixels(model)


# From Python


def test_a_report_from_python_needs_a_folder_and_a_model(model: MemoryClassifier, tmp_path: Path) -> None:
    inputs = Inputs(noise(3), ["a", "b", "c"])
    source = Source(tmp_path / "mine", model)
    world = ReportWorld(source, inputs, create_report(source, inputs, shown=2))
    assert world.record.run == str(tmp_path / "mine")
    assert not world.record.labelled
    assert world.record.explanations[0].samples[0].file is None
    assert verify(world.page, source).equal
    assert create_report(Source("mine", model), inputs).run == str(Path("mine").absolute())


@pytest.mark.parametrize(
    ("pixels", "names", "labels", "values"),
    [
        (noise(2).float(), "ab", None, ("torch.float32", "torch.uint8")),
        (noise(2, (1, 4, 4)), "ab", None, ("(2, 1, 4, 4)", "('N', 3, 4, 4)")),
        (noise(2)[:0], "", None, ("(0, 3, 4, 4)", "('N', 3, 4, 4)")),
        (noise(2), "a", None, ("names has 1", "2 images")),
        (noise(2), "ab", [0], ("labels has 1", "2 images")),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    model: MemoryClassifier, pixels: torch.Tensor, names: str, labels: list[int] | None, values: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as error:
        create_report(Source("mine", model), Inputs(pixels, tuple(names), labels))
    assert all(value in str(error.value) for value in values)
