"""Finding the last layer of any classifier, and taking it out.

Neither the order of registration nor a layer's width tells which one is last. So the classifier is run on a small
probe: the layer must be called once and take one vector for each image, and whatever it is made to put out must be what
the model puts out, in evaluation and in training. Otherwise the classifier is refused, with each candidate's reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.errors import WrapError

PROBE_SIZE = 2  # images; more than one, because batch normalisation in training needs several

# How many candidates an error names.
MOST_NAMED = 8


@dataclass(frozen=True)
class LastLayer:
    """The layer that a memory can replace."""

    name: str
    in_features: int
    num_classes: int


@dataclass
class _Record:
    """What one module did during a probe pass."""

    module: nn.Module
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def logits_of(output: object) -> Tensor:
    """The logits (B, C) in what a classifier returns: a tensor, or an object with `.logits` and perhaps others."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise WrapError(
            f"the classifier returns a {type(output).__name__}; expected a tensor (B, C), or an object with .logits"
        )
    return logits


def find_last_layer(classifier: nn.Module, images: Tensor, layer: str | None = None) -> LastLayer:
    """The layer of `classifier` that can be replaced; a WrapError says why there is none.

    images: the probe (B, channels, H, W) that the classifier can take. layer: look at this one only.
    The classifier is run, and left as it was.
    """
    with undisturbed(classifier):
        classifier.eval()
        records, logits = _observe(classifier, images)
    if logits.ndim != 2 or len(logits) != len(images):
        raise WrapError(
            f"the classifier turns {tuple(images.shape)} into {tuple(logits.shape)}; expected logits ({len(images)}, C)"
        )
    if layer is not None and layer not in records:
        close = [name for name in records if name.split(".")[-1] == layer.split(".")[-1]]
        raise WrapError(f"the classifier has no layer {layer!r}; it has {_listing(close or list(records))}")
    candidates = [layer] if layer is not None else [name for name, record in records.items() if _is_linear(record)]
    objections = {name: _objection(classifier, images, name, records[name], logits) for name in candidates}
    fit = [name for name, objection in objections.items() if objection is None]
    if len(fit) == 1:
        return LastLayer(fit[0], records[fit[0]].inputs[0][1], logits.shape[1])
    if fit:
        raise WrapError(f'several layers could be the last one: {_listing(fit)}; say which, as in layer="{fit[0]}"')
    if layer is not None:
        raise WrapError(
            f"layer {layer!r} {objections[layer]}; a memory can replace only a layer whose output is the model's output"
        )
    around = [
        name
        for name, record in records.items()
        if name not in objections
        and any(True for _ in record.module.parameters())
        and _objection(classifier, images, name, record, logits) is None
    ]
    raise WrapError(_refusal(objections, around, records, logits))


def take_out(classifier: nn.Module, name: str) -> None:
    """Put an identity in the place of the layer, so that the classifier returns that layer's input: the encodings."""
    for parent, key in _places(classifier, name):
        parent._modules[key] = nn.Identity()


@contextmanager
def undisturbed(classifier: nn.Module) -> Iterator[None]:
    """Puts back what a pass may change: modes, buffers (statistics of batch normalisation), random numbers."""
    modes = {module: module.training for module in classifier.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in classifier.buffers()]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


class _Constant(nn.Module):
    """Stands in for a layer and puts out a given tensor, in the shape that the layer's input has."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, maps: Tensor) -> Tensor:
        return self.value.reshape(maps.shape)


def _observe(classifier: nn.Module, images: Tensor) -> tuple[dict[str, _Record], Tensor]:
    """Run the probe; what each module took and gave, and the logits."""
    records = {name: _Record(module) for name, module in classifier.named_modules() if name}

    def watch(record: _Record) -> object:
        def note(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            first = inputs[0] if inputs else None
            record.inputs.append(tuple(first.shape) if isinstance(first, Tensor) else ())
            # Only what could be logits is kept, as a copy: a later operation may write into it.
            if isinstance(output, Tensor) and _per_image(output.shape):
                record.outputs.append(output.flatten(1).clone())

        return record.module.register_forward_hook(note)

    handles = [watch(record) for record in records.values()]
    try:
        with torch.no_grad():
            logits = logits_of(classifier(images))
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]
    return records, logits


def _objection(classifier: nn.Module, images: Tensor, name: str, record: _Record, logits: Tensor) -> str | None:
    """Why this layer cannot be replaced; None if it can."""
    if len(record.inputs) != 1:
        return "is never called" if not record.inputs else f"is called {len(record.inputs)} times for one prediction"
    if not _per_image(record.inputs[0]):
        return f"takes {record.inputs[0]}, not one vector for each image"
    if not record.outputs:
        return "does not give one vector for each image"
    if not torch.equal(record.outputs[0], logits):
        return _difference(record.outputs[0], logits)
    if len(record.inputs[0]) == 4 and not _per_image(_input_at_double_size(classifier, images, name)):
        return "takes one vector for each image only while images are small: on larger ones it takes maps"
    # Equal values could be chance, as with weights of zero. So another output is put in its place: it must come out.
    value = torch.randn(len(images), record.inputs[0][1], generator=torch.Generator().manual_seed(0)).to(logits)
    with undisturbed(classifier), _replaced(classifier, name, _Constant(value)):
        for training in (False, True):
            classifier.train(training)
            try:
                with torch.no_grad():
                    output = logits_of(classifier(images))
            except Exception as error:
                return f"cannot be replaced: the classifier then fails with {type(error).__name__}: {_brief(error)}"
            if not torch.equal(output, value):
                return f"gives an output that is changed before it is returned{' in training' if training else ''}"
    return None


def _input_at_double_size(classifier: nn.Module, images: Tensor, name: str) -> tuple[int, ...]:
    """What the layer takes when the images are twice as high and wide, or (B, D, 1, 1) if none such can be taken."""
    with undisturbed(classifier):
        classifier.eval()
        try:
            records, _ = _observe(classifier, images.repeat(1, 1, 2, 2))
        except Exception:
            return (1, 1, 1, 1)  # a network of one image size
    return records[name].inputs[0]


def _difference(output: Tensor, logits: Tensor) -> str:
    """In words, how the model's output differs from this layer's."""
    known = {
        "log_softmax": functional.log_softmax,
        "softmax": functional.softmax,
    }
    for word, function in known.items():
        if output.shape == logits.shape and torch.allclose(function(output, dim=1), logits, atol=1e-6):
            return f"is followed by {word}: let the classifier return the logits, and train it with cross_entropy"
    if output.shape == logits.shape and torch.allclose(output.sigmoid(), logits, atol=1e-6):
        return "is followed by sigmoid: let the classifier return the logits"
    return "gives an output that is not the model's output"


def _refusal(objections: dict[str, str | None], around: list[str], records: dict[str, _Record], logits: Tensor) -> str:
    """Why no layer fits: what is known of each candidate, and which other modules could be replaced by name."""
    if averaged := _averaged(records, logits):
        return (
            f"the classifier averages the outputs of {_listing(averaged)}; a memory can replace one last layer only: "
            "use a variant of the classifier with a single head"
        )
    message = "no linear layer's output is the model's output"
    if not objections:
        message = "the classifier has no linear layer; a memory replaces the linear layer at the end of a classifier"
    message += "".join(f"\n  {name} {reason}" for name, reason in _nearest(objections, records, logits))
    if around:
        message += "\nA module whose output is the model's output can be replaced whole: " + " or ".join(
            f'layer="{name}"' for name in around[:MOST_NAMED]
        )
    return message


def _nearest(
    reasons: dict[str, str | None], records: dict[str, _Record], logits: Tensor
) -> list[tuple[str, str | None]]:
    """The candidates worth naming: those as wide as the model's output, or else the last ones."""

    def width(name: str) -> int | None:
        module = records[name].module
        return getattr(module, "out_features", None) or getattr(module, "out_channels", None)

    wide = [item for item in reasons.items() if width(item[0]) == logits.shape[1]]
    return (wide or list(reasons.items()))[-MOST_NAMED:]


def _averaged(records: dict[str, _Record], logits: Tensor) -> list[str]:
    """The layers whose mean output is the model's output, if that is what the model does."""
    alike = {
        name: record.outputs[0]
        for name, record in records.items()
        if _is_linear(record) and len(record.outputs) == 1 and record.outputs[0].shape == logits.shape
    }
    if len(alike) > 1 and torch.allclose(torch.stack(list(alike.values())).mean(0), logits, atol=1e-5):
        return list(alike)
    return []


def _is_linear(record: _Record) -> bool:
    """A linear layer, or a convolution, which is one wherever it is applied to a single position."""
    return isinstance(record.module, nn.Linear | nn.Conv2d)


def _per_image(shape: tuple[int, ...]) -> bool:
    """(B, D), or (B, D, 1, 1)"""
    return len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else "no message"


def _places(classifier: nn.Module, name: str) -> list[tuple[nn.Module, str]]:
    """Where the layer of that name is registered, as (parent, key); a shared layer has several places."""
    layer = classifier.get_submodule(name)
    return [
        (parent, key) for parent in classifier.modules() for key, child in parent._modules.items() if child is layer
    ]


@contextmanager
def _replaced(classifier: nn.Module, name: str, replacement: nn.Module) -> Iterator[None]:
    layer, places = classifier.get_submodule(name), _places(classifier, name)
    try:
        for parent, key in places:
            parent._modules[key] = replacement
        yield
    finally:
        for parent, key in places:
            parent._modules[key] = layer
