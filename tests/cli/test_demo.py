"""The demo: without network, all variants, what was measured, and a run that other commands take."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from memwrap.metrics import mean_and_spread
from memwrap.runs import demo
from memwrap.storage.locks import exclusive
from memwrap.training.settings import PAPER_VARIANTS
from tests.cli import NO_NETWORK, fails, record, run, run_apart, succeeds
from tests.cli.conftest import Trained
from tests.report import parsed

SHORT = "import memwrap.runs.demo as demo; demo.SAMPLES, demo.EPOCHS = 40, 2"


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SAMPLES", 40)
    monkeypatch.setattr(demo, "EPOCHS", 2)


def test_the_demo_needs_no_network(tmp_path: Path) -> None:
    result = run_apart("demo", "--out", tmp_path / "demo", "--seeds", 1, before=NO_NETWORK + SHORT)
    assert result.code == 0, result.err
    assert "memory_wrap" in result.out
    assert "blocked" not in result.err


@pytest.mark.usefixtures("_short")
def test_the_demo_compares_all_variants_and_prints_what_it_measured(tmp_path: Path) -> None:
    result = succeeds("demo", "--out", tmp_path / "demo")
    lines = re.findall(r"^  (\w+), seed (\d): (\d+\.\d\d) %$", result.err, re.MULTILINE)
    assert sorted({(variant, seed) for variant, seed, _ in lines}) == sorted(
        (variant, str(seed)) for variant in PAPER_VARIANTS for seed in range(3)
    )
    assert "training 3 variants on 40 digits, 2 epochs, 3 seeds" in result.err
    assert "mean and standard deviation of 3" in result.out
    for variant in PAPER_VARIANTS:
        shown = re.search(rf"^  {variant} +(\d+\.\d\d) % ± (\d+\.\d\d)$", result.out, re.MULTILINE)
        assert shown is not None
        mean, spread = mean_and_spread([float(accuracy) for name, _, accuracy in lines if name == variant])
        assert float(shown[1]) == pytest.approx(mean, abs=0.011), "of figures that are rounded"
        assert float(shown[2]) == pytest.approx(spread, abs=0.011)


@pytest.mark.usefixtures("_short")
def test_the_demo_as_json_is_all_json(tmp_path: Path) -> None:
    result = succeeds("demo", "--out", tmp_path / "demo", "--seeds", 2, "--json").json
    assert result["run"] == str(tmp_path / "demo")
    assert [(each["variant"], each["seed"]) for each in result["results"]] == [
        (variant, seed) for seed in range(2) for variant in reversed(PAPER_VARIANTS)
    ]
    for variant, summary in result["summary"].items():
        accuracies = [each["accuracy"] for each in result["results"] if each["variant"] == variant]
        assert (summary["mean"], summary["spread"]) == mean_and_spread(accuracies)


@pytest.mark.usefixtures("_short")
def test_the_run_of_the_demo_is_taken_by_the_commands_that_it_names(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    measured = succeeds("demo", "--out", out, "--seeds", 1, "--json").json["results"]
    shown = succeeds("demo", "--out", out, "--seeds", 1).out
    for command in ("predict {0} {0}/pictures", "explain {0} {0}/pictures", "evaluate {0}"):
        assert f"  memwrap {command.format(out)}\n" in shown
    assert len(succeeds("predict", out, out / "pictures").out.splitlines()) == demo.PICTURES
    evaluated = succeeds("evaluate", out, "--json").json
    (own,) = [each for each in measured if each["variant"] == "memory_wrap"]
    assert (evaluated["remembered"]["accuracy"], evaluated["images"]) == (own["accuracy"], own["test_images"])


@pytest.mark.usefixtures("_short")
def test_the_demo_has_a_report_that_holds(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "demo"
    shown = succeeds("demo", "--out", out, "--seeds", 1).out
    assert shown.endswith(f"in a browser: {out / 'report.html'}\n")
    page = parsed((out / "report.html").read_text())
    assert page.one("h1").text == "Why “demo” decided so"
    names = [path.stem.rpartition("-")[2] for path in (out / "pictures").iterdir()]
    assert sorted(article.one("h3").text for article in page.all("article")) == sorted(
        f"digit {name}" for name in names
    )
    assert len(page.all("details")) == demo.PICTURES
    verified = succeeds("verify", out / "report.html").out
    assert verified.startswith("equal: ")
    assert str(out) in verified
    records = succeeds("explain", out, out / "pictures", "--json").json
    found = {each.one("h3").text: each.all("p")[0].text.replace("\u00a0", " ") for each in page.all("article")}
    assert found == {f"digit {Path(each['path']).stem.rpartition('-')[2]}": each["sentence"] for each in records}


@pytest.mark.usefixtures("_short")
def test_the_demo_writes_no_report_that_verify_would_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memwrap.report.page.LARGEST_FILE", 10_000)
    assert "10,000 bytes" in fails(3, "demo", "--out", tmp_path / "demo", "--seeds", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_short")
def test_where_the_report_lies_is_in_the_json(tmp_path: Path) -> None:
    result = succeeds("demo", "--out", tmp_path / "demo", "--seeds", 1, "--json").json
    assert result["report"] == str(tmp_path / "demo" / "report.html")
    assert Path(result["report"]).exists()


@pytest.mark.usefixtures("_short")
def test_the_demo_can_be_run_again_at_once_and_leaves_one_run(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "demo"
    first = succeeds("demo", "--out", out, "--seeds", 1, "--json").json
    succeeds("evaluate", out)  # as the demo suggests
    (out / "run.json").touch()
    before = (out / "run.json").stat().st_ino
    second = succeeds("demo", "--out", out, "--seeds", 1, "--json").json
    assert first["results"] == second["results"]
    assert [path.name for path in out.parent.iterdir()] == ["demo"]
    assert (out / "run.json").stat().st_ino != before
    assert not (out / "evaluation.json").exists()
    assert record(out)["recipe"] == "demo"


@pytest.fixture(scope="module")
def one_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo, not to be changed."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SAMPLES", 40)
        patch.setattr(demo, "EPOCHS", 2)
        succeeds("demo", "--out", out, "--seeds", 1)
    return out


@pytest.fixture
def earlier(one_demo: Path, tmp_path: Path) -> Path:
    """A demo of one's own."""
    return Path(shutil.copytree(one_demo, tmp_path / "demo"))


FOREIGN = ["left.txt", "pictures/mine.png", "report.html.bak", "runs/run.json", "metrics.jsonl/x", ".hidden"]
FOREIGN += [".padlock", ".notes-partial", ".notes.partial", ".notes.0123456789abcdef.partial", ".other.json.lock"]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_demo_with_files_of_others_is_not_replaced(earlier: Path, name: str) -> None:
    if "/" in name and (earlier / name).parent.is_file():
        (earlier / name).parent.unlink()
    (earlier / name).parent.mkdir(exist_ok=True)
    (earlier / name).write_text("precious")
    before = record(earlier, "model.json")
    assert Path(name).parts[0] in fails(4, "demo", "--out", earlier, "--seeds", 1)
    assert (earlier / name).read_text() == "precious"
    assert record(earlier, "model.json") == before


@pytest.mark.usefixtures("_short")
def test_a_file_that_comes_while_the_demo_runs_stays(earlier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = demo._save_report

    def save_meanwhile(*given: Any) -> None:
        save(*given)
        (earlier / "left.txt").write_text("precious")

    monkeypatch.setattr(demo, "_save_report", save_meanwhile)
    assert "left.txt" in fails(4, "demo", "--out", earlier, "--seeds", 1)
    assert (earlier / "left.txt").read_text() == "precious"
    assert [path.name for path in earlier.parent.iterdir()] == ["demo"]


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("name", [".model.json.lock", ".run.json.lock", ".memwrap.0123456789abcdef.partial"])
def test_what_a_killed_command_left_in_a_demo_goes_with_it(earlier: Path, name: str) -> None:
    (earlier / name).touch()
    succeeds("demo", "--out", earlier, "--seeds", 1)
    assert not (earlier / name).exists()


KILLED = """
import os
import pathlib
replace = pathlib.Path.replace
def replace_and_die(path, target):
    result = replace(path, target)
    count = globals()["count"] = globals().get("count", 0) + ("demo" in (path.name, pathlib.Path(target).name))
    if count == {}:
        os._exit(137)
    return result
pathlib.Path.replace = replace_and_die
"""


@pytest.mark.parametrize("renamed", [1, 2])
def test_a_demo_that_is_killed_while_it_takes_its_place_loses_none(
    earlier: Path, renamed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = record(earlier, "model.json")
    killed = run_apart("demo", "--out", earlier, "--seeds", 1, before=KILLED.format(renamed) + SHORT)
    assert killed.code == 137, killed.err
    assert earlier.exists() == (renamed == 2)
    assert len(list(earlier.parent.iterdir())) > earlier.exists()
    monkeypatch.setattr(demo, "_train", lambda *_: 1 / 0)
    run("demo", "--out", earlier, "--seeds", 1)
    assert [path.name for path in earlier.parent.iterdir()] == ["demo"]
    assert (record(earlier, "model.json") == before) == (renamed == 1)
    succeeds("check", earlier)


def test_a_demo_is_not_put_back_over_what_is_there_now(earlier: Path) -> None:
    hidden = earlier.with_name(".demo.0123456789abcdef.earlier")
    earlier.rename(hidden)
    earlier.mkdir()
    (earlier / "precious").touch()
    fails(4, "demo", "--out", earlier, "--seeds", 1)
    assert (earlier / "precious").exists()
    assert (hidden / "run.json").exists()


def test_two_demos_do_not_take_one_place(earlier: Path) -> None:
    with exclusive(earlier):
        assert "another" in fails(4, "demo", "--out", earlier, "--seeds", 1)
    succeeds("check", earlier)


def test_a_link_is_not_replaced_nor_what_it_leads_to(earlier: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    before = record(earlier, "model.json")
    link.symlink_to(earlier)
    assert "link" in fails(4, "demo", "--out", link, "--seeds", 1)
    assert link.is_symlink()
    assert record(earlier, "model.json") == before
    gone = tmp_path / "gone"
    gone.symlink_to(tmp_path / "nowhere")
    assert "link" in fails(4, "demo", "--out", gone, "--seeds", 1)
    assert gone.is_symlink()
    (earlier / "pictures").rename(tmp_path / "album")
    (earlier / "pictures").symlink_to(tmp_path / "album")
    assert "pictures" in fails(4, "demo", "--out", earlier, "--seeds", 1)


def test_a_demo_that_is_trained_on_by_its_user_is_not_replaced(tmp_path: Path, trained: Trained) -> None:
    """A run with the demo's name for a recipe, but with other images."""
    out = Path(shutil.copytree(trained.run, tmp_path / "run"))
    (out / "run.json").write_text((out / "run.json").read_text().replace('"recipe": "default"', '"recipe": "demo"'))
    assert record(out)["recipe"] == "demo"
    fails(4, "demo", "--out", out, "--seeds", 1)
    assert (out / "splits.json").exists()


@pytest.mark.usefixtures("_short")
def test_an_earlier_demo_stays_if_a_new_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "demo"
    succeeds("demo", "--out", out, "--seeds", 1)
    before = record(out, "model.json")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo, "_save_pictures", full)
    message = fails(5, "demo", "--out", out, "--seeds", 1)
    assert f"{out}: cannot be written ([Errno 28] No space left on device)" in message
    assert record(out, "model.json") == before
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_what_is_no_demo_is_not_replaced(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious").touch()
    (tmp_path / "file").write_text("precious")
    for place in (trained.run, tmp_path / "folder", tmp_path / "file"):
        message = fails(4, "demo", "--out", place)
        assert message == f"memwrap: {place}: exists and is not an earlier demo; give another folder with --out\n"
    assert (tmp_path / "folder" / "precious").exists()
    assert (tmp_path / "file").read_text() == "precious"
    assert (trained.run / "run.json").exists()


@pytest.mark.usefixtures("_short")
def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert run("demo", "--out", tmp_path / "demo", "--seeds", 1).code == 0


def test_a_place_that_cannot_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written" in fails(5, "demo", "--out", tmp_path / "file" / "demo")


def test_the_folder_that_one_stands_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "the current folder" in fails(2, "demo", "--out", ".")
