"""ResNet18 for 32x32 images (He et al. 2016): a 3x3 stem without pooling, encodings of length 512."""

import math

from torch import Tensor, nn

from memwrap.encoders.blocks import Classifier, conv_norm

WIDTHS_AND_STRIDES = ((64, 1), (128, 2), (256, 2), (512, 2))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv_norm(inputs, outputs, 3, stride, activation=nn.ReLU()), conv_norm(outputs, outputs, 3)
        )
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same_shape else conv_norm(inputs, outputs, 1, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)"""
        total: Tensor = self.residual(maps) + self.shortcut(maps)
        return total.relu()


def resnet18(num_classes: int, channels: int = 3) -> Classifier:
    """ResNet18, its convolutions initialised N(0, 2 / (k² · outputs)) as in the published experiments."""
    layers: list[nn.Module] = [conv_norm(channels, 64, 3, activation=nn.ReLU())]
    inputs = 64
    for outputs, stride in WIDTHS_AND_STRIDES:
        layers += [ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    return init_convolutions(Classifier(nn.Sequential(*layers), inputs, num_classes))


def init_convolutions(classifier: Classifier) -> Classifier:
    """Draw the convolutions anew, so that the variance of their outputs does not change with depth (He et al. 2015)."""
    for module in classifier.modules():
        if isinstance(module, nn.Conv2d):
            variance = 2 / (module.kernel_size[0] * module.kernel_size[1] * module.out_channels)
            nn.init.normal_(module.weight, std=math.sqrt(variance))
    return classifier
