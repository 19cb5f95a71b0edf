"""The settings of a run, each defined once: for command-line flags, YAML files, Python and the stored record."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, Field, Strict, ValidationError, field_validator, model_validator

from memwrap.errors import SettingsError, brief, short
from memwrap.storage import files as storage
from memwrap.storage.validation import JSON_LIMIT, describe, parse_json

Variant = Literal["memory_wrap", "only_memory", "standard", "vote"]
Augmentation = Literal["flip", "shift", "affine", "colour", "erase", "none"]
SETTINGS_LIMIT = 1 << 16  # bytes; all settings take about a thousand
DIGITS_LIMIT = 40  # of a whole number in YAML: Python does not even print the largest
COUNT_LIMIT = 10**9  # of images and epochs
RATE_LIMIT = 1e30  # of the learning rate: torch takes it, and says that the loss diverged
NUMBER_LIMIT = 2**20  # of other numbers: what a saved model may hold
SIZE_LIMIT = 2048  # pixels: what a saved model may take; not imported from there, as --help would wait for torch
SEED_LIMIT = 2**64  # seeds are below
LIST_LIMIT = 1024  # numbers in a list
TEXT_LIMIT = 4096  # characters: no path is longer
# Encoders with pretrained weights, besides timm:NAME, the default first; not imported, as --help would wait for torch.
PRETRAINED = ("lite0", "lite1", "lite2")
VARIANTS: tuple[str, ...] = get_args(Variant)
PAPER_VARIANTS = VARIANTS[:3]
AUGMENTATIONS: tuple[str, ...] = get_args(Augmentation)[:-1]


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"is {value}; expected a number")
    return value


def _as_list(value: Any) -> Any:
    return value if value is None or isinstance(value, list | tuple) else (value,)


Int = Annotated[int, Strict()]
# Not strict: YAML reads 1e-4 as text.
Float = Annotated[float, BeforeValidator(_refuse_bool), Field(allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, le=NUMBER_LIMIT, allow_inf_nan=False), BeforeValidator(_refuse_bool)]
Count = Annotated[Int, Field(ge=1, le=COUNT_LIMIT)]
Text = Annotated[str, Strict(), Field(max_length=TEXT_LIMIT)]
Flag = Annotated[bool, Strict()]
_Listed = Annotated[float, Field(ge=-NUMBER_LIMIT, le=NUMBER_LIMIT), BeforeValidator(_refuse_bool)]
Floats = Annotated[tuple[_Listed, ...], BeforeValidator(_as_list), Field(max_length=LIST_LIMIT)]
Augmentations = Annotated[tuple[Augmentation, ...], BeforeValidator(_as_list), Field(max_length=LIST_LIMIT)]


class Settings(BaseModel, frozen=True, extra="forbid"):
    """How a run is trained. None leaves the value to the data: `resolve_settings` fills it in."""

    # Data
    samples: Count | None = Field(
        None, description="Train on this many images, drawn by the seed; by default on all of them."
    )
    validation: Float = Field(
        0.0,
        ge=0,
        le=COUNT_LIMIT,
        description="Images to hold out for comparing settings: a number, or a share below 1. Never trained on.",
    )
    test: Float = Field(
        0.2,
        ge=0,
        le=COUNT_LIMIT,
        description="The same for testing, for data without a test split; stratified by class.",
    )
    size: Int | None = Field(
        None, ge=1, le=SIZE_LIMIT, description="Height and width in pixels; by default what suits encoder and images."
    )
    fit: Literal["crop", "pad", "stretch"] | None = Field(
        None,
        description="How images of other shapes are made square. By default they are cropped; for photographs and a "
        "frozen encoder, what predicts training images better: crop or stretch.",
    )
    skip_bad: Flag = Field(False, description="Skip files that cannot be read as images, and report them.")

    # Model
    encoder: Text | None = Field(
        None,
        description="small, tiny, resnet18, mobilenet_v2, efficientnet_b0, googlenet, densenet, shufflenet_v2, lite0, "
        "lite1, lite2, or timm:NAME. By default the recipe's, lite0 with --pretrained, or resnet18 on a GPU; on a CPU "
        "small, or tiny for images up to 16x16.",
    )
    variant: Variant = Field("memory_wrap", description="The last layer.")
    head: Literal["mlp", "linear"] = Field("mlp", description="What follows the attention: the paper's mlp, or linear.")
    project: Int | None = Field(
        None, ge=1, le=NUMBER_LIMIT, description="Dimensions that encodings are projected to before the attention."
    )
    scale: Scale | None = Field(
        None,
        description="Factor on the cosine similarity; above 1, predictions use fewer memory images. By default 1; for "
        "a vote, what predicts best with few images.",
    )
    pretrained: Flag = Field(
        False,
        description="Start from pretrained weights: those of lite0, lite1 and lite2 are installed by pip, those of "
        "timm:NAME are downloaded.",
    )
    weights: Text | None = Field(
        None, description="A file of pretrained weights, instead of a download (timm:NAME only)."
    )
    freeze: Flag = Field(False, description="Train the last layer only; the encoder stays as it is.")

    # Memory
    memory: Literal["random", "balanced", "batch", "queue"] | None = Field(
        None,
        description="The memory of a training step: a random draw (the paper), a draw balanced by class; the batch, "
        "each half the memory of the other; or a queue of earlier encodings, which joins the other half. By default "
        "the batch if it holds a few images of each class.",
    )
    memory_size: Count | None = Field(
        None,
        description="Images in a drawn memory, in training and in evaluation, by default up to 100; places of a queue, "
        "by default 256.",
    )
    contrast: Float = Field(
        0.0,
        ge=0,
        le=NUMBER_LIMIT,
        description="Weight of a supervised contrastive loss on the similarities, within the batch and with the queue.",
    )
    remember: Count | None = Field(
        None,
        description="Training images that the finished model keeps as its memory; by default up to 100, and up to 4096 "
        "for a vote.",
    )

    # Training
    epochs: Count | None = Field(None, description="Passes over the training images; by default more for fewer images.")
    batch_size: Count | None = Field(None, description="Images in a step; by default up to 128, fewer for small data.")
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="sgd with Nesterov momentum, or adamw.")
    lr: Float = Field(0.1, ge=0, le=RATE_LIMIT, description="The highest learning rate.")
    momentum: Float = Field(0.9, ge=0, lt=1, description="Of sgd.")
    weight_decay: Float = Field(2e-3, ge=0, le=NUMBER_LIMIT, description="On all parameters.")
    clip: Float = Field(1.0, ge=0, le=NUMBER_LIMIT, description="Largest norm of the gradients; 0 does not clip.")
    schedule: Literal["cosine", "steps", "constant"] = Field("cosine", description="How the learning rate falls.")
    drops: Floats = Field(
        (),
        description="For the schedule steps: shares of the epochs after which the rate falls to a tenth, as 0.5,0.75.",
    )
    warmup: Float = Field(0.15, ge=0, lt=1, description="Share of all steps over which the rate rises from zero.")
    label_smoothing: Float = Field(0.1, ge=0, lt=1, description="Share of each label that is spread over all classes.")
    augment: Augmentations | None = Field(
        None,
        description=f"Random changes to training images, as shift,flip; of {', '.join(AUGMENTATIONS)}, or none. "
        "By default all, without flip for classes that are single letters or digits.",
    )
    mean: Floats | None = Field(None, description="For normalisation, by channel; by default measured.")
    std: Floats | None = Field(None, description="For normalisation, by channel; by default measured.")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto is bf16 on GPUs that support it and fp32 elsewhere."
    )
    seed: Int = Field(
        0, ge=0, lt=SEED_LIMIT, description="Decides every random choice; the same seed gives the same run."
    )

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise SettingsError(describe(error)) from error

    @model_validator(mode="before")
    @classmethod
    def _fill_in_encoder(cls, given: Any) -> Any:
        """Pretrained weights without an encoder are those of lite0."""
        if not isinstance(given, dict) or given.get("pretrained") is not True:
            return given
        is_open = given.get("encoder") is None and given.get("weights") is None
        return {**given, "encoder": PRETRAINED[0]} if is_open else given

    @field_validator("augment")
    @classmethod
    def _resolve_none(cls, augment: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if augment is None or "none" not in augment:
            return augment
        if len(augment) > 1:
            raise ValueError(f"is {', '.join(augment)}; expected none, or some without none")
        return ()

    @field_validator("drops")
    @classmethod
    def _check_drops(cls, drops: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < share < 1 for share in drops):
            raise ValueError(f"are {drops}; expected shares of the epochs between 0 and 1")
        return drops

    @field_validator("validation", "test")
    @classmethod
    def _check_amount(cls, amount: float) -> float:
        if amount > 1 and amount != int(amount):
            raise ValueError(f"is {amount}; expected a whole number of images, or a share below 1")
        return amount

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.schedule == "steps" and not self.drops:
            raise ValueError("schedule is steps, but there are no drops; expected some, as in drops: [0.5, 0.75]")
        if (self.mean is None) != (self.std is None):
            raise ValueError("only one of mean and std is given; expected both or neither")
        is_timm = (self.encoder or "").startswith("timm:")
        if self.weights and not is_timm:
            raise ValueError(
                f"encoder is {self.encoder}, which takes no file of weights; "
                "expected timm:NAME, as in --encoder timm:resnet18 --weights model.safetensors"
            )
        if self.pretrained and not is_timm and self.encoder not in PRETRAINED:
            raise ValueError(
                f"encoder is {self.encoder}, which has no pretrained weights; "
                f"expected {', '.join(PRETRAINED)} or timm:NAME, as in --encoder lite0 --pretrained"
            )
        return self

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some settings changed."""
        return type(self)(**{**dict(self), **changes})


class ResolvedSettings(Settings, frozen=True):
    """Settings in which nothing is left to the data."""

    encoder: Text = "resnet18"
    fit: Literal["crop", "pad", "stretch"] = "crop"
    scale: Scale | None = 1.0  # None: chosen after training, for a vote
    memory: Literal["random", "balanced", "batch", "queue"] = "random"
    memory_size: Count = 100
    remember: Count = 100
    epochs: Count = 1
    batch_size: Count = 128
    augment: Augmentations = ()


def with_changes(settings: Settings, changes: Mapping[str, Any], where: str) -> Settings:
    """The settings with some of them changed, by name. where: the origin of the changes, for the error."""
    known = list(Settings.model_fields)
    for name in changes:
        if name not in known:
            close = difflib.get_close_matches(str(name)[:40], known, n=1)
            hint = f"did you mean {close[0]}? Known" if close else "known"
            raise SettingsError(f"{where}: there is no setting {short(name)}; {hint} are {', '.join(known)}")
    try:
        return settings.replace(**changes)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


# Settings that have an effect only with some values of another one.
_ONLY_WITH = {
    "drops": ("schedule", ("steps",)),
    "momentum": ("optimizer", ("sgd",)),
    "head": ("variant", VARIANTS[:2]),
    **dict.fromkeys(("project", "scale", "remember"), ("variant", (*VARIANTS[:2], "vote"))),
}

# Those of training by steps alone, and the length of a projection, which a fitted one gets from the encoder.
_ONLY_TRAINED = (
    "project",
    "epochs",
    "batch_size",
    "optimizer",
    "lr",
    "momentum",
    "weight_decay",
    "clip",
    "schedule",
    "drops",
    "warmup",
    "label_smoothing",
    "augment",
    "contrast",
)


def is_fitted(settings: Settings) -> bool:
    """Whether the last layer of these settings is fitted to encodings, and not trained by steps."""
    return settings.freeze and settings.variant == "vote"


def without_effect(settings: Settings, given: Iterable[str]) -> list[str]:
    """Which of the given settings, by name, change nothing because of another one."""
    reasons = {
        name: f"with {other} {getattr(settings, other)}"
        for name, (other, values) in _ONLY_WITH.items()
        if getattr(settings, other) not in values
    }
    if settings.variant not in VARIANTS[:2] and not (settings.memory == "queue" and settings.contrast):
        reasons |= dict.fromkeys(("memory", "memory_size"), f"with variant {settings.variant}")
    if is_fitted(settings):
        reasons.update(dict.fromkeys(_ONLY_TRAINED, "on a vote of a frozen encoder, which is fitted, not trained"))
    return [
        f"{name} has no effect {reason}"
        for name, reason in reasons.items()
        if name in given and getattr(settings, name) != Settings.model_fields[name].default
    ]


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a YAML file or a run's run.json, by name, and a recipe if it names one."""
    is_json = path.suffix == ".json"
    limit = JSON_LIMIT if path.name == "run.json" else SETTINGS_LIMIT  # a run lists files that were left out
    try:
        text = storage.read_file(path, limit, follow_links=True).decode()
        given = parse_json(text) if is_json else _load_yaml(text)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error})") from error
    except Exception as error:  # PyYAML raises nearly anything on values that their tags do not fit
        raise SettingsError(f"{path}: is not a {'JSON' if is_json else 'YAML'} file ({brief(error)})") from error
    if given is None:
        return {}
    if isinstance(given, dict) and isinstance(given.get("settings"), dict):  # a run.json
        return {**given["settings"], "recipe": given.get("recipe")}
    if not isinstance(given, dict):
        raise SettingsError(f"{path}: holds a {type(given).__name__}; expected lines such as 'epochs: 100'")
    return given


def _load_yaml(text: str) -> Any:
    """The content of a YAML file without aliases, which a few of suffice to make any size of; and no key twice."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError(f"the alias *{self.peek_event().anchor[:40]} is used; write its value instead")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            mapping = super().construct_mapping(node, deep)
            if len(mapping) < len(node.value):
                [(double, _)] = Counter(self.construct_object(key) for key, _ in node.value).most_common(1)
                raise yaml.YAMLError(f"{str(double)[:40]} is given twice")
            return mapping

        def construct_yaml_int(self, node: Any) -> Any:
            if len(node.value) > DIGITS_LIMIT:
                raise yaml.YAMLError(f"{node.value[:DIGITS_LIMIT]}... is too large a number")
            return super().construct_yaml_int(node)

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    return yaml.load(text, Loader)
