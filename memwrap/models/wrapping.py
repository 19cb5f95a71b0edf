"""Give a classifier a memory."""

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from memwrap.encoders import Classifier
from memwrap.errors import InputError, WrapError
from memwrap.models.base import EncoderModel, Origin
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.standard import STANDARD, StandardClassifier
from memwrap.models.surgery.last_layer import LastLayer, find_last_layer
from memwrap.models.surgery.modules import (
    copy_module,
    forbid_calls,
    get_logits,
    preserve_buffers,
    preserve_random_state,
    remove_layer,
)
from memwrap.models.surgery.probes import probe_images
from memwrap.nn.checks import check_sizes
from memwrap.nn.layer import MemoryWrap, check_options
from memwrap.nn.modes import preserve_modes


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
    variant: Literal["memory_wrap", "only_memory"] = "memory_wrap",
    *,
    head: str = "mlp",
    project: int | None = None,
    scale: float = 1.0,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier: ...


@overload
def wrap(
    classifier: nn.Module,
    variant: str,
    *,
    head: str = "mlp",
    project: int | None = None,
    scale: float = 1.0,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier | StandardClassifier: ...


def wrap(
    classifier: nn.Module,
    variant: str = "memory_wrap",
    *,
    head: str = "mlp",
    project: int | None = None,
    scale: float = 1.0,
    num_classes: int | None = None,
    layer: str | None = None,
    example: Tensor | None = None,
) -> MemoryClassifier | StandardClassifier:
    """A copy of `classifier` whose last layer is replaced by a memory layer; all other weights are kept.

    The classifier maps images (B, channels, H, W) to logits (B, C), or to an object with `.logits`, whose other outputs
    are ignored. variant, head, project, scale: see `MemoryWrap`; "standard" takes a new linear layer and no memory, for
    comparison. num_classes: None keeps the classifier's. layer: the name of the layer to replace, as in "head.fc"; None
    finds it. example: images of a shape that the classifier takes, any values; None tries likely shapes. The classifier
    itself is not changed: train the copy.

    >>> from memwrap import encoders
    >>> model = wrap(encoders.create("tiny", num_classes=4))
    >>> model(torch.randn(2, 3, 32, 32), memory=torch.randn(10, 3, 32, 32)).shape
    torch.Size([2, 4])
    """
    if variant == STANDARD:
        if head != "mlp" or project is not None or scale != 1.0:
            raise InputError("head, project and scale are of a memory layer; leave them out with variant='standard'")
    else:
        check_options(variant, head, project=project)
    check_sizes(num_classes=num_classes)
    encoder = copy_of(classifier)
    images, last = _probed(classifier, example, layer)
    _check_copy(classifier, encoder, images)
    channels, height, width = images.shape[1:]
    origin = Origin(last.name, last.num_classes, (channels, height, width))
    settings = {"in_features": last.in_features, "num_classes": num_classes or last.num_classes, "variant": variant}
    options = {} if variant == STANDARD else {"head": head, "project": project, "scale": scale}
    remove_layer(encoder, last.name)
    model = assemble(encoder, {**settings, **options}, origin)
    model.layer.to(images)
    # Not for all modules at once: some of the classifier's may be frozen in evaluation mode.
    model.training = encoder.training
    model.layer.train(encoder.training)
    return model


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
    encoder: nn.Module, layer_settings: dict[str, Any], origin: Origin
) -> MemoryClassifier | StandardClassifier:
    """A model of an encoder and a new last layer, built from what `layer_settings` of such a model gives."""
    if layer_settings["variant"] == STANDARD:
        layer = nn.Linear(layer_settings["in_features"], layer_settings["num_classes"])
        return StandardClassifier(encoder, layer, origin)
    return MemoryClassifier(encoder, MemoryWrap(**layer_settings), origin)


def _probed(classifier: nn.Module, example: Tensor | None, layer: str | None) -> tuple[Tensor, LastLayer]:
    """Images that the classifier takes, and its last layer; found on another copy, as probing changes statistics."""
    trial = copy_of(classifier)
    with forbid_calls(classifier), preserve_random_state(classifier):
        images = probe_images(trial, example)
        return images, find_last_layer(trial, images, layer)


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
