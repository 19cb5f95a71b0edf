"""What names can do to a terminal: nothing."""

from pathlib import Path

import pytest

from memwrap.cli.terminal import plain_console
from memwrap.cli.visible import visible
from tests.cli import picture, succeeds
from tests.cli.conftest import Trained


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a cat", "a cat"),
        ("two\nlines\tapart", "two\nlines\tapart"),
        ("\x1b[1A\x1b[2Kequal", "\\x1b[1A\\x1b[2Kequal"),
        ("\r\x08\x07\x7f\x9b2K", "\\r\\x08\\x07\\x7f\\x9b2K"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("Katze \U0001f408\u200d⬛ größer", "Katze \U0001f408\u200d⬛ größer"),
        ("a\\nb", "a\\nb"),
    ],
)
def test_what_steers_is_written_out_and_all_else_stays(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_console_writes_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("\x1b[2Kequal", "[red]")
    assert capsys.readouterr().out == "\\x1b[2Kequal [red]\n"


def test_the_name_of_a_file_moves_no_cursor(trained: Trained, tmp_path: Path) -> None:
    picture(tmp_path / "\x1b[2K.png", 0, seed=70)
    for command in ("explain", "predict"):
        out = succeeds(command, trained.run, tmp_path).out
        assert "\x1b" not in out
        assert "\\x1b[2K.png" in out
