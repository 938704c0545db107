"""How far a job says it is, as it writes it on one of its own pods.

`wattherd.dev/progress: '{"step": 120, "total": 1000, "loss": 2.1}'`. Whoever may change the pod may
write it, so nothing here is believed: a text that is too long or no such JSON says nothing, and
numbers are bounded. What a report can move is said in `engine.core.view`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from wattherd.kube.api import names
from wattherd.kube.api.objects import ObjectMeta

MOST_TEXT = 512
MOST = 1e15
"""Of any number in a report: beyond it floats are no count of steps any more."""


class _Report(msgspec.Struct, frozen=True):
    step: float
    total: float | None = None
    loss: float | None = None
    noise_scale: float | None = None
    batch: float | None = None


_DECODER = msgspec.json.Decoder(_Report)


@dataclass(frozen=True, slots=True)
class PodProgress:
    """`step` of `total`, if that is known, and the loss there.

    `noise_scale` is that of its gradient and `batch` what a step takes, both in samples.
    """

    step: float
    total: float | None = None
    loss: float | None = None
    noise_scale: float | None = None
    batch: float | None = None


def progress_text(meta: ObjectMeta) -> str:
    """What a pod says, as it stands; empty where it says nothing."""
    return meta.annotation(names.PROGRESS) or ""


def read_progress(text: str) -> PodProgress | None:
    """None for what is no report."""
    if not text or len(text) > MOST_TEXT:
        return None
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not 0 <= found.step <= MOST:
        return None
    loss = found.loss
    sound = loss is not None and math.isfinite(loss) and abs(loss) <= MOST
    return PodProgress(
        found.step,
        _above_nothing(found.total),
        loss if sound else None,
        _above_nothing(found.noise_scale),
        _above_nothing(found.batch),
    )


def _above_nothing(told: float | None) -> float | None:
    return told if told is not None and 0 < told <= MOST else None
