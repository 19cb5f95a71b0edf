"""What a saved model may say about an architecture: plain values of bounded size."""

import re
from typing import Any

MAX_NUMBER = 2**20  # of any number, as in sizes and counts
MAX_LISTED = 2**14  # of the whole numbers in lists, as in the sizes and depths of stages
MAX_SIDE = 2048  # of the sides of images and windows, whose pixels some networks list in Python
MAX_LIST = 1024  # numbers in one list, those of lists in it included
MAX_VALUES = 2**18  # in all, most of them names of classes
MAX_TEXT = 1024  # characters
MAX_DEPTH = 6  # of lists and objects in each other

_SIDE = re.compile(r"(image|img|input|window|kernel|patch|pool).*size|resolution")

# Words, as of a layer or an activation: no paths, no addresses.
_WORD = re.compile(r"[\w .,+-]*")


def check_plain(arguments: dict[str, Any]) -> None:
    """A ValueError unless these are numbers, texts, lists and objects, as JSON has them, within the bounds above."""
    _check_value("arguments", arguments, MAX_DEPTH, [MAX_VALUES])


def check_words(name: str, value: Any) -> None:
    """A ValueError if a text in this value could be a path or an address, or if it has objects in it."""
    if isinstance(value, dict):
        raise ValueError(f"{name} is an object; expected a number, a word, or a list of these")
    if isinstance(value, list):
        for item in value:
            check_words(name, item)
    elif isinstance(value, str) and not _WORD.fullmatch(value):
        raise ValueError(f"{name} is {value[:100]!r}; expected a word")


def _check_value(name: str, value: Any, depth: int, left: list[int]) -> None:
    """left: how many more values there may be, in all"""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"more than {MAX_VALUES} arguments")
    if depth < 0:
        raise ValueError(f"{name} has lists or objects in each other more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text("a name of an argument", key)
            _check_value(key, item, depth - 1, left)
    elif isinstance(value, list):
        before = left[0]
        for item in value:
            if isinstance(item, int) and abs(item) > MAX_LISTED:
                raise ValueError(f"{name} has {str(item)[:24]} in it; allowed are numbers up to {MAX_LISTED}")
            _check_value(name, item, depth - 1, left)
        if before - left[0] > MAX_LIST:
            raise ValueError(f"{name} has {before - left[0]} numbers; allowed are {MAX_LIST}")
    elif isinstance(value, str):
        _check_text(name, value)
    elif isinstance(value, int | float):
        most = MAX_SIDE if _SIDE.search(name) else MAX_NUMBER
        if not abs(value) <= most:  # NaN, too
            raise ValueError(f"{name} is {str(value)[:24]}; allowed are numbers up to {most}")
    elif value is not None:
        raise ValueError(f"{name} is a {type(value).__name__}; expected a number, text, list or object")


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"{name} is longer than {MAX_TEXT} characters, or no text")
