"""ShuffleNetV2 0.5x for 32x32 images (Ma et al. 2018): stride 1 in the stem, no pooling; encodings of length 1024."""

import torch
from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier, conv_norm

# Output channels, blocks after the one that halves height and width.
STAGES = ((48, 3), (96, 7), (192, 3))


class ShuffleBlock(nn.Module):
    """Keep half of the channels, compute the other half, and interleave both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            conv_norm(half, half, 1, activation=nn.ReLU()),
            conv_norm(half, half, 3, groups=half),
            conv_norm(half, half, 1, activation=nn.ReLU()),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same shape"""
        kept, rest = maps.chunk(2, dim=1)
        return _interleave(kept, self.branch(rest))


class HalvingBlock(nn.Module):
    """Two branches of stride 2 on all channels, interleaved."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.left = nn.Sequential(
            conv_norm(inputs, inputs, 3, stride=2, groups=inputs),
            conv_norm(inputs, half, 1, activation=nn.ReLU()),
        )
        self.right = nn.Sequential(
            conv_norm(inputs, half, 1, activation=nn.ReLU()),
            conv_norm(half, half, 3, stride=2, groups=half),
            conv_norm(half, half, 1, activation=nn.ReLU()),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / 2, W / 2)"""
        return _interleave(self.left(maps), self.right(maps))


def shufflenet_v2(num_classes: int, channels: int = 3) -> Classifier:
    """ShuffleNetV2 of width 0.5."""
    layers: list[nn.Module] = [conv_norm(channels, 24, 3, activation=nn.ReLU())]
    inputs = 24
    for outputs, blocks in STAGES:
        layers += [HalvingBlock(inputs, outputs), *(ShuffleBlock(outputs) for _ in range(blocks))]
        inputs = outputs
    layers.append(conv_norm(inputs, 1024, 1, activation=nn.ReLU()))
    return Classifier(nn.Sequential(*layers), 1024, num_classes)


def _interleave(left: Tensor, right: Tensor) -> Tensor:
    """(B, h, H, W) twice -> (B, 2h, H, W), channels alternate between both"""
    return torch.stack([left, right], dim=2).flatten(1, 2)
