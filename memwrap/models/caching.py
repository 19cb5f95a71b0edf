"""Encode images once: what a frozen encoder has made of an image is kept on disk, and found again by its pixels."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from memwrap.data import Images, Progress, track_progress
from memwrap.data.sources import default_root
from memwrap.models.base import EncoderModel
from memwrap.models.inference import encoded_at_once
from memwrap.nn.modes import exact_evaluation
from memwrap.storage.encodings import EncodingCache
from memwrap.storage.fingerprint import fingerprint

FOLDER = "encodings"
SAVED_AT_ONCE = 64  # encodings, at least: what is lost at most if the process is killed


class Interrupted(Exception):
    """Encoding was stopped between two batches; what was encoded is in the cache."""


class CachedEncoder:
    """Encodes images with a model whose encoder does not change, and keeps the results in a cache on disk.

    folder: None for the user's cache folder. stop: asked between two batches; `Interrupted` if it returns True.
    """

    def __init__(
        self,
        model: EncoderModel,
        folder: Path | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model, self.progress, self.stop = model, progress, stop
        transform = model.get_transform()
        facts = [transform.shape, transform.mean, transform.std, torch.__version__, model.reference.device.type]
        # With the same weights, encoders may differ in strides, padding or epsilon: repr shows these of every module.
        key = fingerprint(model.encoder.state_dict(), [*facts, repr(model.encoder)])
        self.cache = EncodingCache(default_root() / FOLDER if folder is None else folder, key)

    def encode(self, images: Images) -> Tensor:
        """The encodings (N, D), on the model's device; pixels that the cache knows are not encoded again."""
        encodings = torch.empty(len(images), self.model.in_features)
        missing: dict[bytes, list[int]] = {}  # rows by digest: an image may occur twice
        rows = torch.split(torch.arange(len(images)), encoded_at_once(images))
        for indices, pixels in zip(rows, images.batches(rows), strict=True):
            digests = [hashlib.sha256(image.numpy().tobytes()).digest() for image in pixels.cpu()]
            found = self.cache.find(digests, self.model.in_features)
            for row, digest in zip(indices.tolist(), digests, strict=True):
                if digest in found:
                    encodings[row] = found[digest]
                else:
                    missing.setdefault(digest, []).append(row)
        if missing:
            self._encode_missing(images, missing, encodings)
        return encodings.to(self.model.reference)

    def _encode_missing(self, images: Images, missing: dict[bytes, list[int]], encodings: Tensor) -> None:
        """Encode the images of these digests, and write them to all of their rows of encodings (N, D)."""
        model, transform, at_once = self.model, self.model.get_transform(), encoded_at_once(images)
        digests, firsts = list(missing), torch.tensor([rows[0] for rows in missing.values()])
        waiting: dict[bytes, Tensor] = {}
        with track_progress(self.progress, "encoding images") as report, exact_evaluation(model):
            try:
                done = 0
                for pixels in images.batches(torch.split(firsts, at_once)):
                    if self.stop():
                        raise Interrupted
                    for encoding in model.encode(transform(pixels.to(model.reference.device))).cpu():
                        encodings[missing[digests[done]]] = encoding
                        waiting[digests[done]] = encoding
                        done += 1
                    if len(waiting) >= SAVED_AT_ONCE:
                        self.cache.add(waiting)
                        waiting = {}
                    if report is not None:
                        report(done, len(missing))
            finally:
                if waiting:
                    self.cache.add(waiting)
