"""Where the programs of a control plane are: a folder that was named, or what was built once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "kubectl",
)


class NoBinaries(Exception):
    """Why there is no control plane to test on, and what would help."""


def folder() -> Path:
    """The folder of the programs.

    Raises:
        NoBinaries: where none was named and none was built.
    """
    named = os.environ.get("WATTHERD_KUBE_BIN")
    found = Path(named) if named else _built()
    missing = [name for name in PROGRAMS if not os.access(found / name, os.X_OK)]
    if missing:
        raise NoBinaries(
            f"no {', '.join(missing)} in {found}: `make kube-binaries` builds them (needs Go), "
            "or set WATTHERD_KUBE_BIN to a folder that has them"
        )
    return found


def _built() -> Path:
    script = REPOSITORY / "scripts" / "kube-binaries.sh"
    done = subprocess.run(
        [script, "--where"], capture_output=True, text=True, timeout=60, check=True
    )
    return Path(done.stdout.strip())
