"""Limits that the kernel keeps for each process of a job (setrlimit(2)): files, locked memory.

By default no process leaves a core dump, and may have 65,536 files open where the service itself
may: loaders of data with many workers need more than the 1,024 that most systems begin with.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import Any

from wattherd.errors import UserError

OPEN_FILES = 65_536
UNLIMITED = resource.RLIM_INFINITY


def rlimits_of(paper: Mapping[str, Any]) -> dict[str, int]:
    """Limits by their name in `resource`; -1 is without limit.

    Raises:
        UserError: one is above what this service may give.
    """
    asked = {"core": 0, "nofile": _most_files(), **(paper.get("ulimits") or {})}
    for name, most in asked.items():
        _check(name, most)
    return {f"RLIMIT_{name.upper()}": most for name, most in asked.items()}


def docker_flags(rlimits: Mapping[str, int]) -> list[str]:
    """The same for a container's runner."""
    names = {name.removeprefix("RLIMIT_").lower(): most for name, most in rlimits.items()}
    return [part for name, most in names.items() for part in ("--ulimit", f"{name}={most}")]


def _most_files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return OPEN_FILES if hard == UNLIMITED else min(hard, OPEN_FILES)


def _check(name: str, most: int) -> None:
    """Root may raise limits, others only lower them."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    if os.geteuid() and hard != UNLIMITED and (most == UNLIMITED or most > hard):
        problem = f"is above the {hard:,} that this service may give"
        raise UserError(problem, field=f"ulimits.{name}", hint="raise it where the service starts")
