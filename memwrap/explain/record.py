"""An explanation as plain typed data: what the terminal, `--json`, the figure, the report and `verify` read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, computed_field, model_validator

from memwrap.explain import sentences
from memwrap.nn.reading import DecidedBy

if TYPE_CHECKING:
    from memwrap.explain.attribution import Attribution, Deletion
    from memwrap.explain.explanation import Explanation, MemorySample

LONGEST_TEXT = 8192  # characters: no file or class has a longer name
SOONER = 0.01  # by which deleting highlighted pixels has to lower the mean probability for a heatmap to be reliable


def escape_surrogates(text: object) -> object:
    """File names may hold bytes that are no text; written as \\udce9 they can be stored."""
    return text.encode(errors="backslashreplace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(escape_surrogates), Field(max_length=LONGEST_TEXT)]
Share = Annotated[float, Field(ge=0, le=1.001)]  # rounding may carry it a little beyond 1


class FrozenRecord(BaseModel):
    """Base of all records: immutable, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MemoryImageRecord(FrozenRecord):
    """A memory image. prediction: the model's, made with the rest of the memory; None in a memory of one."""

    index: int
    file: Text | None
    label: int
    label_name: Text
    prediction: int | None
    prediction_name: Text | None


class SampleRecord(MemoryImageRecord):
    """A memory image that a prediction used; see `memwrap.MemorySample`."""

    weight: Annotated[Share, Field(gt=0)]
    effect: float | None
    shares: tuple[float, ...] | None


class ClassRecord(FrozenRecord):
    """A class and its probability."""

    prediction: int
    prediction_name: Text
    probability: Share


class FlipSetRecord(FrozenRecord):
    """The smallest set of memory images whose removal changes the prediction; see `memwrap.FlipSet`."""

    indices: tuple[int, ...] | None
    prediction: int | None
    prediction_name: Text | None
    proven: bool
    tried: int


class CheckRecord(FrozenRecord):
    """Whether the prediction is the same without the memory images of weight zero; see `Explanation.check`."""

    same_prediction: bool
    logit_difference: float
    tolerance: float
    kept: int
    left_out: int


class DeletionRecord(FrozenRecord):
    """Mean probability while pixels are deleted: the most highlighted first, and in random order."""

    score: Share
    random_score: Share


class HeatmapRecord(FrozenRecord):
    """How heatmaps were made, and how far they can be trusted; see `memwrap.attribution.Attribution`."""

    method: str
    baseline: str
    steps: int | None
    error: float | None
    converged: bool | None
    moved: tuple[int, ...]
    still: tuple[int, ...]
    deletion: DeletionRecord

    @model_validator(mode="after")
    def _check(self) -> "HeatmapRecord":
        if len({each is None for each in (self.steps, self.error, self.converged)}) > 1:
            raise ValueError("steps, error and converged are not all given or all missing")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def reliable(self) -> bool:
        """Whether the maps add up, and deleting the pixels they highlight lowers the probability sooner."""
        return self.converged is not False and self.deletion.random_score - self.deletion.score >= SOONER


class PredictionRecord(FrozenRecord):
    """The model's prediction for one image. uncertain: None where there is no memory image to compare with.

    decided_by: "vote" of the memory images, "head" that reads the memory, or "classifier" that does not.
    other_prediction: the class of the head next to a vote, or of the vote next to a classifier; None if there is one
    decision alone.
    """

    path: Text | None
    prediction: int
    prediction_name: Text
    probability: Share
    uncertain: bool | None
    decided_by: DecidedBy
    other_prediction: int | None = None
    other_prediction_name: Text | None = None

    @property
    def differs(self) -> bool:
        """Whether head and vote differ, where there are both."""
        return self.other_prediction not in (None, self.prediction)


class ExplanationRecord(PredictionRecord):
    """One prediction and the memory images behind it. samples: all of positive weight, the strongest first."""

    label: int | None
    label_name: Text | None
    probabilities: tuple[float, ...]
    votes: tuple[float, ...]  # the weights summed by the label of the memory images
    second: ClassRecord | None  # the second most probable class; None with one class
    memory_size: int
    samples: Annotated[tuple[SampleRecord, ...], Field(min_length=1)]
    flip_set: FlipSetRecord | None  # None, as the check, if a classifier decided
    check: CheckRecord | None
    heatmap: HeatmapRecord | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """How the memory images used were predicted."""
        return sentences.comparison_sentence(self)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def effect_sentence(self) -> str:
        """What removing one memory image changes; empty if effects are not known."""
        return sentences.effect_sentence(self)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def flip_sentence(self) -> str:
        """On how many memory images the prediction depends."""
        return sentences.flip_sentence(self)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def largest_effect(self) -> float | None:
        """The largest change of the probability, up or down, if one memory image is removed."""
        effects = [abs(sample.effect) for sample in self.samples if sample.effect is not None]
        return max(effects, default=None)

    @property
    def wrong(self) -> bool:
        """Whether the label is known and another than the prediction."""
        return self.label not in (None, self.prediction)

    @property
    def example(self) -> SampleRecord | None:
        """The strongest memory image of the predicted class."""
        return next((sample for sample in self.samples if self.class_of(sample) == self.prediction), None)

    @property
    def counterfactual(self) -> SampleRecord | None:
        """The strongest memory image of another class."""
        return next((sample for sample in self.samples if self.is_other(sample)), None)

    def is_other(self, sample: MemoryImageRecord) -> bool:
        """Whether a memory image is of another class than the input is predicted as."""
        return self.class_of(sample) not in (None, self.prediction)

    def class_of(self, sample: MemoryImageRecord) -> int | None:
        """What makes a memory image one of the predicted class: the model's prediction for it, or its label."""
        return sample.prediction if self.decided_by == "head" else sample.label

    def class_name_of(self, sample: MemoryImageRecord) -> str | None:
        """The name of that class."""
        return sample.prediction_name if self.decided_by == "head" else sample.label_name

    def shown_samples(self, count: int) -> tuple[SampleRecord, ...]:
        """The `count` strongest samples, then the strongest example and counterfactual if not among them."""
        strongest = self.samples[:count]
        kinds = (self.example, self.counterfactual)
        return (*strongest, *(each for each in kinds if each is not None and each not in strongest))

    def hidden_samples(self, count: int) -> tuple[SampleRecord, ...]:
        """The samples that `shown_samples` leaves out."""
        shown = {sample.index for sample in self.shown_samples(count)}
        return tuple(sample for sample in self.samples if sample.index not in shown)

    def further_title(self, sample: SampleRecord) -> str:
        """Why a sample is shown that is not among the strongest."""
        return f"further down: the strongest of {'another' if self.is_other(sample) else 'the predicted'} class"


def explanation_record(
    explanation: "Explanation",
    class_names: Sequence[str] | None,
    memory_names: Sequence[str] | None,
    label: int | None,
    path: str | None,
) -> ExplanationRecord:
    """The record of one explanation; see `Explanation.record`."""

    def name(number: int | None) -> Any:
        return None if number is None else class_names[number] if class_names else str(number)

    def sample_record(sample: "MemorySample") -> SampleRecord:
        fields = {**vars(sample), "shares": None if sample.shares is None else sample.shares.tolist()}
        file = None if memory_names is None else memory_names[sample.index]
        return SampleRecord(file=file, label_name=name(sample.label), prediction_name=name(sample.prediction), **fields)

    prediction, probabilities = explanation.prediction, explanation.probabilities.tolist()
    others = [number for number in range(len(probabilities)) if number != prediction]
    second = max(others, key=lambda number: probabilities[number], default=None)
    flip_set, check, other = explanation.flip_set, explanation.check(), explanation.other_prediction
    return ExplanationRecord(
        path=path,
        prediction=prediction,
        prediction_name=name(prediction),
        probability=probabilities[prediction],
        uncertain=explanation.uncertain,
        decided_by=explanation.decided_by,
        votes=tuple(explanation.votes.tolist()),
        other_prediction=other,
        other_prediction_name=name(other),
        label=label,
        label_name=name(label),
        probabilities=tuple(probabilities),
        second=None
        if second is None
        else ClassRecord(prediction=second, prediction_name=name(second), probability=probabilities[second]),
        memory_size=explanation.ablation.memory_size,
        samples=tuple(map(sample_record, explanation.samples)),
        flip_set=None
        if flip_set is None
        else FlipSetRecord(prediction_name=name(flip_set.prediction), **vars(flip_set)),
        check=None if check is None else CheckRecord(**vars(check)),
    )


def heatmap_record(attribution: "Attribution", deletion: "Deletion") -> HeatmapRecord:
    """How heatmaps were made and tested; the maps themselves are pictures."""
    return HeatmapRecord(
        method=attribution.method,
        baseline=attribution.baseline,
        steps=attribution.steps,
        error=attribution.relative_error,
        converged=attribution.converged,
        moved=attribution.moved,
        still=attribution.still,
        deletion=DeletionRecord(score=deletion.score, random_score=deletion.random_score),
    )
