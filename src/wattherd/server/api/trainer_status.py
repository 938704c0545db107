"""Where trainers made for Kubeflow report: progress of jobs that know nothing of wattherd.

Transformers, Kubeflow's SDK and whoever speaks as they do POST a `trainerStatus` to the address in
KUBEFLOW_TRAINER_SERVER_URL, with the token in the file KUBEFLOW_TRAINER_SERVER_TOKEN (Kubeflow
enhancement proposal 2779). Each run has a token of its own, in its directory; it opens nothing but
this, and nothing after the run is over.
"""

from __future__ import annotations

import hmac
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from wattherd.errors import words
from wattherd.local import run_dir
from wattherd.local.observation import open_regular, passes
from wattherd.model.event import JobProgressed
from wattherd.server.api.http import JobId, look_up
from wattherd.server.api.schemas.jobs import TakenDocument
from wattherd.server.api.schemas.shape import answers
from wattherd.server.documents.documents import SiteView
from wattherd.server.problems import problem
from wattherd.server.site.site import LiveSite

WHOLE = 100.0
"""Progress is told in per cent where steps are not."""
STEP, STEPS = "current_step", "total_steps"
MOST_TOKEN = 256
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

    trainerStatus: TrainerStatus = Field(  # noqa: N815
        examples=[{"progressPercentage": 24.0, "estimatedRemainingSeconds": 3800}]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run under way, and the whole of its work by earlier reports."""

    job_id: str
    attempt: int
    total: float | None = None

    def folder(self, state: Path) -> Path:
        """Its directory."""
        return state / "jobs" / self.job_id / f"run-{self.attempt}"


def routes(app: FastAPI) -> None:
    """Add the address to an application that serves a site."""

    @app.post("/api/v1/jobs/{job_id}/trainer-status", responses=answers(TakenDocument))
    async def report_trainer_status(
        request: Request,
        job_id: JobId,
        body: TrainerReport,
        authorization: Annotated[str, Header(description="`Bearer` and the token")] = "",
    ) -> JSONResponse:
        """Take what the trainer of a running job says of its progress."""
        site: LiveSite = request.app.state.site
        run = await look_up(site, lambda look: running(look, job_id))
        try:
            known = run is not None and may_report(run.folder(site.config.state), authorization)
        except OSError as error:
            said = f"the token of this run cannot be read: {words(error)}"
            return problem(503, said, request.scope["path"], hint="try again")
        if run is None or not known:
            return problem(401, "no run of this job has that token", request.scope["path"])
        event = progress_of(body.trainerStatus, run)
        if event is not None:
            site.keeper.tell(event)
        return JSONResponse({})


def running(look: SiteView, job_id: str) -> Run | None:
    """The run of a job that is under way; None if there is none, or no such job."""
    job = look.core.jobs.get(job_id)
    if job is None or not job.active:
        return None
    return Run(job_id=job_id, attempt=job.attempt, total=look.history[job_id].total)


def may_report(folder: Path, authorization: str) -> bool:
    """Whether the header carries the token of the run in `folder`.

    Raises:
        OSError: the token cannot be read now, for want of something.
    """
    kind, _, shown = authorization.partition(" ")
    try:
        with open_regular(folder / run_dir.TOKEN) as stream:  # it is the job's to replace
            token = stream.read(MOST_TOKEN).strip()
    except OSError as error:
        if passes(error):
            raise
        return False
    same = hmac.compare_digest(token, shown.strip().encode())
    return bool(token) and kind.lower() == "bearer" and same


def progress_of(status: TrainerStatus, run: Run) -> JobProgressed | None:
    """The status as the core hears it; None if it tells no progress.

    In steps, where this report or an earlier one tells how many there are: the first and last of
    Transformers have only the percentage. The speed is what is left by the time it is said to take.
    """
    metrics = {one.name: _number(one.value) for one in status.metrics}
    total, done = metrics.get(STEPS) or run.total or WHOLE, metrics.get(STEP)
    if total <= 0 or done is None:
        if status.progressPercentage is None:
            return None
        total = total if total > 0 else WHOLE
        done = status.progressPercentage / WHOLE * total
    remaining_s = status.estimatedRemainingSeconds
    return JobProgressed(
        at_s=0.0,
        job_id=run.job_id,
        attempt=run.attempt,
        progress=done,
        total=total,
        rate_per_s=(total - done) / remaining_s if remaining_s and total > done else None,
        loss=next((metrics[name] for name in LOSSES if metrics.get(name) is not None), None),
    )


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
