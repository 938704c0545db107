"""A real job that draws less with smaller micro-batches is told one before it is throttled."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from service.serving import until as within
from service.test_live_site import Service
from wattherd.library.client import Client
from wattherd.local.orphans import end_stray

pytestmark = pytest.mark.slow
until = partial(within, most_s=240.0)
JOB = """
import time
import wattherd_train
with wattherd_train.current() as job:
    plan = job.batches(32, 32)
    for step in range(1, 10**6):
        until = time.process_time() + 0.1 * plan.micro_batch / 32
        began = time.monotonic()
        while time.process_time() < until:
            pass
        time.sleep(max(0.0, 0.1 - (time.monotonic() - began)))
        job.step(step)
        if job.should_stop:
            job.exit_checkpointed()
"""
"""Computes for a part of the time that follows from its micro-batch."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service.begin(tmp_path / "state")
    yield service
    service.end()
    for folder in (tmp_path / "state").glob("jobs/*/run-*"):
        end_stray(folder)


def test_a_smaller_micro_batch_is_chosen_under_a_cut_budget(
    service: Service, tmp_path: Path
) -> None:
    client = Client(service.url)
    script = tmp_path / "job.py"
    script.write_text(JOB)
    document = {
        "run": [sys.executable, str(script)],
        "batch": {"global": 32, "micro": {"min": 8, "max": 32}},
        "envs": {"PYTHONPATH": ":".join(sys.path)},
    }
    job = str(client.post("jobs", document)["id"])
    until(lambda: client.get(f"jobs/{job}")["micro_batch"] == 32)
    gpu_w = client.get("nodes")["gpu_max_w"]
    client.put("power", {"budget": 0.2 * gpu_w + 0.6 * gpu_w})
    until(lambda: (client.get(f"jobs/{job}")["micro_batch"] or 32) < 32)
    shown = service.call("explain", job)
    assert shown
    client.post(f"jobs/{job}/cancel", {})
