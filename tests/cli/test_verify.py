"""memwrap verify: genuine reports, what differs in others, and files and runs that are none."""

import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import memwrap
from memwrap.report import read_record, render
from memwrap.report.pictures import pixels_in, to_image
from tests.cli import QUICK, fails, photos, picture, run, succeeds
from tests.cli.conftest import Trained
from tests.report.test_pictures import uri_of


@pytest.fixture(scope="module")
def report(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the run's test images, with heatmaps."""
    path = tmp_path_factory.mktemp("report") / "why.html"
    succeeds("explain", trained.run, "--shown", 2, "--heatmaps", "--max-steps", 2, "--html", path)
    return path


@pytest.fixture
def edited(report: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copy(report, tmp_path / "edited.html"))


def test_an_untouched_report_is_equal(report: Path, trained: Trained) -> None:
    out = succeeds("verify", report).out
    assert out.startswith("equal: ")
    assert "4 images" in out
    assert str(trained.run) in out
    assert succeeds("verify", report, "--json").json == {
        "report": str(report),
        "run": str(trained.run),
        "equal": True,
        "page": "equal",
        "memwrap_version": memwrap.__version__,
        "images": 4,
        "similar": 0,
        "differences": [],
    }


def test_an_edited_number_is_named(edited: Path) -> None:
    text = edited.read_text()
    weight = re.search(r'<td class="number">(\d+\.\d) %', text[text.index('id="image-3"') :])[1]
    place = text.index(f">{weight} %", text.index('id="image-3"'))
    edited.write_text(text[:place] + ">77.7 %" + text[place + len(weight) + 3 :])
    result = run("verify", edited)
    assert result.code == 6
    where, reported, found = result.out.splitlines()
    assert where == "differs: page, image 3"
    assert ">77.7 %" in reported
    assert f">{weight} %" in found
    as_json = run("verify", edited, "--json")
    assert as_json.code == 6
    assert (as_json.json["equal"], as_json.json["page"]) == (False, "different")
    (difference,) = as_json.json["differences"]
    assert difference["where"] == "page, image 3"


def test_a_forged_record_is_named_by_image_and_value(edited: Path) -> None:
    """Though the page shows what it holds."""
    record = read_record(edited.read_text())
    first, *others = record.explanations
    forged = first.model_copy(update={"probability": 0.123})
    edited.write_text(render(record.model_copy(update={"explanations": (forged, *others)})))
    result = run("verify", edited)
    assert result.code == 6
    where, reported, found = result.out.splitlines()
    assert where == f"differs: image 1 ({first.path}): probability"
    assert reported.endswith(" 0.123")
    assert float(found.split()[-1]) == pytest.approx(first.probability)


def test_the_first_of_several_differences_is_named_and_the_others_counted(edited: Path) -> None:
    text = edited.read_text()
    edited.write_text(re.sub(r"(\d)\.(\d) %", lambda each: f"{each[1]}.{(int(each[2]) + 5) % 10} %", text))
    result = run("verify", edited)
    assert result.code == 6
    assert result.out.startswith("differs: page, Summary\n")
    assert re.search(r"^and \d+ other differences$", result.out, re.MULTILINE)


def test_a_run_that_has_moved_is_named_by_a_flag(report: Path, trained: Trained, tmp_path: Path) -> None:
    moved = shutil.copytree(trained.run, tmp_path / "elsewhere" / trained.run.name)
    assert str(moved) in succeeds("verify", report, "--run", moved).out


def test_a_run_of_another_name_is_not_the_one_that_the_headline_names(
    report: Path, trained: Trained, tmp_path: Path
) -> None:
    renamed = shutil.copytree(trained.run, tmp_path / "another")
    result = run("verify", report, "--run", renamed)
    assert result.code == 6
    where, reported, found, hint = result.out.splitlines()
    assert where == "differs: name of the run's folder"
    assert (reported.split()[-1], found.split()[-1]) == (trained.run.name, "another")
    assert hint.startswith("everything else agrees")


def test_a_run_behind_a_link_has_its_own_name(report: Path, trained: Trained, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(trained.run)
    assert succeeds("verify", report, "--run", link).out.startswith("equal: ")
    succeeds("explain", link, trained.data / "cat", "--html", tmp_path / "why.html")
    assert succeeds("verify", tmp_path / "why.html", "--run", trained.run).out.startswith("equal: ")


def test_a_hint_at_the_name_is_given_for_nothing_else(edited: Path, trained: Trained, tmp_path: Path) -> None:
    edited.write_text(edited.read_text().replace(">unsure<", ">sure<").replace("</h1>", "!</h1>"))
    renamed = shutil.copytree(trained.run, tmp_path / "another")
    result = run("verify", edited, "--run", renamed)
    assert result.code == 6
    assert "everything else" not in result.out


def test_a_run_that_is_gone_is_an_error(edited: Path, tmp_path: Path) -> None:
    record = read_record(edited.read_text())
    gone = tmp_path / Path(record.run).name
    edited.write_text(render(record.model_copy(update={"run": str(gone)})))
    message = fails(4, "verify", edited)
    assert len(message.splitlines()) == 1, "nothing is announced that is not done"
    assert f"{gone}: is not a run" in message
    assert "--run" in message
    other = fails(4, "verify", edited, "--run", tmp_path / "nowhere")
    assert "nowhere: is not a run" in other
    assert "--run" not in other
    assert run("verify", edited, "--run", record.run).code == 0, "where the run was is for it to say"


def test_another_run_is_reported_by_its_hash(report: Path, trained: Trained, tmp_path: Path) -> None:
    succeeds("train", trained.data, "--out", tmp_path / "other", *QUICK, "--seed", 1, "--no-evaluate")
    result = run("verify", report, "--run", tmp_path / "other")
    assert result.code == 6
    assert result.out.startswith("differs: hashes.model\n")
    assert "and 3 other differences" in result.out, "its seed and its name, too"


def test_a_run_without_a_memory_is_refused(report: Path, data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--variant", "standard", "--no-evaluate")
    assert "which has no memory" in fails(2, "verify", report, "--run", out)


def test_a_report_by_another_version_is_not_called_equal_without_a_remark(edited: Path) -> None:
    other = render(read_record(edited.read_text()).model_copy(update={"memwrap_version": "99.0.9"}))
    edited.write_text(other.replace("may be wrong, too", "may not be wrong"))
    result = run("verify", edited)
    assert result.code == 6
    assert "not checked" in result.out
    assert "99.0.9" in result.out
    assert memwrap.__version__ in result.out
    assert "equal" not in result.out
    assert run("verify", edited, "--json").json["page"] == "not checked"


OLD = '<script type="application/json" id="manifest">{"format": "memwrap report", "format_version": 1}</script>'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a report of memwrap"),
        (b"Dear Sir or Madam", "not a report of memwrap"),
        (b"\xff\xfe\x00", "not a report of memwrap"),
        (b"<html></html>", "not a report of memwrap"),
        (OLD.encode(), "earlier version of memwrap"),
    ],
    ids=["empty", "letter", "bytes", "page", "report of 0.1.0"],
)
def test_a_file_that_is_no_report_is_an_error(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "letter.html").write_bytes(content)
    message = fails(3, "verify", tmp_path / "letter.html")
    assert f"{tmp_path / 'letter.html'}: " in message
    assert words in message


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ('"shown": 2', '"shown": "two"', ["shown", "two"]),
        ('"label": ', '"label": 99, "old": ', ["old"]),
        (
            re.compile(r'"other_prediction_name": null, "label": \d'),
            '"other_prediction_name": null, "label": 99',
            ["image 1", "99", "0 to 1"],
        ),
        ('"baseline": "white", "tolerance"', '"baseline": "pink", "tolerance"', ["heatmaps", "pink"]),
        ('"shown": 2', '"title": "Certified", "shown": 2', ["title", "Certified"]),
        ('"format_version": 4', '"format_version": 5', ["format version 5"]),
        ('"format_version": 4', '"format_version": "4"', ["format version '4'"]),
    ],
    ids=["kind", "key", "label", "baseline", "title", "newer", "text"],
)
def test_values_that_no_report_has_are_named(
    edited: Path, old: str | re.Pattern[str], new: str, values: list[str]
) -> None:
    text = edited.read_text()
    changed = text.replace(old, new, 1) if isinstance(old, str) else old.sub(new, text, count=1)
    assert changed != text
    edited.write_text(changed)
    message = fails(3, "verify", edited)
    assert [value for value in values if value not in message] == []
    assert str(edited) in message


def test_a_report_that_is_cut_is_an_error(edited: Path) -> None:
    content = edited.read_bytes()
    edited.write_bytes(content[: len(content) // 2])
    assert "damaged" in fails(3, "verify", edited)


def test_a_picture_that_a_browser_shows_turned_is_refused(edited: Path) -> None:
    """As its pixels are what they were, hashes and numbers agree."""
    record = read_record(edited.read_text())
    exif = Image.Exif()
    exif[0x0112] = 3
    turned = uri_of(to_image(pixels_in(record.pictures["input-1"])), "PNG", exif=exif)
    edited.write_text(render(record.model_copy(update={"pictures": {**record.pictures, "input-1": turned}})))
    assert "eXIf" in fails(3, "verify", edited)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "none.html: cannot be read" in fails(3, "verify", tmp_path / "none.html")
    assert "cannot be read" in fails(3, "verify", tmp_path)


def test_what_is_no_file_is_answered_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert "expected a regular file" in fails(3, "verify", path)


def test_a_name_writes_no_line_of_its_own(trained: Trained, tmp_path: Path) -> None:
    """As a line that says "equal" would be taken for the answer."""
    picture(tmp_path / "a\nequal: b.png", 0, seed=3)
    for command in ("explain", "predict"):
        out = succeeds(command, trained.run, tmp_path).out
        assert "a\\nequal: b.png" in out
    html = tmp_path / "why.html"
    succeeds("explain", trained.run, tmp_path, "--html", html)
    record = read_record(html.read_text())
    (first,) = record.explanations
    forged = first.model_copy(update={"probability": 0.123})
    html.write_text(render(record.model_copy(update={"explanations": (forged,)})))
    result = run("verify", html)
    assert result.code == 6
    assert not [line for line in result.out.splitlines() if line.startswith("equal")]


def test_a_device_that_is_not_there_is_an_error(report: Path) -> None:
    assert "device is 'gpu'" in fails(2, "verify", report, "--device", "gpu")


def test_one_image_is_counted_as_one(trained: Trained, tmp_path: Path) -> None:
    file = next((trained.data / "cat").iterdir())
    succeeds("explain", trained.run, file, "--heatmaps", "--max-steps", 2, "--html", tmp_path / "why.html")
    result = succeeds("verify", tmp_path / "why.html")
    assert "1 image again" in result.err
    assert "its 1 image." in result.out


def test_a_report_of_files_is_verified_without_them(trained: Trained, tmp_path: Path) -> None:
    photos(tmp_path / "new", classes=("one", "two"), count=1, seed=9)
    succeeds("explain", trained.run, tmp_path / "new", "--html", tmp_path / "why.html")
    shutil.rmtree(tmp_path / "new")
    assert succeeds("verify", tmp_path / "why.html").out.startswith("equal: ")


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "a\u202eb", "back\\slash"])
def test_a_run_in_a_folder_with_an_odd_name_has_a_report_that_holds(
    trained: Trained, tmp_path: Path, name: str
) -> None:
    run = Path(shutil.copytree(trained.run, tmp_path / name))
    succeeds("explain", run, trained.data / "cat", "--html", tmp_path / "report.html")
    succeeds("verify", tmp_path / "report.html", "--run", run)
