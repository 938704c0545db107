"""Our own kinds of objects on a cluster of tests: defined, made, looked at."""

from __future__ import annotations

import http
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from kube_api import KubeApi, Object
from kube_server import wait_until

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "crds"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "wattherd.dev/v1alpha1"
PLURALS = {"PowerDomain": "powerdomains", "PowerBudget": "powerbudgets", "Queue": "queues"}


def shipped() -> list[Object]:
    """The definitions as files."""
    return [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]


def path_of(kind: str, name: str = "") -> str:
    return f"/apis/{GROUP}/{PLURALS[kind]}" + (f"/{name}" if name else "")


@contextmanager
def defined(api: KubeApi) -> Iterator[None]:
    """The kinds are served from now on, and all objects of theirs go at the end.

    They may be there already: Helm installs them, and takes them away from nobody.
    """
    for one in shipped():
        status, answer = api.call("POST", DEFINITIONS, one)
        assert status in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT), answer
    wait_until(lambda: all(api.call("GET", path_of(kind))[0] == 200 for kind in PLURALS),
               "the kinds are served")  # fmt: skip
    try:
        yield
    finally:
        for kind in PLURALS:
            api.delete(path_of(kind))


@contextmanager
def there(api: KubeApi, objects: list[Object]) -> Iterator[None]:
    """These are made now, and gone at the end."""
    for one in objects:
        api.create(path_of(one["kind"]), one)
    try:
        yield
    finally:
        for one in objects:
            api.call("DELETE", path_of(one["kind"], one["metadata"]["name"]))


def an_object(kind: str, name: str, **spec: Any) -> Object:
    return {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec}


def condition(api: KubeApi, kind: str, name: str, of: str = "Ready") -> Object:
    """One condition of an object's status; empty before it has one."""
    status = api.get(path_of(kind, name)).get("status", {})
    return next((one for one in status.get("conditions", ()) if one["type"] == of), {})
