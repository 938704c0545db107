"""Mode dra writes nothing before its DeviceClass is there, says so, and begins once it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from control_plane import ControlPlane
from kube_server import end, wait_until
from t4_racks import Racks

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASS = "watts.wattherd.dev"
RACKS = Racks("dra-class", nodes=2)


def test_a_class_that_is_not_there_is_told_and_waited_for(
    plane: ControlPlane, tmp_path: Path
) -> None:
    api, said = plane.api, tmp_path / "said"
    command = [sys.executable, "-m", "wattherd.cli.main", "kube", "dra", "--budget=1kW"]
    with (
        RACKS.made(api),
        said.open("w") as told,
        subprocess.Popen([*command, f"--kubeconfig={plane.kubeconfig}"], stderr=told) as process,
    ):
        try:
            trouble = f"trouble: watts are not published: there is no DeviceClass {CLASS}"
            wait_until(lambda: trouble in said.read_text(), said.read_text)
            assert api.get(SLICES)["items"] == []
            made = api.create(CLASSES, {"metadata": {"name": CLASS}})
            wait_until(lambda: api.get(SLICES)["items"], "slices are published")
            owners = [one["metadata"]["ownerReferences"] for one in api.get(SLICES)["items"]]
            assert {owner["uid"] for [owner] in owners} == {made["metadata"]["uid"]}
        finally:
            api.delete(f"{CLASSES}/{CLASS}")
            end(process)
    wait_until(lambda: not api.get(SLICES)["items"], "slices go with their class")
