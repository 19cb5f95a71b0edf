"""EfficientNetB0 for 32x32 images (Tan and Le 2019): stride 1 in the stem, encodings of length 320.

As in the published experiments it has neither the last 1280-channel convolution nor stochastic depth, and dropout acts
on the encodings of inputs and memory.
"""

from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier, conv_norm, convolution

# Expansion, output channels, blocks, kernel, stride of the first block.
STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            convolution(channels, squeezed, 1, bias=True),
            nn.SiLU(),
            convolution(squeezed, channels, 1, bias=True),
            nn.Sigmoid(),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same shape"""
        gated: Tensor = maps * self.gate(maps.mean(dim=(2, 3), keepdim=True))
        return gated


class MobileBlock(nn.Module):
    """Expansion, depthwise convolution, squeeze-and-excitation and linear bottleneck."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * inputs
        # With expansion 1 this layer is not used, but the paper's parameter count includes it.
        self.expand = conv_norm(inputs, hidden, 1, activation=nn.SiLU())
        self.expands = expansion != 1
        self.body = nn.Sequential(
            conv_norm(hidden, hidden, kernel, stride, groups=hidden, activation=nn.SiLU()),
            SqueezeExcitation(hidden, inputs // 4),
            conv_norm(hidden, outputs, 1),
        )
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)"""
        out: Tensor = self.body(self.expand(maps) if self.expands else maps)
        return out + maps if self.has_shortcut else out


def efficientnet_b0(num_classes: int, channels: int = 3) -> Classifier:
    """EfficientNetB0 with dropout of 0.2 on the encodings."""
    layers: list[nn.Module] = [conv_norm(channels, 32, 3, activation=nn.SiLU())]
    inputs = 32
    for expansion, outputs, blocks, kernel, first_stride in STAGES:
        for block in range(blocks):
            layers.append(MobileBlock(inputs, outputs, expansion, kernel, first_stride if block == 0 else 1))
            inputs = outputs
    return Classifier(nn.Sequential(*layers), inputs, num_classes, dropout=0.2)
