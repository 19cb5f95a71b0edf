"""What names can do to a terminal: nothing."""

from pathlib import Path

import pytest

from memwrap.cli.terminal import plain_console
from memwrap.visible import visible, visible_name
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
        ("un\u00adsure", "un\\xadsure"),
        ("ca\u200bt", "ca\\u200bt"),
        ("c\u200dat", "c\\u200dat"),
        ("\u200dat", "\\u200dat"),
        ("猫\u200d犬", "猫\\u200d犬"),
        ("cat\ufe0f", "cat\\ufe0f"),
        ("1\ufe0f", "1\\ufe0f"),
        ("cat\U000e0063\U000e007f", "cat\\U000e0063\\U000e007f"),
        ("\ue000\U00100001\udce9", "\\ue000\\U00100001\\udce9"),
        ("\u3164\u115f\u2800", "\\u3164\\u115f\\u2800"),
        ("\u0338cat", "\\u0338cat"),
        ("e" + "\u0301" * 6, "e" + "\u0301" * 4 + "\\u0301" * 2),
        *(("a" + mark * 6, "a" + mark * 4 + 2 * f"\\u{ord(mark):04x}") for mark in "\u0489\u05c4\u064b\u0951\u0e49"),
        ("ก\u0e49\u0e49\u200d\u0e49\u0e49\u200d\u0e49", "ก\u0e49\u0e49\u200d\u0e49\u0e49\u200d\\u0e49"),
        ("\u0e49\u0e49 cat", "\\u0e49\\u0e49 cat"),
        ("a\u2028b\u2067c\ufeff", "a\\u2028b\\u2067c\\ufeff"),
    ],
)
def test_what_steers_is_written_out_and_all_else_stays(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "name",
    [
        "قطة",
        "می\u200cخواهم",
        "חתול",
        "猫　犬",
        "क्\u200dष",
        "Ka\u0308tzchen e\u0301\u0323",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f\u200d\U0001f525",
        "1\ufe0f\u20e3",
        "10.30\u202fAM",
        "แมวน้ำ",
        "བསྒྲུབས",
        "בְּרֵאשִׁ֖ית",
        "→→→→→→ ——————",
    ],
)
def test_names_of_all_languages_stay(name: str) -> None:
    assert visible_name(name) == name


def test_a_name_stays_in_its_line() -> None:
    assert visible_name("a\nequal: b\tc") == "a\\nequal: b\\tc"


def test_a_console_writes_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("\x1b[2Kequal", "[red]")
    assert capsys.readouterr().out == "\\x1b[2Kequal [red]\n"


def test_the_name_of_a_file_moves_no_cursor(trained: Trained, tmp_path: Path) -> None:
    picture(tmp_path / "\x1b[2K.png", 0, seed=70)
    for command in ("explain", "predict"):
        out = succeeds(command, trained.run, tmp_path).out
        assert "\x1b" not in out
        assert "\\x1b[2K.png" in out
