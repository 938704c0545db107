"""`wattherd kube clusters`: clusters that answer, and those that do not any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from kube_api import a_node, a_pod
from kube_server import free_ports

T4 = {"nvidia.com/gpu.product": "Tesla-T4"}


@pytest.fixture
def two(plane: ControlPlane, tmp_path: Path) -> Path:
    """A kubeconfig of a cluster that answers and of one that is gone."""
    text = yaml.safe_load(plane.kubeconfig.read_text())
    [port] = free_ports(1)
    text["clusters"].append({"name": "gone", "cluster": {"server": f"https://127.0.0.1:{port}"}})
    user = text["contexts"][0]["context"]["user"]
    text["contexts"].append({"name": "gone", "context": {"cluster": "gone", "user": user}})
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(text))
    return path


def shown(folder: Path, config: Path, *options: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "clusters"]
    done = subprocess.run(
        [*command, f"--kubeconfig={config}", "--timeout=100s", *options],
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def rows(text: str) -> dict[str, Any]:
    document = json.loads(text)
    assert document["schema"] == "wattherd.clusters/1"
    return {row["context"]: row for row in document["clusters"]}


def test_clusters_are_counted_and_those_that_are_gone_are_shown_as_such(
    plane: ControlPlane, namespace: str, tmp_path: Path, two: Path
) -> None:
    names = [f"{namespace}-{row}" for row in range(2)]
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    before = rows(shown(tmp_path, two, "--context=test", "-o", "json")[1])["test"]["overview"]
    api.fleet([a_node(name, gpus=2, labels=T4) for name in names])
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = {"wattherd.dev/draw-w": "640", "wattherd.dev/draw-at": stamp}
    api.merge(f"/api/v1/nodes/{names[0]}", {"metadata": {"annotations": told}})
    try:
        api.create(pods, a_pod("runs", gpus=1, spec={"nodeName": names[0]}))
        api.create(pods, a_pod("waits", gpus=1, scheduler="nobody"))
        code, text, said = shown(tmp_path, two, "-o", "json")
        found = rows(text)
        now = found["test"]["overview"]
        more = {key: now[key] - before[key] for key in now if key not in ("draw_w", "budget_w")}
        # Two nodes of two T4s: 10 W each when idle, 60 W more for the one in use (catalog).
        assert more == {
            "nodes": 2, "nodes_ready": 2, "nodes_off": 0, "gpus": 4, "gpus_used": 1,
            "pods_waiting": 1, "metered": 1, "may_draw_w": 100.0,
        }  # fmt: skip
        assert now["draw_w"] == 640.0
        assert (code, found["gone"]["overview"]) == (1, None)
        assert "gone:" in said
        _, table, _ = shown(tmp_path, two)
        assert "unreachable" in table
        assert "640 W" in table
        moved = yaml.safe_load(two.read_text())
        moved["clusters"][0]["cluster"] = moved["clusters"][1]["cluster"]
        two.write_text(yaml.safe_dump(moved))
        code, text, said = shown(tmp_path, two, "--context=test", "-o", "json")
        row = rows(text)["test"]
        assert (code, row["overview"]) == (1, now)
        assert row["age_s"] > 0
        assert "s ago" in shown(tmp_path, two)[1]
    finally:
        api.remove_nodes(names)


def test_a_context_there_is_not_is_refused(tmp_path: Path, two: Path) -> None:
    code, _, said = shown(tmp_path, two, "--context=other")
    assert code == 2
    assert "there are: test, gone" in said
