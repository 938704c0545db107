"""What every released version left behind is read by this one, and goes on.

`scripts/released_state.py` had each version write its own; a release is not made without it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from click.testing import CliRunner, Result

from service.serving import Serving
from wattherd import __version__
from wattherd.cli.main import cli
from wattherd.server.recovery.recovery import recover
from wattherd.server.recovery.replay import settings_of
from wattherd.store.store import ClusterStore

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "old_states"
VERSIONS = sorted({re.match(r"v(.+)-\w+\.tar", one.name)[1] for one in KEPT.glob("v*-*.tar.xz")})  # type: ignore[index]
LIVE = {"Blocked": "Queued", "Held": "Paused"}
"""States of the core that the list of jobs calls otherwise."""


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


STATES = program("released_state")


def unpack(version: str, part: str, folder: Path) -> Path:
    with tarfile.open(KEPT / STATES.name_of(part, version)) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
        packed.extractall(folder)
    for told in folder.rglob("sim.json"):  # where the jobs of a run were read from
        told.write_text(told.read_text().replace("@FOLDER@", str(folder)))
    return folder


def called(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def jobs_of(folder: Path) -> dict[str, Any]:
    return {one["id"]: one for one in json.loads((folder / "jobs.json").read_text())["jobs"]}


def test_every_version_left_what_a_release_leaves() -> None:
    assert __version__ in VERSIONS
    for version in VERSIONS:
        assert STATES.missing(version, KEPT) == []
    assert len(STATES.missing("9.9.9", KEPT)) == len(STATES.PARTS) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_of_a_store_stand_where_they_stood(version: str, tmp_path: Path) -> None:
    folder = unpack(version, "store", tmp_path)
    told = jobs_of(folder)
    states = {one["state"] for one in told.values()}
    assert states >= {"Succeeded", "Failed", "Cancelled", "Running", "Queued", "Paused"}
    store = ClusterStore.open(f"sqlite:///{folder / 'state' / 'journal.sqlite'}")
    try:
        lived = recover(store, settings_of(store.snapshots)[-1][1])
    finally:
        store.close()
    jobs = lived.replay.state.core.jobs
    assert set(jobs) == {one for one, job in told.items() if job["finished"] is None}
    for one, job in jobs.items():
        state = str(job.state.value)
        assert LIVE.get(state, state) == told[one]["state"], one
        if job.reason is not None:  # others are given one by the first plan
            assert str(job.reason.code) == told[one]["reason"]["code"], one
    assert any(job.reason is not None for job in jobs.values())
    power = json.loads((folder / "power.json").read_text())
    assert lived.replay.state.core.watts.stated_w == power["budget_w"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_is_sound(version: str, tmp_path: Path) -> None:
    state = str(unpack(version, "store", tmp_path) / "state")
    done = called("store", "verify", "--state", state, "-o", "json")
    assert done.exit_code == 0, done.output
    verdict = json.loads(done.stdout)
    assert verdict["problems"] == []
    assert verdict["answers"] > 10


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_replay_to_the_letter(version: str, tmp_path: Path) -> None:
    folder = unpack(version, "runs", tmp_path)
    runs = [one.parent for one in folder.glob("*/replayed.txt")]
    assert len(runs) >= 2
    for run in runs:
        done = called("sim", "replay", str(run))
        assert done.exit_code == 0, done.output
        assert done.stdout == (run / "replayed.txt").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_runs_are_reported(version: str, tmp_path: Path) -> None:
    folder = unpack(version, "runs", tmp_path)
    for run in (*(one.parent for one in folder.glob("*/sim.json")), folder / "pack"):
        page = tmp_path / f"{run.name}.html"
        done = called("report", str(run), "-o", str(page))
        assert done.exit_code == 0, done.output
        assert "</html>" in page.read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_account_of_a_cluster_is_what_it_was(version: str, tmp_path: Path) -> None:
    """Watts and GPUs by the annotations of bound pods; limits by objects that are kept."""
    pytest.importorskip("msgspec", reason="the extra `kube` is not installed")
    from wattherd.kube.facts import cluster_snapshot

    folder = unpack(version, "cluster", tmp_path)
    text = (folder / "snapshot.json").read_bytes()
    found = cluster_snapshot.read(text, "snapshot.json")
    assert found.pods
    assert json.loads(cluster_snapshot.write(found)).items() >= json.loads(text).items()
    done = called("sim", "run", "--snapshot", str(folder / "snapshot.json"), "-o", "json")
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)["policies"]
    running = [one for one in found.pods if one.spec.node_name]
    assert told["gpus"]["in_use"] == len(running) > 0
    domains = json.loads((folder / "powerdomains.json").read_text())["items"]
    accounts = {one["power_domain"]: one for one in told["power"]}
    assert domains
    for domain in domains:
        account, status = accounts[domain["metadata"]["name"]], domain["status"]
        assert account["bound_w"] == pytest.approx(status["boundWatts"])
        assert account["budget_w"] == pytest.approx(status["budgetWatts"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_objects_of_a_cluster_are_read(version: str, tmp_path: Path) -> None:
    pytest.importorskip("msgspec", reason="the extra `kube` is not installed")
    from wattherd.kube.api.api_objects import decoder
    from wattherd.kube.api.objects import Node, Pod
    from wattherd.kube.facts.power_kinds import PowerBudget, PowerDomain, Queue

    folder = unpack(version, "cluster", tmp_path)
    for name, kind in (
        ("nodes", Node), ("pods", Pod), ("powerdomains", PowerDomain),
        ("powerbudgets", PowerBudget), ("queues", Queue),
    ):  # fmt: skip
        items = json.loads((folder / f"{name}.json").read_text())["items"]
        assert items, name
        for item in items:
            made: Any = decoder(kind).decode(json.dumps(item).encode())
            assert made.metadata.name == item["metadata"]["name"]


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_service_goes_on(version: str, tmp_path: Path) -> None:
    folder = unpack(version, "store", tmp_path)
    told = {one: job["state"] for one, job in jobs_of(folder).items()}
    serving = Serving(folder / "state", "--config", str(folder / "serve.yaml"), "--slots", "4")
    try:
        serving.begin()
        serving.ready()
        listed = serving.ask("jobs?over=true&limit=1000")["jobs"]
        found = {one["id"]: one["state"] for one in listed}
        assert found.keys() == told.keys()
        over = {one for one, state in told.items() if state in ("Succeeded", "Failed", "Cancelled")}
        assert {one: found[one] for one in over} == {one: told[one] for one in over}
        held = {one for one, state in told.items() if state == "Paused"}
        assert {found[one] for one in held} == {"Paused"}
        power = json.loads((folder / "power.json").read_text())
        assert serving.ask("power")["budget_w"] == power["budget_w"]
        new = serving.submit("true")
        assert new == f"j-{len(told) + 1}"
    finally:
        serving.end()
