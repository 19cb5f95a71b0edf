"""The page: its numbers against slow loops over `model.read`, names that stay text, and nothing from elsewhere."""

import json
import re
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from memwrap import MemoryClassifier, NoMemoryError
from memwrap.report.making import report_of
from memwrap.report.page import FORMAT, TOLERANCE, memory_pixels
from memwrap.report.pictures import blended, exact_uri, heat_colours, pixels_in
from tests.report import GRAY, HOSTILE, STEPS, Node, ReportWorld, network, noise, parsed, told


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
    return Slow(reported.source.model, reported.pictures.pixels)


# Numbers


def test_the_summary_counts_what_is_there(page: Node, slow: Slow) -> None:
    right = sum(prediction == row % 4 for row, prediction in enumerate(slow.predictions))
    unsure = sum(slow.uncertain(row) for row in range(6))
    never = sum(all(weights[index] == 0 for weights in slow.weights) for index in range(30))
    assert [each.text for each in page.one("ul", class_="totals").all("li")] == [
        "6 images",
        f"{percent(right / 6)} accuracy: {right} of 6 right",
        f"{unsure} unsure: the most used memory image is of another class",
        f"30 images in the memory, {never} of them never used here",
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


def test_the_answer_comes_first_and_then_a_plain_sentence(page: Node, reported: ReportWorld) -> None:
    for card, article in zip(reported.content.cards, page.all("article"), strict=True):
        texts = [node for node in article.one("div", class_="top").all("div")[0].children if isinstance(node, Node)]
        assert [node.tag for node in texts[:3]] == ["h3", "div", "p"]
        assert texts[2].text == card.sentence
        assert ("unsure" in texts[2].attributes["class"].split()) == card.sentence.startswith("Unsure: ")


def test_what_any_one_memory_image_did_is_said(page: Node, slow: Slow) -> None:
    for row, article in enumerate(page.all("article")):
        largest = max(abs(slow.effect(row, index)) for index in slow.used(row))
        words = article.all("p")[1]
        assert words.text.startswith("Taking out ")
        assert ("the image itself decided" in words.text) == (largest < 0.01)
        stated = float(words.one("span", class_="number").text)
        assert 100 * largest - 0.051 <= stated <= 100 * largest + 0.101


def test_what_is_further_down_stands_apart(reported: ReportWorld, slow: Slow) -> None:
    kinds = set()
    world = told(reported.source.model, noise(6), shown=1)
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


def test_for_and_against_are_said_of_effects_alone(page: Node) -> None:
    for article in page.all("article"):
        assert "against" not in article.one("table").text
        assert "against" not in article.one("div", class_="top").text


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
            f"The memory images used most, of {len(used)}; those not shown have {percent(rest)} of the weight together"
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


def test_the_memory_images_never_used_are_shown(page: Node, slow: Slow) -> None:
    never = [index for index in range(30) if all(weights[index] == 0 for weights in slow.weights)]
    memory = page.all("section")[2]
    assert memory.one("h3").text == f"Never used ({len(never)})"
    assert [each.text for each in memory.one("ul").all("li")] == [
        f"#{index}, labelled {HOSTILE[index % 4]}" for index in never
    ]


def test_what_heatmaps_are_worth_stands_below_them(page: Node, reported: ReportWorld) -> None:
    for card, article in zip(reported.content.cards, page.all("article"), strict=True):
        _, words, how = (each.text for each in article.one("details").all("p"))
        score, chance = (sum(curve) / 21 for curve in (card.deletion.curve, card.deletion.random_curve))
        if card.heatmap.relative_error >= 0.01:
            assert words.startswith("Do not rely on these maps: they miss ")
        elif chance - score < 0.01:
            assert words.startswith("Do not rely on these maps: the pixels that they highlight matter no more than")
        else:
            assert words.startswith("These maps passed their checks: they account for the model's score up to ")
        assert (f"{percent(card.heatmap.relative_error)}" in words) == ("no more than" not in words)
        assert how.startswith(f"{card.heatmap.steps} steps. Maps were made of the image and of {len(card.samples)} of ")
        assert ("the others were left as they are" in how) == bool(card.others)
        assert f"the probability is {percent(sum(card.deletion.curve) / 21)} on average" in words
        assert f"in random order {percent(sum(card.deletion.random_curve) / 21)}." in words


def warning(page: Node) -> str:
    """What is said of unsure predictions, in the part on how to read the page."""
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


def test_that_none_is_unsure_is_said() -> None:
    model = network(memory=1)  # which has nothing else to be unsure by
    with torch.no_grad():
        right = int((model(model.transform(noise(4))).argmax(1) == torch.arange(4)).sum())
    assert f"Here none is unsure, and {4 - right} of 4 are wrong." in warning(parsed(told(model, noise(4)).page))


def test_without_labels_nothing_is_said_of_how_often_the_unsure_are_wrong(model: MemoryClassifier) -> None:
    words = warning(parsed(told(model, noise(4), labelled=False).page))
    assert "cannot be told without labels; memwrap evaluate measures" in words
    assert "Here" not in words


def test_heatmaps_have_a_scale_from_grey_to_yellow(page: Node) -> None:
    for article in page.all("article"):
        assert article.one("details").all("p")[0].text.startswith("nothing or against much")
        assert article.one("span", class_="scale").attributes["aria-hidden"] == "true"
    (gradient,) = re.findall(r"linear-gradient\(to right, (.*?)\);", page.one("style").text)
    colours = [list(map(int, colour.split())) for colour in re.findall(r"rgb\((.*?)\)", gradient)]
    assert len(colours) == 9
    assert len(set(colours[0])) == 1
    for place, colour in enumerate(colours):
        pixel = torch.full((3, 1, 1), 128, dtype=torch.uint8)
        assert colour == blended(pixel, torch.full((1, 1), place / 8), heat_colours())[:, 0, 0].tolist()


# Pictures


def test_inputs_are_there_without_loss(page: Node, reported: ReportWorld) -> None:
    pictures = [each for each in page.all("img") if "data-input" in each.attributes]
    assert torch.stack([pixels_in(each.attributes["src"]) for each in pictures]).equal(reported.pictures.pixels)


def test_each_memory_picture_is_there_once_and_is_the_right_one(page: Node, reported: ReportWorld) -> None:
    pictures = {each.attributes["id"]: each.attributes["href"] for each in page.all("image")}
    used = {each.one("use").attributes["href"].removeprefix("#") for each in page.all("svg", role="img")}
    assert used == set(pictures)
    pixels = noise(30, seed=1)
    for name, uri in pictures.items():
        assert pixels_in(uri).equal(pixels[int(name.removeprefix("memory-"))])


def test_a_row_shows_the_picture_that_it_names(page: Node) -> None:
    rows = [row for table in page.all("table") for row in table.all("tr") if row.all("use")]
    for row in rows:
        index = row.one("use").attributes["href"].removeprefix("#memory-")
        assert row.one("th").text.startswith(f"#{index} ")
        assert row.one("svg").attributes["aria-label"].startswith(f"memory image {index}, taken for ")
    assert len(rows) > 20


def test_heatmaps_are_those_of_the_image_and_of_its_memory_images(page: Node, reported: ReportWorld) -> None:
    memory = noise(30, seed=1)
    for card, article in zip(reported.content.cards, page.all("article"), strict=True):
        images = article.one("ul", class_="heat").all("img", class_="heatmap")
        assert [each.attributes["alt"] for each in images] == [
            "heatmap of the image",
            *(f"heatmap of memory image {sample.index}" for sample in card.samples),
        ]
        pairs = [(card.pixels, card.heatmap.input)]
        pairs += [(memory[each.index], card.heatmap.samples[row]) for row, each in enumerate(card.samples)]
        for image, (pixels, attributions) in zip(images, pairs, strict=True):
            positive = attributions.sum(0).clamp(min=0)
            scale = positive[positive > 0].quantile(0.99) if (positive > 0).any() else torch.tensor(1.0)
            expected = blended(pixels, (positive / scale).clamp(max=1), heat_colours())
            assert pixels_in(image.attributes["src"]).equal(expected)


def test_each_heatmap_stands_beside_its_picture(page: Node, reported: ReportWorld) -> None:
    for card, article in zip(reported.content.cards, page.all("article"), strict=True):
        first, *others = article.one("ul", class_="heat").all("li")
        assert pixels_in(first.all("img")[0].attributes["src"]).equal(card.pixels)
        shown = [each.one("use").attributes["href"] for each in others]
        assert shown == [f"#memory-{sample.index}" for sample in card.samples]
        assert [each.text for each in others] == [f"#{sample.index}" for sample in card.samples]


def test_gray_pictures_are_shown(model: MemoryClassifier) -> None:
    world = told(network(shape=GRAY), noise(2, GRAY), heatmaps=STEPS)
    pictures = [each for each in parsed(world.page).all("img") if "data-input" in each.attributes]
    assert pixels_in(pictures[0].attributes["src"]).equal(noise(2, GRAY)[0])


def test_small_pictures_are_not_smeared_when_they_are_enlarged(page: Node) -> None:
    assert all("pixels" in each.attributes["class"].split() for each in (*page.all("img"), *page.all("image")))


def test_every_picture_says_what_it_shows(page: Node) -> None:
    assert all(each.attributes["alt"] for each in page.all("img"))
    drawings = [each for each in page.all("svg") if each.attributes.get("aria-hidden") != "true"]
    assert all(each.attributes["role"] == "img" and each.attributes["aria-label"] for each in drawings)


def test_the_memorys_pixels_are_what_was_remembered(model: MemoryClassifier) -> None:
    assert memory_pixels(model).equal(noise(12, seed=1))
    model.forget()
    with pytest.raises(NoMemoryError, match="has no memory to report on"):
        memory_pixels(model)


# Names


TAGS = (
    "html head meta title style body a svg defs image use header h1 h2 h3 p em main section ul li b div table caption "
    "thead tr th td tbody span small button article img details summary code dl dt dd script"
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
    world = told(
        model,
        noise(len(names)),
        names=names,
        memory_names=[f"{name}-{n}" for n, name in enumerate((*names, *names)[:12])],
    )
    world = replace(world, manifest=replace(world.manifest, title="<script>alert(3)</script>", run="<b>/runs"))
    page = parsed(world.page)
    nodes = list(page.below())
    assert {node.tag for node in nodes} <= set(TAGS.split())
    assert not [name for node in nodes for name in node.attributes if name.startswith("on")]
    assert len(page.all("script")) == 2
    assert [article.one("h3").text for article in page.all("article")] == [" ".join(name.split()) for name in names]
    assert page.one("h1").text == "Why “<script>alert(3)</script>” decided so"
    for name, picture in zip(names, [each for each in page.all("img") if "data-input" in each.attributes], strict=True):
        assert picture.attributes["alt"] == f"the image {name}"
    text = page.text
    for name in (*HOSTILE, "<b>/runs", "{{ 7 * 7 }}", "</script>-1"):
        assert name in text


def test_a_file_name_in_no_known_encoding_can_be_saved(model: MemoryClassifier) -> None:
    world = told(model, noise(1), names=("caf\udce9.png",))
    text = world.page.encode().decode()
    assert "caf\\udce9.png" in parsed(text).one("article").one("h3").text


def test_classes_without_names_are_called_by_their_numbers(model: MemoryClassifier) -> None:
    model.classes = None
    page = parsed(told(model, noise(2)).page)
    assert page.all("article")[0].one("div", class_="answer").text[0] in "0123"


def test_names_that_are_mere_numbers_do_not_look_like_classes(model: MemoryClassifier) -> None:
    world = told(model, noise(10), names=tuple(map(str, range(20, 30))), memory_names=[str(n) for n in range(50, 62)])
    page = parsed(world.page)
    assert [each.text for each in page.all("h3") if each.attributes.get("id")] == [f"image {n}" for n in range(20, 30)]
    assert re.fullmatch(r"image 2\d: .*", listed(page)["Unsure"][0])
    for cells in page.all("article")[0].one("table").rows():
        index = int(re.match(r"#(\d+) ", cells[0])[1])
        assert cells[0] == f"#{index} image {50 + index}"
    assert page.all("img")[0].attributes["alt"] == "the image 20"


# What is not there


def test_without_labels_there_is_no_accuracy(model: MemoryClassifier) -> None:
    page = parsed(told(model, noise(4), labelled=False).page)
    assert "accuracy" not in page.one("ul", class_="totals").text
    assert list(listed(page)) == ["Unsure"]
    assert [each.attributes["data-show"] for each in page.all("button")] == ["all", "unsure"]
    assert " right" not in page.all("article")[0].text


def test_what_there_is_nothing_of_is_said_in_a_line(model: MemoryClassifier) -> None:
    with torch.no_grad():
        predictions = model(model.transform(noise(10))).argmax(1)
    world = told(model, noise(10))
    sure = [row for row, card in enumerate(world.content.cards) if not card.explanation.uncertain]
    assert 0 < len(sure) < 10

    def summary(rows: list[int], labels: Tensor | None) -> Node:
        pictures = replace(world.pictures, pixels=noise(10)[rows], names=("a",) * len(rows), labels=labels)
        made = report_of(world.source, pictures, "noise", 3, None)
        return parsed(made.page()).all("section")[0]

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
    text = parsed(told(network(memory=1), noise(1), shown=1).page).text
    assert not re.search(r"(?<![\d.])1 (images|memory images)", text)
    assert "1 image in the memory" in text
    assert "The only memory image used" in text


def test_without_heatmaps_nothing_is_said_of_them(model: MemoryClassifier) -> None:
    world = told(model, noise(2))
    page = parsed(world.page)
    assert page.all("details") == []
    assert "eatmap" not in page.one("body").one("main").text
    assert "gradients" not in page.one("main").text


def test_methods_without_a_path_have_no_steps_to_tell(model: MemoryClassifier) -> None:
    world = told(model, noise(1), heatmaps=replace(STEPS, method="saliency"))
    _, verdict, how = (each.text for each in parsed(world.page).one("details").all("p"))
    assert how.startswith("Maps were made of the image and of 3 of the ")
    assert "steps" not in how
    assert "account for" not in verdict


def test_without_names_memory_images_have_their_numbers(model: MemoryClassifier) -> None:
    page = parsed(told(model, noise(1), memory_names=None).page)
    assert all(re.fullmatch(r"#\d+", cells[0]) for cells in page.one("article").one("table").rows())


def test_a_memory_of_one_has_dashes_where_nothing_is_known() -> None:
    page = parsed(told(network(memory=1), noise(2)).page)
    ((_, taken, label, weight, _, effect),) = page.all("article")[0].one("table").rows()
    assert (taken, label, weight, effect) == ("-", HOSTILE[0], "100.0 %", "-")
    assert page.all("svg", role="img")[0].attributes["aria-label"] == "memory image 0"
    assert "Each memory image was used at least once." in page.text


def test_long_lists_are_cut_and_the_rest_is_counted(model: MemoryClassifier) -> None:
    world = told(model, noise(60), shown=1)
    unsure, page = len(world.content.uncertain), parsed(world.page)
    assert len(listed(page)["Unsure"]) == 20 < unsure
    assert f"and {unsure - 20} more" in page.all("section")[0].text


def test_of_many_that_are_never_used_some_are_shown() -> None:
    world = told(network(memory=60), noise(1))
    never, page = len(world.content.never_used), parsed(world.page)
    assert len(page.one("ul", class_="never").all("li")) == 12 < never
    assert f"and {never - 12} more" in page.all("section")[2].text


# What it carries


def test_the_manifest_is_what_the_page_was_made_of(page: Node, reported: ReportWorld) -> None:
    stored = json.loads(page.one("script", id="manifest").text)
    assert stored.pop("format") == FORMAT
    assert stored.pop("format_version") == 1
    assert stored == json.loads(json.dumps(asdict(reported.manifest)))


def test_all_of_the_manifest_can_be_seen(page: Node, reported: ReportWorld) -> None:
    proof = page.one("dl")
    facts = dict(zip([each.text for each in proof.all("dt")], [each.text for each in proof.all("dd")], strict=True))
    manifest = reported.manifest
    assert facts == {
        "run": "/runs/noise",
        "made": f"{manifest.created} by memwrap {manifest.memwrap_version}",
        **manifest.hashes,
        "seeds": "run 7, deletion 0",
        "shown": "3 memory images for each, at most, and the strongest of the predicted class and of another, if "
        "further down",
        "heatmaps": "integrated gradients, baseline white, at most 4 steps until they miss by less than 0.01",
    }


def test_what_verifying_means_is_said(page: Node) -> None:
    words = page.all("section")[4].all("p")[0].text
    assert "their names and labels, the run's place and the date are taken from the file itself" in words
    assert f"Numbers agree if they differ by no more than {TOLERANCE}." in words


def test_nothing_comes_from_elsewhere(page: Node, reported: ReportWorld) -> None:
    sources = [node.attributes[name] for node in page.below() for name in ("src", "href") if name in node.attributes]
    assert all(source.startswith(("data:image/", "#")) for source in sources)
    assert "http:" not in reported.page.replace("http-equiv", "")
    assert "https:" not in reported.page
    assert "url(" not in page.one("style").text
    policy = next(each.attributes["content"] for each in page.all("meta") if "http-equiv" in each.attributes)
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_names_of_places_are_used_once_and_labels_refer_to_them(page: Node) -> None:
    counts = Counter(node.attributes["id"] for node in page.below() if "id" in node.attributes)
    assert max(counts.values()) == 1
    labels = [node.attributes["aria-labelledby"] for node in page.below() if "aria-labelledby" in node.attributes]
    assert set(labels) <= set(counts)


def test_the_same_page_is_made_each_time(reported: ReportWorld) -> None:
    assert reported.page == reported.page


def test_a_picture_without_heat_is_grey(model: MemoryClassifier) -> None:
    world = told(model, noise(1), heatmaps=STEPS)
    card = world.content.cards[0]
    cold = replace(card, heatmap=replace(card.heatmap, input=torch.zeros(3, 4, 4)))
    page = parsed(replace(world, content=replace(world.content, cards=(cold,))).page)
    pixels = pixels_in(page.one("details").all("img", class_="heatmap")[0].attributes["src"])
    assert pixels[0].equal(pixels[1])
    assert exact_uri(card.pixels) in world.page
