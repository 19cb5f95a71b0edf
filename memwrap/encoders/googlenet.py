"""GoogLeNet for 32x32 images (Szegedy et al. 2015) with batch normalisation; encodings of length 1024."""

import torch
from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier, conv_norm

# Output channels: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; after pooling. None halves height and width.
STAGES: tuple[tuple[int, int, int, int, int, int] | None, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


class Inception(nn.Module):
    """Four parallel branches. The 5x5 convolution is two 3x3 convolutions."""

    def __init__(self, inputs: int, one: int, three_in: int, three: int, five_in: int, five: int, pooled: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                _conv(inputs, one, 1),
                nn.Sequential(_conv(inputs, three_in, 1), _conv(three_in, three, 3)),
                nn.Sequential(
                    _conv(inputs, five_in, 1),
                    _conv(five_in, five, 3),
                    _conv(five, five, 3),
                ),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(inputs, pooled, 1)),
            ]
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, one + three + five + pooled, H, W)"""
        return torch.cat([branch(maps) for branch in self.branches], dim=1)


def googlenet(num_classes: int, channels: int = 3) -> Classifier:
    """GoogLeNet without auxiliary heads."""
    layers: list[nn.Module] = [_conv(channels, 192, 3)]
    inputs = 192
    for widths in STAGES:
        if widths is None:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        else:
            layers.append(Inception(inputs, *widths))
            one, _, three, _, five, pooled = widths
            inputs = one + three + five + pooled
    return Classifier(nn.Sequential(*layers), inputs, num_classes)


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    # The bias has no effect before batch normalisation, but the published experiments have it.
    return conv_norm(inputs, outputs, kernel, activation=nn.ReLU(), bias=True)
