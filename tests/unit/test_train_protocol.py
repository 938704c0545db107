"""The scheduler's side of the protocol that training jobs speak: names, documents, exit code.

The SDK shares no code with the scheduler; its schema is what both are held to.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import wattherd
from wattherd.engine.core.executor import RunOrder
from wattherd.local import run_dir, supervisor
from wattherd.local.devices import slots
from wattherd.local.executor import LocalExecutor
from wattherd.local.run_observer import _report
from wattherd.local.run_plan import Folders, StatusServer, order_of
from wattherd.model.allocation import Allocation
from wattherd.model.command import StartJob, StopJob
from wattherd.model.job import JobSpec, Request, TaskRole
from wattherd.model.reason import StopReason

SDK = Path(__file__).resolve().parents[2] / "sdk" / "src" / "wattherd_train"
KINDS: dict[str, Any] = {"object": dict, "string": str, "number": (int, float), "integer": int}


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SDK / "protocol.schema.json").read_text())["$defs"]
    return found


def agree(document: Mapping[str, Any], by: Mapping[str, Any]) -> None:
    """What of JSON Schema the protocol uses."""
    assert set(by.get("required", ())) <= set(document)
    for name, value in document.items():
        rule = by["properties"][name]
        kinds = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
        if value is None:
            assert "null" in kinds
            continue
        assert isinstance(value, tuple(KINDS[kind] for kind in kinds if kind != "null"))
        if "pattern" in rule:
            assert re.search(rule["pattern"], value)
        if "minimum" in rule:
            assert value >= rule["minimum"]
        if "maximum" in rule:
            assert value <= rule["maximum"]
        if "required" in rule:
            agree(value, rule)


@pytest.fixture
def order(tmp_path: Path) -> RunOrder:
    role = TaskRole(command=("true",))
    request = Request(cpu_milli=0, gpu_count=1, gpu_milli=1000)
    start = StartJob(
        job_id="j-1", attempt=2, allocations=(Allocation(request, 0, (0,)),), cap_w=None
    )
    return RunOrder(spec=JobSpec(id="j-1", submit_s=0.0, roles=(role,)), paper={}, start=start)


def test_the_environment_of_a_run_is_what_the_schema_says(order: RunOrder, tmp_path: Path) -> None:
    folders = Folders(job=tmp_path, run=tmp_path / "run-2")
    environment = order_of(order, slots("here", 2), folders)["env"]
    staged = {"WATTHERD_INPUTS", "WATTHERD_OUTPUTS"}  # folders: the SDK has no part in them
    ours = {k: v for k, v in environment.items() if "WATTHERD" in k and k not in staged}
    agree(ours, schema()["environment"])


def test_what_the_executor_wants_is_what_the_schema_says(order: RunOrder, tmp_path: Path) -> None:
    executor = LocalExecutor(tmp_path, slots("here", 2), lambda event: None)
    executor._prepare(order, executor._folders(("j-1", 2)))
    control = tmp_path / "j-1" / "run-2" / run_dir.CONTROL
    agree(json.loads(control.read_text()), schema()["control"])
    stop = StopJob(job_id="j-1", attempt=2, reason=StopReason.BUDGET_CUT, grace_s=5.0)
    executor.stop(stop)
    told = json.loads(control.read_text())
    assert told["stop"]["grace_s"] == 5.0
    agree(told, schema()["control"])


def test_a_report_is_read_as_the_schema_says() -> None:
    line = {"step": 3, "total": 9, "loss": 0.5, "rate_per_s": 2, "samples": 24, "at": 1.0}
    agree(line, schema()["progress"])
    assert _report(json.dumps(line).encode()) == {
        "progress": 3.0, "total": 9.0, "loss": 0.5, "rate_per_s": 2.0
    }  # fmt: skip


def test_names_and_exit_code_are_the_same_on_both_sides() -> None:
    text = (SDK / "protocol.py").read_text()
    theirs = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert theirs["EXIT_CHECKPOINTED"] == supervisor.REQUEUE
    assert theirs["CHECKPOINTED"] == run_dir.CHECKPOINTED in schema()


@pytest.mark.long
def test_neither_side_imports_the_other() -> None:
    for folder, other in ((Path(wattherd.__file__).parent, "wattherd_train"), (SDK, "wattherd")):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    continue
                assert other not in [name.partition(".")[0] for name in names], path


def test_a_token_is_its_owners_alone_and_stays(order: RunOrder, tmp_path: Path) -> None:
    status = StatusServer(url="http://127.0.0.1:1", ca_file="/ca.pem")
    executor = LocalExecutor(tmp_path, slots("here", 2), lambda event: None, status)
    folders = executor._folders(("j-1", 2))
    executor._prepare(order, folders)
    token = folders.run / run_dir.TOKEN
    before = token.read_text()
    assert len(before) == 64
    assert token.stat().st_mode & 0o777 == 0o600
    executor._prepare(order, folders)
    assert token.read_text() == before
    environment = json.loads((folders.run / run_dir.ORDER).read_text())["env"]
    assert before not in json.dumps(environment)
    assert {k: v for k, v in environment.items() if "KUBEFLOW" in k} == {
        "KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:1/api/v1/jobs/j-1/trainer-status",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": "/ca.pem",
    }
