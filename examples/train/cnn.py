"""A small convolutional network that names the direction of stripes in noisy pictures, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy_training import Arrays, Model, cross_entropy, train

SIDE, KERNEL, FILTERS, CLASSES = 12, 5, 8, 4
OUT = SIDE - KERNEL + 1


def stripes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (count, SIDE, SIDE) and which of four directions their stripes have."""
    rng = np.random.default_rng(seed)
    direction = rng.integers(0, CLASSES, count)
    angle = direction * np.pi / CLASSES
    rows, columns = np.mgrid[:SIDE, :SIDE]
    across = np.cos(angle)[:, None, None] * columns + np.sin(angle)[:, None, None] * rows
    phase = rng.random((count, 1, 1)) * 2 * np.pi
    return np.sin(1.5 * across + phase) + rng.standard_normal((count, SIDE, SIDE)), direction


def fresh(rng: np.random.Generator) -> Arrays:
    """One convolution, squared and averaged over the picture, and a linear layer."""
    return {
        "filters": rng.standard_normal((KERNEL * KERNEL, FILTERS)) / KERNEL,
        "w": rng.standard_normal((FILTERS, CLASSES)) / np.sqrt(FILTERS),
        "b": np.zeros(CLASSES),
    }


def gradient(weights: Arrays, x: np.ndarray, y: np.ndarray) -> tuple[float, Arrays]:
    """Mean loss and gradient; the convolution is a product with all patches of the pictures."""
    patches = np.lib.stride_tricks.sliding_window_view(x, (KERNEL, KERNEL), axis=(1, 2))
    patches = patches.reshape(len(x), OUT * OUT, KERNEL * KERNEL)
    found = patches @ weights["filters"]
    energy = np.mean(found**2, axis=1)
    features = np.log1p(energy)
    loss, error = cross_entropy(features @ weights["w"] + weights["b"], y)
    by_energy = (error @ weights["w"].T) / (1 + energy)
    by_found = by_energy[:, None, :] * 2 * found / (OUT * OUT)
    by_filters = np.tensordot(patches, by_found, axes=([0, 1], [0, 1]))
    return loss, {"filters": by_filters, "w": features.T @ error, "b": error.sum(axis=0)}


if __name__ == "__main__":
    train(Model(fresh, gradient, rate=0.2), *stripes(600, seed=2))
