"""Where trainers made for Kubeflow report: progress of jobs that know nothing of wattherd.

Transformers, Kubeflow's SDK and whoever speaks as they do POST a `trainerStatus` to the address in
KUBEFLOW_TRAINER_SERVER_URL, with the token in the file KUBEFLOW_TRAINER_SERVER_TOKEN (Kubeflow
enhancement proposal 2779). Each run has a token of its own, in its directory; it opens nothing but
this, and nothing after the run is over.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from wattherd.model.event import JobProgressed
from wattherd.runtime.local import run_dir
from wattherd.service.live.documents import Look
from wattherd.service.live.site import Site

WHOLE = 100.0
"""Progress is told in per cent where steps are not."""
STEP, STEPS = "current_step", "total_steps"
LOSSES = ("loss", "train_loss", "training_loss")


class Metric(BaseModel):
    """A number as text, by its name."""

    name: str = Field(max_length=256)
    value: str = Field(max_length=256)


class TrainerStatus(BaseModel):
    """How far a trainer is; fields that we do not know are ignored."""

    progressPercentage: float | None = Field(default=None, ge=0, le=100)  # noqa: N815 - the wire's
    estimatedRemainingSeconds: float | None = Field(default=None, ge=0)  # noqa: N815
    metrics: list[Metric] = Field(default=[], max_length=1000)
    lastUpdatedTime: str | None = Field(default=None, max_length=64)  # noqa: N815


class TrainerReport(BaseModel):
    """The body of a report."""

    trainerStatus: TrainerStatus  # noqa: N815


def routes(app: FastAPI) -> None:
    """Add the address to an application that serves a site."""

    @app.post("/api/v1/jobs/{job_id}/trainer-status", responses={401: {}})
    async def report(
        request: Request,
        job_id: str,
        body: TrainerReport,
        authorization: Annotated[str, Header()] = "",
    ) -> JSONResponse:
        """Take what the trainer of a running job says of its progress."""
        site: Site = request.app.state.site
        attempt = await asyncio.to_thread(site.look, lambda look: running_attempt(look, job_id))
        folder = site.config.state / "jobs" / job_id / f"run-{attempt}"
        if attempt is None or not may_report(folder, authorization):
            return JSONResponse({"error": "no run of this job has that token"}, status_code=401)
        event = progress_of(body.trainerStatus, job_id, attempt)
        if event is not None:
            site.keeper.tell(event)
        return JSONResponse({})


def running_attempt(look: Look, job_id: str) -> int | None:
    """The run of a job that is under way; None if there is none, or no such job."""
    job = look.core.jobs.get(job_id)
    return job.attempt if job is not None and job.active else None


def may_report(folder: Path, authorization: str) -> bool:
    """Whether the header carries the token of the run in `folder`."""
    kind, _, shown = authorization.partition(" ")
    try:
        token = (folder / run_dir.TOKEN).read_bytes().strip()
    except OSError:
        return False
    return kind.lower() == "bearer" and hmac.compare_digest(token, shown.strip().encode())


def progress_of(status: TrainerStatus, job_id: str, attempt: int) -> JobProgressed | None:
    """The status as the core hears it, in steps where known; None if it tells no progress.

    Per second are reckoned what is left and the time that it is said to take.
    """
    metrics = {one.name: _number(one.value) for one in status.metrics}
    done, total = metrics.get(STEP), metrics.get(STEPS)
    if done is None or total is None or total <= 0:
        done, total = status.progressPercentage, WHOLE
    if done is None:
        return None
    remaining_s = status.estimatedRemainingSeconds
    rate_per_s = (total - done) / remaining_s if remaining_s and total > done else None
    loss = next((metrics[name] for name in LOSSES if metrics.get(name) is not None), None)
    told: dict[str, Any] = {"job_id": job_id, "attempt": attempt, "progress": done, "total": total}
    return JobProgressed(at_s=0.0, **told, rate_per_s=rate_per_s, loss=loss)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
