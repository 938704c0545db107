"""What stays suspended, cordoned or switched off when wattherd goes is found as the page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import Object, a_node, a_pod
from page_walk import GUIDES, reader

import docs_commands as docs

NODES = ("left-off", "left-on", "left-cordoned")
"""By pools, by nobody, by an operator."""
OFF = {"pool-phase": "off", "pool-boot": "b-1", "switched": "off"}


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[None]:
    names = plane.api.fleet(a_node(name) for name in NODES)
    notes = {f"wattherd.dev/{key}": value for key, value in OFF.items()}
    cordoned = {"spec": {"unschedulable": True}}
    off = {**cordoned, "metadata": {"annotations": notes}}
    plane.api.merge("/api/v1/nodes/left-off", off)
    plane.api.merge("/api/v1/nodes/left-cordoned", cordoned)
    yield
    plane.api.remove_nodes(names)


def suspended(name: str, by: str = "") -> Object:
    """By us for want of watts, or by whoever owns it."""
    labels = {"wattherd.dev/suspended": by} if by else {}
    spec = a_pod("any", spec={"restartPolicy": "Never"})["spec"]
    about = {"name": name, "labels": labels}
    return {"metadata": about, "spec": {"suspend": True, "template": {"spec": spec}}}


@pytest.mark.usefixtures("nodes")
def test_who_leaves_finds_what_was_stopped_and_has_it_back(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api, jobs = plane.api, f"/apis/batch/v1/namespaces/{namespace}/jobs"
    for one in (suspended("ours", "power"), suspended("also", "power"), suspended("theirs")):
        api.create(jobs, one)
    tools, said = reader(plane, tmp_path), ""
    for command in docs.commands(GUIDES / "kubernetes-operate.md"):
        if "suspended" in command.text or "left-by-pools" in command.text:
            said += tools.run("bash", "-c", command.text)
    found = {one["metadata"]["name"]: one for one in api.get(jobs)["items"]}
    still = {name for name, one in found.items() if one["spec"]["suspend"]}
    assert still == {"theirs"}
    labels = [one["metadata"].get("labels", {}) for one in found.values()]
    assert not any("wattherd.dev/suspended" in one for one in labels)
    assert "job.batch/ours patched" in said
    after = {name: api.get(f"/api/v1/nodes/{name}") for name in NODES}
    assert {name for name, one in after.items() if one["spec"].get("unschedulable")} == {
        "left-cordoned"
    }
    notes = after["left-off"]["metadata"]["annotations"]
    assert not [key for key in notes if key.startswith("wattherd.dev/")]
