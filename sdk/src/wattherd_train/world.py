"""This process among the others of its run: rank and size, by whoever launched it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattherd_train import protocol


@dataclass(frozen=True, slots=True)
class World:
    """`rank` of `size` processes, `local_rank` of `local_size` on this node.

    `devices` are those of the whole run, `restarts` how often the launcher began it anew within
    this attempt, `elastic` whether torchrun is that launcher.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    devices: int = 1
    restarts: int = 0
    elastic: bool = False

    @property
    def leads(self) -> bool:
        """Whether this is the rank that speaks for all: the first."""
        return self.rank == 0


def world_of(environ: Mapping[str, str]) -> World:
    """By the names that torchrun and wattherd set; what is missing or no number is one process."""
    size = max(1, _number(environ, "WORLD_SIZE", 1))
    return World(
        rank=min(max(0, _number(environ, "RANK", 0)), size - 1),
        size=size,
        local_rank=max(0, _number(environ, "LOCAL_RANK", 0)),
        local_size=max(1, _number(environ, "LOCAL_WORLD_SIZE", 1)),
        devices=max(0, _number(environ, protocol.DEVICES, 1)),
        restarts=max(0, _number(environ, "TORCHELASTIC_RESTART_COUNT", 0)),
        elastic="TORCHELASTIC_RUN_ID" in environ,
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ[name])
    except (KeyError, ValueError):
        return default
