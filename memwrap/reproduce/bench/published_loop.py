"""The training loop that the paper's authors published, rewritten, to measure ours against.

It keeps what costs time: images become tensors one by one, in the training process; each step creates a new iterator
over the memory's loader, which shuffles the whole training set for one draw; the encoder runs twice, in fp16 with loss
scaling on a GPU; and the layer is that of the package `memorywrap`. As in their code, nothing is read back from the
device, both loaders pin their memory, and cuDNN is deterministic.
"""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from memwrap.data import LabelledImages, Transform
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.surgery.modules import get_logits
from memwrap.nn.layer import MemoryWrap
from memwrap.reproduce.bench.packages import import_from
from memwrap.reproduce.bench.timing import Cudnn
from memwrap.training.settings import ResolvedSettings

PACKAGE = "memorywrap"
CUDNN = Cudnn(benchmark=False, deterministic=True)


class PillowImages(Dataset[tuple[Tensor, int]]):
    """Labelled images, each a Pillow image that is converted to a tensor (3, H, W)."""

    def __init__(self, data: LabelledImages, transform: Transform) -> None:
        pixels = torch.cat(list(data.images.batches([torch.arange(len(data))])))
        self._pixels: np.ndarray[Any, Any] = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels = data.labels.tolist()
        self._transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize(transform.mean, transform.std)]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(Image.fromarray(self._pixels[index])), self._labels[index]


class PublishedModel(nn.Module):
    """An encoder and the layer of `memorywrap`."""

    def __init__(self, encoder: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.encoder, self.layer = encoder, layer

    def forward(self, images: Tensor, memory: Tensor) -> Tensor:
        """images (B, 3, H, W), memory (M, 3, H, W) -> logits (B, C)"""
        logits: Tensor = self.layer(get_logits(self.encoder(images)), get_logits(self.encoder(memory)))
        return logits


def published_layer() -> Any:
    """The published layer's class; a MissingPackageError without the package."""
    return import_from(PACKAGE, "MemoryWrapLayer")


def published_model(model: MemoryClassifier) -> PublishedModel:
    """A model with the same weights around the published layer; a MissingPackageError without the package."""
    layer = published_layer()(model.in_features, model.layer.num_classes)
    assert isinstance(model.layer, MemoryWrap)  # by its variant
    first, second = model.layer.head.first, model.layer.head.second
    layer.classifier.fc1.load_state_dict(first.state_dict())
    assert second is not None  # the paper's head has two layers
    layer.classifier.fc2.load_state_dict(second.state_dict())
    return PublishedModel(copy.deepcopy(model.encoder), layer).to(model.reference.device)


class PublishedLoop:
    """Trains a PublishedModel with the paper's settings."""

    def __init__(
        self, model: PublishedModel, data: LabelledImages, settings: ResolvedSettings, transform: Transform
    ) -> None:
        self.model, self.settings = model, settings
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        pictures = PillowImages(data, transform)
        # Both loaders share one generator, as in the published code.
        options: dict[str, Any] = {
            "shuffle": True,
            "drop_last": True,
            "pin_memory": on_gpu,
            "num_workers": 0,
            "generator": torch.Generator().manual_seed(settings.seed),
        }
        self.loader = DataLoader(pictures, settings.batch_size, **options)
        self.memory_loader = DataLoader(pictures, settings.memory_size, **options)
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=True,
        )
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(
            self.optimizer, [round(share * settings.epochs) for share in settings.drops]
        )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=on_gpu)

    def losses(self) -> Iterator[Tensor]:
        """Train, and yield the loss () of each step, on the device."""
        self.model.train()
        for _ in range(self.settings.epochs):
            for images, labels in self.loader:
                memory, _ = next(iter(self.memory_loader))
                yield self.step(images.to(self.device), labels.to(self.device), memory.to(self.device))
            self.scheduler.step()

    def step(self, images: Tensor, labels: Tensor, memory: Tensor) -> Tensor:
        """Run the arithmetic of one step: images (B, 3, H, W), labels (B,), memory (M, 3, H, W) -> loss ()"""
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=torch.float16, enabled=self.device.type == "cuda"):
            loss = cross_entropy(self.model(images, memory), labels)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()
