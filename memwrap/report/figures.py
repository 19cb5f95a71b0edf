"""The paper's figures: inputs above the memory images that they used, and heatmaps of both."""

import io
import textwrap
from typing import Any

from torch import Tensor

from memwrap.explain.record import ExplanationRecord, SampleRecord
from memwrap.report.pictures import pixels_in, scale_colours, to_image
from memwrap.report.record import ReportRecord
from memwrap.visible import visible_name

INCH = 1.05  # of a picture
MOST_INPUTS = 8  # to a figure: more cannot be read in print
DPI = 200
MARGIN = 0.08  # inches
LETTERS, LINES = 16, 2  # of a class name: what fits under a picture
SAME, OTHER = "#2a6f97", "#b4540a"  # distinct in grey and for the colour-blind
INK, SOFT = "#1b1b1a", "#444444"
SCALE_STEPS, SCALE_HEIGHT = 64, 0.2  # colours; inches
LEGEND_LETTERS = 18  # to an inch
LEGEND = (
    "Below each picture: the model's prediction. Blue: memory images predicted as the same class, orange: as another. "
    "A label is given where it differs. A last layer decided, which reads image and memory images."
)
LEGEND_BY_LABEL = (
    "Below each picture: the model's prediction, or the label of a memory image. Blue: memory images labelled as the "
    "predicted class, orange: as another. {}"
)
DECIDED = {
    "vote": "They decided by their vote.",
    "classifier": "They did not decide: the classifier did.",
}
FURTHER = " Last row: the strongest of its class, further down."
TITLES = ("input", "heatmap", "example", "heatmap", "counterfactual", "heatmap")


def figure(record: ReportRecord, suffix: str) -> bytes:
    """The content of a file of this kind: .png, .svg or .pdf. Of many inputs, the first MOST_INPUTS are drawn.

    With heatmaps: input, example and counterfactual in a row (the paper's figure 4). Without: each input above the
    memory images that it used (its figure 3).
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text stays text in SVG, and a class may be called $x$. Nothing depends on the time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "memwrap", "text.parse_math": False}):
        drawn = Figure(layout="constrained")
        FigureCanvasAgg(drawn)
        by_label = record.decided_by in DECIDED
        legend = LEGEND_BY_LABEL.format(DECIDED[record.decided_by]) if by_label else LEGEND
        if record.heatmaps is not None:
            _draw_heatmaps(drawn, record)
        else:
            _draw_samples(drawn, record)
            further = any(len(each.shown_samples(record.shown)) > record.shown for _, each in _inputs(record))
            legend += FURTHER if further else ""
        letters = int(drawn.get_figwidth() * LEGEND_LETTERS)
        drawn.supxlabel(textwrap.fill(legend, letters), fontsize=7, color=SOFT)
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


def _inputs(record: ReportRecord) -> list[tuple[int, ExplanationRecord]]:
    return record.numbered[:MOST_INPUTS]


def _draw_samples(drawn: Any, record: ReportRecord) -> None:
    """A column for each input, its memory images below it, the strongest first."""
    inputs = [(number, each, each.shown_samples(record.shown)) for number, each in _inputs(record)]
    rows = 1 + max(len(samples) for _, _, samples in inputs)
    drawn.set_size_inches(len(inputs) * INCH * 1.15 + 0.3, rows * INCH * 1.3)
    axes = drawn.subplots(rows, len(inputs), squeeze=False)
    for column, (number, each, samples) in enumerate(inputs):
        _picture(axes[0][column], _pixels(record, f"input-{number}"), _verdict(each), bold=True)
        for row in range(1, rows):
            if row > len(samples):
                _empty(axes[row][column])
            else:
                _sample(axes[row][column], record, each, samples[row - 1])


def _draw_heatmaps(drawn: Any, record: ReportRecord) -> None:
    """A row for each input: the input, the strongest example and counterfactual, each with its heatmap."""
    inputs = _inputs(record)
    drawn.set_size_inches(len(TITLES) * INCH * 1.15 + 0.3, len(inputs) * INCH * 1.45 + 0.3 + 3 * SCALE_HEIGHT)
    axes = drawn.subplots(len(inputs), len(TITLES), squeeze=False)
    for row, (number, each) in enumerate(inputs):
        for_class = _short(f"for {each.prediction_name}")
        _picture(axes[row][0], _pixels(record, f"input-{number}"), _verdict(each), bold=True)
        _picture(axes[row][1], _pixels(record, f"heatmap-{number}"), for_class)
        for column, sample in ((2, each.example), (4, each.counterfactual)):
            if sample is None:
                _empty(axes[row][column], "none")
                _empty(axes[row][column + 1])
                continue
            _sample(axes[row][column], record, each, sample)
            _picture(axes[row][column + 1], _pixels(record, f"heatmap-{number}-{sample.index}"), for_class)
    for place, title in zip(axes[0], TITLES, strict=True):
        place.set_title(title, fontsize=8, color=SOFT)
    _scale(drawn, axes)


def _pixels(record: ReportRecord, name: str) -> Tensor:
    return pixels_in(record.pictures[name])


def _scale(drawn: Any, axes: Any) -> None:
    """The scale of the heatmaps' colours, below all of them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(scale_colours(SCALE_STEPS).div(255).tolist())
    part = SCALE_HEIGHT / drawn.get_figheight()
    bar = drawn.colorbar(
        ScalarMappable(cmap=colours), ax=axes, location="bottom", fraction=part, pad=part / 2, shrink=0.3, aspect=25
    )
    bar.set_ticks([0, 1], labels=["none or lowered it", "most"])
    bar.set_label(
        "heatmaps: pixels that raised the score of the predicted class; each map has its own scale",
        fontsize=7,
        color=SOFT,
    )
    bar.ax.tick_params(length=0, labelsize=7, labelcolor=SOFT)
    bar.outline.set_visible(False)


def _verdict(record: ExplanationRecord) -> str:
    lines = [_short(record.prediction_name), f"probability {_whole_percent(record.probability)}"]
    if record.wrong:
        lines.append(_short(f"wrong: {record.label_name}"))
    return "\n".join([*lines, "unsure"] if record.uncertain else lines)


def _whole_percent(share: float) -> str:
    """0.79 as 79 %; less than one, but not zero, as <1 %."""
    return "<1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _short(name: str) -> str:
    """A name in LINES lines, cut after these."""
    lines = textwrap.wrap(visible_name(name), LETTERS)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"{lines[LINES - 1][: LETTERS - 1]}…"]
    return "\n".join(lines)


def _sample(place: Any, record: ReportRecord, explanation: ExplanationRecord, sample: SampleRecord) -> None:
    name = explanation.class_name_of(sample)
    lines = [] if name is None else [_short(name)]
    lines.append(f"weight {_whole_percent(sample.weight)}")
    if explanation.decided_by == "head" and sample.prediction not in (None, sample.label):
        lines.append(_short(f"label: {sample.label_name}"))
    colour = OTHER if explanation.is_other(sample) else SAME
    _picture(place, _pixels(record, f"memory-{sample.index}"), "\n".join(lines), colour)


def _picture(place: Any, pixels: Tensor, words: str, colour: str = INK, bold: bool = False) -> None:
    grey = len(pixels) == 1
    place.imshow(to_image(pixels), cmap="gray" if grey else None, vmin=0, vmax=255, interpolation="nearest")
    place.set_xticks([])
    place.set_yticks([])
    for spine in place.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(0.6 if colour == INK else 1.5)
    place.set_xlabel(words, fontsize=8, color=colour, fontweight="bold" if bold else "normal")


def _empty(place: Any, words: str = "") -> None:
    place.set_box_aspect(1)  # as pictures have, so that titles are in line
    place.set_axis_off()
    place.text(0.5, 0.5, words, ha="center", va="center", fontsize=8, color=SOFT, transform=place.transAxes)
