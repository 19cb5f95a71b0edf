"""A residual network for photographs on a CPU: 32x32 to 128x128, encodings of length 256, 1.2 million parameters.

A tenth of ResNet18's arithmetic at the same image size: a stem of stride 2, half the widths, one block per width.
"""

from torch import nn

from memwrap.encoders.blocks import Classifier, conv_norm
from memwrap.encoders.resnet import ResidualBlock, init_convolutions

WIDTHS_AND_STRIDES = ((32, 1), (64, 2), (128, 2), (256, 2))


def small(num_classes: int, channels: int = 3) -> Classifier:
    """A stem and four residual blocks."""
    layers: list[nn.Module] = [conv_norm(channels, 32, 3, stride=2, activation=nn.ReLU())]
    inputs = 32
    for outputs, stride in WIDTHS_AND_STRIDES:
        layers.append(ResidualBlock(inputs, outputs, stride))
        inputs = outputs
    return init_convolutions(Classifier(nn.Sequential(*layers), inputs, num_classes))
