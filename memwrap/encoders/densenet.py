"""DenseNet for 32x32 images (Huang et al. 2017): growth 12, blocks of 6, 12, 24, 16; encodings of length 384."""

import torch
from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier, convolution

GROWTH = 12
BLOCKS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """Append GROWTH channels, computed from all channels before them."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bottleneck = _norm_relu_conv(inputs, 4 * GROWTH, 1)
        self.grow = _norm_relu_conv(4 * GROWTH, GROWTH, 3)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, inputs + GROWTH, H, W)"""
        return torch.cat([self.grow(self.bottleneck(maps)), maps], dim=1)


def densenet(num_classes: int, channels: int = 3) -> Classifier:
    """DenseNet-121's depth at growth 12; each transition halves channels, height and width."""
    width = 2 * GROWTH
    layers: list[nn.Module] = [convolution(channels, width, 3)]
    for number, size in enumerate(BLOCKS):
        if number:
            layers += [_norm_relu_conv(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(size):
            layers.append(DenseLayer(width))
            width += GROWTH
    layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return Classifier(nn.Sequential(*layers), width, num_classes)


def _norm_relu_conv(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), convolution(inputs, outputs, kernel))
