"""Text that cannot steer a terminal: reports, files and classes bear names that anybody may have chosen."""

import re

_STEERING = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")


def visible(text: str) -> str:
    """The text with all that steers a terminal, or the direction of reading, written out, as \\x1b; lines stay."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
