"""Pods of manifests: those that stand there, and those that a controller would make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from wattherd.errors import UserError
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.feasibility import MOST_PODS, read_pods

_COUNTS = {
    "Job": "parallelism",
    "Deployment": "replicas",
    "StatefulSet": "replicas",
    "ReplicaSet": "replicas",
}


def pods_of(text: bytes, where: str) -> list[Pod]:
    """Pods of YAML or JSON documents, those of controllers numbered.

    Raises:
        UserError: no YAML, no pods, or kinds that we do not know to make pods.
    """
    try:
        documents = [one for one in yaml.safe_load_all(text) if one]
    except yaml.YAMLError as error:
        raise UserError(f"no YAML: {error}", where=where) from None
    made = [pod for document in documents for pod in _made(document, where)]
    body = json.dumps({"kind": "List", "items": made}, default=str).encode()
    return read_pods(body)


def _made(document: Any, where: str) -> Iterator[dict[str, Any]]:
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind in ("List", "PodList"):
        for item in document.get("items") or ():
            yield from _made(item, where)
    elif kind == "Pod":
        yield document
    elif kind in _COUNTS:
        yield from _numbered(document, _COUNTS[kind], where)
    else:
        hint = f"Pod, List, {', '.join(_COUNTS)}"
        raise UserError(
            f"{kind or 'this'} is no kind of object that makes pods", where=where, hint=hint
        )


def _numbered(document: dict[str, Any], count: str, where: str) -> Iterator[dict[str, Any]]:
    spec, about = document.get("spec") or {}, document.get("metadata") or {}
    template = spec.get("template")
    number = spec.get(count, 1)
    if not isinstance(template, dict):
        raise UserError("it has no template", where=where, field="spec.template")
    if not isinstance(number, int) or not 0 <= number <= MOST_PODS:
        raise UserError(f"{number!r} is no number of pods", where=where, field=f"spec.{count}")
    given, namespace = template.get("metadata") or {}, about.get("namespace", "")
    for one in range(number):
        named = {"name": f"{about.get('name', 'pod')}-{one}", "namespace": namespace}
        yield {**template, "kind": "Pod", "metadata": {**given, **named}}
