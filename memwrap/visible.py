"""Escapes characters that cannot be seen or that move others: names of files and classes may come from anybody.

The ranges are written out rather than taken from `unicodedata`, which changes with the version of Python: a report has
to be the same page everywhere. Only what a mark is comes from there, as it decides nothing where marks are as few as
scripts use.
"""

import re
import unicodedata

# Letters of Arabic and Indian scripts change their shape at a joiner; emoji of several parts hold joiners.
_SHAPED = "\\u0600-\\u07bf\\u0840-\\u18af\\ua800-\\uabff\\U00011000-\\U00011fff"
_EMOJI = "\\u203c\\u2049\\u2122\\u2139\\u2190-\\u2bff\\u3030\\u303d\\u3297\\u3299\\U0001f000-\\U0001faff"
_JOINED = f"[{_SHAPED}{_EMOJI}\\ufe0f]"
_MOST_MARKS = 4  # on one letter; more of them cover the lines around it
_MAY_BE_MARKS = re.compile(f"^[^\\w\\s]|[^\\w\\s]{{{_MOST_MARKS + 1}}}")  # a quick look, as texts may have megabytes
_HIDDEN = (
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control characters
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # direction
    "\\u00ad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u2060-\\u2065\\u206a-\\u206f\\u2800\\u3164"
    "\\ufe00-\\ufe0d\\ufeff\\uffa0\\ufff0-\\ufffb\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a"  # nothing to see
    "\\u2028\\u2029"  # line breaks
    "\\ud800-\\udfff\\ue000-\\uf8ff\\ufdd0-\\ufdef\\ufffe\\uffff\\U000e0000-\\U0010ffff"  # no characters, or private
)
_ESCAPED = re.compile(
    f"[{_HIDDEN}]"
    f"|(?<!{_JOINED})[\\u200c\\u200d]|[\\u200c\\u200d](?!{_JOINED})"
    f"|(?<![{_EMOJI}\\u00a9\\u00ae])\\ufe0e|(?<![{_EMOJI}\\u00a9\\u00ae0-9#*])\\ufe0f"
    f"|(?<=[0-9#*])\\ufe0f(?!\\u20e3)"  # 1 and this are a keycap with a third character only
)
_LINES = re.compile("[\\t\\n]")


def visible(text: str) -> str:
    """The text with control, direction and invisible characters escaped, as \\x1b; line breaks and tabs stay."""
    text = _ESCAPED.sub(_escape, text)
    return _with_few_marks(text) if _MAY_BE_MARKS.search(text) else text


def visible_name(text: str) -> str:
    """The same for what belongs in one line: line breaks and tabs are escaped, too."""
    return _LINES.sub(_escape, visible(text))


def _with_few_marks(text: str) -> str:
    """With marks escaped that have no letter, or whose letter has enough of them."""
    marks, shown = _MOST_MARKS, []
    for each in text:
        if unicodedata.category(each) in ("Mn", "Me"):
            marks += 1
        elif each not in "\u200c\u200d":  # between which a letter goes on
            marks = 0
        shown.append(each if marks <= _MOST_MARKS or each in "\u200c\u200d" else _escaped(each))
    return "".join(shown)


def _escape(found: re.Match[str]) -> str:
    return _escaped(found[0])


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode()
