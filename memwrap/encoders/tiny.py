"""A small encoder for small images on a CPU: 8x8 and more, encodings of length 128, 0.1 million parameters."""

from torch import nn

from memwrap.encoders.blocks import Classifier, normalised


def tiny(num_classes: int, channels: int = 3) -> Classifier:
    """Three convolutions, the last two of stride 2."""
    return Classifier(
        nn.Sequential(
            normalised(channels, 32, 3, activation=nn.ReLU()),
            normalised(32, 64, 3, stride=2, activation=nn.ReLU()),
            normalised(64, 128, 3, stride=2, activation=nn.ReLU()),
        ),
        128,
        num_classes,
    )
