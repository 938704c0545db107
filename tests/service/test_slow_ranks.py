"""A rank that is slow on purpose: told of, and its device drained when it happens there again."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.serving import until as within
from service.test_live_site import Service
from wattherd.library.client import Client
from wattherd.local.orphans import end_stray

pytestmark = pytest.mark.long

until = partial(within, most_s=120.0)
GANG = """
import sys, time
import wattherd_train
with wattherd_train.current() as job:
    for step in range(1, 10**6):
        time.sleep(0.4 if job.world.rank == 1 else 0.1)
        job.step(step)
        if job.stop_order:
            sys.exit(143)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service.begin(tmp_path / "state", "--slots", "3")
    yield service
    service.end()
    for folder in (tmp_path / "state").glob("jobs/*/run-*"):
        end_stray(folder)


def gang(client: Client, folder: Path) -> str:
    script = folder / "gang.py"
    script.write_text(GANG)
    role = {"run": [sys.executable, str(script)], "taskNumber": 3, "gpus": 1}
    path = ":".join(sys.path)
    job = {"taskRoles": {"worker": role}, "checkpoint": {"grace": 10}, "envs": {"PYTHONPATH": path}}
    return str(client.post("jobs", job)["id"])


def lags(client: Client, job_id: str) -> bool:
    return any(
        line["what"].startswith("One of its ranks lags")
        for line in client.get(f"jobs/{job_id}")["story"]
    )


def gpus(client: Client) -> list[Any]:
    (node,) = client.get("nodes")["nodes"]
    return list(node["gpus"])


def test_a_slow_rank_is_found_and_its_device_is_drained_the_second_time(
    service: Service, tmp_path: Path
) -> None:
    client = Client(service.url)
    first = gang(client, tmp_path)
    until(lambda: lags(client, first))
    story = client.get(f"jobs/{first}")["story"]
    assert any("rank 1 on GPU 1" in line["cause"] for line in story)
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as answer:
        assert 'wattherd_rank_stragglers_total{gpu="1",' in answer.read().decode()
    assert [gpu["state"] for gpu in gpus(client)] == ["Ready"] * 3
    service.call("cancel", first)
    second = gang(client, tmp_path)
    until(lambda: gpus(client)[1]["state"] == "Drained")
    assert "ranks lagged there" in gpus(client)[1]["cause"]
    service.until(second, "Queued")
    assert "Drained" in service.call("gpus")
    service.call("gpus", "undrain", "1")
    service.until(second, "Running")
    service.call("cancel", second)


def test_an_operator_drains_one_device_and_jobs_on_others_stay(service: Service) -> None:
    jobs = [service.call("submit", "--", "sleep", "600").strip() for _ in range(2)]
    for job in jobs:
        service.until(job, "Running")
    shown = json.loads(service.call("gpus", "drain", "0", "--reason", "bad fan", "-o", "json"))
    assert shown["nodes"][0]["gpus"][0]["state"] == "Drained"
    client = Client(service.url)
    until(lambda: gpus(client)[2]["jobs"] == [jobs[0]])
    device = gpus(client)[0]
    assert (device["cause"], device["jobs"]) == ("bad fan", [])
    assert client.get(f"jobs/{jobs[1]}")["attempts"] == 1
    assert "no GPU" in service.call("gpus", "drain", "9", code=3)
    service.call("gpus", "undrain", "0")
    assert gpus(client)[0]["state"] == "Ready"
    for job in jobs:
        service.call("cancel", job)
