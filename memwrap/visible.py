"""Escapes control characters in names of files and classes, which may come from anybody."""

import re

_STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """The text with control and direction characters escaped, as \\x1b; line breaks stay."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
