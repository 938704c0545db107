"""Who may open the pages that a job serves."""

from __future__ import annotations

from wattherd.server.auth.caller import Caller
from wattherd.server.journal.job_history import PastJob


def opens(caller: Caller, past: PastJob) -> bool:
    """Whether the caller may use a job's app: who runs code in a notebook acts as its owner.

    `share: tenant` lets all open it who see the job.
    """
    asked = past.paper.get("app") or {}
    shared = asked.get("share") == "tenant" and caller.sees(past.spec)
    return bool(asked) and (shared or caller.touches(past.spec))
