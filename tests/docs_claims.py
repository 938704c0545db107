"""Whether what a page claims is so: `python tests/docs_claims.py SECONDS CLAIM`, in its folder.

A claim is an expression of Python with the words of `WORDS`. The service is that of
WATTHERD_SERVER; what the page's commands have printed so far is in the file DOCS_PRINTED.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.library.client import Client

POLL_S = 0.3


def job(name: str) -> Any:
    """The newest job of that name, or of that id."""
    client = Client()
    found = client.get("jobs", over=True)["jobs"]
    named = [one["id"] for one in found if name in (one["id"], one["name"])]
    if not named:
        raise LookupError(f"no job {name!r}")
    return client.get(f"jobs/{named[-1]}")


def state(name: str) -> str:
    """What a job is doing."""
    return str(job(name)["state"])


def reason(name: str) -> str:
    """Why a job waits, or ended as it did."""
    return str((job(name)["reason"] or {}).get("text", ""))


def gpus_of(queue: str, state: str = "Running") -> int:
    """Devices of all jobs of a queue in that state."""
    jobs = Client().get("jobs")["jobs"]
    return sum(one["gpus"] for one in jobs if (one["queue"], one["state"]) == (queue, state))


def jobs_of(queue: str, state: str) -> int:
    """How many jobs of a queue are in that state."""
    jobs = Client().get("jobs")["jobs"]
    return sum((one["queue"], one["state"]) == (queue, state) for one in jobs)


def queue(name: str) -> Any:
    """A queue as `wattherd queues` has it."""
    found = [one for one in Client().get("queues")["queues"] if one["name"] == name]
    return found[0] if found else None


def trials(group: str) -> list[str]:
    """What the trials of a search group are doing."""
    return [one["state"] for one in Client().get(f"groups/{group}")["trials"]]


def power() -> Any:
    """Budget and draw."""
    return Client().get("power")


def printed(text: str) -> bool:
    """Whether a command has printed that."""
    return text in Path(os.environ["DOCS_PRINTED"]).read_text(encoding="utf-8")


def written(name: str, text: str = "") -> bool:
    """Whether there is a file of that name, with that in it."""
    path = Path(name)
    return path.is_file() and text in path.read_text(encoding="utf-8")


WORDS = {
    one.__name__: one
    for one in (
        job, state, reason, gpus_of, jobs_of, queue, trials, power, printed, written,
    )
}  # fmt: skip


def holds(claim: str, most_s: float) -> str:
    """Empty once the claim holds; what it came to if it did not within `most_s`."""
    end_s = time.monotonic() + most_s
    while True:
        try:
            if eval(claim, {**WORDS}):  # our own documents
                return ""
            found = "it does not hold"
        except (UserError, LookupError) as error:
            found = str(error)
        if time.monotonic() >= end_s:
            return found
        time.sleep(POLL_S)


def main(most_s: str, claim: str) -> None:
    """Exit with a word unless it holds."""
    found = holds(claim, float(most_s))
    if found:
        sys.exit(f"CLAIM {claim}: {found}; the service has {_jobs()}")


def _jobs() -> str:
    try:
        jobs = Client().get("jobs", over=True)["jobs"]
    except UserError as error:
        return str(error)
    return "; ".join(
        f"{one['id']} {one['name']} {one['queue']} {one['state']}"
        f" {(one['reason'] or {}).get('text', '')}"
        for one in jobs
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
