"""A page's source in tokens, each exactly as it is written.

Browsers and parsers differ in what they make of odd HTML, and a report that reads otherwise than it looks proves
nothing. So nothing is parsed that a report does not write: what has none of its forms is a token of its own, that is
compared letter by letter as all others are. Put together, the tokens are the source.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

TEXT, START, END, RAW, ODD = "text", "start", "end", "raw", "odd"

_VALUE = r'[^"<>\x00]*'  # the template escapes all three
_ATTRIBUTE = re.compile(rf' ([a-zA-Z-]+)(?:="({_VALUE})")?')
_FORMS = re.compile(
    rf"(?P<start><(?P<tag>[a-z][a-z0-9]*)(?: [a-zA-Z-]+(?:=\"{_VALUE}\")?)*>)"
    r"|(?P<end></(?P<ended>[a-z][a-z0-9]*)>)"
    r"|(?P<text>[^<>\x00]+)"
    r"|(?P<odd><[^<>]*>?|[>\x00])"  # the DOCTYPE, too, of which there is one
)
_RAW_TAGS = ("script", "style")  # whose content is no HTML


@dataclass(frozen=True)
class Token:
    """A part of the source, as it is written. tag: that begins or ends here, or whose content it is, if it is raw."""

    kind: str
    source: str
    tag: str = ""

    @property
    def attributes(self) -> list[tuple[str, str | None]]:
        """Names and values as they are written, in their order, also those that are there twice."""
        inside = self.source[1 + len(self.tag) : -1]
        return [(match[1], match[2]) for match in _ATTRIBUTE.finditer(inside)]

    def attribute(self, name: str) -> str | None:
        """What it means: the first of that name, as a browser takes it; None if there is none."""
        return next((html.unescape(value or "") for each, value in self.attributes if each == name), None)


def tokens(source: str) -> Iterator[Token]:
    """All of a page, whose line ends are made the same first, as a browser does."""
    source, place = source.replace("\r\n", "\n").replace("\r", "\n"), 0
    while match := _FORMS.match(source, place):
        place = match.end()
        yield Token(_kind(match), match[0], match["tag"] or match["ended"] or "")
        if match["tag"] in _RAW_TAGS:
            end = source.find(f"</{match['tag']}>", place)
            end = len(source) if end < 0 else end
            yield Token(RAW, source[place:end], match["tag"])
            place = end


def _kind(match: re.Match[str]) -> str:
    return next(kind for kind in (START, END, TEXT, ODD) if match[kind] is not None)
