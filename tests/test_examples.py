"""The demo does what it says."""

import json
import runpy
from pathlib import Path

import pytest
import torch

import memwrap

DEMO = Path(__file__).parent.parent / "examples" / "digits.py"


def test_the_demo_learns_digits_and_shows_the_memory_behind_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    demo = runpy.run_path(str(DEMO))
    main = demo["main"]
    main.__globals__["EPOCHS"] = 15  # of 40: less time, and good enough
    main()
    printed = capsys.readouterr().out
    accuracy = float(printed.split("with a memory of 100: ")[1].split("%")[0])
    assert 85 < accuracy <= 100
    assert printed.count("the image") == printed.count("predicted") == demo["SHOWN"]
    assert "wrong, it is a" in printed
    assert "more memory images with" in printed


def test_pictures_are_drawn_by_brightness() -> None:
    picture = runpy.run_path(str(DEMO))["picture"]
    image = torch.zeros(1, 8, 8)
    image[0, 2, 3] = 1
    drawn = picture(image)
    assert drawn[2] == " " * 6 + "@@" + " " * 8
    assert "".join(drawn).strip() == "@@"


def test_the_notebook_of_photographs_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    cells = json.loads((DEMO.parent / "photographs.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    printed = capsys.readouterr().out
    assert float(printed.split("accuracy ")[1].split("%")[0]) > 80
    assert printed.rstrip().endswith("checks")
    loaded = memwrap.load(tmp_path / "runs" / "with-checks")
    assert loaded.classes == ("dots", "rings", "stripes", "checks")
    assert loaded.remembered is not None
    assert loaded.remembered.labels.bincount().tolist() == [20, 20, 20, 20]
    assert (tmp_path / "why.html").stat().st_size > 10_000
