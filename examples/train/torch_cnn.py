"""A small convolutional network that names the direction of stripes in noise, in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch_training import Tensors, train

SIDE, CLASSES = 12, 4


def stripes(count: int, seed: int) -> Tensors:
    """Pictures (count, 1, SIDE, SIDE) and which of four directions their stripes have."""
    source = torch.Generator().manual_seed(seed)
    direction = torch.randint(CLASSES, (count,), generator=source)
    angle = (direction * math.pi / CLASSES)[:, None, None]
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    phase = torch.rand(count, 1, 1, generator=source) * 2 * math.pi
    waves = torch.sin(1.5 * (angle.cos() * columns + angle.sin() * rows) + phase)
    return (waves + torch.randn(count, SIDE, SIDE, generator=source))[:, None], direction


class Network(nn.Sequential):
    """Two convolutions, and dropout before the answer."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(64, CLASSES),
        )


if __name__ == "__main__":
    train(Network, stripes(600, seed=2), rate=0.02)
