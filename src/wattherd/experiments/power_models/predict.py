"""`power predict`: the watts of one job, looked up where it was measured, else from the model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattherd.catalog.gpus import Precision, near_rates, rates
from wattherd.errors import UserError
from wattherd.estimate.power_model import PowerModel, Predicted, between
from wattherd.estimate.saturation import WORK, derived
from wattherd.estimate.signatures import Signature
from wattherd.experiments.power_models.fit import COUNTED, STATIC, FittedModel, load
from wattherd.experiments.power_models.measured_once import DOWN, UP
from wattherd.spelling import hint_for

PREDICTION = "wattherd.power-predict/1"


@dataclass(frozen=True, slots=True)
class MeasuredDraw:
    """What the job itself drew once, in watts, under a cap in watts."""

    power_w: float
    cap_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPrediction:
    """A job whose watts are asked for; `dataset` and `batch_size` help to recognise it.

    `once` is a measurement of this very job on this GPU type.
    """

    gpu: str
    model: str
    tdp_w: float
    cap_w: float
    values: Mapping[str, float]
    dataset: str = ""
    once: MeasuredDraw | None = None


def predict(source: Path, job: WantedPrediction) -> dict[str, Any]:
    """The document of one prediction: looked up where the same job was measured, else the model's.

    Raises:
        UserError: no model, or a feature that makes no sense.
    """
    head, stored = load(source)
    unknown = sorted(set(job.values) - {*STATIC, *COUNTED})
    if unknown:
        hint = hint_for(unknown[0], [*STATIC, *COUNTED])
        raise UserError(f"unknown feature {unknown[0]!r}", field="--set", hint=hint)
    values = {"cap_share": job.cap_w / job.tdp_w, **job.values}
    if "gpu_flops" not in values and (peak := stored.peaks.of(job.gpu)) is not None:
        values["gpu_flops"] = peak
    model = _model(stored, job, values)
    guess = model.predict(job.gpu, job.model, job.tdp_w, values)
    kind = f"{job.dataset}/{job.model}" if job.dataset else job.model
    batch = values.get("batch_size")
    seen = stored.book.find(Signature(job.gpu, kind, batch), job.cap_w) if batch else None
    exact = seen is not None and seen.octaves == 0
    told, power_w, origin = guess, guess.power_w, model.learner
    if seen is not None and exact:
        power_w, origin = seen.power_w, "measured"
    elif job.once is not None:
        told = _carried(stored, job, job.once)
        power_w, origin = told.power_w, "measured once"
    return {
        "schema": PREDICTION,
        "version": head["version"],
        "id": head["id"],
        "source": origin,
        "power_w": power_w,
        "model_w": guess.power_w,
        "low_w": told.low_w,
        "high_w": told.high_w if np.isfinite(told.high_w) else None,
        "coverage": model.coverage,
        "nearest": asdict(seen) if seen else None,
        "new": [kind for kind in model.strange(job.gpu, job.model) if kind != "job"],
        "gpu_flops": values.get("gpu_flops"),
        "notes": [] if origin == "measured" else _notes(stored, model, job, values),
        "advice": _advice(source, stored, model, job) if origin == model.learner else None,
    }


def _model(stored: FittedModel, job: WantedPrediction, values: Mapping[str, float]) -> PowerModel:
    """Of both stored models, the one less far off on what is as strange, if it can answer."""
    model, stranger = stored.model, stored.stranger
    if stranger is None or WORK not in derived(job.gpu, values):
        return model
    if stored.better is None:
        return model if job.model in model.models else stranger
    strange = model.strange(job.gpu, job.model)
    if stranger.strange(job.gpu, job.model) != strange:
        return model
    if stored.better.issuperset(strange):
        return stranger
    ours, theirs = (
        math.hypot(*(one.error_pct.get(kind, math.inf) for kind in strange))
        for one in (stranger, model)
    )
    return stranger if stored.better.intersection(strange) and ours < theirs else model


def _carried(stored: FittedModel, job: WantedPrediction, once: MeasuredDraw) -> Predicted:
    """The measurement carried to the cap asked for, with the interval of such predictions.

    Raises:
        UserError: the model is of a version without, or of measurements under one cap each.
    """
    if stored.once is None:
        problem = "this model cannot carry a measurement to another cap"
        hint = "fit it on jobs that were measured under several caps"
        raise UserError(problem, field="--measured", hint=hint)
    shares = [once.power_w, once.cap_w, job.cap_w]
    logs = [np.log(np.array([watts / job.tdp_w])) for watts in shares]
    power_w = job.tdp_w * math.exp(float(stored.once.once.log_share(*logs)[0]))
    if once.cap_w == job.cap_w:
        # Nothing is carried: it was measured.
        return Predicted(once.power_w, once.power_w, once.power_w)
    width = stored.once.half_width.get(DOWN if job.cap_w < once.cap_w else UP, math.inf)
    return between(power_w, width, stored.model.most_share * job.tdp_w)


def _notes(
    stored: FittedModel, model: PowerModel, job: WantedPrediction, values: Mapping[str, float]
) -> list[str]:
    """What is not known, and what it costs."""
    found = []
    if stored.stranger is not None and WORK not in derived(job.gpu, values):
        other = stored.stranger.learner
        if "gpu_flops" not in values:
            found.append(
                f"no peak rate is known for {job.gpu}: {other} cannot answer, {model.learner} does;"
                f" {peak_hint(job.gpu)}"
            )
        lacks = [name for name in ("batch_size", "flops") if name not in values]
        if lacks:
            sets = " ".join(f"--set {name}=..." for name in lacks)
            found.append(
                f"the work of a step is not known: {other} cannot answer, {model.learner} does;"
                f" give {sets}"
            )
    strange = [kind for kind in model.strange(job.gpu, job.model) if kind != "job"]
    if strange and job.once is None and math.isinf(model.width(strange)):
        found.append(
            "no interval can be promised: too few "
            + " and ".join({"gpu": "GPU types", "model": "networks"}[kind] for kind in strange)
            + " were measured to tell how different they are"
        )
    return found


def peak_hint(gpu: str) -> str:
    """How to give the peak rate of a GPU type, and which types of the catalogue may be meant."""
    maybe = near_rates(gpu)
    known = f", or call it {' or '.join(maybe)} if it is one" if maybe else ""
    return f"give it with --peak{known}"


def peak_at(gpu: str, precision: str) -> float:
    """The catalogue's peak rate (operations a second) of a GPU type at fp32, tf32 or fp16.

    Raises:
        UserError: none is known for that type.
    """
    entry = rates(gpu)
    if entry is None:
        raise UserError(f"no peak rate is known for {gpu}", field="--precision",
                        hint=peak_hint(gpu))  # fmt: skip
    return entry.peak(Precision(precision))


def _advice(
    source: Path, stored: FittedModel, model: PowerModel, job: WantedPrediction
) -> dict[str, Any] | None:
    """For a GPU type that no data is of: what one measurement would bring, and how to take it."""
    if job.gpu in stored.model.gpus:
        return None
    entry = rates(job.gpu)
    meter = "amdsmi" if entry is not None and entry.source.startswith("AMD") else "nvml"
    commands = [f"wattherd meter read {meter}://0 --watch 1s --count 60"]
    if stored.once is not None:
        commands.append(_again(source, job))
    return {
        "gpus": list(stored.model.gpus),
        "error_pct": model.error_pct.get("gpu"),
        "once_error_pct": None if stored.once is None else stored.once.mean_pct(DOWN),
        "cap_w": job.tdp_w,
        "commands": commands,
    }


def _again(source: Path, job: WantedPrediction) -> str:
    """The command that asks again with what was measured under the highest limit."""
    given = [f"{name}={value:.15g}" for name, value in job.values.items()]
    words = ["wattherd", "power", "predict", "--models", str(source), "--gpu", job.gpu]
    words += ["--model", job.model, *(["--dataset", job.dataset] if job.dataset else [])]
    words += ["--tdp", f"{job.tdp_w:g}W", "--cap", f"{job.cap_w:g}W"]
    words += [word for one in given for word in ("--set", one)]
    return f"{shlex.join(words)} --measured WATTS@{job.tdp_w:g}W"
