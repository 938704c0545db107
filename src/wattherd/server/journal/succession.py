"""A core takes over from one with other devices, another policy or other queues.

Jobs keep their ids, their turn, what they have received and what they went through. None of them
holds anything at first: what ran is begun again from its last checkpoint, as another attempt.
"""

from __future__ import annotations

from typing import Any

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord, StoryLine
from wattherd.model.command import Command
from wattherd.model.event import (
    BudgetAnnounced,
    BudgetChanged,
    DeviceDrained,
    Event,
    JobHeld,
    JobSubmitted,
    NodeLost,
    QueuesChanged,
    QueueStopped,
    TenantLimited,
)
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState
from wattherd.server.journal.standing_orders import StandingOrders

TAKEN_OVER, BEGINS_ANEW = "taken over", "begins anew"
"""Lines of a job's story: another core has it now; and had to end its run for that."""


def succeed(old: FrozenState, core: Core, queues: Any = None) -> tuple[FrozenState, list[Command]]:
    """The state of `core`, new until now, with the jobs of `old`; and what it says to that.

    `queues` are those that were changed at work and are to stay, as plain data.
    """
    before = old.core
    core.finished.update(before.finished)
    core.waits.inherit(before.waits)
    core.speeds = before.speeds.of_jobs(core.jobs)
    said: list[Command] = []
    orders = StandingOrders()
    papers = old.standing.orders.papers
    # What the core asks for at the first of these, say to be woken for a plan, it asks for once.
    changed = [] if queues is None else [QueuesChanged(at_s=before.now_s, queues=queues)]
    for event in (*changed, *_facts(before, core)):
        paper = papers.get(event.job.id) if isinstance(event, JobSubmitted) else None
        commands = core.handle(event)
        orders.note(event, paper, commands)
        said.extend(commands)
    for record in before.jobs.values():
        if record.id in core.jobs:
            _hand_down(record, core.jobs[record.id], before.now_s)
    standing = ReplayState(
        seq=old.standing.seq,
        submitted=old.standing.submitted,
        orders=orders,
        requests=old.standing.requests,
    )
    return FrozenState(core, standing, old.live, old.submitted), said


def _facts(before: Core, core: Core) -> list[Event]:
    """What the new core has to hear, all of it at the time at which the old one stood."""
    now_s = before.now_s
    names = {node.name for node in core.config.cluster.nodes}
    lost = [before.config.cluster.nodes[number].name for number in sorted(before.lost)]
    facts: list[Event] = [NodeLost(at_s=now_s, node=name) for name in lost if name in names]
    facts += _drained(before, core)
    facts += [QueueStopped(at_s=now_s, queue=queue) for queue in sorted(before.stopped)]
    facts += [
        TenantLimited(at_s=now_s, tenant=tenant, most_gpus=most)
        for tenant, most in sorted(before.limits.items())
    ]
    facts += [
        BudgetChanged(at_s=now_s, budget_w=budget_w, source=source)
        for source, budget_w in sorted(before.budgets.by_source.get("", {}).items())
    ]
    facts += [
        BudgetAnnounced(
            at_s=now_s,
            begins_s=one.begins_s,
            budget_w=one.budget_w,
            domain=one.domain,
            source=one.source,
        )
        for one in before.budgets.announced
    ]
    records = sorted(before.jobs.values(), key=lambda record: record.number)
    facts += [JobSubmitted(at_s=now_s, job=record.spec) for record in records]
    held = [record.id for record in records if _is_held(record)]
    return facts + [JobHeld(at_s=now_s, job_id=job_id) for job_id in held]


def _drained(before: Core, core: Core) -> list[Event]:
    """Devices stay out of use where the new core has them, too."""
    counts = {node.name: node.gpu_count for node in core.config.cluster.nodes}
    nodes = before.config.cluster.nodes
    return [
        DeviceDrained(at_s=before.now_s, node=nodes[at].name, gpu=gpu, cause=why.cause)
        for (at, gpu), why in sorted(before.drained.out.items())
        if gpu < counts.get(nodes[at].name, 0)
    ]


def _is_held(record: JobRecord) -> bool:
    stays = record.state is State.STOPPING and record.after_stop == "hold"
    return stays or record.state is State.HELD


def _hand_down(old: JobRecord, new: JobRecord, now_s: float) -> None:
    """What a job has behind it; its next attempt has a number that none had before."""
    new.attempt, new.failures, new.preemptions = old.attempt, old.failures, old.preemptions
    new.attained_gpu_s, new.attained_s = old.service_gpu_s(now_s), old.service_s(now_s)
    new.first_start_s, new.progress = old.first_start_s, old.progress
    new.rate_per_s, new.loss, new.report = old.rate_per_s, old.loss, old.report
    _submitted, *since = new.story  # that was once, long ago
    told = StoryLine(now_s, BEGINS_ANEW if old.active else TAKEN_OVER)
    new.story.clear()
    new.story.extend([*old.story, told, *since])  # of a long one the oldest lines go
