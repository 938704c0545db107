"""What a job gets of the shell that it is submitted from: `--export`, or `export:` of its file."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Mapping
from typing import Any

import click

from wattherd.cli import SHELL
from wattherd.errors import UserError
from wattherd.workload.job_environment import ALL, NONE, exported, this_machine, words_of

ELSEWHERE = (
    "the service is on another machine: nothing of this shell goes with the job (see --export)"
)


def with_environment(document: Mapping[str, Any], server: str) -> dict[str, Any]:
    """The job with the variables that `export` wants instead of that word.

    Without a word it is ALL for a service on this machine; one that only seems to be on it, by a
    tunnel, takes none, as the machine is named. In containers, whose paths are others, only names
    that are written down count.

    Raises:
        UserError: no such variable, or too much altogether.
    """
    job = dict(document)
    asked = job.pop("export", None)
    if job.get("environment"):
        if asked is not None:
            raise UserError("says the same as `export`", field="environment", hint="leave one out")
        return job
    words = words_of(asked if asked is not None else ALL if _is_here(server) else NONE)
    if job.get("container"):
        words = [one for one in words if one != ALL]
    variables = exported(words, SHELL)
    if not variables:
        return job
    machine = this_machine() if asked is None else ""
    return {**job, "environment": {"machine": machine, "variables": variables}}


def tell_what_was_left(job: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Say so where the service did not take what was sent: `job` is its answer."""
    sent = (document.get("environment") or {}).get("variables")
    if sent and not job["spec"].get("environment", sent):
        click.echo(ELSEWHERE, err=True)


def _is_here(server: str) -> bool:
    host = urllib.parse.urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
