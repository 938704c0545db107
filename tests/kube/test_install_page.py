"""docs/guides/kubernetes-install.md from top to bottom on a real control plane."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_plane import ControlPlane
from helm_chart import REPOSITORY, Tools, inventory
from kube_server import wait_until

import docs_commands as docs

IN_THEIR_TIME = {
    "serviceaccounts kube-system/default",
    "configmaps kube-system/kube-root-ca.crt",
}
"""What controllers of a control plane that has just begun make by themselves."""
PAGE = REPOSITORY / "docs" / "guides" / "kubernetes-install.md"


def test_installing_upgrading_and_uninstalling_as_the_page_says(
    plane: ControlPlane, tmp_path: Path
) -> None:
    if not (plane.programs / "helm").exists():
        pytest.skip(f"no helm in {plane.programs}: `make kube-binaries` builds it (needs Go)")
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    tools = Tools(plane.programs, plane.kubeconfig, tmp_path, at=tmp_path)
    before = inventory(plane.api, "wattherd") | IN_THEIR_TIME
    said = {one.text.split()[1]: "" for one in docs.commands(PAGE)}
    for command in docs.commands(PAGE):
        said[command.text.split()[1]] += tools.run("bash", "-c", command.text)
    assert said["auth"].strip() == "yes"
    assert "deployment.apps/wattherd" in said["get"]
    assert "pods/binding" in said["describe"]
    assert "denied request: decided in term ''" in "".join(said.values())
    assert "Rollback was a success" in said["rollback"]
    assert "server dry run" in said["apply"]
    wait_until(
        lambda: inventory(plane.api, "wattherd") | IN_THEIR_TIME == before,
        lambda: f"left behind: {inventory(plane.api, 'wattherd') - before}",
    )
