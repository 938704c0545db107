"""The rights that each mode is shipped with, and no others, for whoever works in that mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from control_plane import ControlPlane
from helm_chart import DEPLOY
from safe_copies import path_of


@contextmanager
def account(plane: ControlPlane, mode: str) -> Iterator[Path]:
    """A kubeconfig with the rights of the manifest of `mode`, which is what the chart makes."""
    name = f"shipped-{mode}"
    objects = yaml.safe_load_all((DEPLOY / f"{mode}.yaml").read_text())
    rules = [one["rules"] for one in objects if one["kind"] == "ClusterRole"]
    token = plane.api.token("default", name)
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    made = [
        {**about, "kind": "ClusterRole", "rules": [each for one in rules for each in one]},
        {**about, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    ]
    for one in made:
        plane.api.create(path_of(one), one)
    try:
        yield plane.kubeconfig_of(token, name)
    finally:
        for one in made:
            plane.api.delete(f"{path_of(one)}/{name}")
