"""Plain manifests for those without Helm, made from the chart: `scripts/kube_manifests.py HELM`.

Writes a file for each mode, and agent.yaml, fence.yaml and pools.yaml, to deploy/kubernetes; with
`--check` it only says, by exit code 1, whether they are what the chart makes. HELM is the program,
which `make kube-binaries` builds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
BESIDE = {
    "agent": ["agent.enabled=true"],
    "fence": ["mode=scheduler"],
    "pools": ["pools.enabled=true", "pools.switchesSecret=wattherd-switches", "pools.grow=true"],
}
"""What comes beside a mode of the chart, and its values: what is its own bears its name."""
MODES = ("scheduler", "extender", "admit", "admission-check", "dra", *BESIDE)
KUBERNETES = "1.36.0"
"""Whose kube-scheduler stands beside the extender; the chart itself takes the cluster's version."""

OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by")
HEADER = """\
# wattherd as {mode}, for clusters without Helm: docs/guides/kubernetes-install.md
#
#   kubectl apply -f deploy/kubernetes/{mode}.yaml
#
# Made from the chart by scripts/kube_manifests.py: change that, not this. Set image and --budget.
"""
NOTES = {
    "fence": """\
#
# It is in scheduler.yaml, extender.yaml and admit.yaml, too: this is for copies that are started
# otherwise, with `--lease kube-system/wattherd` and the rights of rbac.yaml.
""",
    "pools": """\
#
#   kubectl create secret generic wattherd-switches --namespace kube-system \\
#     --from-file switches.yaml --from-file bmc.yaml
#
# comes first: docs/guides/kubernetes-nodes.md says what goes into it. Without Karpenter and the
# Cluster Autoscaler, leave out --grow and the rules for their groups.
""",
}
"""What is to be known of one of them."""


def rendered(helm: str, mode: str) -> list[dict[str, Any]]:
    """The chart's objects in one mode, without what says that Helm looks after them."""
    command = [helm, "template", "wattherd", str(DEPLOY / "chart"), "--namespace=kube-system"]
    command += [f"--set={value}" for value in BESIDE.get(mode, [f"mode={mode}"])]
    command += [f"--kube-version={KUBERNETES}", "--set=budgets={40kW}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    made = [one for one in yaml.safe_load_all(text) if one]
    if mode in BESIDE:
        made = [one for one in made if one["metadata"]["name"].startswith(f"wattherd-{mode}")]
    for each in made:
        _forget_helm(each)
    return made


def _forget_helm(item: Any) -> None:
    """Take Helm's labels out of everything in `item` that has some."""
    if isinstance(item, dict):
        for label in OF_HELM:
            item.get("labels", {}).pop(label, None)
    for each in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        _forget_helm(each)


def manifest(helm: str, mode: str) -> str:
    """The text of one file."""
    objects = rendered(helm, mode)
    return (
        HEADER.format(mode=mode)
        + NOTES.get(mode, "")
        + yaml.safe_dump_all(objects, sort_keys=False, width=99)
    )


def main() -> int:
    """Write or check the files; 1 if one is not what the chart makes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("helm")
    options.add_argument("--check", action="store_true")
    chosen = options.parse_args()
    stale = 0
    for mode in MODES:
        path, text = DEPLOY / f"{mode}.yaml", manifest(chosen.helm, mode)
        if not chosen.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.stderr.write(f"{path.name} is not what the chart makes\n")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
