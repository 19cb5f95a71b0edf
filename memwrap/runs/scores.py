"""The result of an evaluation: evaluation.json, and what `evaluate --json` prints. All shares are from 0 to 1."""

from pydantic import BaseModel, ConfigDict

from memwrap.metrics import FlagScores, MemoryUse, SelectiveScores
from memwrap.models.evidence import EvidenceScores
from memwrap.nn.reading import DecidedBy


class Result(BaseModel):
    """Base of the parts of an evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SelectiveResult(Result):
    """How well errors are avoided by answering only some inputs: the most confident, or those without a flag."""

    confidence: SelectiveScores
    counterfactual_weight: SelectiveScores | None = None
    flag: FlagScores | None = None


class UncalibratedResult(Result):
    """What calibration has changed: error and area under the risk-coverage curve (AURC) before it."""

    calibration_error: float
    area: float


class ClassificationResult(Result):
    """Scores of a classifier's predictions. uncalibrated: only of a model that is calibrated."""

    accuracy: float
    class_accuracies: list[float | None]  # None for a class without images
    confusion: list[list[int]]  # true class by predicted class
    calibration_error: float
    selective: SelectiveResult
    uncalibrated: UncalibratedResult | None = None


class RememberedResult(ClassificationResult):
    """Scores with the memory that the model keeps. Those below the size need the model's predictions of its memory."""

    memory_size: int
    head_accuracy: float | None  # of the trained last layer; None if there is none
    vote_accuracy: float  # of the weights summed by the label of the memory images
    agreement: float | None  # how often head and vote predict the same class
    explanation_accuracy: float | None = None
    counterfactual_share: float | None = None
    example_accuracy: float | None = None
    counterfactual_accuracy: float | None = None
    majority_vote_accuracy: float | None = None
    memory_use: MemoryUse | None = None


class RepeatedScore(Result):
    """Mean and standard deviation over repeats; None where a repeat has no value."""

    mean: float | None
    spread: float | None
    repeats: list[float | None]


class DrawnResult(Result):
    """Scores with memories drawn anew for each batch, as the paper measures."""

    memory_size: int
    drawn_from: int  # number of images
    batch_size: int
    accuracy: RepeatedScore
    explanation_accuracy: RepeatedScore
    counterfactual_share: RepeatedScore
    example_accuracy: RepeatedScore
    counterfactual_accuracy: RepeatedScore
    majority_vote_accuracy: RepeatedScore


class MemoryInfo(Result):
    """The memory that the model keeps."""

    size: int
    own_accuracy: float | None  # share of its images that the model assigns to their class


class Evaluation(Result):
    """All scores of a run. Parts that do not apply are left out of the JSON."""

    run: str
    variant: str
    decided_by: DecidedBy
    classes: list[str]
    split: str  # test, validation, or the path given with --data
    left_out: dict[str, str]  # what could not be computed, and why
    images: int | None = None
    memory: MemoryInfo | None = None
    remembered: RememberedResult | None = None
    evidence: EvidenceScores | None = None  # of models with a memory
    drawn: dict[str, DrawnResult] | None = None  # by where memories are drawn from
    standard: ClassificationResult | None = None


class TrainResult(Result):
    """What `train --json` prints."""

    run: str
    seconds: float
    steps: int
    evaluation: Evaluation | None = None
