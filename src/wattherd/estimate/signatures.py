"""Watts of a job looked up by its signature: what the same or the most similar job once drew.

A signature is GPU type, model and batch size. Recurring training jobs are the rule in production
(Zeus, NSDI'23, 3.1), and a measurement of the same job beats any prediction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Signature:
    """By what a job is recognised."""

    gpu: str
    model: str
    batch_size: float


@dataclass(frozen=True, slots=True)
class SignatureMatch:
    """Watts at the cap asked for; `octaves` is how far the batch size is off (0: the same)."""

    power_w: float
    octaves: float


class SignatureBook:
    """Measured (cap, watts) by signature; immutable."""

    def __init__(self, measured: Iterable[tuple[Signature, float, float]]) -> None:
        """Take in (signature, cap_w, power_w); repeated caps are averaged."""
        raw: dict[Signature, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for signature, cap_w, power_w in measured:
            raw[signature][cap_w].append(power_w)
        self._curves = {
            signature: tuple(
                (cap, math.fsum(w) / len(w)) for cap, w in sorted(raw[signature].items())
            )
            for signature in sorted(raw)
        }

    def find(self, wanted: Signature, cap_w: float) -> SignatureMatch | None:
        """What the most similar batch size of the same model on the same GPU type drew.

        Linear between measured caps, the nearest beyond them; None if the model was never seen.
        """
        alike = [s for s in self._curves if (s.gpu, s.model) == (wanted.gpu, wanted.model)]
        if not alike:
            return None
        nearest = min(alike, key=lambda s: (_octaves(s, wanted), s))
        return SignatureMatch(_between(self._curves[nearest], cap_w), _octaves(nearest, wanted))

    def measured(self, signature: Signature, cap_w: float) -> bool:
        """Whether exactly this was measured."""
        return any(cap == cap_w for cap, _ in self._curves.get(signature, ()))

    def without(self, signature: Signature) -> SignatureBook:
        """The book as if this job had never been measured."""
        return SignatureBook(
            (other, cap, watts)
            for other, curve in self._curves.items()
            if other != signature
            for cap, watts in curve
        )

    def plain(self) -> list[dict[str, Any]]:
        """All that is in it, as JSON."""
        return [
            {"gpu": s.gpu, "model": s.model, "batch_size": s.batch_size, "points": list(curve)}
            for s, curve in self._curves.items()
        ]


def read_book(plain: Sequence[Mapping[str, Any]]) -> SignatureBook:
    """The book that `plain` describes."""
    return SignatureBook(
        (Signature(one["gpu"], one["model"], float(one["batch_size"])), float(cap), float(watts))
        for one in plain
        for cap, watts in one["points"]
    )


def _octaves(one: Signature, other: Signature) -> float:
    return abs(math.log2(one.batch_size / other.batch_size))


def _between(curve: Sequence[tuple[float, float]], cap_w: float) -> float:
    for (low_cap, low), (high_cap, high) in pairwise(curve):
        if low_cap <= cap_w <= high_cap:
            return low + (high - low) * (cap_w - low_cap) / (high_cap - low_cap)
    return curve[0][1] if cap_w < curve[0][0] else curve[-1][1]
