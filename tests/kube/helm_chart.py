"""The chart as tests use it: Helm, kubectl, what a set of values renders to."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kube_api import KubeApi, Object

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy" / "kubernetes"
CHART = DEPLOY / "chart"
MOST_S = 240

VARIANTS: dict[str, dict[str, Any]] = {
    "scheduler": {"budgets": ["40kW", "rack-1=8kW"]},
    "extender beside kube-scheduler": {"mode": "extender", "budgets": ["40kW"]},
    "extender for one elsewhere": {
        "mode": "extender",
        "extender": {"kubeScheduler": {"enabled": False}, "tls": {"secretName": "wattherd-tls"}},
    },
    "admission by gates": {"mode": "admit", "budgets": ["40kW"]},
    "a check of Kueue": {"mode": "admission-check", "admissionCheck": {"retrySeconds": 30}},
    "watts as devices": {"mode": "dra", "budgets": ["40kW"]},
    "monitored": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "with agents": {
        "agent": {
            "enabled": True,
            "safeCap": "150W",
            "runtimeClassName": "nvidia",
            "limit": "6kW",
            "meter": "redfish+https://bmc-{node}?credentials=/etc/wattherd/bmc.yaml",
            "base": "800W",
            "rackLimit": "12.5kW",
            "rackMeter": "modbus://meter-7/1/70?unit=kW",
            "meterSecret": "boards",
            "meterPorts": [443, 502],
            "meterCidrs": ["10.1.0.0/24"],
        },
        "serviceMonitor": {"enabled": True},
    },
    "with signals": {
        "signals": {
            "filesSecret": "grid",
            "ports": [443, 8443],
            "cidrs": ["192.0.2.0/24"],
        },
        "pools": {"enabled": True, "grow": True},
    },
    "with pools of nodes": {
        "budgets": ["40kW"],
        "pools": {
            "enabled": True,
            "switchesSecret": "wattherd-switches",
            "boardCidrs": ["10.1.0.0/24"],
            "grow": True,
            "spare": 1,
        },
        "serviceMonitor": {"enabled": True},
    },
    "with pools of a cloud": {"mode": "admit", "pools": {"enabled": True, "grow": True}},
    "all that can be chosen": {
        "image": {"repository": "registry.example/wattherd", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "pull"}],
        "policy": "pwr+fgd:0.1",
        "historyConfigMap": "history",
        "scheduler": {"name": "green", "replicas": 3, "patience": "1h30min", "dashboard": True},
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "podAnnotations": {"example.com/team": "ml"},
        "podLabels": {"team": "ml"},
        "serviceAccount": {"annotations": {"example.com/role": "scheduling"}},
        "networkPolicy": {"apiServerCidrs": ["10.0.0.1/32"], "apiServerPorts": [6443]},
        "fullnameOverride": "green",
    },
    "the least": {
        "scheduler": {"replicas": 1},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "mine"},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
}


@dataclass(frozen=True, slots=True)
class Tools:
    """Helm and kubectl, which talk to the cluster of `kubeconfig` and write into `home` only.

    They are called from the folder `at`.
    """

    programs: Path
    kubeconfig: Path
    home: Path
    at: Path = REPOSITORY

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.kubeconfig),
            "HOME": str(self.home),
            "no_proxy": "127.0.0.1",
        }

    def run(self, *command: str, given: str = "", fails: bool = False) -> str:
        """What a command says; it must fail where that is expected, and else not."""
        done = subprocess.run(
            command,
            input=given,
            env=self.environment(),
            cwd=self.at,
            capture_output=True,
            text=True,
            timeout=MOST_S,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + (done.stderr if fails else "")

    def values(self, values: dict[str, Any]) -> str:
        path = self.home / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        return f"--values={path}"

    def rendered(self, values: dict[str, Any], namespace: str = "kube-system") -> list[Object]:
        space = f"--namespace={namespace}"
        told = self.values(values)
        text = self.run("helm", "template", "wattherd", str(CHART), space, told)
        return [one for one in yaml.safe_load_all(text) if one]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def deployed_pods(objects: list[Object]) -> dict[str, Object]:
    """The pods that the rendered Deployments would make, by component."""
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: {
            "apiVersion": "v1", "kind": "Pod", **one["spec"]["template"],
        }
        for one in of_kind(objects, "Deployment")
    }  # fmt: skip


def deployed_pod(objects: list[Object]) -> Object:
    """That of what decides."""
    [pod] = [pod for component, pod in deployed_pods(objects).items() if component != "pools"]
    return pod


KINDS = {
    "/api/v1": "serviceaccounts configmaps secrets services pods podtemplates",
    "/apis/apps/v1": "deployments replicasets daemonsets",
    "/apis/batch/v1": "jobs",
    "/apis/rbac.authorization.k8s.io/v1": "roles rolebindings clusterroles clusterrolebindings",
    "/apis/policy/v1": "poddisruptionbudgets",
    "/apis/networking.k8s.io/v1": "networkpolicies",
    "/apis/coordination.k8s.io/v1": "leases",
    "/apis/admissionregistration.k8s.io/v1": (
        "validatingadmissionpolicies validatingadmissionpolicybindings "
        "mutatingadmissionpolicies mutatingadmissionpolicybindings "
        "validatingwebhookconfigurations mutatingwebhookconfigurations"
    ),
    "/apis/resource.k8s.io/v1": (
        "deviceclasses resourceslices resourceclaims resourceclaimtemplates"
    ),
    "/apis/scheduling.k8s.io/v1": "priorityclasses",
}


def inventory(api: KubeApi, *namespaces: str) -> set[str]:
    """Every object of the kinds that a chart could leave behind, cluster-wide and in these."""
    found = set()
    for group, kinds in KINDS.items():
        for kind in kinds.split():
            for one in api.get(f"{group}/{kind}")["items"]:
                about = one["metadata"]
                space = about.get("namespace", "")
                if space in ("", "kube-system", *namespaces):
                    found.add(f"{kind} {space}/{about['name']}")
    return found
