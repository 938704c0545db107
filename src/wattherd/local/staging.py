"""What a run is brought before it begins, and what is taken away: the plan, and who carries it out.

The plan is `staging.json`; the program `transfer` carries it out in a process of its own, started
by the run's supervisor as the job's user, never as somebody who may more than the job.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.job_folders import Folders
from wattherd.local.ownership import open_to_all

BRING, SUCCESS, CHECKPOINT = "bring", "success", "checkpoint"
"""Phases: before the tasks, after their success, after a stop with their state saved."""
OWN = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
TOLD = ("AWS_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
        "SSL_CERT_", "GIT_SSL_CAINFO")  # fmt: skip
"""How names begin of those variables of a job that the program is told, too."""


def staging_plan(paper: Mapping[str, Any], folders: Folders) -> dict[str, Any] | None:
    """What is to be brought, and taken away in the end; None if nothing is."""
    inputs, outputs, code = (paper.get(name) for name in ("inputs", "outputs", "code"))
    begins_from = paper.get("checkpoint_from")
    if not (inputs or outputs or code or begins_from):
        return None
    bring = {str(folders.inputs / name): source for name, source in (inputs or {}).items()}
    if code:
        bring[str(folders.code)] = code
    return {
        "folder": str(folders.work),
        "bring": bring,
        "take": {name: _taken(where) for name, where in (outputs or {}).items()},
        "outputs": str(folders.outputs),
        "s3": dict(paper.get("s3") or {}),
        "checkpoint": [begins_from, str(folders.checkpoint)] if begins_from else None,
    }


def _taken(where: str | Mapping[str, str]) -> dict[str, str]:
    """Journals of earlier versions hold the address alone."""
    return {"to": where, "when": SUCCESS} if isinstance(where, str) else dict(where)


def staged(order: Mapping[str, Any], paper: Mapping[str, Any], folders: Folders) -> dict[str, Any]:
    """The same order with the program that brings and takes; tasks begin where the code is.

    Raises:
        UserError: it would run as root for a job that is shut into a container.
    """
    if paper.get("container") and order["user"] is None and os.geteuid() == 0:
        hint = "it is brought what that user may read"
        raise UserError("a container with data needs a user", field="user", hint=hint)
    at = folders.run
    argv = [interpreter(order["user"]), "-I", str(at / run_dir.TRANSFER), str(at / run_dir.STAGING)]
    told = {name: value for name, value in order["env"].items() if name.startswith(TOLD)}
    own = {name: order["env"][name] for name in OWN if name in order["env"]}
    staging = {
        "argv": argv,
        "env": {**own, **told},
        "secrets": [name for name in order["secrets"] if name.startswith(TOLD)],
        "user": order["user"],
    }
    cwd = {"cwd": str(folders.code)} if paper.get("code") else {}
    return {**order, "tasks": [{**one, **cwd} for one in order["tasks"]], "staging": staging}


def interpreter(user: tuple[int, int] | None) -> str:
    """Our own where the job's user may run it, else the system's."""
    system = shutil.which("python3", path=os.defpath)
    able = [one for one in (sys.executable, system) if one and open_to_all(Path(one))]
    return able[0] if user is not None and able else sys.executable
