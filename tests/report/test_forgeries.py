"""Reports from strangers: no forgery is accepted, and none takes long or fills the memory."""

import random
import time
import tracemalloc
from collections.abc import Callable

import pytest
import torch

from memwrap.report import HeatmapOptions
from tests.report import STEPS, ReportWorld, is_genuine, make_report, network, noise
from tests.report.forgeries import FORGERIES, LOSSY_FORGERIES, edited_record, mutate, with_json
from tests.report.test_pictures import smooth
from tests.report.test_verification import COARSE


@pytest.fixture(scope="module")
def world() -> ReportWorld:
    """Two inputs of 9 x 9 pixels, with heatmaps; larger than a pass of an interlaced picture."""
    shape = (3, 9, 9)
    made = make_report(network(0, shape, memory=16), noise(2, shape), shown=1, heatmaps=STEPS)
    assert is_genuine(made.page, made)
    return made


@pytest.fixture(scope="module")
def lossy() -> ReportWorld:
    """With memory pictures and heatmaps that are stored with loss."""
    shape = (3, 72, 72)
    model = network(shape=shape, memory=3, encoder=COARSE)
    pixels = torch.stack([smooth(72, 72), smooth(72, 72).flip(1), torch.full((3, 72, 72), 180, dtype=torch.uint8)])
    model.remember(model.transform(pixels), [0, 1, 2])
    made = make_report(model, noise(1, shape), heatmaps=HeatmapOptions(max_steps=2))
    assert is_genuine(made.page, made)
    return made


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(world: ReportWorld, name: str) -> None:
    page = FORGERIES[name](world)
    assert page != world.page
    assert not is_genuine(page, world)


@pytest.mark.parametrize("name", LOSSY_FORGERIES)
def test_a_forgery_of_pictures_stored_with_loss_is_refused(lossy: ReportWorld, name: str) -> None:
    page = LOSSY_FORGERIES[name](lossy)
    assert page != lossy.page
    assert not is_genuine(page, lossy)


SIZE = 16_000_000  # characters
BOMBS: dict[str, Callable[[ReportWorld], str]] = {
    "lines": lambda world: world.page + "\n" * SIZE,
    "a line": lambda world: world.page.replace("Summary", "x" * SIZE, 1),
    "tags of pictures": lambda world: world.page + '<image id="a" ' * (SIZE // 14),
    "attributes of a picture": lambda world: world.page + '<image id="a"' + ' x=""' * (SIZE // 5),
    "addresses of a picture": lambda world: world.page + '<image id="a"' + ' href="data:"' * (SIZE // 13),
    "records": lambda _: '<script type="application/json" id="record">' * (SIZE // 45),
    "lists": lambda world: with_json(world.page, lambda _: "[" + "[]," * (SIZE // 3) + "1]"),
    "numbers": lambda world: with_json(world.page, lambda _: "[" + "1," * (SIZE // 2) + "1]"),
    "a text": lambda world: with_json(world.page, lambda _: f'{{"format": "{"x" * SIZE}"}}'),
    "names": edited_record(lambda stored: [each.update(path="x" * (SIZE // 4)) for each in stored["explanations"]]),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_large_forgery_is_refused_soon_and_in_little_memory(world: ReportWorld, name: str) -> None:
    page = BOMBS[name](world)
    assert len(page) > SIZE // 8
    begun = time.monotonic()
    tracemalloc.start()
    try:
        assert not is_genuine(page, world)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * len(page), f"{peak:,} bytes"
    assert time.monotonic() - begun < 60


def test_random_changes_are_refused(world: ReportWorld) -> None:
    draws = random.Random(0)
    for number in range(60):
        assert not is_genuine(mutate(world.page, draws), world), number
