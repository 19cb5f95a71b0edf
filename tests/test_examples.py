"""The demo does what it says."""

import runpy
from pathlib import Path

import pytest
import torch

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
