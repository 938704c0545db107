"""Kinds of others' objects on a cluster of tests, with as much of them as is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kube_api import KubeApi
from kube_server import wait_until
from power_api import DEFINITIONS

ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@contextmanager
def served(
    api: KubeApi, kinds: Mapping[str, tuple[str, str, str]], *, scope: str = "Namespaced"
) -> Iterator[None]:
    """By plural the group, version and name of kinds, in namespaces by default, with any fields.

    Status is a part of its own, as those who define them have it.
    """
    made = []
    for plural, (group, version, kind) in kinds.items():
        schema = {"type": "object", "properties": {"spec": ANY, "status": ANY}}
        one = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
        one["schema"] = {"openAPIV3Schema": schema}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        spec = {"group": group, "scope": scope, "names": names, "versions": [one]}
        name = f"{plural}.{group}"
        # The API server guards kinds of the group x-k8s.io unless their review is named.
        about = {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}}
        api.create(DEFINITIONS, {"metadata": about, "spec": spec})
        made.append(name)
    for plural, (group, version, kind) in kinds.items():
        within = "namespaces/default/" if scope == "Namespaced" else ""
        at = f"/apis/{group}/{version}/{within}{plural}"
        wait_until(lambda at=at: api.call("GET", at)[0] == 200, f"{kind}s are served")  # type: ignore[misc]
    try:
        yield
    finally:
        for name in made:
            api.delete(f"{DEFINITIONS}/{name}")
        gone = lambda: not any(api.call("GET", f"{DEFINITIONS}/{one}")[0] == 200 for one in made)  # noqa: E731
        wait_until(gone, "others' kinds are gone")
