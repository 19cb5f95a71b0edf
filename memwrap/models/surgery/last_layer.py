"""Find the last layer of any classifier.

Neither the order of registration nor a layer's width shows which layer is last. So the classifier is run on a small
probe: the layer must be called once and take one vector per image, and whatever output it is given must be the model's
output, in evaluation and in training. Otherwise the classifier is refused, with a reason for each candidate.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.errors import WrapError, brief
from memwrap.models.surgery.modules import get_logits, perturb_parameters, preserve_buffers, replace_layer

# How many candidates an error names.
MOST_NAMED = 8


class NoLastLayerError(WrapError):
    """No layer gives as many values as the network: it may be a backbone without its last layer."""


@dataclass(frozen=True)
class LastLayer:
    """The layer that a memory can replace."""

    name: str  # "" if the network's output itself is the encoding
    in_features: int
    num_classes: int


@dataclass
class _Record:
    """What one module did during a probe pass."""

    module: nn.Module
    inputs: list[tuple[int, ...]] = field(default_factory=list)  # the shape that it took, for each call
    first_input: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, D), where it took one vector an image
    outputs: list[Tensor] = field(default_factory=list)  # (B, K), of the calls that gave one vector an image


def find_last_layer(classifier: nn.Module, images: Tensor, layer: str | None = None) -> LastLayer:
    """The layer of `classifier` that can be replaced; a WrapError, with reasons, if there is none.

    images: the probe (B, channels, H, W) that the classifier can take. layer: look at this one only.
    The classifier is run in both modes, which changes its statistics: give a copy.
    """
    classifier.eval()
    records, logits = _observe(classifier, images)
    if logits.ndim != 2 or len(logits) != len(images):
        raise WrapError(
            f"the classifier turns {tuple(images.shape)} into {tuple(logits.shape)}; expected logits ({len(images)}, C)"
        )
    if layer is not None and not isinstance(layer, str):
        raise WrapError(
            f"layer is a {type(layer).__name__}; expected the name of one, as in layer={next(iter(records))!r}"
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
        raise WrapError(f'several layers could be the last one: {_listing(fit)}; choose one, as in layer="{fit[0]}"')
    if layer is not None:
        raise WrapError(
            f"layer {layer!r} {objections[layer]}; a memory can replace only a layer whose output is the model's output"
        )
    others = [name for name, record in records.items() if name not in objections and _has_weights(record)]
    whole = [name for name in others if _objection(classifier, images, name, records[name], logits) is None]
    headless = not (
        any(_is_linear(record) and _alike(record, logits) for record in records.values())
        # A head of another kind has another width than its input; a normalisation, which may end a backbone, has not.
        or any(records[name].inputs[0][1] != logits.shape[1] for name in whole)
        or getattr(classifier, "num_classes", None) == logits.shape[1]
    )
    averaged = _averaged(records, logits)
    refusal = _refusal(objections, whole, headless, averaged, records, logits)
    raise (NoLastLayerError if headless and not averaged else WrapError)(refusal)


def whole_network(backbone: nn.Module, images: Tensor) -> LastLayer:
    """For a backbone without a last layer: its output (B, D) is the encoding. images (B, channels, H, W)"""
    backbone.eval()
    with torch.no_grad():
        output = get_logits(backbone(images))
    if output.ndim != 2 or len(output) != len(images):
        raise WrapError(
            f"the backbone turns {tuple(images.shape)} into {tuple(output.shape)}; expected encodings "
            f"({len(images)}, D): pool its maps first"
        )
    return LastLayer("", output.shape[1], output.shape[1])


class _Constant(nn.Module):
    """Replaces a layer and returns a given tensor, in the shape of the layer's input."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.value.reshape([*inputs, *named.values()][0].shape)


def _observe(classifier: nn.Module, images: Tensor) -> tuple[dict[str, _Record], Tensor]:
    """Run the probe; what each module took and gave, and the logits."""
    records = {name: _Record(module) for name, module in classifier.named_modules() if name}

    def watch(record: _Record) -> object:
        def note(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object], output: object) -> None:
            first = next(iter([*inputs, *named.values()]), None)
            # Only vectors are kept, as copies: a later operation may write into them.
            if isinstance(first, Tensor) and _per_image(first.shape) and not record.inputs:
                record.first_input = first.flatten(1).clone()
            record.inputs.append(tuple(first.shape) if isinstance(first, Tensor) else ())
            if isinstance(output, Tensor) and _per_image(output.shape):
                record.outputs.append(output.flatten(1).clone())

        return record.module.register_forward_hook(note, with_kwargs=True)

    handles = [watch(record) for record in records.values()]
    try:
        with torch.no_grad():
            logits = get_logits(classifier(images))
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
    # Equal values could be chance, as with weights of zero. So the layer is made to give another output, and the model
    # must return it: large values, as they might be clamped, and with other parameters, as a learnt factor or bias
    # after the layer may happen to change nothing.
    value = 1000 * torch.randn(len(images), record.inputs[0][1], generator=torch.Generator().manual_seed(0)).to(logits)
    constant = _Constant(value)
    # In this order, as a pass in training mode may change what the classifier computes.
    for replacement, expected, training, perturbed, objection in (
        (constant, value, False, False, "gives an output that is changed before it is returned"),
        (constant, value, False, True, "gives an output that learnt parameters change before it is returned"),
        (nn.Identity(), record.first_input, False, False, "has an input that is changed after it was called"),
        (constant, value, True, True, "gives an output that is changed before it is returned in training"),
    ):
        with perturb_parameters(classifier) if perturbed else nullcontext():
            output = _output_with(classifier, images, name, replacement, training)
        if isinstance(output, Exception):
            return f"cannot be replaced: the classifier then fails with {brief(output)}"
        if not torch.allclose(output, expected, rtol=1e-4, atol=1e-5):
            return objection
    return None


def _output_with(
    classifier: nn.Module, images: Tensor, name: str, replacement: nn.Module, training: bool
) -> Tensor | Exception:
    """The classifier's output with another module in the layer's place."""
    with replace_layer(classifier, name, replacement), preserve_buffers(classifier), torch.no_grad():
        classifier.train(training)
        try:
            return get_logits(classifier(images))
        except Exception as error:
            return error


def _input_at_double_size(classifier: nn.Module, images: Tensor, name: str) -> tuple[int, ...]:
    """What the layer takes when the images are twice as high and wide, or (B, D, 1, 1) if none such can be taken."""
    classifier.eval()
    try:
        records, _ = _observe(classifier, images.repeat(1, 1, 2, 2))
    except Exception:
        return (1, 1, 1, 1)  # a network of one image size
    return records[name].inputs[0]


def _difference(output: Tensor, logits: Tensor) -> str:
    """In words, how the model's output differs from this layer's."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "log_softmax": lambda values: functional.log_softmax(values, dim=1),
        "softmax": lambda values: functional.softmax(values, dim=1),
        "sigmoid": torch.sigmoid,
    }
    for word, function in known.items():
        if output.shape == logits.shape and torch.allclose(function(output), logits, atol=1e-6):
            return f"is followed by {word}: let the classifier return the logits, and train it with cross_entropy"
    return "gives an output that is not the model's output"


def _refusal(
    objections: dict[str, str | None],
    whole: list[str],
    headless: bool,
    averaged: list[str],
    records: dict[str, _Record],
    logits: Tensor,
) -> str:
    """Why no layer fits: what is known of each candidate, and which other modules could be replaced by name."""
    if averaged:
        return (
            f"the classifier averages the outputs of {_listing(averaged)}; a memory can replace one last layer only: "
            "use a variant of the classifier with a single head"
        )
    message = "no linear layer's output is the model's output"
    if headless:
        message += (
            f", nor does one give {logits.shape[1]} values for each image: if the classifier lacks its last layer, "
            "like timm's with num_classes=0, create it with one, or say how many classes there are: num_classes=10"
        )
    if not objections:
        message = "the classifier has no linear layer; give one that ends in a linear layer, which the memory replaces"
    message += "".join(f"\n  {name} {reason}" for name, reason in _nearest(objections, records, logits))
    if whole:
        message += "\nA module whose output is the model's output can be replaced whole: " + " or ".join(
            f'layer="{name}"' for name in whole[:MOST_NAMED]
        )
    return message


def _nearest(
    reasons: dict[str, str | None], records: dict[str, _Record], logits: Tensor
) -> list[tuple[str, str | None]]:
    """The candidates worth naming: those as wide as the model's output, or else the last ones."""
    wide = [item for item in reasons.items() if _width(records[item[0]]) == logits.shape[1]]
    return (wide or list(reasons.items()))[-MOST_NAMED:]


def _averaged(records: dict[str, _Record], logits: Tensor) -> list[str]:
    """The layers whose mean output is the model's output, if that is what the model does."""
    alike = {
        name: record.outputs[0]
        for name, record in records.items()
        if _is_linear(record) and len(record.outputs) == 1 and _alike(record, logits)
    }
    if len(alike) > 1 and torch.allclose(torch.stack(list(alike.values())).mean(0), logits, atol=1e-5):
        return list(alike)
    return []


def _is_linear(record: _Record) -> bool:
    """A linear layer, or a convolution, which is one wherever it is applied to a single position."""
    return isinstance(record.module, nn.Linear | nn.Conv2d)


def _alike(record: _Record, logits: Tensor) -> bool:
    return any(output.shape == logits.shape for output in record.outputs)


def _width(record: _Record) -> int | None:
    return getattr(record.module, "out_features", None) or getattr(record.module, "out_channels", None)


def _has_weights(record: _Record) -> bool:
    return next(record.module.parameters(), None) is not None


def _per_image(shape: tuple[int, ...]) -> bool:
    """(B, D), or (B, D, 1, 1)"""
    return len(shape) == 2 or (len(shape) == 4 and shape[2:] == (1, 1))


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
