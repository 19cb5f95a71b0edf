"""Channel statistics for normalization."""

import torch

from memwrap.data.dataset import Images

SAMPLE_SIZE = 2000  # images; more would not change the third digit


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels from 0 to 1, over evenly spaced images."""
    count = min(len(images), SAMPLE_SIZE)
    rows = torch.linspace(0, len(images) - 1, count).round().long()
    total, squares, pixels = torch.zeros(1), torch.zeros(1), 0
    for batch in images.batches(torch.split(rows, 64)):
        values = batch.cpu().double() / 255
        total, squares = total + values.sum(dim=(0, 2, 3)), squares + values.square().sum(dim=(0, 2, 3))
        pixels += values.numel() // values.shape[1]
    mean = total / pixels
    # A constant channel must not divide by zero.
    std = (squares / pixels - mean.square()).clamp(min=0).sqrt().clamp(min=1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())
