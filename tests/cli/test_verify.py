"""memwrap verify: equal, or what differs first; and files and runs that are none."""

import base64
import io
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.cli import QUICK, fails, photos, run, succeeds
from tests.cli.conftest import Trained


@pytest.fixture(scope="module")
def report(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the run's test images, with heatmaps; not to be changed."""
    path = tmp_path_factory.mktemp("report") / "why.html"
    succeeds("explain", trained.run, "--shown", 2, "--heatmaps", "--max-steps", 2, "--html", path)
    return path


@pytest.fixture
def edited(report: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copy(report, tmp_path / "edited.html"))


def test_an_untouched_report_is_equal(report: Path, trained: Trained) -> None:
    result = succeeds("verify", report)
    assert result.out == (
        f"equal: all that {report} says of its 4 images was computed again from {trained.run}; numbers agree to one "
        "unit of the last digit shown. The images, their names and labels, the run's place and the date are the "
        "report's own\n"
    )


def test_a_script_is_told_in_json(report: Path, trained: Trained) -> None:
    assert succeeds("verify", report, "--json").json == {
        "report": str(report),
        "run": str(trained.run),
        "equal": True,
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
    assert re.fullmatch(r"differs: Images, image 3 \(.*/\d+\.png\), #\d+ .*\.png", where)
    assert reported == "  the report says: 77.7 %"
    assert found == f"  the run says:    {weight} %"
    as_json = run("verify", edited, "--json")
    assert as_json.code == 6
    assert as_json.json["equal"] is False
    assert as_json.json["differences"] == [
        {"where": where.removeprefix("differs: "), "reported": "77.7 %", "found": f"{weight} %"}
    ]


def test_the_first_of_several_is_named_and_the_others_counted(edited: Path) -> None:
    text = edited.read_text()
    edited.write_text(re.sub(r"(\d)\.(\d) %", lambda each: f"{each[1]}.{(int(each[2]) + 5) % 10} %", text))
    result = run("verify", edited)
    assert result.code == 6
    assert result.out.startswith("differs: Summary\n")
    assert re.search(r"^and more after it, in \d+ places at least$", result.out, re.MULTILINE)


def test_a_run_that_has_moved_is_found_where_one_says(report: Path, trained: Trained, tmp_path: Path) -> None:
    moved = shutil.copytree(trained.run, tmp_path / "moved")
    result = succeeds("verify", report, "--run", moved)
    assert f"computed again from {moved};" in result.out


def test_a_run_that_is_gone_is_told_with_what_to_do(edited: Path, tmp_path: Path) -> None:
    text = edited.read_text()
    place = re.search(r'"run": "(/[^"]*)"', text)[1]
    gone = tmp_path / Path(place).name
    edited.write_text(text.replace(place, str(gone)))
    message = fails(4, "verify", edited)
    assert f"{gone}: is no run" in message
    assert "if the run that the report names has moved, give --run" in message
    other = fails(4, "verify", edited, "--run", tmp_path / "nowhere")
    assert "nowhere: is no run" in other
    assert "give --run" not in other
    assert run("verify", edited, "--run", place).code == 0, "where the run was is for it to say"


def test_another_run_is_told_by_its_hash(report: Path, trained: Trained, tmp_path: Path) -> None:
    succeeds("train", trained.data, "--out", tmp_path / "other", *QUICK, "--seed", 1, "--no-evaluate")
    result = run("verify", report, "--run", tmp_path / "other")
    assert result.code == 6
    assert result.out.startswith("differs: the hash of the model\n")
    assert "and more after it, in 2 places at least" in result.out


def test_a_run_without_a_memory_is_told(report: Path, data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--variant", "standard", "--no-evaluate")
    assert "which has no memory" in fails(2, "verify", report, "--run", out)


def test_a_report_by_another_version_is_told_where_it_differs(edited: Path) -> None:
    text = edited.read_text()
    changed = text.replace('"memwrap_version": "0.1.0"', '"memwrap_version": "0.0.9"')
    changed = changed.replace("memwrap 0.1.0", "memwrap 0.0.9")
    edited.write_text(changed)
    assert run("verify", edited).code == 0
    edited.write_text(changed.replace("may be wrong, too", "may not be wrong"))
    assert "the report was made by memwrap 0.0.9; this is 0.1.0" in run("verify", edited).out


@pytest.mark.parametrize("content", [b"", b"Dear Sir or Madam", b"\xff\xfe\x00", b"<html></html>"])
def test_a_file_that_is_no_report_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "letter.html").write_bytes(content)
    message = fails(3, "verify", tmp_path / "letter.html")
    assert f"{tmp_path / 'letter.html'}: " in message
    assert "is no report of memwrap's, or a damaged one" in message


def test_a_report_that_is_cut_is_told(edited: Path) -> None:
    content = edited.read_bytes()
    edited.write_bytes(content[: len(content) // 2])
    assert "damaged" in fails(3, "verify", edited)


def test_a_report_of_another_format_is_told(edited: Path) -> None:
    edited.write_text(edited.read_text().replace('"format_version": 1', '"format_version": 2'))
    assert "edited.html: the report has format version 2, made by memwrap 0.1.0;" in fails(3, "verify", edited)


def test_a_manifest_that_is_damaged_is_told_by_its_field(edited: Path) -> None:
    edited.write_text(edited.read_text().replace('"shown": 2', '"shown": "two"'))
    message = fails(3, "verify", edited)
    assert "the field shown of its manifest is 'two'; expected a whole number above 0" in message
    assert "Error" not in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"labels": [', '"labels": [99, ', "labels and"),
        (re.compile(r'"labels": \[\d'), '"labels": [99', "labels an image 99, the run's model has classes 0 to 1"),
        ('"baseline": "white"', '"baseline": "pink"', "heatmaps.baseline of its manifest is 'pink'; expected one of"),
        ('"title": "run"', '"title": "Certified"', "the field title of its manifest is 'Certified'; expected the name"),
        ('"format_version": 1', '"format_version": "1"', "the report has format version '1', made by"),
    ],
    ids=["one more label", "label", "baseline", "title", "format"],
)
def test_what_no_report_has_is_told_as_damage(edited: Path, old: str | re.Pattern[str], new: str, words: str) -> None:
    text = edited.read_text()
    changed = text.replace(old, new) if isinstance(old, str) else old.sub(new, text)
    assert changed != text
    edited.write_text(changed)
    assert words in fails(3, "verify", edited)


def test_a_row_that_only_a_browser_takes_for_an_attribute_is_found(edited: Path) -> None:
    text = edited.read_text()
    start = text.index("</tr>", text.index("<tbody>", text.index("<article")))
    end = text.index("</tr>", start + 5)
    edited.write_text(text[:start] + "</tr x='>" + text[start + 5 : end] + "</tr '>" + text[end + 5 :])
    result = run("verify", edited)
    assert result.code == 6
    assert result.out.startswith("differs: Images, image 1 ")


def test_a_picture_that_a_browser_shows_turned_is_told(edited: Path) -> None:
    """As its pixels are what they were, hashes and numbers agree."""
    text = edited.read_text()
    uri = re.search(r'data-input="1"[^>]*src="data:image/png;base64,([^"]*)"', text)[1]
    exif = Image.Exif()
    exif[0x0112] = 3
    stream = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(uri))) as picture:
        picture.save(stream, "PNG", exif=exif)
    edited.write_text(text.replace(uri, base64.b64encode(stream.getvalue()).decode()))
    assert "it is a PNG with a part eXIf, which may change how a browser shows it" in fails(3, "verify", edited)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    message = fails(3, "verify", tmp_path / "none.html")
    assert "none.html: cannot be read" in message
    assert "expected a file that memwrap explain --html wrote" in message
    assert "cannot be read" in fails(3, "verify", tmp_path)


def test_a_device_that_is_not_there_is_told(report: Path) -> None:
    assert "device is 'gpu', which cannot be used here" in fails(2, "verify", report, "--device", "gpu")


def test_a_report_of_files_is_verified_without_them(trained: Trained, tmp_path: Path) -> None:
    photos(tmp_path / "new", classes=("one", "two"), count=1, seed=9)
    succeeds("explain", trained.run, tmp_path / "new", "--html", tmp_path / "why.html")
    shutil.rmtree(tmp_path / "new")
    assert "equal: " in succeeds("verify", tmp_path / "why.html").out
