"""Jobs in words: `resnet at 0 on 4 for 3600`, a line each."""

from __future__ import annotations

import re
from pathlib import Path

from wattherd.errors import UserError
from wattherd.model.job import JobSpec, TaskRole

_LINE = re.compile(r"(\S+) at (\d+) on (\d+) for (\d+)")


def read(path: Path) -> list[JobSpec]:
    """The jobs of a file."""
    jobs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        found = _LINE.fullmatch(line.strip())
        if found is None:
            hint = "NAME at SECONDS on GPUS for SECONDS"
            raise UserError("is no job in words", where=f"{path}:{number}", hint=hint)
        name, at, gpus, lasts = found.groups()
        roles = (TaskRole(count=int(gpus)),)
        jobs.append(JobSpec(id=name, submit_s=float(at), duration_s=float(lasts), roles=roles))
    return jobs
