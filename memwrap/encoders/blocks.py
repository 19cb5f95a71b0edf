"""What the encoders share: the classifier around their features, and convolution with batch normalisation."""

from torch import Tensor, nn


class Classifier(nn.Module):
    """Features, global average pooling, dropout and a linear layer: the structure of all encoders here.

    features: images (B, channels, H, W) -> maps (B, width, h, w).
    """

    def __init__(self, features: nn.Module, width: int, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = features
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """images (B, channels, H, W) -> logits (B, C)"""
        logits: Tensor = self.head(self.dropout(self.features(images).mean(dim=(2, 3))))
        return logits


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, bias: bool = False
) -> nn.Conv2d:
    """A convolution that keeps height and width at stride 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=bias)


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
    bias: bool = False,
) -> nn.Sequential:
    """Convolution, batch normalisation, and the activation if there is one."""
    layers: list[nn.Module] = [
        convolution(inputs, outputs, kernel, stride, groups, bias),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation] if activation is not None else []))
