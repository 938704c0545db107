"""A multi-layer perceptron that learns to tell points of two spirals apart, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy_training import Arrays, Model, cross_entropy, train

HIDDEN = 64


def spirals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (count, 2) and whose arm they are on."""
    rng = np.random.default_rng(seed)
    along = np.sqrt(rng.random(count))
    arm = rng.integers(0, 2, count)
    angle = 3 * np.pi * along + np.pi * arm
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return 3 * points + 0.03 * rng.standard_normal((count, 2)), arm


def fresh(rng: np.random.Generator) -> Arrays:
    """Weights of two hidden layers."""
    sizes = [(2, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)]
    weights = {f"w{i}": rng.standard_normal(s) * np.sqrt(2 / s[0]) for i, s in enumerate(sizes)}
    return {**weights, **{f"b{i}": np.zeros(s[1]) for i, s in enumerate(sizes)}}


def gradient(weights: Arrays, x: np.ndarray, y: np.ndarray) -> tuple[float, Arrays]:
    """Mean loss and gradient, by back-propagation."""
    layers = [x]
    for i in range(2):
        layers.append(np.maximum(0, layers[-1] @ weights[f"w{i}"] + weights[f"b{i}"]))
    loss, error = cross_entropy(layers[-1] @ weights["w2"] + weights["b2"], y)
    found = {}
    for i in (2, 1, 0):
        found[f"w{i}"], found[f"b{i}"] = layers[i].T @ error, error.sum(axis=0)
        error = (error @ weights[f"w{i}"].T) * (layers[i] > 0)
    return loss, found


if __name__ == "__main__":
    train(Model(fresh, gradient, rate=0.05), *spirals(1000, seed=1))
