"""A small encoder for small images on a CPU: 8x8 and more, encodings of length 128, 0.1 million parameters."""

from torch import nn

from memwrap.encoders.blocks import Classifier, conv_norm


def tiny(num_classes: int, channels: int = 3) -> Classifier:
    """Three convolutions, the last two of stride 2."""
    return Classifier(
        nn.Sequential(
            conv_norm(channels, 32, 3, activation=nn.ReLU()),
            conv_norm(32, 64, 3, stride=2, activation=nn.ReLU()),
            conv_norm(64, 128, 3, stride=2, activation=nn.ReLU()),
        ),
        128,
        num_classes,
    )
