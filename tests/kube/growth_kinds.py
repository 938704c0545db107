"""Objects of Karpenter and the Cluster Autoscaler, defined as far as they are read or written."""

from __future__ import annotations

from typing import Any

from kube_api import KubeApi
from kube_server import wait_until

TEXT: dict[str, Any] = {"type": "string"}
ANY: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
AMOUNT: dict[str, Any] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
LIMITS = {"type": "object", "additionalProperties": AMOUNT}
LABELS = {"type": "object", "additionalProperties": TEXT}
ABOUT = {"type": "object", "properties": {"labels": LABELS, "annotations": LABELS}}
POOL = {
    "spec": {
        "type": "object",
        "required": ["template"],
        "properties": {
            "limits": LIMITS,
            "template": {"type": "object", "properties": {"metadata": ABOUT, "spec": ANY}},
        },
    },
    "status": {"type": "object", "properties": {"resources": LIMITS}},
}
CLAIM = {"spec": ANY, "status": {"type": "object", "properties": {"nodeName": TEXT}}}
REF = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
POD_SET = {
    "type": "object",
    "required": ["count", "podTemplateRef"],
    "properties": {"count": {"type": "integer", "minimum": 1}, "podTemplateRef": REF},
}
REQUEST = {
    "spec": {
        "type": "object",
        "required": ["podSets", "provisioningClassName"],
        "properties": {
            "parameters": LABELS,
            "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": POD_SET},
            "provisioningClassName": TEXT,
        },
    },
    "status": ANY,
}
KINDS = (
    ("karpenter.sh", "NodePool", "Cluster", POOL),
    ("karpenter.sh", "NodeClaim", "Cluster", CLAIM),
    ("autoscaling.x-k8s.io", "ProvisioningRequest", "Namespaced", REQUEST),
)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def define(api: KubeApi) -> list[str]:
    """The kinds; their names."""
    made = []
    for group, kind, scope, fields in KINDS:
        plural = f"{kind.lower()}s"
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        schema = {"openAPIV3Schema": {"type": "object", "properties": fields}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        version["subresources"] = {"status": {}}
        spec = {"group": group, "scope": scope, "names": names, "versions": [version]}
        name = f"{plural}.{group}"
        api.create(DEFINITIONS, {"metadata": {"name": name}, "spec": spec})
        made.append(name)
        path = f"/apis/{group}/v1/{plural}"
        wait_until(lambda path=path: api.call("GET", path)[0] == 200, f"{plural} are served")
    return made
