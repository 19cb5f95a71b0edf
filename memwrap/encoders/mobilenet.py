"""MobileNetV2 for 32x32 images (Sandler et al. 2018): stem and second stage of stride 1, encodings of length 1280."""

from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier, conv_norm

# Expansion, output channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and linear bottleneck.

    As in the published experiments, every block of stride 1 has a shortcut, projected where the channels change, and
    activations are ReLU. The original network has shortcuts between equal shapes only, and ReLU6.
    """

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * inputs
        self.bottleneck = nn.Sequential(
            conv_norm(inputs, hidden, 1, activation=nn.ReLU()),
            conv_norm(hidden, hidden, 3, stride, groups=hidden, activation=nn.ReLU()),
            conv_norm(hidden, outputs, 1),
        )
        self.has_shortcut = stride == 1
        self.shortcut = conv_norm(inputs, outputs, 1) if stride == 1 and inputs != outputs else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)"""
        out: Tensor = self.bottleneck(maps)
        return out + self.shortcut(maps) if self.has_shortcut else out


def mobilenet_v2(num_classes: int, channels: int = 3) -> Classifier:
    """MobileNetV2 of width 1."""
    layers: list[nn.Module] = [conv_norm(channels, 32, 3, activation=nn.ReLU())]
    inputs = 32
    for expansion, outputs, blocks, first_stride in STAGES:
        for block in range(blocks):
            layers.append(InvertedResidual(inputs, outputs, expansion, first_stride if block == 0 else 1))
            inputs = outputs
    layers.append(conv_norm(inputs, 1280, 1, activation=nn.ReLU()))
    return Classifier(nn.Sequential(*layers), 1280, num_classes)
