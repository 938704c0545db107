"""A multi-layer perceptron that learns to tell points of two spirals apart, in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch_training import Tensors, train


def spirals(count: int, seed: int) -> Tensors:
    """Points (count, 2) and whose arm they are on."""
    source = torch.Generator().manual_seed(seed)
    along = torch.rand(count, generator=source).sqrt()
    arm = torch.randint(2, (count,), generator=source)
    angle = 3 * math.pi * along + math.pi * arm
    points = along[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return 3 * points + 0.03 * torch.randn(count, 2, generator=source), arm


class Perceptron(nn.Sequential):
    """Two hidden layers."""

    def __init__(self, hidden: int = 64) -> None:
        layers = [nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
        super().__init__(*layers, nn.Linear(hidden, 2))


if __name__ == "__main__":
    train(Perceptron, spirals(1000, seed=1))
