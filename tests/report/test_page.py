"""The page: its numbers against slow loops over `model.read`, names that stay text, and nothing from elsewhere."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from memwrap import DataError, MemoryClassifier, __version__
from memwrap.report import Inputs, create_report, read_record, render
from memwrap.report.page import read_page
from memwrap.report.pictures import blend, heat_colours
from memwrap.visible import visible_name
from tests.report import HOSTILE, STEPS, Node, ReportWorld, make_report, network, noise, parsed


@pytest.fixture(scope="session")
def page(reported: ReportWorld) -> Node:
    return parsed(reported.page)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def number(text: str) -> float:
    """Of a cell, as 12.3 % or −4.5"""
    return float(text.removesuffix(" %").replace("−", "-"))


def near(value: float) -> Any:
    """A rounded number, in per cent or points."""
    return pytest.approx(100 * value, abs=0.0501)


class Slow:
    """All that a page shows of some pictures, one image and one memory image at a time."""

    def __init__(self, model: MemoryClassifier, pixels: Tensor) -> None:
        self.model, self.images = model, model.transform(pixels).unsqueeze(1)
        self.count = len(model.remembered)
        with torch.no_grad():
            readings = [model.read(image) for image in self.images]
        self.probabilities = [reading.logits.softmax(1)[0] for reading in readings]
        self.predictions = [int(each.argmax()) for each in self.probabilities]
        self.weights = [reading.weights[0].tolist() for reading in readings]
        self.own = [self._own_class(index) for index in range(self.count)]

    def _own_class(self, index: int) -> int:
        with torch.no_grad():
            reading = self.model.read(self.model.remembered.images[index : index + 1], keep=self._without(index))
        return int(reading.logits.argmax())

    def _without(self, index: int) -> Tensor:
        return torch.arange(self.count) != index

    def effect(self, row: int, index: int) -> float:
        with torch.no_grad():
            without = self.model.read(self.images[row], keep=self._without(index)).logits.softmax(1)[0]
        return float(without[self.predictions[row]] - self.probabilities[row][self.predictions[row]])

    def used(self, row: int) -> list[int]:
        weights = self.weights[row]
        return sorted((i for i, weight in enumerate(weights) if weight > 0), key=lambda i: (-weights[i], i))

    def uncertain(self, row: int) -> bool:
        return self.own[self.used(row)[0]] != self.predictions[row]


@pytest.fixture(scope="session")
def slow(reported: ReportWorld) -> Slow:
    return Slow(reported.source.model, reported.inputs.pixels)


# Numbers


def test_the_summary_counts_what_is_there(page: Node, slow: Slow) -> None:
    right = sum(prediction == row % 4 for row, prediction in enumerate(slow.predictions))
    unsure = sum(slow.uncertain(row) for row in range(6))
    never = sum(all(weights[index] == 0 for weights in slow.weights) for index in range(30))
    assert [each.text for each in page.one("ul", class_="totals").all("li")] == [
        "6 images",
        f"{percent(right / 6)} accuracy: {right} of 6 right",
        f"{unsure} unsure: the memory image with the largest weight is of another class",
        f"30 images in the memory, {never} of them not used here",
    ]
    assert 0 < right < 6
    assert 0 < unsure < 6
    assert never


def test_each_image_has_its_prediction_probability_and_truth(page: Node, slow: Slow) -> None:
    for row, article in enumerate(page.all("article")):
        prediction = slow.predictions[row]
        probability = percent(float(slow.probabilities[row][prediction]))
        truth = "right" if prediction == row % 4 else f"wrong: it is {HOSTILE[row % 4]}"
        values, labels = slow.probabilities[row].sort(descending=True)
        second = f"then {HOSTILE[labels[1]]}, {percent(float(values[1]))}" if values[1] >= 0.0005 else ""
        between = "; " if truth == "right" and second else " "
        assert article.one("h3").text == f"picture {row}.png"
        assert article.one("div", class_="answer").text == (
            f"{HOSTILE[prediction]}, {probability} {truth}{between}{second}".strip()
        )


def spaces(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_the_answer_comes_first_and_then_the_sentences(page: Node, reported: ReportWorld) -> None:
    for each, article in zip(reported.record.explanations, page.all("article"), strict=True):
        texts = [node for node in article.one("div", class_="top").all("div")[0].children if isinstance(node, Node)]
        assert [node.tag for node in texts] == ["h3", "div", "p", "p", "p"]
        assert [spaces(node.text) for node in texts[2:]] == [each.sentence, each.effect_sentence, each.flip_sentence]
        assert ("unsure" in texts[2].attributes["class"].split()) == each.uncertain


def test_a_sample_from_further_down_has_a_heading(reported: ReportWorld, slow: Slow) -> None:
    kinds = set()
    world = make_report(reported.source.model, noise(6), shown=1)
    for row, article in enumerate(parsed(world.page).all("article")):
        shown = [int(cells[0].split()[0][1:]) for cells in article.one("table").rows()]
        apart = [each.text for each in article.all("th", scope="rowgroup")]
        assert len(apart) == len(shown) - 1
        if apart:
            same = slow.own[shown[-1]] == slow.predictions[row]
            words = "the predicted class" if same else "another class"
            assert apart == [f"further down: the strongest of {words}"]
            assert len(article.all("tbody")) == 2
            assert article.all("tbody")[1].all("use")[0].attributes["href"] == f"#memory-{shown[-1]}"
            kinds.add(same)
    assert kinds == {False, True}, "else nothing is tested"


def test_memory_images_have_label_class_weight_and_effect_the_largest_first(page: Node, slow: Slow) -> None:
    for row, article in enumerate(page.all("article")):
        used = slow.used(row)
        table = article.one("table").rows()
        shown = [int(re.match(r"#(\d+) ", cells[0])[1]) for cells in table]
        assert shown[:3] == used[:3]
        assert shown == [index for index in used if index in shown], "the largest first"
        for index, (name, taken, label, weight, bar, effect) in zip(shown, table, strict=True):
            other = " other class" if slow.own[index] != slow.predictions[row] else ""
            differs = " differs" if slow.own[index] != index % 4 else ""
            assert name == f"#{index} {index}.png"
            assert taken == HOSTILE[slow.own[index]] + other
            assert label == HOSTILE[index % 4] + differs
            assert number(weight) == near(slow.weights[row][index])
            assert number(effect) == near(slow.effect(row, index))
            assert bar == ""


def test_bars_are_as_long_as_weights_and_of_two_colours(page: Node, slow: Slow) -> None:
    for row, article in enumerate(page.all("article")):
        bars = article.all("span", class_="bar")
        indices = [int(cells[0].split()[0][1:]) for cells in article.one("table").rows()]
        strongest = slow.weights[row][slow.used(row)[0]]
        for index, bar in zip(indices, bars, strict=True):
            width = re.fullmatch(r"width:(\d+\.\d)%", bar.attributes["style"])[1]
            assert float(width) == near(slow.weights[row][index] / strongest)
            assert ("other" in bar.attributes["class"].split()) == (slow.own[index] != slow.predictions[row])


def test_what_is_not_listed_is_counted_and_weighed(page: Node, slow: Slow) -> None:
    for row, article in enumerate(page.all("article")):
        shown = {int(cells[0].split()[0][1:]) for cells in article.one("table").rows()}
        used = slow.used(row)
        rest = sum(slow.weights[row][index] for index in used if index not in shown)
        expected = (
            f"The memory images with the largest weights, of {len(used)} used; those not shown have {percent(rest)} of "
            "the weight together"
        )
        assert article.one("caption").text == expected


def test_confusions_are_listed(page: Node, slow: Slow) -> None:
    pairs = Counter((row % 4, label) for row, label in enumerate(slow.predictions) if row % 4 != label)
    rows = page.all("section")[0].one("table").rows()
    assert sorted(rows) == sorted([HOSTILE[true], HOSTILE[taken], str(count)] for (true, taken), count in pairs.items())


def listed(page: Node) -> dict[str, list[str]]:
    """The lists of the summary, by their heading."""
    summary = page.all("section")[0]
    found: dict[str, list[str]] = {}
    for child in summary.children:
        if isinstance(child, Node) and child.tag == "h3":
            heading = found.setdefault(child.text, [])
        elif isinstance(child, Node) and "listed" in child.attributes.get("class", ""):
            heading += [each.text for each in child.all("li")]
    return found


def test_the_unsure_and_the_confidently_wrong_are_listed_with_links(page: Node, slow: Slow) -> None:
    def line(row: int) -> str:
        label = slow.predictions[row]
        truth = "right" if label == row % 4 else f"wrong: it is {HOSTILE[row % 4]}"
        return f"picture {row}.png: {HOSTILE[label]}, {percent(float(slow.probabilities[row][label]))}, {truth}"

    lists = listed(page)
    unsure = [row for row in range(6) if slow.uncertain(row)]
    wrong = [row for row in range(6) if slow.predictions[row] != row % 4 and not slow.uncertain(row)]
    assert lists["Unsure"] == [line(row) for row in unsure]
    assert sorted(lists["Wrong without a warning"]) == sorted(map(line, wrong))
    assert unsure
    assert wrong
    targets = {article.attributes["id"]: article.one("h3").text for article in page.all("article")}
    for link in page.all("section")[0].all("a"):
        assert targets[link.attributes["href"].removeprefix("#")] == link.text


def test_the_memory_images_used_most_are_listed(page: Node, slow: Slow) -> None:
    totals = [sum(weights[index] for weights in slow.weights) for index in range(30)]
    rows = page.all("section")[2].one("table").rows()
    assert len(rows) == 20
    order = [int(cells[0].split()[0][1:]) for cells in rows]
    assert order == sorted(range(30), key=lambda index: (-totals[index], index))[:20]
    for index, (_, taken, label, share, images) in zip(order, rows, strict=True):
        assert taken == HOSTILE[slow.own[index]]
        assert label.removesuffix(" differs") == HOSTILE[index % 4]
        assert number(share) == near(totals[index] / 6)
        assert images == str(sum(weights[index] > 0 for weights in slow.weights))


def test_the_memory_images_not_used_are_shown(page: Node, slow: Slow) -> None:
    never = [index for index in range(30) if all(weights[index] == 0 for weights in slow.weights)]
    memory = page.all("section")[2]
    assert memory.one("h3").text == f"Not used ({len(never)})"
    assert [each.text for each in memory.one("ul").all("li")] == [
        f"#{index}, label {HOSTILE[index % 4]}" for index in never[:12]
    ]


def test_the_checks_of_heatmaps_are_shown_below_them(page: Node, reported: ReportWorld) -> None:
    for each, article in zip(reported.record.explanations, page.all("article"), strict=True):
        heat = each.heatmap
        _, verdict, how = (paragraph.text for paragraph in article.one("details").all("p"))
        assert verdict.startswith("These maps passed") == heat.reliable
        assert verdict.startswith("Do not rely") == (not heat.reliable)
        assert (percent(heat.error) in verdict) == (heat.reliable or not heat.converged)
        assert f"the probability is {percent(heat.deletion.score)} on average" in verdict
        assert f"in random order {percent(heat.deletion.random_score)}." in verdict
        assert how.startswith(f"{heat.steps} steps. Maps were made of the image and of {len(heat.moved)} of ")
        assert ("the others" in how) == bool(heat.still)


@pytest.mark.parametrize("reliable", [True, False])
def test_whether_heatmaps_are_reliable_follows_from_the_record(reported: ReportWorld, reliable: bool) -> None:
    first, *others = reported.record.explanations
    deletion = first.heatmap.deletion.model_copy(update={"score": 0.3, "random_score": 0.5 if reliable else 0.3})
    heatmap = first.heatmap.model_copy(update={"converged": True, "deletion": deletion})
    changed = reported.changed(explanations=(first.model_copy(update={"heatmap": heatmap}), *others))
    words = parsed(changed.page).all("article")[0].one("details").text
    assert ("These maps passed their checks" in words) == reliable
    assert ("Do not rely on these maps" in words) == (not reliable)


def warning(page: Node) -> str:
    """What the page says of unsure predictions, in the part on how to read it."""
    (words,) = [each.text for each in page.all("section")[3].all("p") if each.text.startswith("Unsure means")]
    return words


def test_how_often_the_unsure_are_wrong_is_counted(page: Node, slow: Slow) -> None:
    wrong = [slow.predictions[row] != row % 4 for row in range(6)]
    unsure = [row for row in range(6) if slow.uncertain(row)]
    others = [row for row in range(6) if not slow.uncertain(row)]
    counted = (
        f"Here {sum(wrong[row] for row in unsure)} of {len(unsure)} unsure and "
        f"{sum(wrong[row] for row in others)} of {len(others)} other predictions are wrong."
    )
    assert counted in warning(page)
    assert "evaluate" not in warning(page)


def test_that_none_is_unsure_is_shown() -> None:
    model = network(memory=1)  # which has nothing else to be unsure by
    with torch.no_grad():
        right = int((model(model.transform(noise(4))).argmax(1) == torch.arange(4)).sum())
    assert f"Here none is unsure, and {4 - right} of 4 are wrong." in warning(parsed(make_report(model, noise(4)).page))


def test_without_labels_it_is_not_known_how_often_the_unsure_are_wrong(model: MemoryClassifier) -> None:
    words = warning(parsed(make_report(model, noise(4), labelled=False).page))
    assert "not known without labels; memwrap evaluate measures" in words
    assert "Here" not in words


def test_heatmaps_have_a_scale_from_grey_to_yellow(page: Node) -> None:
    for article in page.all("article"):
        assert article.one("details").all("p")[0].text.startswith("none or lowered it most")
        assert article.one("span", class_="scale").attributes["aria-hidden"] == "true"
    (gradient,) = re.findall(r"linear-gradient\(to right, (.*?)\);", page.one("style").text)
    colours = [list(map(int, colour.split())) for colour in re.findall(r"rgb\((.*?)\)", gradient)]
    assert len(colours) == 9
    assert len(set(colours[0])) == 1
    for place, colour in enumerate(colours):
        pixel = torch.full((3, 1, 1), 128, dtype=torch.uint8)
        assert colour == blend(pixel, torch.full((1, 1), place / 8), heat_colours())[:, 0, 0].tolist()


# Pictures


def test_each_picture_is_stored_once_and_all_are_shown(page: Node, reported: ReportWorld) -> None:
    stored = [(each.attributes["id"], each.attributes["href"]) for each in page.all("image")]
    assert stored == [(name, reported.record.pictures[name]) for name in reported.record.picture_names]
    shown = {each.one("use").attributes["href"].removeprefix("#") for each in page.all("svg", role="img")}
    assert shown == set(reported.record.pictures)
    assert reported.page.count("data:image/") == len(stored)


def test_a_row_shows_the_picture_that_it_names(page: Node) -> None:
    rows = [row for table in page.all("table") for row in table.all("tr") if row.all("use")]
    for row in rows:
        index = row.one("use").attributes["href"].removeprefix("#memory-")
        assert row.one("th").text.startswith(f"#{index} ")
        assert row.one("svg").attributes["aria-label"].startswith(f"memory image {index}, predicted as ")
    assert len(rows) > 20


def test_each_heatmap_is_next_to_its_picture(page: Node, reported: ReportWorld) -> None:
    for (number, each), article in zip(reported.record.numbered, page.all("article"), strict=True):
        assert article.one("svg", class_="pic").one("use").attributes["href"] == f"#input-{number}"
        pairs = [
            [use.attributes["href"] for use in item.all("use")] for item in article.one("ul", class_="heat").all("li")
        ]
        assert pairs == [
            [f"#input-{number}", f"#heatmap-{number}"],
            *([f"#memory-{index}", f"#heatmap-{number}-{index}"] for index in each.heatmap.moved),
        ]
        texts = [item.text for item in article.one("ul", class_="heat").all("li")]
        assert texts == ["the image", *(f"#{index}" for index in each.heatmap.moved)]


def test_small_pictures_are_not_smoothed_when_they_are_enlarged(page: Node) -> None:
    assert all("pixels" in each.attributes["class"].split() for each in page.all("image"))


def test_every_picture_has_a_label(page: Node) -> None:
    drawings = [each for each in page.all("svg") if each.attributes.get("aria-hidden") != "true"]
    assert all(each.attributes["role"] == "img" and each.attributes["aria-label"] for each in drawings)
    assert page.all("img") == []


# Names


TAGS = (
    "html head meta title style body a svg defs image use header h1 h2 h3 p em main section ul li b div table caption "
    "thead tr th td tbody span small bdi button article details summary code dl dt dd script"
)


def test_hostile_names_make_no_elements_and_are_there_as_text(model: MemoryClassifier) -> None:
    names = (
        *HOSTILE,
        "a'b\"c`d",
        "<!-- -->",
        "]]>",
        "&lt;b&gt;",
        "</script x",
        "<!--<script>",
        "\u202egnp.exe",
        "{% raw %}",
    )
    world = make_report(
        model,
        noise(len(names)),
        names=names,
        memory_names=[f"{name}-{n}" for n, name in enumerate((*names, *names)[:12])],
    )
    world = world.changed(run="/x/<b>runs")
    page = parsed(world.page)
    nodes = list(page.below())
    assert {node.tag for node in nodes} <= set(TAGS.split())
    assert not [name for node in nodes for name in node.attributes if name.startswith("on")]
    assert len(page.all("script")) == 2
    assert [article.one("h3").text for article in page.all("article")] == [visible_name(name) for name in names]
    assert page.one("h1").text == "Why “<b>runs” decided so"
    for name, picture in zip(names, page.all("svg", class_="pic"), strict=True):
        assert picture.attributes["aria-label"] == f"the image {visible_name(name)}"
    text = page.text
    for name in (*HOSTILE, "<b>runs", "{{ 7 * 7 }}", "</script>-1"):
        assert name in text


def test_a_file_name_in_no_known_encoding_can_be_saved(model: MemoryClassifier) -> None:
    world = make_report(model, noise(1), names=("caf\udce9.png",))
    text = world.page.encode().decode()
    assert "caf\\udce9.png" in parsed(text).one("article").one("h3").text


def test_classes_without_names_are_called_by_their_numbers(model: MemoryClassifier) -> None:
    model.classes = None
    page = parsed(make_report(model, noise(2)).page)
    assert page.all("article")[0].one("div", class_="answer").text[0] in "0123"


def test_names_that_are_mere_numbers_do_not_look_like_classes(model: MemoryClassifier) -> None:
    world = make_report(
        model, noise(10), names=tuple(map(str, range(20, 30))), memory_names=[str(n) for n in range(50, 62)]
    )
    page = parsed(world.page)
    assert [each.text for each in page.all("h3") if each.attributes.get("id")] == [f"image {n}" for n in range(20, 30)]
    assert re.fullmatch(r"image 2\d: .*", listed(page)["Unsure"][0])
    for cells in page.all("article")[0].one("table").rows():
        index = int(re.match(r"#(\d+) ", cells[0])[1])
        assert cells[0] == f"#{index} image {50 + index}"
    assert page.all("svg", class_="pic")[0].attributes["aria-label"] == "the image 20"


# What is not there


def test_without_labels_there_is_no_accuracy(model: MemoryClassifier) -> None:
    page = parsed(make_report(model, noise(4), labelled=False).page)
    assert "accuracy" not in page.one("ul", class_="totals").text
    assert list(listed(page)) == ["Unsure"]
    assert [each.attributes["data-show"] for each in page.all("button")] == ["all", "unsure"]
    assert " right" not in page.all("article")[0].text


def test_a_line_names_what_the_summary_lacks(model: MemoryClassifier) -> None:
    with torch.no_grad():
        predictions = model(model.transform(noise(10))).argmax(1)
    world = make_report(model, noise(10))
    sure = [row for row, each in enumerate(world.record.explanations) if not each.uncertain]
    assert 0 < len(sure) < 10

    def summary(rows: list[int], labels: Tensor | None) -> Node:
        inputs = Inputs(noise(10)[rows], ("a",) * len(rows), labels)
        return parsed(render(create_report(world.source, inputs))).all("section")[0]

    right = summary(sure, predictions[sure])
    assert right.all("h3") == []
    assert right.all("p")[0].text == "There are no errors and no unsure predictions."
    assert summary(sure, None).all("p")[0].text == "There are no unsure predictions."
    unsure = [row for row in range(10) if row not in sure]
    doubtful = summary(unsure, (predictions[unsure] + 1) % 4)
    assert [each.text for each in doubtful.all("h3")] == ["Confusions", "Unsure"]
    assert doubtful.all("p")[-1].text == "There are no errors without a warning."
    wrong = summary([*sure, *unsure], (predictions[[*sure, *unsure]] + 1) % 4)
    assert [each.text for each in wrong.all("h3")] == ["Confusions", "Unsure", "Wrong without a warning"]
    assert "There are no" not in wrong.text


def test_one_is_not_many(model: MemoryClassifier) -> None:
    text = parsed(make_report(network(memory=1), noise(1), shown=1).page).text
    assert not re.search(r"(?<![\d.])1 (images|memory images)", text)
    assert "1 image in the memory" in text
    assert "The only memory image used" in text


def test_without_heatmaps_the_page_does_not_mention_them(model: MemoryClassifier) -> None:
    world = make_report(model, noise(2))
    page = parsed(world.page)
    assert page.all("details") == []
    assert "eatmap" not in page.one("body").one("main").text
    assert "gradients" not in page.one("main").text


def test_methods_without_steps_show_none(model: MemoryClassifier) -> None:
    world = make_report(model, noise(1), heatmaps=replace(STEPS, method="saliency"))
    _, verdict, how = (each.text for each in parsed(world.page).one("details").all("p"))
    assert how.startswith("Maps were made of the image and of 3 of the ")
    assert "steps" not in how
    assert "account for" not in verdict


def test_without_names_memory_images_have_their_numbers(model: MemoryClassifier) -> None:
    page = parsed(make_report(model, noise(1), memory_names=None).page)
    assert all(re.fullmatch(r"#\d+", cells[0]) for cells in page.one("article").one("table").rows())


def test_a_memory_of_one_has_dashes_where_nothing_is_known() -> None:
    page = parsed(make_report(network(memory=1), noise(2)).page)
    ((_, taken, label, weight, _, effect),) = page.all("article")[0].one("table").rows()
    assert (taken, label, weight, effect) == ("-", HOSTILE[0], "100.0 %", "-")
    assert page.all("svg", class_="small")[0].attributes["aria-label"] == "memory image 0"
    assert "Each memory image was used at least once." in page.text


def test_long_lists_are_cut_and_the_rest_is_counted(model: MemoryClassifier) -> None:
    world = make_report(model, noise(60), shown=1)
    unsure, page = len(world.record.uncertain), parsed(world.page)
    assert len(listed(page)["Unsure"]) == 20 < unsure
    assert f"and {unsure - 20} more" in page.all("section")[0].text


def test_of_many_unused_memory_images_some_are_shown() -> None:
    world = make_report(network(memory=60), noise(1))
    unused, page = world.record.unused_count, parsed(world.page)
    assert len(page.one("ul", class_="unused").all("li")) == 12 < unused
    assert f"and {unused - 12} more" in page.all("section")[2].text


def test_a_second_class_is_shown_if_it_has_a_probability_to_show(reported: ReportWorld) -> None:
    first, *others = reported.record.explanations
    for probability, shown in ((0.0005, True), (0.0004, False)):
        second = first.second.model_copy(update={"probability": probability})
        changed = reported.changed(explanations=(first.model_copy(update={"second": second}), *others))
        assert ("then " in parsed(changed.page).all("article")[0].one("div", class_="answer").text) == shown


# The page as a file


def test_the_origin_of_the_report_is_shown(page: Node, reported: ReportWorld) -> None:
    proof = page.one("dl")
    facts = dict(zip([each.text for each in proof.all("dt")], [each.text for each in proof.all("dd")], strict=True))
    record = reported.record
    assert facts["run"] == "noise"
    assert facts["made"] == f"{record.created} by memwrap {record.memwrap_version}"
    assert [facts[name] for name in ("model", "memory", "inputs")] == list(record.hashes.model_dump().values())
    assert facts["seeds"] == "run 7, deletion 0"
    assert facts["shown"].startswith("at most 3 memory images")
    assert facts["heatmaps"].startswith("integrated gradients, baseline white, at most 4 steps")
    assert facts["heatmaps"].endswith("0.01")


def test_nothing_comes_from_elsewhere(page: Node, reported: ReportWorld) -> None:
    sources = [node.attributes[name] for node in page.below() for name in ("src", "href") if name in node.attributes]
    assert all(source.startswith(("data:image/", "#")) for source in sources)
    assert "http:" not in reported.page.replace("http-equiv", "")
    assert "https:" not in reported.page
    assert "url(" not in page.one("style").text
    policy = next(each.attributes["content"] for each in page.all("meta") if "http-equiv" in each.attributes)
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_ids_are_unique_and_labels_refer_to_them(page: Node) -> None:
    counts = Counter(node.attributes["id"] for node in page.below() if "id" in node.attributes)
    assert max(counts.values()) == 1
    labels = [node.attributes["aria-labelledby"] for node in page.below() if "aria-labelledby" in node.attributes]
    assert set(labels) <= set(counts)


@pytest.mark.parametrize(
    "names", [("a.png",), ("</script><script>alert(1)</script>",), ("caf\udce9.png",), ("&lt;\r\n",)]
)
def test_the_record_is_read_back_from_the_page(model: MemoryClassifier, names: tuple[str, ...]) -> None:
    world = make_report(model, noise(1), names=names, heatmaps=STEPS)
    assert read_record(world.page.encode().decode()) == world.record
    assert render(read_record(world.page)) == world.page
    stored = json.loads(parsed(world.page).one("script", id="record").text)
    assert "pictures" not in stored
    assert stored["explanations"][0]["prediction"] == world.record.explanations[0].prediction


def stored_in(page: str) -> tuple[int, int]:
    """Where the record's JSON starts and ends."""
    match = re.search(r'<script type="application/json" id="record">(.*?)</script>', page, re.DOTALL)
    return match.start(1), match.end(1)


def with_record(page: str, change: Callable[[dict[str, Any]], Any]) -> str:
    """The page with another record in it; the rest stays."""
    start, end = stored_in(page)
    stored = json.loads(page[start:end])
    other = change(stored)
    text = json.dumps(other if isinstance(other, list | str) else stored)
    return page[:start] + text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") + page[end:]


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (lambda stored: bool(stored.pop("shown")), ["shown"]),
        (lambda stored: stored.update(extra=1), ["extra"]),
        (lambda stored: stored.update(format="a letter"), ["a letter", "memwrap report"]),
        (lambda stored: stored.update(shown="two"), ["shown", "two"]),
        (lambda stored: stored["explanations"].pop() and None, ["heatmap-2"]),
        (lambda stored: stored["explanations"][0].update(sentence="x"), ["explanations.0.sentence"]),
        (lambda stored: stored["explanations"][1]["samples"][0].update(weight="x"), ["explanations.1.samples.0.wei"]),
        (lambda stored: stored.update(format_version="4"), ["'4'", __version__]),
        (lambda stored: stored.update(format_version=3), ["version 3", __version__]),
        (lambda stored: stored.update(format_version=5, memwrap_version="9.9"), ["5", "9.9"]),
        (lambda stored: stored.update(format_version=[["x"] * 1000] * 1000), ["version"]),
        (lambda stored: [len(stored)], ["list"]),
        (lambda stored: str(len(stored)), ["str"]),
    ],
    ids=["less", "more", "format", "kind", "inputs", "sentence", "deep", "text", "older", "newer", "long", "list",
         "str"],
)  # fmt: skip
def test_a_damaged_record_is_reported_by_its_field(
    model: MemoryClassifier, change: Callable[..., Any], values: list[str]
) -> None:
    world = make_report(model, noise(2), heatmaps=replace(STEPS, max_steps=1))
    with pytest.raises(DataError) as error:
        read_record(with_record(world.page, change))
    assert [value for value in values if value not in str(error.value)] == []
    assert len(str(error.value)) < 600


RECORD = '<script type="application/json" id="record">'


def test_a_field_that_a_record_has_twice_is_an_error(reported: ReportWorld) -> None:
    with pytest.raises(DataError, match="'run' is given twice"):
        read_record(reported.page.replace(f"{RECORD}{{", f'{RECORD}{{"run": "another", ', 1))


@pytest.mark.parametrize(
    "text",
    ["", "a letter", "<html></html>", "{}", f"{RECORD}{{}}</script>", f"{RECORD}[1</script>", f"{RECORD}NaN</script>",
     f"{RECORD}{'[' * 100_000}</script>", f'{RECORD}{{"format": "memwrap report", "format_version": 4}}</script>',
     f'{RECORD}{{"format": "\\udce9"}}</script>'],
    ids=["empty", "text", "page", "json", "no record", "half a record", "NaN", "deep", "empty record", "surrogate"],
)  # fmt: skip
def test_a_file_that_is_no_report_is_an_error(text: str) -> None:
    with pytest.raises(DataError, match="not a report of memwrap, or a damaged one"):
        read_record(text)


def test_a_report_of_an_earlier_version_is_named() -> None:
    """Reports of 0.1.0 have a manifest, and no record."""
    page = (
        '<html><script type="application/json" id="manifest">{"format": "memwrap report", "format_version": 1}</script>'
    )
    with pytest.raises(DataError, match="earlier version"):
        read_record(page)


def test_a_picture_that_is_missing_or_too_many_is_an_error(reported: ReportWorld) -> None:
    page = reported.page
    (first, *_) = re.findall(r"<image [^>]*></image>\n", page)
    with pytest.raises(DataError, match="'input-1'"):
        read_record(page.replace(first, ""))
    with pytest.raises(DataError, match="'input-77'"):
        read_record(page.replace(first, first + first.replace("input-1", "input-77")))


def test_a_file_is_read_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "why.html"
    file.write_bytes(b"a\r\n\xc3\xa9")
    assert read_page(file) == "a\r\né", "line ends stay as they are"
    for content in (b"\xff\xfe\x00", b"\xc3"):
        file.write_bytes(content)
        with pytest.raises(DataError, match="not a report of memwrap"):
            read_page(file)
    with pytest.raises(DataError, match=r"none\.html"):
        read_page(tmp_path / "none.html")
    with pytest.raises(DataError, match="cannot be read"):
        read_page(tmp_path)
    monkeypatch.setattr("memwrap.report.page.LARGEST_FILE", 0)
    with pytest.raises(DataError, match="1 bytes"):
        read_page(file)


def test_a_file_that_never_ends_is_not_read(tmp_path: Path) -> None:
    """Whatever is named as a report: an answer comes at once."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path / "sparse", tmp_path / "link"):
        with pytest.raises(DataError, match="cannot be read"):
            read_page(path)
