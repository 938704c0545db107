"""Trainers made for Kubeflow report to a live service, as Transformers' own callback does."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# ruff: noqa: E402 - what needs the server comes after the look for it
pytest.importorskip("fastapi", reason="the extra `server` is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

from wattherd.local import run_dir
from wattherd.local.orphans import end_stray
from wattherd.local.run_plan import StatusServer
from wattherd.model.event import JobCancelled
from wattherd.server.api.trainer_status import Run, TrainerStatus, progress_of
from wattherd.server.app import app_of
from wattherd.server.settings.config import ServeConfig
from wattherd.server.site.site import open_site
from wattherd.workload.job_file import JobFile

MOST_S = 30.0
# What the trainer does: address, token file and body are as Kubeflow has them.
TRAINER = """
import json, os, time, urllib.request
def post(status):
    token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read().strip()
    request = urllib.request.Request(
        os.environ["KUBEFLOW_TRAINER_SERVER_URL"],
        data=json.dumps({"trainerStatus": status}).encode(),
        headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        print(response.status, flush=True)
metrics = {"loss": 0.25, "current_step": 30, "total_steps": 120, "current_epoch": 0.5, "lr": "1e-4"}
post({
    "lastUpdatedTime": "2026-11-21T12:00:00+00:00",
    "progressPercentage": 25,
    "estimatedRemainingSeconds": 45,
    "metrics": [{"name": str(k), "value": str(v)} for k, v in metrics.items()],
})
time.sleep(60)
"""


class Served:
    """A site and its HTTP server, in this process."""

    def __init__(self, state: Path) -> None:
        listener = socket.create_server(("127.0.0.1", 0))  # takes calls from now on
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.site = open_site(ServeConfig(state=state, slots=2), StatusServer(url=self.url))
        self._server = uvicorn.Server(uvicorn.Config(app_of(self.site), log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()

    def submit(self, *argv: str) -> str:
        job = JobFile(run=list(argv), checkpoint={"grace": 0})  # type: ignore[arg-type]
        return self.site.keeper.submit(job.spec(), job.paper(), by="ann").result(MOST_S)

    def job(self, job_id: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/api/v1/jobs/{job_id}", timeout=MOST_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def post(self, job_id: str, body: object, **headers: str) -> int:
        request = urllib.request.Request(
            f"{self.url}/api/v1/jobs/{job_id}/trainer-status",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=MOST_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def token(self, job_id: str) -> str:
        return self.token_file(job_id).read_text()

    def token_file(self, job_id: str) -> Path:
        return self.site.config.state / "jobs" / job_id / "run-1" / run_dir.TOKEN

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.site.close()
        for folder in self.site.config.state.glob("jobs/*/run-*"):
            end_stray(folder)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "state")
    yield served
    served.close()


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + MOST_S
    while not true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.05)


@pytest.mark.long
def test_a_job_that_knows_only_kubeflow_has_progress_and_an_end_in_sight(served: Served) -> None:
    job = served.submit(sys.executable, "-c", TRAINER)
    until(lambda: served.job(job)["progress"] == 30)
    row = served.job(job)
    assert (row["total"], row["loss"], row["rate_per_s"], row["remaining_s"]) == (120, 0.25, 2, 45)


@pytest.mark.long
def test_only_the_run_itself_may_report(served: Served) -> None:
    job, other = (served.submit("sleep", "60") for _ in range(2))
    until(lambda: [served.job(one)["state"] for one in (job, other)] == ["Running"] * 2)
    body = {"trainerStatus": {"progressPercentage": 40}}
    own, stranger = f"Bearer {served.token(job)}", f"Bearer {served.token(other)}"
    for wrong in (stranger, "", "Bearer", "Bearer ", own.removeprefix("Bearer "), "Basic x"):
        assert served.post(job, body, Authorization=wrong) == 401
    assert served.post(job, body) == 401
    for nobody in ("j-99", "..", "%2e%2e"):
        assert served.post(nobody, body, Authorization=own) in (401, 404, 405)
    assert served.post(job, body, Authorization=own) == 200
    until(lambda: served.job(job)["progress"] == 40)
    assert served.job(other)["progress"] == 0
    cancelled = JobCancelled(at_s=0.0, job_id=job)
    served.site.keeper.post(cancelled, by="ann").result(MOST_S)
    until(lambda: served.job(job)["state"] == "Cancelled")
    assert served.post(job, body, Authorization=own) == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"trainerStatus": 7},
        {"trainerStatus": {"progressPercentage": 101}},
        {"trainerStatus": {"progressPercentage": "x"}},
        {"trainerStatus": {"metrics": [{"name": "a"}]}},
        {"trainerStatus": {"metrics": [{"name": "a", "value": "1"}] * 1001}},
    ],
    ids=lambda body: str(body)[:40],
)
def test_what_is_no_status_is_refused(served: Served, body: object) -> None:
    assert served.post("j-1", body) == 422


def status(**fields: Any) -> TrainerStatus:
    return TrainerStatus.model_validate(fields)


def metrics(**named: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in named.items()]


RUN = Run(job_id="j-1", attempt=3)


def test_units_stay_steps_once_they_are_known() -> None:
    """The first and last reports of Transformers have no `current_step`."""
    first = progress_of(status(progressPercentage=0, metrics=metrics(total_steps="24")), RUN)
    last = progress_of(status(progressPercentage=100), Run(job_id="j-1", attempt=3, total=24))
    assert first is not None
    assert last is not None
    assert [(one.progress, one.total) for one in (first, last)] == [(0, 24), (24, 24)]


def test_per_cent_where_steps_are_not_told() -> None:
    told = progress_of(status(progressPercentage=40, estimatedRemainingSeconds=120), RUN)
    assert told is not None
    assert (told.progress, told.total, told.rate_per_s, told.loss) == (40, 100, 0.5, None)
    assert (told.job_id, told.attempt) == ("j-1", 3)


@pytest.mark.parametrize("named", [{"current_step": "5", "total_steps": "-1"}, {"loss": "nan"}])
def test_nonsense_in_metrics_is_passed_over(named: dict[str, str]) -> None:
    told = progress_of(status(progressPercentage=9, metrics=metrics(**named)), RUN)
    assert told is not None
    assert (told.progress, told.total, told.loss) == (9, 100, None)


def test_a_status_without_progress_says_nothing() -> None:
    assert progress_of(status(metrics=metrics(loss="1")), RUN) is None


def test_a_job_s_environment_holds_no_token(served: Served) -> None:
    job = served.submit("/bin/sh", "-c", "env; sleep 60")
    until(lambda: served.job(job)["state"] == "Running")
    log = served.site.config.state / "jobs" / job / "run-1" / "logs" / "0.log"
    until(lambda: log.exists() and "KUBEFLOW_TRAINER_SERVER_URL" in log.read_text())
    assert served.token(job) not in log.read_text()
    assert served.token_file(job).stat().st_mode & 0o77 == 0


HUGGING_FACE = """
import torch, transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, x, labels=None):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x)[:, 0], labels)}
rows = [{"x": x, "labels": x.sum()} for x in torch.randn(96, 3)]
how = transformers.TrainingArguments(
    output_dir="out", max_steps=24, per_device_train_batch_size=4, save_strategy="no",
    report_to=[], disable_tqdm=True, use_cpu=True, logging_steps=4,
)
transformers.Trainer(model=Model(), args=how, train_dataset=rows).train()
"""


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("transformers", "torch", "accelerate"))),
    reason="Transformers with PyTorch is not installed",
)
def test_an_unmodified_job_of_transformers_reports_its_progress(
    served: Served,
) -> None:
    job = served.submit(sys.executable, "-c", HUGGING_FACE)
    end_s = time.monotonic() + 300
    while served.job(job)["state"] not in ("Succeeded", "Failed"):
        assert time.monotonic() < end_s
        time.sleep(0.5)
    found = served.job(job)
    assert (found["state"], found["progress"], found["total"]) == ("Succeeded", 24, 24)
