"""One head of attention that learns to look up: keys and values in a row, then a key, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy_training import Arrays, Model, cross_entropy, train

PAIRS, SYMBOLS, WIDTH = 4, 8, 32


def lookups(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (count, PAIRS + 1, 2) of (key, value), the last with the key asked for; the answers."""
    rng = np.random.default_rng(seed)
    keys = np.stack([rng.permutation(SYMBOLS)[:PAIRS] for _ in range(count)])
    values = rng.integers(0, SYMBOLS, (count, PAIRS))
    asked = rng.integers(0, PAIRS, count)
    row = np.arange(count)
    question = np.stack([keys[row, asked], np.full(count, SYMBOLS)], axis=1)[:, None]
    pairs = np.stack([keys, values], axis=2)
    return np.concatenate([pairs, question], axis=1), values[row, asked]


def fresh(rng: np.random.Generator) -> Arrays:
    """Embeddings of keys and values; projections to query, key, value and answer."""
    shapes = {
        "key": (SYMBOLS, WIDTH),
        "value": (SYMBOLS + 1, WIDTH),
        "q": (WIDTH, WIDTH),
        "k": (WIDTH, WIDTH),
        "v": (WIDTH, WIDTH),
        "out": (WIDTH, SYMBOLS),
    }
    return {name: rng.standard_normal(s) / np.sqrt(WIDTH) for name, s in shapes.items()}


def gradient(weights: Arrays, x: np.ndarray, y: np.ndarray) -> tuple[float, Arrays]:
    """Mean loss and gradient of softmax(q k) v, for the last position's query."""
    scale = np.sqrt(WIDTH)
    tokens = weights["key"][x[..., 0]] + weights["value"][x[..., 1]]  # (batch, places, WIDTH)
    context, last = tokens[:, :-1], tokens[:, -1]
    query, keys, values = last @ weights["q"], context @ weights["k"], context @ weights["v"]
    scores = np.einsum("bw,bpw->bp", query, keys) / scale
    attention = np.exp(scores - scores.max(axis=1, keepdims=True))
    attention /= attention.sum(axis=1, keepdims=True)
    seen = np.einsum("bp,bpw->bw", attention, values)
    loss, error = cross_entropy(seen @ weights["out"], y)

    by_seen = error @ weights["out"].T
    by_attention = np.einsum("bw,bpw->bp", by_seen, values)
    inner = (attention * by_attention).sum(axis=1, keepdims=True)
    by_scores = attention * (by_attention - inner) / scale
    by_query = np.einsum("bp,bpw->bw", by_scores, keys)
    by_keys = by_scores[..., None] * query[:, None]
    by_values = attention[..., None] * by_seen[:, None]
    by_tokens = np.concatenate(
        [
            by_keys @ weights["k"].T + by_values @ weights["v"].T,
            (by_query @ weights["q"].T)[:, None],
        ],
        axis=1,
    )
    found = {name: np.zeros_like(value) for name, value in weights.items()}
    np.add.at(found["key"], x[..., 0], by_tokens)
    np.add.at(found["value"], x[..., 1], by_tokens)
    found["q"] = last.T @ by_query
    found["k"] = np.tensordot(context, by_keys, axes=([0, 1], [0, 1]))
    found["v"] = np.tensordot(context, by_values, axes=([0, 1], [0, 1]))
    found["out"] = seen.T @ error
    return loss, found


if __name__ == "__main__":
    train(Model(fresh, gradient, rate=0.05), *lookups(2000, seed=3))
