"""What the runs of a job print, followed until the job is over, and how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from wattherd.cli.job_names import FINAL
from wattherd.library.client import Client

POLL_S = 0.5


def outcome(job: Mapping[str, Any]) -> str:
    """How a job that is over has ended, and why."""
    why = (job["reason"] or {}).get("text", "")
    return ": ".join(part for part in (job["id"], job["state"], why) if part)


def print_runs(client: Client, job_id: str, seen: int = 0, **query: Any) -> Any:
    """Print what runs after number `seen` print, and those to come; the job once it is over."""
    while True:
        job = _when(client, job_id, after=seen)
        if job["attempts"] == seen:
            return job
        seen += 1
        print_chunks(client.stream(f"jobs/{job_id}/logs", attempt=seen, follow=True, **query))
        query.pop("lines", None)


def print_chunks(chunks: Iterable[bytes]) -> None:
    """Print what comes, as it comes."""
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.flush()


def _when(client: Client, job_id: str, *, after: int) -> Any:
    """The job once it has begun another run, or once it is over; why it waits is told."""
    told = ""
    while True:
        job = client.get(f"jobs/{job_id}")
        if job["attempts"] > after or job["state"] in FINAL:
            return job
        reason = (job["reason"] or {}).get("text", "")
        if reason and reason != told:
            click.echo(f"waits: {reason}", err=True)
            told = reason
        time.sleep(POLL_S)
