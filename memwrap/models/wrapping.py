"""Give a classifier a memory: in place of its last layer, or next to it."""

from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from memwrap.encoders import Classifier
from memwrap.errors import InputError, WrapError
from memwrap.models.base import EncoderModel, Origin
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.configurations import known_transform
from memwrap.models.standard import STANDARD, StandardClassifier
from memwrap.models.surgery.last_layer import LastLayer, NoLastLayerError, find_last_layer, whole_network
from memwrap.models.surgery.modules import (
    copy_module,
    drop_auxiliary_heads,
    forbid_calls,
    get_logits,
    preserve_buffers,
    preserve_random_state,
    remove_layer,
    returns_encodings,
)
from memwrap.models.surgery.probes import probe_images
from memwrap.nn.checks import check_sizes
from memwrap.nn.layer import MemoryWrap, check_options
from memwrap.nn.modes import preserve_modes
from memwrap.nn.vote_layer import SCALE, VOTE, VoteLayer, check_decide


def copy_of(classifier: nn.Module) -> nn.Module:
    """A copy of a classifier that has no memory yet; a WrapError if it cannot be copied."""
    if isinstance(classifier, EncoderModel):
        raise WrapError("classifier is a memwrap model already; give the classifier that it was made from")
    return copy_module(classifier)


@overload
def wrap(
    classifier: nn.Module,
    variant: Literal["standard"],
    *,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> StandardClassifier: ...


@overload
def wrap(
    classifier: nn.Module,
    variant: Literal["memory_wrap", "only_memory", "vote"] = "memory_wrap",
    *,
    head: str | None = None,
    project: int | None = None,
    scale: float | None = None,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier: ...


@overload
def wrap(
    classifier: nn.Module,
    variant: str,
    *,
    head: str | None = None,
    project: int | None = None,
    scale: float | None = None,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier | StandardClassifier: ...


def wrap(
    classifier: nn.Module,
    variant: str = "memory_wrap",
    *,
    head: str | None = None,
    project: int | None = None,
    scale: float | None = None,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier | StandardClassifier:
    """A copy of `classifier` whose last layer is replaced by a memory layer; all other weights are kept.

    The classifier maps images (B, channels, H, W) to logits (B, C), or to an object with `.logits`, whose other outputs
    are ignored. variant: "memory_wrap" or "only_memory", see `MemoryWrap`; "vote", see `VoteLayer`; or "standard", a
    new linear layer and no memory, for comparison. head, project, scale: of the memory layer; None for the variant's
    own. num_classes: None keeps the classifier's; needed for a backbone without a last layer. layer: the name of the
    layer to replace, as in "head.fc"; None finds it, and "" takes the output itself as the encoding. example: images of
    a shape that the classifier takes, any values; None tries likely shapes. `model.transform` is that of timm's,
    torchvision's or transformers' configuration, if it is known. The classifier itself is not changed: train the copy.

    >>> from memwrap import encoders
    >>> model = wrap(encoders.create("tiny", num_classes=4))
    >>> model(torch.randn(2, 3, 32, 32), memory=torch.randn(10, 3, 32, 32)).shape
    torch.Size([2, 4])
    """
    options = _layer_options(variant, head, project, scale)
    check_sizes(num_classes=num_classes)
    parts = _take_apart(classifier, example, layer, num_classes)
    settings = {"in_features": parts.in_features, "num_classes": num_classes or parts.origin.num_classes}
    model = assemble(parts.encoder, {**settings, "variant": variant, **options}, parts.origin)
    return _finish(model, parts)


def attach(
    classifier: nn.Module,
    *,
    decide: Literal["head", "vote"] = "head",
    scale: float = SCALE,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier:
    """A copy of a trained classifier, as it is, with a memory next to it; nothing has to be trained.

    `model.remember(images, labels)` gives it the memory. decide: "head" for the classifier's own predictions, to which
    the memory adds similar images; "vote" for the vote of these images. scale: of the similarities; higher ones use
    fewer images. num_classes: of a backbone without a last layer, for which only a vote can decide. layer, example: as
    for `wrap`.

    >>> from memwrap import encoders
    >>> classifier = encoders.create("tiny", num_classes=4).eval()
    >>> model, images = attach(classifier), torch.randn(2, 3, 32, 32)
    >>> torch.equal(model(images), classifier(images))
    True
    """
    check_decide(decide)
    check_sizes(num_classes=num_classes)
    parts = _take_apart(classifier, example, layer, num_classes)
    outputs = parts.origin.num_classes
    if parts.head is not None and num_classes not in (None, outputs):
        raise InputError(f"num_classes is {num_classes}, but the classifier has {outputs} classes; leave it out")
    if parts.head is None and decide == "head":
        raise InputError("the backbone has no last layer that could decide; attach it with decide='vote'")
    memory = VoteLayer(
        parts.in_features,
        num_classes or outputs,
        scale=scale,
        decide=decide,
        head=parts.head,
        head_classes=None if parts.head is not None else 0,
    )
    model = MemoryClassifier(parts.encoder, memory, parts.origin)
    _finish(model, parts)
    return model


@dataclass(frozen=True)
class _Parts:
    """A copy of a classifier without its last layer, that layer, and images that it takes."""

    encoder: nn.Module
    head: nn.Module | None  # None for a backbone that has none
    in_features: int
    origin: Origin
    images: Tensor


def _take_apart(classifier: nn.Module, example: Tensor | None, layer: str | None, num_classes: int | None) -> _Parts:
    encoder = copy_of(classifier)
    images, last = _probed(classifier, example, layer, num_classes)
    _check_copy(classifier, encoder, images)
    channels, height, width = images.shape[1:]
    head = encoder.get_submodule(last.name) if last.name else None
    remove_layer(encoder, last.name)
    drop_auxiliary_heads(encoder)
    return _Parts(
        encoder, head, last.in_features, Origin(last.name, last.num_classes, (channels, height, width)), images
    )


def _finish(model: MemoryClassifier | StandardClassifier, parts: _Parts) -> MemoryClassifier | StandardClassifier:
    if not (isinstance(model.layer, VoteLayer) and model.layer.is_attached):  # a classifier's own stays as it is
        model.layer.to(parts.images)
    # Not for all modules at once: some of the classifier's may be frozen in evaluation mode.
    model.training = parts.encoder.training
    model.layer.train(parts.encoder.training)
    model.transform = known_transform(parts.encoder, parts.origin.image_shape)
    return model


def _layer_options(variant: str, head: str | None, project: int | None, scale: float | None) -> dict[str, Any]:
    """The arguments of a layer that were given; an InputError for those that its variant does not have."""
    given = {"head": head, "project": project, "scale": scale}
    options = {name: value for name, value in given.items() if value is not None}
    if variant == STANDARD and options:
        raise InputError("head, project and scale are of a memory layer; leave them out with variant='standard'")
    if variant == VOTE and head is not None:
        raise InputError("head is of a layer whose head reads the memory; leave it out with variant='vote'")
    if variant not in (STANDARD, VOTE):
        check_options(variant, head or "mlp", project=project)
    return options


def wrap_own(
    classifier: Classifier, variant: str, image_shape: tuple[int, int, int], **options: Any
) -> MemoryClassifier | StandardClassifier:
    """What `wrap` gives for a new classifier of `memwrap.encoders`, without probing or copying it.

    options: head, project and scale, for a memory layer.
    """
    last, name = classifier.head, "head"
    with preserve_modes(classifier), preserve_buffers(classifier), preserve_random_state(classifier):
        probe_images(classifier, torch.zeros(2, *image_shape))  # refuses images that are too small
    settings = {"in_features": last.in_features, "num_classes": last.out_features, "variant": variant, **options}
    remove_layer(classifier, name)
    return assemble(classifier, settings, Origin(name, last.out_features, image_shape))


def assemble(
    encoder: nn.Module, layer_settings: dict[str, Any], origin: Origin, head: nn.Module | None = None
) -> MemoryClassifier | StandardClassifier:
    """A model of an encoder and a new last layer, built from what `layer_settings` of such a model gives.

    head: the classifier's own, for a memory that stands next to it.
    """
    settings = dict(layer_settings)
    if settings["variant"] == STANDARD:
        layer = nn.Linear(settings["in_features"], settings["num_classes"])
        return StandardClassifier(encoder, layer, origin)
    if settings["variant"] == VOTE:
        del settings["variant"]
        if not settings.pop("attached", False):
            head = None
        elif head is None:
            raise WrapError("the layer is a classifier's own, but there is none")
        return MemoryClassifier(encoder, VoteLayer(**settings, head=head), origin)
    return MemoryClassifier(encoder, MemoryWrap(**settings), origin)


def _probed(
    classifier: nn.Module, example: Tensor | None, layer: str | None, num_classes: int | None
) -> tuple[Tensor, LastLayer]:
    """Images that the classifier takes, and its last layer; found on another copy, as probing changes statistics."""
    trial = copy_of(classifier)
    with forbid_calls(classifier), preserve_random_state(classifier):
        images = probe_images(trial, example)
        with torch.no_grad():
            is_backbone = layer is None and num_classes is not None and returns_encodings(trial.eval()(images))
        if layer != "" and not is_backbone:
            try:
                return images, find_last_layer(trial, images, layer)
            except NoLastLayerError:
                if num_classes is None:
                    raise
        elif num_classes is None:
            raise InputError('num_classes is missing; with layer="", say how many classes there are: num_classes=10')
        return images, whole_network(trial, images)


def _check_copy(classifier: nn.Module, duplicate: nn.Module, images: Tensor) -> None:
    """A copy may depend on things that were not copied, such as what a hook stores in the original."""
    logits = [_reproducible_logits(module, images) for module in (classifier, duplicate)]
    if not torch.allclose(logits[0], logits[1], rtol=1e-4, atol=1e-5, equal_nan=True):
        raise WrapError(
            "a copy of the classifier does not compute what the classifier does; if it keeps values through a function "
            "or hook that refers to the original, write these as methods that use self"
        )


@torch.no_grad()
def _reproducible_logits(classifier: nn.Module, images: Tensor) -> Tensor:
    # Random numbers are put back afterwards, so that both draw the same.
    with preserve_modes(classifier), preserve_random_state(classifier):
        classifier.eval()
        return get_logits(classifier(images))
