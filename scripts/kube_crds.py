"""Custom resource definitions as files, made from the classes that read the objects.

Writes deploy/kubernetes/crds and the chart's copy of it; with `--check` it only says, by exit code
1, whether they are what the classes make.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from wattherd.kube.facts.crd import definitions

DEPLOY = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
FOLDERS = (DEPLOY / "crds", DEPLOY / "chart" / "crds")
HEADER = """\
# {kind}, an API object of wattherd: docs/guides/kubernetes-power.md
#
#   kubectl apply -f deploy/kubernetes/crds
#
# Made by scripts/kube_crds.py from src/wattherd/kube/facts/power_kinds.py: change that, not this.
"""


def files() -> dict[str, str]:
    """The text of each file by name."""
    return {
        f"{one['spec']['names']['plural']}.yaml": HEADER.format(kind=one["spec"]["names"]["kind"])
        + yaml.safe_dump(one, sort_keys=False, width=99)
        for one in definitions()
    }


def main() -> int:
    """Write or check the files; 1 if one is not what the classes make."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true")
    checks, stale = options.parse_args().check, 0
    for folder in FOLDERS:
        folder.mkdir(exist_ok=True)
        for name, text in files().items():
            path = folder / name
            if not checks:
                path.write_text(text)
            elif not path.exists() or path.read_text() != text:
                sys.stderr.write(f"{path} is not what the classes make\n")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
