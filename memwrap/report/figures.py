"""The paper's figures: inputs over the memory images that influenced them, and heatmaps of both."""

import io
import textwrap
from typing import Any

from torch import Tensor

from memwrap.errors import InputError
from memwrap.explain.attribution import positive_map
from memwrap.explain.explanation import MemorySample
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.content import Card, Content
from memwrap.report.page import memory_pixels
from memwrap.report.pictures import blended, heat_colours, picture_of, scale_colours

INCH = 1.05  # of a picture
MOST_INPUTS = 8  # to a figure: more cannot be read in print
DPI = 200
MARGIN = 0.08  # inches
LETTERS, LINES = 16, 2  # of a class name: what fits under a picture
SAME, OTHER = "#2a6f97", "#b4540a"  # told apart in grey and by the colour-blind; the words say it, too
INK, SOFT = "#1b1b1a", "#444444"
SCALE_STEPS, SCALE_HEIGHT = 64, 0.2  # colours; inches
LEGEND_LETTERS = 18  # to an inch
LEGEND = (
    "Under each picture: what the model takes it for. Blue: memory images taken for the predicted class, orange: for "
    "another. A label is given where it differs."
)
FURTHER = " Last row: the strongest of its class, further down."
TITLES = ("input", "its heatmap", "example", "its heatmap", "counterfactual", "its heatmap")


def figure(content: Content, model: MemoryClassifier, suffix: str) -> bytes:
    """A file's content, of the kind that its suffix says: .png, .svg or .pdf.

    With heatmaps input, example and counterfactual side by side (the paper's figure 4), without them each input over
    the memory images that it used (its figure 3).
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cards, memory = content.cards[:MOST_INPUTS], memory_pixels(model)
    # Text stays text in SVG, names are shown as they are: a class may be called $x$. Nothing depends on the time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "memwrap", "text.parse_math": False}):
        drawn = Figure(layout="constrained")
        FigureCanvasAgg(drawn)
        if cards[0].heatmap is None:
            _draw_samples(drawn, cards, memory)
        else:
            _draw_heatmaps(drawn, cards, memory)
        letters = int(drawn.get_figwidth() * LEGEND_LETTERS)
        further = FURTHER if cards[0].heatmap is None and any(card.further for card in cards) else ""
        drawn.supxlabel(textwrap.fill(LEGEND + further, letters), fontsize=7, color=SOFT)
        stream = io.BytesIO()
        date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix.lower())
        drawn.savefig(
            stream,
            format=suffix.lower().removeprefix("."),
            dpi=DPI,
            metadata=date,
            bbox_inches="tight",
            pad_inches=MARGIN,
        )
    return stream.getvalue()


def _draw_samples(drawn: Any, cards: tuple[Card, ...], memory: Tensor) -> None:
    """A column for each input, its memory images below it, the strongest first."""
    rows = 1 + max(len(card.samples) for card in cards)
    drawn.set_size_inches(len(cards) * INCH * 1.15 + 0.3, rows * INCH * 1.3)
    axes = drawn.subplots(rows, len(cards), squeeze=False)
    for column, card in enumerate(cards):
        _picture(axes[0][column], card.pixels, _verdict(card), bold=True)
        for row in range(1, rows):
            place = axes[row][column]
            if row > len(card.samples):
                _empty(place)
            else:
                _sample(place, memory, card.samples[row - 1], card)


def _draw_heatmaps(drawn: Any, cards: tuple[Card, ...], memory: Tensor) -> None:
    """A row for each input: itself, the strongest example and counterfactual, and what mattered in each."""
    drawn.set_size_inches(len(TITLES) * INCH * 1.15 + 0.3, len(cards) * INCH * 1.45 + 0.3 + 3 * SCALE_HEIGHT)
    axes = drawn.subplots(len(cards), len(TITLES), squeeze=False)
    for row, card in enumerate(cards):
        heat = card.heatmap
        if heat is None:
            raise InputError(
                f"image {card.number} has no heatmap, but the first one has; a figure needs one for each image, or none"
            )
        for_class = _short(f"for {card.prediction}")
        _picture(axes[row][0], card.pixels, _verdict(card), bold=True)
        _picture(axes[row][1], _heated(card.pixels, heat.input), for_class)
        for column, sample in ((2, card.explanation.example), (4, card.explanation.counterfactual)):
            if sample is None:
                _empty(axes[row][column], "none")
                _empty(axes[row][column + 1])
                continue
            _sample(axes[row][column], memory, sample, card)
            attributions = heat.samples[heat.moved.index(sample.index)]
            _picture(axes[row][column + 1], _heated(memory[sample.index], attributions), for_class)
    for place, title in zip(axes[0], TITLES, strict=True):
        place.set_title(title, fontsize=8, color=SOFT)
    _scale(drawn, axes)


def _scale(drawn: Any, axes: Any) -> None:
    """What the colours of heatmaps mean, below all of them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(scale_colours(SCALE_STEPS).div(255).tolist())
    part = SCALE_HEIGHT / drawn.get_figheight()
    bar = drawn.colorbar(
        ScalarMappable(cmap=colours), ax=axes, location="bottom", fraction=part, pad=part / 2, shrink=0.3, aspect=25
    )
    bar.set_ticks([0, 1], labels=["nothing or against", "much"])
    bar.set_label(
        "heatmaps: what spoke for the predicted class, in either picture, each on a scale of its own",
        fontsize=7,
        color=SOFT,
    )
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=SOFT)
    bar.outline.set_visible(False)


def _heated(pixels: Tensor, attributions: Tensor) -> Tensor:
    return blended(pixels, positive_map(attributions).cpu(), heat_colours())


def _verdict(card: Card) -> str:
    lines = [_short(card.prediction), f"probability {_whole_percent(card.probability)}"]
    if card.wrong:
        lines.append(_short(f"wrong: {card.true_class}"))
    return "\n".join([*lines, "unsure"] if card.explanation.uncertain else lines)


def _whole_percent(share: float) -> str:
    """0.79 as 79 %; what is there, but less than one, as <1 %."""
    return "<1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _short(name: str) -> str:
    """Long names in a few lines, and cut after these."""
    lines = textwrap.wrap(name, LETTERS)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"{lines[LINES - 1][: LETTERS - 1]}…"]
    return "\n".join(lines)


def _sample(place: Any, memory: Tensor, sample: MemorySample, card: Card) -> None:
    lines = [] if sample.prediction is None else [_short(card.class_name(sample.prediction))]
    lines.append(f"weight {_whole_percent(sample.weight)}")
    if sample.prediction not in (None, sample.label):
        lines.append(_short(f"label: {card.class_name(sample.label)}"))
    is_other = sample.prediction not in (None, card.explanation.prediction)
    _picture(place, memory[sample.index], "\n".join(lines), OTHER if is_other else SAME)


def _picture(place: Any, pixels: Tensor, words: str, colour: str = INK, bold: bool = False) -> None:
    grey = len(pixels) == 1
    place.imshow(picture_of(pixels), cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
    place.set_xticks([])
    place.set_yticks([])
    for spine in place.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(0.6 if colour == INK else 1.5)
    place.set_xlabel(words, fontsize=8, color=colour, fontweight="bold" if bold else "normal")


def _empty(place: Any, words: str = "") -> None:
    place.set_box_aspect(1)  # as a picture has it, so that titles stand in line
    place.set_axis_off()
    place.text(0.5, 0.5, words, ha="center", va="center", fontsize=8, color=SOFT, transform=place.transAxes)
