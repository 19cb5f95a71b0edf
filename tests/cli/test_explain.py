"""memwrap explain: in the terminal, as JSON, as a page and as a figure; and what it refuses before any work."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.cells import cell_len

import memwrap
from memwrap.cli import explain as command
from memwrap.cli import show
from memwrap.cli.terminal import plain_console
from memwrap.report import ReportRecord, read_record
from tests.cli import QUICK, Result, fails, photos, picture, run, run_apart, succeeds
from tests.cli.conftest import Trained
from tests.report import Node, make_report, network, noise, parsed
from tests.sealing import seal

LOW = ("--heatmaps", "--max-steps", 1)


@pytest.fixture
def files(trained: Trained) -> list[Path]:
    return [trained.data / "cat" / "0.png", trained.data / "dog" / "1.png"]


def page_of(path: Path) -> Node:
    return parsed(path.read_text(encoding="utf-8"))


def record_of(path: Path) -> ReportRecord:
    return read_record(path.read_bytes().decode())


# In the terminal


def test_each_image_is_explained_by_a_sentence_and_a_table(trained: Trained, files: list[Path]) -> None:
    result = succeeds("explain", trained.run, *files, "--shown", 2)
    records = succeeds("explain", trained.run, *files, "--json").json
    decided, *blocks = result.out.strip().split("\n\n")
    assert decided == "predictions are decided by a last layer that reads image and memory"
    assert len(blocks) == 2
    for file, record, block in zip(files, records, blocks, strict=True):
        first, sentence, heads, *rows = block.splitlines()
        second = min(record["probabilities"])
        assert first == (
            f"{file}: {record['prediction_name']} ({100 * record['probability']:.1f} %); then "
            f"{'dog' if record['prediction_name'] == 'cat' else 'cat'} ({100 * second:.1f} %)"
        )
        assert sentence == f"  {record['sentence']}"
        assert re.split("  +", heads.strip()) == ["weight", "without it", "predicted as", "label", "memory image"]
        for row, sample in zip(rows[:2], record["samples"], strict=False):
            cells = re.split("  +", row.strip())
            assert cells[0] == f"{100 * sample['weight']:.1f} %"
            assert re.fullmatch(r"0\.0 points|[−+]\d+\.\d points", cells[1])
            differs = "" if sample["prediction"] == sample["label"] else " (differs)"
            assert cells[2:] == [
                sample["prediction_name"],
                sample["label_name"] + differs,
                f"#{sample['index']} {sample['file']}",
            ]
        assert "more with" in rows[-3]
        assert rows[-2:] == [f"  {record['effect_sentence']}", f"  {record['flip_sentence']}"]


def test_a_sample_from_further_down_is_set_off(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = set()
    for record in make_report(network(memory=30), noise(6), shown=1).record.explanations:
        show.explanation(plain_console(), record, 1)
        out = capsys.readouterr().out
        rows = [line for line in out.splitlines() if re.match(r" +\d+\.\d % +\S+ points ", line)]
        gaps = re.findall(r"^ +\.\.\. *$", out, re.MULTILINE)
        assert len(gaps) == len(rows) - 1 == len(record.shown_samples(1)) - 1
        if gaps:
            assert record.further_title(record.shown_samples(1)[1]) in out
            kinds.add(record.is_other(record.shown_samples(1)[1]))
    assert kinds == {False, True}, "else nothing is tested"


def test_memory_images_that_are_called_by_numbers_do_not_look_like_classes(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = command.source_of

    def numbered(*given: Any) -> Any:
        source = known(*given)
        return replace(source, memory_names=[str(100 + number) for number in range(len(source.memory_names))])

    monkeypatch.setattr(command, "source_of", numbered)
    out = succeeds("explain", trained.run, trained.data / "cat" / "0.png").out
    for index, name in re.findall(r"#(\d+) (.*?) *$", out, re.MULTILINE):
        assert name == f"image {100 + int(index)}"


def test_explain_and_predict_agree(trained: Trained, files: list[Path]) -> None:
    for record in succeeds("explain", trained.run, *files, "--json").json:
        predicted = succeeds("predict", trained.run, record["path"], "--json").json[0]
        assert {name: record[name] for name in predicted} == {
            **predicted,
            "probability": pytest.approx(predicted["probability"]),
        }


def test_without_images_some_of_the_runs_own_test_images_are_explained(trained: Trained) -> None:
    records = succeeds("explain", trained.run, "--json").json
    evaluated = succeeds("evaluate", trained.run, "--json").json
    assert len(records) == evaluated["images"] == 4
    assert all(record["path"] in ("cat", "dog") or "/" in record["path"] for record in records)
    right = sum(record["prediction"] == record["label"] for record in records)
    assert right / 4 == evaluated["remembered"]["accuracy"]
    assert {(trained.data / record["path"]).exists() for record in records} == {True}


def test_a_limit_draws_some_by_the_runs_seed(trained: Trained) -> None:
    every = [record["path"] for record in succeeds("explain", trained.run, "--json").json]
    some = [record["path"] for record in succeeds("explain", trained.run, "--json", "--limit", 2).json]
    again = [record["path"] for record in succeeds("explain", trained.run, "--json", "--limit", 2).json]
    assert len(some) == 2
    assert some == again
    assert [path for path in every if path in some] == some, "in their order"


def test_files_that_one_names_are_all_explained(trained: Trained) -> None:
    folder = trained.data / "cat"
    assert len(succeeds("explain", trained.run, folder, "--json").json) == 10
    assert len(succeeds("explain", trained.run, folder / "0.png", folder, folder, "--json").json) == 10, "each once"


def test_labelled_images_of_another_folder_are_compared_with_their_labels(trained: Trained, tmp_path: Path) -> None:
    photos(tmp_path / "others", count=3, seed=50)
    records = succeeds("explain", trained.run, "--data", tmp_path / "others", "--json").json
    assert [record["label"] for record in records] == [0, 0, 0, 1, 1, 1]


def test_long_names_leave_a_table_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = ("a rather long name, as people give them to be precise 2019-05", "猫" * 40)
    photos(tmp_path / "photos", classes=long)
    succeeds("train", tmp_path / "photos", "--out", tmp_path / "run", *QUICK, "--no-evaluate")
    monkeypatch.setenv("COLUMNS", "80")
    out = succeeds("explain", tmp_path / "run", "--limit", 1, "--shown", 2).out
    table = out[out.index("   weight") : out.index("  and ")]
    assert max(cell_len(line) for line in table.splitlines()) <= 80
    joined = re.sub(r"\s", "", table)
    assert "2019-05" in joined or "猫" in joined
    assert re.search(r"\d\.\d %", table)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    odd = ("[red]x", ":cat:", "<b>")
    photos(tmp_path / "photos", classes=odd)
    succeeds("train", tmp_path / "photos", "--out", tmp_path / "run", *QUICK, "--no-evaluate")
    out = succeeds("explain", tmp_path / "run").out
    for name in odd:
        assert f"{name}/" in out


def test_a_file_name_in_no_known_encoding_can_be_reported(trained: Trained, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    picture(tmp_path / "images" / "plain.png", 0, seed=70).rename(tmp_path / "images" / name)
    result = run_apart("explain", trained.run, tmp_path / "images", "--html", tmp_path / "why.html")
    assert result.code == 0, result.err
    assert "caf\\udce9.png" in page_of(tmp_path / "why.html").one("article").one("h3").text
    assert succeeds("verify", tmp_path / "why.html").out.startswith("equal: ")
    result = run_apart("explain", trained.run, tmp_path / "images", "--json")
    assert result.json[0]["path"].endswith("caf\\udce9.png")


# Files that cannot be read


def test_good_files_are_explained_and_bad_ones_are_named(trained: Trained, mixture: Path) -> None:
    result = run("explain", trained.run, mixture)
    assert result.code == 3
    assert [line.split(": ")[0] for line in result.out.splitlines() if line.startswith("/")] == [
        f"{mixture}/a.png",
        f"{mixture}/deep/b.png",
    ]
    assert [line for line in result.err.splitlines() if "cannot be read" in line] == [
        f"{mixture}/empty.png: cannot be read, empty file",
        f"{mixture}/letter.jpg: cannot be read, not an image",
    ]


def test_bad_files_keep_no_report_from_being_written(trained: Trained, mixture: Path, tmp_path: Path) -> None:
    result = run("explain", trained.run, mixture, "--html", tmp_path / "why.html", "--json")
    assert result.code == 3
    assert len(page_of(tmp_path / "why.html").all("article")) == 2
    good, deep, empty, letter = result.json
    assert good["path"] == f"{mixture}/a.png"
    assert deep["path"] == f"{mixture}/deep/b.png"
    assert empty == {"path": f"{mixture}/empty.png", "reason": "empty file"}
    assert letter.keys() == {"path", "reason"}


def test_where_no_file_is_good_nothing_is_written(trained: Trained, mixture: Path, tmp_path: Path) -> None:
    message = fails(3, "explain", trained.run, mixture / "empty.png", "--html", tmp_path / "why.html")
    assert "there are no images to explain" in message
    assert not (tmp_path / "why.html").exists()


def test_json_names_files_even_if_none_is_good(trained: Trained, mixture: Path) -> None:
    result = run("explain", trained.run, mixture / "empty.png", "--json")
    assert result.code == 3
    assert result.json == [{"path": f"{mixture}/empty.png", "reason": "empty file"}]


def test_a_folder_without_files_is_an_error(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "there are no images to explain" in fails(3, "explain", trained.run, tmp_path / "empty")


def test_a_missing_file_is_named_before_anything_is_explained(trained: Trained, mixture: Path) -> None:
    result = run("explain", trained.run, mixture / "a.png", "nowhere.png")
    assert result.code == 2
    assert "nowhere.png: there is no such file or folder" in result.err
    assert result.out == ""


# Pages and figures


def test_a_page_is_written(trained: Trained, files: list[Path], tmp_path: Path) -> None:
    html = tmp_path / "why.html"
    result = succeeds("explain", trained.run, *files, "--html", html, "--shown", 2)
    assert re.fullmatch(r"2 images explained, \d of them unsure\n", result.out)
    assert f"written: {html}" in result.err
    page = page_of(html)
    assert page.one("h1").text == page.one("title").text == "Why “run” decided so"
    assert [each.one("h3").text for each in page.all("article")] == [str(file) for file in files]
    record = record_of(html)
    assert (record.run, record.shown, record.heatmaps) == (str(trained.run), 2, None)


def test_page_and_json_have_the_same_values(trained: Trained, tmp_path: Path) -> None:
    html = tmp_path / "why.html"
    records = succeeds("explain", trained.run, "--json", "--html", html).json
    assert records == [each.model_dump(mode="json") for each in record_of(html).explanations]
    articles = page_of(html).all("article")
    for record, article in zip(records, articles, strict=True):
        assert article.one("h3").text == record["path"]
        names = ("sentence", "effect_sentence", "flip_sentence")
        texts = [each.text.replace("\u00a0", " ") for each in article.all("p")[:3]]
        assert texts == [record[name] for name in names]
        assert f"{100 * record['probability']:.1f} %" in article.one("div", class_="answer").text
        rows = article.one("table").rows()
        for row, sample in zip(rows, record["samples"], strict=False):
            assert row[0] == f"#{sample['index']} {sample['file']}"
            assert row[3] == f"{100 * sample['weight']:.1f} %"


def test_heatmaps_are_put_into_page_and_figure(trained: Trained, tmp_path: Path) -> None:
    html, png = tmp_path / "why.htm", tmp_path / "why.PNG"
    result = succeeds("explain", trained.run, "--limit", 1, "--shown", 2, *LOW, "--html", html, "--figure", png)
    assert len(page_of(html).one("details").all("svg")) >= 6
    with Image.open(png) as picture:
        assert picture.format == "PNG"
    assert "heatmaps ..." in result.err
    assert record_of(html).heatmaps.max_steps == 1


def test_method_and_baseline_are_used(trained: Trained, tmp_path: Path) -> None:
    html = tmp_path / "why.html"
    flags = ("--method", "saliency", "--baseline", "black")
    succeeds("explain", trained.run, "--limit", 1, "--shown", 1, "--heatmaps", *flags, "--html", html)
    options = record_of(html).heatmaps
    assert (options.method, options.baseline, options.max_steps) == ("saliency", "black", 1024)


def test_a_figure_of_many_images_says_that_it_shows_some(trained: Trained, tmp_path: Path) -> None:
    result = succeeds("explain", trained.run, trained.data, "--shown", 1, "--figure", tmp_path / "why.svg")
    assert "the figure shows the first 8 of 20 images" in result.err
    assert (tmp_path / "why.svg").read_text().count("<image") <= 8 * 3
    assert "20 images explained" in result.out


def test_an_image_to_explain_is_not_drawn_over(trained: Trained, tmp_path: Path) -> None:
    photo = picture(tmp_path / "photos" / "a.png", 0, seed=70)
    before = photo.read_bytes()
    for given in (photo, photo.parent):
        message = fails(2, "explain", trained.run, given, "--figure", photo.parent / ".." / "photos" / "a.png")
        assert "is one of the images to explain" in message
    assert photo.read_bytes() == before


def test_a_report_among_the_images_is_none_of_them(trained: Trained, tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 0, seed=70)
    for _ in range(2):
        result = succeeds("explain", trained.run, tmp_path, "--html", tmp_path / "why.html")
        assert result.out == "1 image explained, 0 of them unsure\n"


def test_a_link_stays_one_and_what_it_leads_to_is_written(trained: Trained, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "real.html").touch()
    (tmp_path / "why.html").symlink_to(tmp_path / "real.html")
    succeeds("explain", trained.run, *files, "--html", tmp_path / "why.html")
    assert (tmp_path / "why.html").is_symlink()
    assert page_of(tmp_path / "real.html").all("article")


def test_a_name_may_be_as_long_as_names_can_be(trained: Trained, files: list[Path], tmp_path: Path) -> None:
    succeeds("explain", trained.run, *files, "--html", tmp_path / ("a" * 250 + ".html"))


def test_for_a_figure_alone_no_more_labelled_images_are_explained_than_it_shows(
    trained: Trained, tmp_path: Path
) -> None:
    others = ("--data", photos(tmp_path / "others", count=6, seed=50))
    assert succeeds("explain", trained.run, *others, "--figure", tmp_path / "why.png").out.startswith("8 images")
    both = ("--figure", tmp_path / "why.png", "--html", tmp_path / "why.html")
    assert succeeds("explain", trained.run, *others, *both).out.startswith("12 images")


def test_an_earlier_report_is_replaced(trained: Trained, files: list[Path], tmp_path: Path) -> None:
    html = tmp_path / "why.html"
    html.write_text("earlier")
    succeeds("explain", trained.run, files[0], "--html", html)
    assert len(page_of(html).all("article")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["why.html"]


def test_the_run_needs_no_data_to_explain_files(trained: Trained, mixture: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.run, tmp_path / "copy")
    one, other = (succeeds("explain", path, mixture / "a.png").out for path in (copy, trained.run))
    assert one == other


# What is refused


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is opened, no image read."""

    def touched(*_: object) -> None:
        raise AssertionError("a run was opened")

    monkeypatch.setattr(command, "source_of", touched)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("flags", "values"),
    [
        (["--heatmaps"], ["--heatmaps", "--html", "--figure"]),
        (["--figure", "why.jpg"], ["why.jpg", ".png, .svg or .pdf"]),
        (["--figure", "why"], ["why", ".png, .svg or .pdf"]),
        (["--html", "why.png"], ["why.png", ".html or .htm"]),
        (["--html", "none/why.html"], ["none/why.html", "a folder that exists"]),
        (["--html", "taken.html"], ["taken.html"]),
        (["--figure", "none/why.png"], ["none/why.png"]),
        (["--heatmaps", "--html", "why.html", "--method", "magic"], ["'magic'", "integrated_gradients"]),
        (["--heatmaps", "--html", "why.html", "--baseline", "pink"], ["'pink'", "white"]),
        (["--method", "saliency", "--html", "why.html"], ["--method", "--heatmaps"]),
        (["--baseline", "black"], ["--baseline", "--heatmaps"]),
        (["--max-steps", "8"], ["--max-steps", "--heatmaps"]),
        (["--split", "train"], ["'train'", "test or validation"]),
        (["a.png", "--data", "photos"], ["IMAGE", "--data"]),
        (["a.png", "--split", "test"], ["--split", "IMAGE"]),
        (["a.png", "--run-data", "x"], ["--run-data", "IMAGE"]),
        (["--data", "x", "--split", "test"], ["--split", "--data"]),
        (["a.png", "--limit", "3"], ["--limit", "IMAGE"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_flags_that_do_not_fit_are_refused_before_anything_is_read(
    flags: list[str], values: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.html").mkdir()
    message = fails(2, "explain", "run", *flags)
    assert [value for value in values if value not in message] == []
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


def test_a_report_that_verify_would_not_read_is_not_written(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = tmp_path / "why.html"
    assert "max_steps is 5000" in fails(2, "explain", trained.run, "--heatmaps", "--max-steps", 5000, "--html", html)
    assert "shown is 101" in fails(2, "explain", trained.run, "--shown", 101, "--html", html)
    monkeypatch.setattr("memwrap.report.page.LARGEST_FILE", 10_000)
    assert "10,000 bytes" in fails(3, "explain", trained.run, "--html", html)
    monkeypatch.undo()
    monkeypatch.setattr("memwrap.report.page.too_large", lambda _: "has more than 10 values")
    assert "10 values" in fails(3, "explain", trained.run, "--html", html)
    assert not html.exists()


def test_more_images_than_a_report_holds_are_refused_before_they_are_explained(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = tmp_path / "why.html"
    succeeds("explain", trained.run, "--html", html)
    pictures = [uri for name, uri in record_of(html).pictures.items() if name.startswith("input-")]
    assert len(pictures) == 4
    monkeypatch.setattr("memwrap.report.page.LARGEST_FILE", sum(map(len, pictures[:3])) + 1)

    def explained(*_: object, **__: object) -> None:
        raise AssertionError("images were explained")

    monkeypatch.setattr(command, "create_report", explained)
    message = fails(3, "explain", trained.run, "--html", html)
    assert all(words in message for words in ("4 images", "at most 3 ", "--limit"))
    message = fails(3, "explain", trained.run, trained.data / "cat", "--html", html)
    assert all(words in message for words in ("10 images", "at most 3 "))


@pytest.mark.parametrize("flags", [["--limit", "0"], ["--shown", "0"], ["--max-steps", "0"]])
def test_numbers_that_make_no_sense_are_refused(flags: list[str]) -> None:
    assert "greater than or equal to 1" in fails(2, "explain", "run", *flags)


def test_a_run_without_a_memory_cannot_explain(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--variant", "standard", "--no-evaluate")
    message = fails(2, "explain", out, data)
    assert "is a model of the variant standard, which has no memory to explain by" in message
    assert "train with --variant vote, memory_wrap or only_memory" in message


def test_a_run_that_is_not_finished_cannot_explain(trained: Trained, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.run, tmp_path / "copy")
    stored = json.loads((copy / "model.json").read_text())
    stored["training"]["finished"] = False
    (copy / "model.json").write_text(json.dumps(stored))
    seal(copy)
    assert "the run is not finished" in fails(4, "explain", copy, trained.data)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "is not a run, as it has no run.json" in fails(4, "explain", tmp_path)


def test_a_split_without_images_is_refused_before_images_are_read(trained: Trained) -> None:
    message = fails(3, "explain", trained.run, "--split", "validation")
    assert "no validation images" in message
    assert "--validation" in message
    assert "reading" not in message


def test_validation_images_are_explained_where_there_are_some(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--validation", 4, "--no-evaluate")
    assert len(succeeds("explain", out, "--split", "validation", "--json").json) == 4


def test_data_that_has_moved_is_found_by_a_flag(data: Path, out: Path, tmp_path: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--no-evaluate")
    expected = succeeds("explain", out, "--json").json
    moved = data.rename(tmp_path / "moved")
    message = fails(3, "explain", out)
    assert "the run's own images cannot be read" in message
    assert "moved, give --run-data, or name images to explain" in message
    assert succeeds("explain", out, "--run-data", moved, "--json").json == expected
    assert succeeds("explain", out, moved / "cat" / "0.png").code == 0


def test_other_classes_than_the_runs_are_refused(trained: Trained, tmp_path: Path) -> None:
    photos(tmp_path / "others", classes=("cat", "bird"))
    assert "has classes that the model does not know (bird)" in fails(
        3, "explain", trained.run, "--data", tmp_path / "others"
    )


def test_a_page_that_cannot_be_written_is_an_error(
    trained: Trained, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write_file", full)
    message = fails(5, "explain", trained.run, files[0], "--html", tmp_path / "why.html")
    assert f"{tmp_path / 'why.html'}: cannot be written ([Errno 28] No space left on device)" in message


def unsure_count(result: Result) -> Any:
    return re.search(r"(\d+) of them unsure", result.out)


def test_the_unsure_are_counted(trained: Trained, tmp_path: Path) -> None:
    records = succeeds("explain", trained.run, "--json").json
    result = succeeds("explain", trained.run, "--html", tmp_path / "why.html")
    assert unsure_count(result)[1] == str(sum(record["uncertain"] for record in records))


# A model without a run


@pytest.fixture
def alone(trained: Trained, tmp_path: Path) -> Path:
    """The same model, as Python saves it."""
    memwrap.load(trained.run).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_model_that_was_saved_from_python_explains_as_the_run_does(
    trained: Trained, alone: Path, files: list[Path]
) -> None:
    expected = succeeds("explain", trained.run, *files, "--json").json
    found = succeeds("explain", alone, *files, "--json").json
    assert found == expected


def test_its_report_can_be_verified(alone: Path, files: list[Path], tmp_path: Path) -> None:
    succeeds("explain", alone, *files, "--html", tmp_path / "why.html")
    assert succeeds("verify", tmp_path / "why.html").out.startswith("equal")


def test_it_explains_labelled_images(alone: Path, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", count=3, seed=50)
    records = succeeds("explain", alone, "--data", other, "--json").json
    assert [record["label"] for record in records] == [0, 0, 0, 1, 1, 1]


def test_it_has_no_images(alone: Path) -> None:
    assert "is a model without a run" in fails(2, "explain", alone)


def test_class_names_are_needed_to_compare_with(alone: Path, tmp_path: Path) -> None:
    model = memwrap.load(alone)
    model.classes = None
    model.save(alone)
    message = fails(2, "explain", alone, "--data", photos(tmp_path / "other"))
    assert "model.classes" in message


def test_a_memory_is_needed(alone: Path, files: list[Path]) -> None:
    model = memwrap.load(alone)
    model.forget()
    model.save(alone)
    assert "has no memory to explain by; give it one with model.remember(" in fails(2, "explain", alone, *files)
