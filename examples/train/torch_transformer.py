"""A small transformer that learns to look up: keys and values in a row, then a key, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch_training import Tensors, train

PAIRS, SYMBOLS, WIDTH = 4, 8, 32


def lookups(count: int, seed: int) -> Tensors:
    """Rows (count, PAIRS + 1, 2) of (key, value), the last with the key asked for; the answers."""
    source = torch.Generator().manual_seed(seed)
    keys = torch.rand(count, SYMBOLS, generator=source).argsort(dim=1)[:, :PAIRS]
    values = torch.randint(SYMBOLS, (count, PAIRS), generator=source)
    asked = torch.randint(PAIRS, (count, 1), generator=source)
    question = torch.stack([keys.gather(1, asked), torch.full_like(asked, SYMBOLS)], dim=2)
    rows = torch.cat([torch.stack([keys, values], dim=2), question], dim=1)
    return rows, values.gather(1, asked)[:, 0]


class Transformer(nn.Module):
    """Two layers of attention over the places of a row; the last place answers."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(SYMBOLS + 1, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.05, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.answer = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores of symbols (batch, SYMBOLS)."""
        tokens = self.key(rows[..., 0]) + self.value(rows[..., 1])
        return self.answer(self.encoder(tokens)[:, -1])


if __name__ == "__main__":
    train(Transformer, lookups(2000, seed=3))
