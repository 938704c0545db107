"""What a caller may ask for, and what one tenant may see of documents about the whole site."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from wattherd.errors import UserError
from wattherd.local.accounts import Accounts
from wattherd.local.secrets import check_secrets
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.documents.arrays import array_of
from wattherd.server.documents.documents import SiteView
from wattherd.server.journal.timeline import DecisionEntry
from wattherd.units import seconds
from wattherd.workload.job_array import tasks_called
from wattherd.workload.job_file import JobFile, Level, priority_of
from wattherd.workload.job_parts import AfterSpec

_JOB = re.compile(r"\bj-\d+\b")
OTHERS = "others"
"""Stands for all jobs that are none of the caller's business."""


def check_priority(caller: Caller, ceilings: Mapping[Role, Level], asked: Level) -> None:
    """Whether the caller may give a job that priority.

    Raises:
        UserError: it is above the ceiling of the caller's role.
    """
    ceiling = ceilings.get(caller.role)
    if ceiling is None or priority_of(asked) <= priority_of(ceiling):
        return
    raise UserError(
        f"{asked} is above {ceiling}, the highest that a {caller.role} may give",
        field="priority",
        hint=f"leave it out, or ask an operator (`priority_ceiling: {{{caller.role}: {asked}}}`)",
    )


def check_grace(most: str, job: JobFile) -> None:
    """Whether a job lets itself be stopped: nobody ends a run within its grace, operators neither.

    Raises:
        UserError: its grace is longer than the site's longest.
    """
    if seconds(job.checkpoint.grace) > seconds(most):
        raise UserError(
            f"{job.checkpoint.grace} is longer than {most}, the most time for a stop here",
            field="checkpoint.grace",
            hint=f"ask for {most} at most, or ask an operator (`most_grace`)",
        )


def with_dependencies(look: SiteView, caller: Caller, job: JobFile) -> JobFile:
    """The same job, the tasks that it waits for by the ids of their jobs; arrays stay whole.

    Raises:
        UserError: it would wait for a job that the caller cannot see.
    """
    after = job.after_spec()
    found = {
        end: list(dict.fromkeys(one for name in names for one in _parents(look, caller, name)))
        for end, names in (("ok", after.ok), ("any", after.any), ("notok", after.notok))
    }
    return job.model_copy(update={"after": AfterSpec(**found)})


def _parents(look: SiteView, caller: Caller, name: str) -> list[str]:
    """What a dependency names: a job, an array, or tasks of one."""
    called = tasks_called(name)
    array = None if called is None else array_of(look.history, called.array)
    past = look.history.get(name) if array is None else array.first
    if past is None or not caller.sees(past.spec):
        raise UserError(f"no job {name!r}", field="after", hint="`wattherd history` lists all")
    if array is None or called is None or called.chosen is None:
        return [name]
    return array.jobs(called.chosen)


def check_account(accounts: Accounts, caller: Caller, paper: Mapping[str, Any]) -> None:
    """Whether the job of a paper may run on this machine as it asks to.

    Raises:
        UserError: as somebody else, in a container, or with secrets that it may not.
    """
    accounts.account_of(caller.tenant, caller.user, paper["user"], of_site=caller.of_site)
    accounts.check(caller.tenant, paper)
    check_secrets(paper, accounts.secrets_for(caller.tenant))


class _All:
    """Holds everything."""

    def __contains__(self, job_id: object) -> bool:
        return True


def seen_by(look: SiteView, caller: Caller) -> Container[str]:
    """Ids of jobs in memory that the caller may see."""
    if caller.of_site:
        return _All()
    return {job_id for job_id in look.history if caller.sees(look.history[job_id].spec)}


def of_decisions(decisions: Iterable[DecisionEntry], seen: Container[str]) -> list[DecisionEntry]:
    """Decisions about the caller's jobs, with those of the orders that are about them, too."""

    def own(order: str) -> bool:
        return all(job_id in seen for job_id in _JOB.findall(order))

    return [
        replace(
            one,
            orders=tuple(filter(own, one.orders)),
            detail=tuple(part for part in one.detail if part.get("job_id", one.about) in seen),
        )
        for one in decisions
        if one.about in seen
    ]


def of_nodes(document: dict[str, Any], seen: Container[str]) -> dict[str, Any]:
    """Devices in use by others stay in use, without a name."""
    for node in document["nodes"]:
        for gpu in node["gpus"]:
            gpu["jobs"] = [job_id if job_id in seen else OTHERS for job_id in gpu["jobs"]]
    return document


def of_power(document: dict[str, Any], seen: Container[str]) -> dict[str, Any]:
    """The watts of others in one sum."""
    for sample in document["samples"]:
        sample["by_job"] = of_draw(sample["by_job"], seen)
    return document


def of_draw(by_job: dict[str, float], seen: Container[str]) -> dict[str, float]:
    """Watts by job, those of others added up."""
    known = {job_id: draw_w for job_id, draw_w in by_job.items() if job_id in seen}
    rest_w = sum(draw_w for job_id, draw_w in by_job.items() if job_id not in seen)
    return {**known, OTHERS: rest_w} if rest_w else known
