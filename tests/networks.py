"""Hand-written classifiers with the traits that make a last layer hard to find."""

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, relu

CLASSES = 5


class Plain(nn.Module):
    """Convolution, mean, dropout, linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(6, CLASSES)

    def encode(self, images: Tensor) -> Tensor:
        return self.dropout(self.body(images).mean((2, 3)))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.encode(images))


class HeadFirst(Plain):
    """Registers its head before its body, and an inner layer as wide as the number of classes after it."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.fc = nn.Linear(6, CLASSES)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.dropout = nn.Identity()
        self.narrow = nn.Linear(6, CLASSES)
        self.widen = nn.Linear(CLASSES, 6)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(relu(self.widen(self.narrow(self.encode(images)))))


class LogSoftmax(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return log_softmax(self.fc(self.encode(images)), dim=1)


class ReluInPlace(Plain):
    """Changes its last layer's output in place, so that the same tensor is returned."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu_(self.fc(self.encode(images)))


class Averaged(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        encodings = self.encode(images)
        return (self.fc(encodings) + self.second(encodings)) / 2


class AveragedZeros(Averaged):
    """Both heads start at zero, so that either output equals the mean."""

    def __init__(self) -> None:
        super().__init__()
        for head in (self.fc, self.second):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)


class CalledTwice(Plain):
    def forward(self, images: Tensor) -> Tensor:
        self.fc(self.encode(images))
        return self.fc(self.encode(images))


class ChangedInTraining(Plain):
    """Returns twice its last layer's output, in training only."""

    def forward(self, images: Tensor) -> Tensor:
        logits = self.fc(self.encode(images))
        return 2 * logits if self.training else logits


class AuxiliaryInTraining(Plain):
    """Returns an object with `.logits` and more, in training only."""

    class Output:
        def __init__(self, logits: Tensor, auxiliary: Tensor) -> None:
            self.logits, self.auxiliary = logits, auxiliary

    def forward(self, images: Tensor) -> "Tensor | AuxiliaryInTraining.Output":
        logits = self.fc(self.encode(images))
        return self.Output(logits, images.mean()) if self.training else logits


class ReturnsTuple(Plain):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        encodings = self.encode(images)
        return self.fc(encodings), encodings


class UsesWeights(Plain):
    """Reads its last layer's weights beside calling it."""

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.encode(images)) + 0 * self.fc.weight.sum()


class Clamped(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.encode(images)).clamp(-30, 30)


class CalledByKeyword(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.fc(input=self.encode(images))


class WithoutLastLayer(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return self.encode(images)


class CallsTheOriginal(Plain):
    """Computes through a function that refers to the object it was made in, which a copy inherits."""

    def __init__(self) -> None:
        super().__init__()
        self.function = lambda images: Plain.encode(self, images)

    def encode(self, images: Tensor) -> Tensor:
        return self.function(images)


class KeepsByHook(Plain):
    """Stores its features through a hook that refers to the object it was made in."""

    def __init__(self) -> None:
        super().__init__()
        self.body.register_forward_hook(lambda _, __, maps: setattr(self, "maps", maps))
        with torch.no_grad():
            self(torch.randn(2, 3, 32, 32))

    def encode(self, images: Tensor) -> Tensor:
        self.body(images)
        return self.maps.mean((2, 3))


class WritesIntoFeatures(Plain):
    """After its last layer has run, changes that layer's input in place."""

    def forward(self, images: Tensor) -> Tensor:
        encodings = self.encode(images)
        logits = self.fc(encodings)
        encodings.sub_(1)
        return logits


class NotCopied(Plain):
    def __deepcopy__(self, memo: object) -> "NotCopied":
        return self


class MovingAverage(Plain):
    """Exchanges a buffer in training instead of writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((), 7.0))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * images.mean()
        return super().forward(images)


class WritesToAParameter(Plain):
    """Learns a part of itself in the forward pass, as codebooks do."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Parameter(torch.zeros(6), requires_grad=False)

    def encode(self, images: Tensor) -> Tensor:
        encodings = super().encode(images)
        if self.training:
            self.code.data.lerp_(encodings.detach().mean(0), 0.5)
        return encodings + self.code


class SharedHead(Plain):
    """The same layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.alias = self.fc

    def forward(self, images: Tensor) -> Tensor:
        return self.alias(self.encode(images))


class Cosine(nn.Module):
    """A last layer of one's own, not an nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, 6))

    def forward(self, encodings: Tensor) -> Tensor:
        return nn.functional.normalize(encodings) @ nn.functional.normalize(self.weight).T


class OwnHead(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.fc = Cosine()


class ConvolutionalHead(nn.Module):
    """A convolution as classifier, on pooled maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.fc = nn.Conv2d(6, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images)).flatten(1)


class ConvolutionalHeadOnMaps(nn.Module):
    """A convolution as classifier, on whole maps that are averaged; on 32x32 images they have one position."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 32), nn.ReLU())
        self.fc = nn.Conv2d(6, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images)).mean((2, 3))


class Flattened(nn.Module):
    """Takes 28x28 grey images and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Headless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(images).flatten(1)
