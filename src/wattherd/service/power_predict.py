"""`power predict`: the watts of one job, looked up where it was measured, else from the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.errors import UserError
from wattherd.estimate.signatures import Signature
from wattherd.service.power_fit import COUNTED, STATIC, load
from wattherd.spelling import hint_for
from wattherd.workload.power_rows import GPU_FLOPS

PREDICTION = "wattherd.power-predict/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A job whose watts are asked for; `dataset` and `batch_size` help to recognise it."""

    gpu: str
    model: str
    tdp_w: float
    cap_w: float
    values: Mapping[str, float]
    dataset: str = ""


def predict(source: Path, job: Wanted) -> dict[str, Any]:
    """The document of one prediction: looked up where the same job was measured, else the model's.

    Raises:
        UserError: no model, or a feature that makes no sense.
    """
    head, stored = load(source)
    model, book = stored.model, stored.book
    if stored.stranger is not None and job.model not in model.models:
        model = stored.stranger
    values = {"cap_share": job.cap_w / job.tdp_w, **job.values}
    if job.gpu in GPU_FLOPS:
        values.setdefault("gpu_flops", GPU_FLOPS[job.gpu])
    unknown = sorted(set(values) - {*STATIC, *COUNTED})
    if unknown:
        hint = hint_for(unknown[0], [*STATIC, *COUNTED])
        raise UserError(f"unknown feature {unknown[0]!r}", field="--set", hint=hint)
    guess = model.predict(job.gpu, job.model, job.tdp_w, values)
    kind = f"{job.dataset}/{job.model}" if job.dataset else job.model
    batch = values.get("batch_size")
    seen = book.find(Signature(job.gpu, kind, batch), job.cap_w) if batch else None
    exact = seen is not None and seen.octaves == 0
    return {
        "schema": PREDICTION,
        "version": head["version"],
        "id": head["id"],
        "source": "measured" if exact else model.learner,
        "power_w": seen.power_w if seen and exact else guess.power_w,
        "model_w": guess.power_w,
        "low_w": guess.low_w,
        "high_w": guess.high_w if np.isfinite(guess.high_w) else None,
        "coverage": model.coverage,
        "nearest": asdict(seen) if seen else None,
    }
