"""What a report holds, as plain typed data: its page is a function of this record alone."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator

from memwrap.errors import InputError
from memwrap.explain.attribution.baselines import check_baseline
from memwrap.explain.attribution.methods import check_method
from memwrap.explain.record import ExplanationRecord, FrozenRecord, MemoryImageRecord, Text
from memwrap.nn.reading import DecidedBy
from memwrap.storage.validation import describe
from memwrap.visible import visible_name

FORMAT: Final = "memwrap report"
FORMAT_VERSION: Final = 4
MOST_LISTED = 20  # in each list of the summary
UNUSED_SHOWN = 12  # memory images that no input used
# What a report may hold and ask for, so that making and verifying one takes bounded time and memory.
MOST_IMAGES = 1000
MOST_SHOWN = 100  # memory images for each
MOST_STEPS = 4096
LEAST_TOLERANCE, MOST_TOLERANCE = 1e-4, 0.1  # with a larger one, any heatmap would pass its check

_VERSION = r"^[0-9]{1,4}(\.[0-9]{1,4}){0,3}((a|b|rc|\.dev|\.post)[0-9]{1,4})*$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+00:00$"
_HASH = r"^[0-9a-f]{64}$"
Hash = Annotated[str, Field(pattern=_HASH)]
Shown = Annotated[int, Field(ge=1, le=MOST_SHOWN)]


@dataclass(frozen=True)
class HeatmapOptions:
    """How heatmaps are made; see `memwrap.attribution.heatmaps`."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    method: str = "integrated_gradients"
    baseline: str = "white"
    tolerance: Annotated[float, Field(ge=LEAST_TOLERANCE, le=MOST_TOLERANCE)] = 0.01
    max_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 1024


class _Options(FrozenRecord):
    """What a caller decides; see `check_options`."""

    images: Annotated[int, Field(le=MOST_IMAGES)]
    shown: Shown
    heatmaps: HeatmapOptions | None


class Hashes(FrozenRecord):
    """SHA-256 of all that a report depends on."""

    model: Hash
    memory: Hash
    inputs: Hash


class Seeds(FrozenRecord):
    """Of the run, and of the random orders in which pixels are deleted."""

    run: int
    deletion: int


class SampleUse(NamedTuple):
    """How much all inputs together used a memory image. share: of all weight. inputs: how many used it."""

    image: MemoryImageRecord
    share: float
    inputs: int


class ReportRecord(FrozenRecord):
    """A report: where it comes from, its options, and the explanation of each input.

    pictures: data URLs by name ("input-1", "memory-17", "heatmap-1", "heatmap-1-17"; inputs count from 1). A page
    stores them next to the JSON, not in it. unused: the first memory images that no input used.
    """

    format: Literal["memwrap report"] = FORMAT
    format_version: Literal[4] = FORMAT_VERSION
    memwrap_version: Annotated[str, Field(pattern=_VERSION)]
    created: Annotated[str, Field(pattern=_TIME)]
    run: Text
    hashes: Hashes
    seeds: Seeds
    shown: Shown
    heatmaps: HeatmapOptions | None
    image_size: tuple[PositiveInt, PositiveInt]  # height and width
    unused: Annotated[tuple[MemoryImageRecord, ...], Field(max_length=UNUSED_SHOWN)]
    explanations: Annotated[tuple[ExplanationRecord, ...], Field(min_length=1, max_length=MOST_IMAGES)]
    pictures: Annotated[dict[str, str], Field(exclude=True, repr=False)]

    @field_validator("created")
    @classmethod
    def _check_time(cls, created: str) -> str:
        datetime.fromisoformat(created)
        return created

    @field_validator("heatmaps")
    @classmethod
    def _check_heatmaps(cls, options: HeatmapOptions | None) -> HeatmapOptions | None:
        if options is not None:
            check_method(options.method)
            check_baseline(options.baseline)
        return options

    @model_validator(mode="after")
    def _check(self) -> "ReportRecord":
        for number, each in self.numbered:
            if each.path is None or (each.label is None) == self.labelled:
                raise ValueError(f"image {number} lacks a path or label; expected a path, and labels for all or none")
            if each.decided_by != self.decided_by:
                raise ValueError(f"image {number} was decided by the {each.decided_by}; expected {self.decided_by}")
            if (each.heatmap is None) != (self.heatmaps is None):
                raise ValueError(f"image {number} has a heatmap or lacks one; expected one for all images or none")
        if odd := set(self.pictures) ^ set(self.picture_names):
            raise ValueError(f"picture {min(odd)!r} is missing or not part of the report")
        return self

    @property
    def numbered(self) -> list[tuple[int, ExplanationRecord]]:
        """The explanations with their numbers, from 1."""
        return list(enumerate(self.explanations, start=1))

    @property
    def picture_names(self) -> tuple[str, ...]:
        """The names of all pictures, in the order of the page."""
        memory = {use.image.index for use in self.uses[:MOST_LISTED]} | {image.index for image in self.unused}
        heatmaps = []
        for number, each in self.numbered:
            memory |= {sample.index for sample in each.shown_samples(self.shown)}
            if each.heatmap is not None:
                memory |= set(each.heatmap.moved)
                heatmaps += [f"heatmap-{number}", *(f"heatmap-{number}-{index}" for index in each.heatmap.moved)]
        inputs = [f"input-{number}" for number, _ in self.numbered]
        return (*inputs, *(f"memory-{index}" for index in sorted(memory)), *heatmaps)

    @property
    def labelled(self) -> bool:
        return self.explanations[0].label is not None

    @property
    def memory_size(self) -> int:
        return self.explanations[0].memory_size

    @property
    def decided_by(self) -> DecidedBy:
        return self.explanations[0].decided_by

    @property
    def correct(self) -> int:
        return sum(not each.wrong for each in self.explanations)

    @property
    def uncertain(self) -> list[tuple[int, ExplanationRecord]]:
        return [(number, each) for number, each in self.numbered if each.uncertain]

    @property
    def wrong_and_unsure(self) -> int:
        return sum(each.wrong for _, each in self.uncertain)

    @property
    def confidently_wrong(self) -> list[tuple[int, ExplanationRecord]]:
        """Wrong without a warning, the most probable first."""
        found = [(number, each) for number, each in self.numbered if each.wrong and not each.uncertain]
        # As far as is shown: otherwise the order of those near 100 % would depend on rounding.
        return sorted(found, key=lambda pair: -round(pair[1].probability, 3))

    @property
    def confusions(self) -> list[tuple[str, str, int]]:
        """Label, prediction and how often; the most frequent first."""
        pairs = Counter((each.label_name or "", each.prediction_name) for each in self.explanations if each.wrong)
        return [(label, prediction, count) for (label, prediction), count in pairs.most_common()]

    @property
    def uses(self) -> list[SampleUse]:
        """The memory images used, the most used first, of equal ones the lower index."""
        weights: dict[int, list[float]] = {}
        images: dict[int, MemoryImageRecord] = {}
        for each in self.explanations:
            for sample in each.samples:
                weights.setdefault(sample.index, []).append(sample.weight)
                images[sample.index] = sample
        total = sum(map(sum, weights.values()))
        uses = [SampleUse(images[index], sum(each) / total, len(each)) for index, each in weights.items()]
        return sorted(uses, key=lambda use: (-use.share, use.image.index))

    @property
    def unused_count(self) -> int:
        return self.memory_size - len(self.uses)


def check_options(shown: int, heatmaps: HeatmapOptions | None, images: int) -> None:
    """Raise an InputError for options, or a number of images, that no report may have."""
    try:
        # As a dictionary: pydantic does not look into a dataclass that is there already.
        _Options.model_validate(
            {"images": images, "shown": shown, "heatmaps": None if heatmaps is None else asdict(heatmaps)}
        )
    except ValidationError as error:
        raise InputError(f"a report cannot be made: {describe(error)}") from error


def title_of(run: str) -> str:
    """What a report is called: the last part of its run's path."""
    # A path of Windows has no "/"; in others a "\\" may be that of an escaped character.
    separator = "/" if "/" in run else "\\"
    return visible_name(run.rstrip(separator).rpartition(separator)[2])


def unused_indices(explanations: Iterable[ExplanationRecord], memory_size: int) -> list[int]:
    """The first memory images that no input used."""
    used = {sample.index for each in explanations for sample in each.samples}
    return [index for index in range(memory_size) if index not in used][:UNUSED_SHOWN]
