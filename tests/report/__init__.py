"""Small reports: a model whose predictions change easily, images of noise, names that try to break the page."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from html.parser import HTMLParser
from typing import Any

import torch
from torch import Tensor, nn

from memwrap import DataError, MemoryClassifier, MemoryWrap, Transform, VoteLayer
from memwrap.models.base import Origin
from memwrap.nn.reading import DecidedBy, MemoryLayer
from memwrap.report import HeatmapOptions, Inputs, ReportRecord, Source, create_report, render, verify

HOSTILE = ("<img src=x onerror=alert(1)>", "</script>", 'v1.5 & "co"', "{{ 7 * 7 }}")
COLOUR, GRAY = (3, 4, 4), (1, 4, 4)
STEPS = HeatmapOptions(max_steps=4)


def network(
    seed: int = 0,
    shape: tuple[int, int, int] = COLOUR,
    memory: int = 12,
    encoder: nn.Module | None = None,
    head: str = "mlp",
    decided_by: DecidedBy = "head",
) -> MemoryClassifier:
    """Untrained, with weights that are far apart: inputs are of different classes, some unsure, and use some memory.

    A memory that votes or stands next to a classifier holds pixels, as those of runs do.
    """
    generator = torch.Generator().manual_seed(seed)
    encoder = encoder or nn.Flatten()
    length = encoder(torch.zeros(2, *shape)).shape[1]
    layer: MemoryLayer = MemoryWrap(length, 4, head=head)
    if decided_by != "head":
        layer = VoteLayer(length, 4, scale=4.0, decide="vote" if decided_by == "vote" else "head")
    model = MemoryClassifier(encoder, layer, Origin("fc", 4, shape)).eval()
    with torch.no_grad():
        for parameter in model.layer.parameters():
            parameter.normal_(generator=generator)
    model.classes = HOSTILE
    model.transform = Transform(shape, mean=(0.5,) * shape[0], std=(0.25,) * shape[0])
    pixels = noise(memory, shape, seed + 1)
    model.remember(model.transform(pixels) if decided_by == "head" else pixels, torch.arange(memory) % 4)
    return model


def noise(count: int, shape: tuple[int, int, int] = COLOUR, seed: int = 5) -> Tensor:
    """Pixels uint8 (count, C, H, W)."""
    return torch.randint(0, 256, (count, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@dataclass(frozen=True)
class ReportWorld:
    """A report, and what it was made from."""

    source: Source
    inputs: Inputs
    record: ReportRecord

    @cached_property
    def page(self) -> str:
        return render(self.record)

    def changed(self, **fields: Any) -> "ReportWorld":
        """The same with other fields in the record, and a page that shows them."""
        return replace(self, record=self.record.model_copy(update=fields))


def make_report(
    model: MemoryClassifier,
    pixels: Tensor,
    *,
    labelled: bool = True,
    names: tuple[str, ...] | None = None,
    shown: int = 3,
    heatmaps: HeatmapOptions | None = None,
    **others: Any,
) -> ReportWorld:
    """A report on these pixels. others: of the source."""
    labels = torch.arange(len(pixels)) % 4 if labelled else None
    inputs = Inputs(pixels, names or tuple(f"picture {number}.png" for number in range(len(pixels))), labels)
    count = 0 if model.remembered is None else len(model.remembered)
    given: dict[str, Any] = {"path": "/runs/noise", "memory_names": [f"{n}.png" for n in range(count)], "seed": 7}
    source = Source(model=model, **{**given, **others})
    return ReportWorld(source, inputs, create_report(source, inputs, shown=shown, heatmaps=heatmaps))


def is_genuine(page: str, world: ReportWorld) -> bool:
    """Whether a page passes as a report of this world's run."""
    try:
        return verify(page, world.source).equal
    except DataError:
        return False


@dataclass
class Node:
    """An element of a page, as a test looks at it."""

    tag: str
    attributes: dict[str, str]
    children: list["Node | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that is in it, with single blanks."""
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join("".join(parts).split())

    def all(self, tag: str, **attributes: str) -> list["Node"]:
        """The elements in it of this tag and these attributes; of a class, one of several."""
        wanted = {name.strip("_"): value for name, value in attributes.items()}
        return [node for node in self.below() if node.tag == tag and node._has(wanted)]

    def one(self, tag: str, **attributes: str) -> "Node":
        (found,) = self.all(tag, **attributes)
        return found

    def rows(self) -> list[list[str]]:
        """The texts of a table's body, without headings between rows."""
        rows = [row for body in self.all("tbody") for row in body.all("tr") if not row.all("th", scope="rowgroup")]
        cells = [[node for node in row.children if isinstance(node, Node)] for row in rows]
        return [[cell.text for cell in row] for row in cells]

    def below(self) -> Iterator["Node"]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child.below()

    def _has(self, wanted: dict[str, str]) -> bool:
        own = {name: value.split() if name == "class" else [value] for name, value in self.attributes.items()}
        return all(value in own.get(name, []) for name, value in wanted.items())


class _Builder(HTMLParser):
    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in self.VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> has no beginning"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(page: str) -> Node:
    builder = _Builder()
    builder.feed(page)
    builder.close()
    (whole,) = builder.open
    return whole
