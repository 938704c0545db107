"""From what the store knows to a core that stands where the last service stood."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wattherd.engine.core.core import Core
from wattherd.server.hardware.draw import DrawBook, sample_of
from wattherd.server.journal.job_history import JobHistory
from wattherd.server.journal.timeline import DECISIONS, SiteTimeline
from wattherd.server.recovery.projector import BILL, OVER, Projector
from wattherd.server.recovery.replay import JournalReplay, resumed, settings_of
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.energy_rates import bill_of, without_cost
from wattherd.store.event_log import command_of
from wattherd.store.projection import FINE_S
from wattherd.store.store import ClusterStore

SAME_MEMORY = 0.05
"""Part by which memory may differ: kernels and drivers keep more or less for themselves."""


@dataclass(frozen=True, slots=True)
class RecoveredCore:
    """What a service begins with; `entries` of its journal were lived through, after `notes`."""

    replay: JournalReplay
    book: DrawBook
    scribe: Projector
    chronicle: SiteTimeline
    entries: int
    notes: tuple[str, ...]


def recover(store: ClusterStore, wanted: Blueprint) -> RecoveredCore:
    """Live the journal through, from the last snapshot on, and take on what is wanted now.

    Raises:
        UserError: the store is damaged, or `wanted` is not possible.
        StoreFailure: the store cannot be read or written.
    """
    Core(wanted.core_config(wanted.scheduler()))  # what cannot work is not kept
    settings = settings_of(store.snapshots) if store.journal.last_seq else []
    if not settings:
        settings = [(0, wanted)]
        store.snapshots.begin_with(wanted.text())
    replay, notes = resumed(store.journal, store.snapshots, settings, store.projection)
    book = book_of(store)
    scribe = Projector(store.projection, replay.history.forgettable, book)
    chronicle = remembered(store, replay.state.standing.seq, [one.name for one in wanted.nodes])
    entries = 0
    for lived in replay.live(store.journal.entries(replay.state.standing.seq)):
        scribe.told([(lived.entry, lived.commands)], lived.touched)
        chronicle.note(lived.entry, lived.commands)
        entries += 1
    replay.arrive(store.journal.last_seq)
    book.energy_j.update(joules_of_ended(store, replay.history))
    take_bills(book, bills_of_ended(store, replay.history))
    wanted = _with_memory_of(replay.blueprint, wanted)
    notes += _about_queues(replay, wanted)
    if replay.blueprint.text() != wanted.text():
        before = replay.state.core
        scribe.corrected(replay.take_on(wanted))
        store.snapshots.add_setting(store.journal.last_seq, wanted.text())
        if replay.state.core is not before:
            notes.append("policy, queues or devices have changed: what ran begins again")
    return RecoveredCore(replay, book, scribe, chronicle, entries, tuple(notes))


def _about_queues(replay: JournalReplay, wanted: Blueprint) -> list[str]:
    """Queues that were changed at work, where the configuration says something else."""
    live = replay.state.core.queues
    if live is None or wanted.queues is None:
        return []
    if wanted.with_queues(live).text() == wanted.text():
        return []
    if wanted.queues == replay.blueprint.queues:
        kept = "queues: as they were changed at work; the configuration has not been edited since"
        return [f"{kept}, and says something else (`wattherd queues` shows what holds)"]
    return ["queues: the configuration was edited, and takes the place of changes made at work"]


def joules_of_ended(store: ClusterStore, history: JobHistory) -> dict[str, float]:
    """What jobs in memory that are over have drawn: it follows from no entry.

    Raises:
        StoreFailure: it cannot be read.
    """
    over = [job_id for job_id, past in history.jobs.items() if past.over]
    rows = ((job_id, store.projection.job(job_id)) for job_id in over)
    return {job_id: row["energy_j"] for job_id, row in rows if row is not None}


def bills_of_ended(store: ClusterStore, history: JobHistory) -> dict[str, str]:
    """The bills of jobs in memory that are over, as the store keeps them.

    Raises:
        StoreFailure: it cannot be read.
    """
    over = [job_id for job_id, past in history.jobs.items() if past.over]
    rows = ((job_id, store.projection.job(job_id)) for job_id in over)
    return {job_id: row["bill"] for job_id, row in rows if row is not None and row["bill"]}


def take_bills(book: DrawBook, kept: Mapping[str, str]) -> None:
    """Go on from bills that a store kept; the cost of one in another currency is not known."""
    for job_id, text in kept.items():
        told = bill_of(text)
        if told is not None:
            bill, currency = told
            same = currency == book.currency
            book.bills[job_id] = bill if same else without_cost(bill)


def remembered(store: ClusterStore, seq: int, nodes: Sequence[str]) -> SiteTimeline:
    """What was decided in the last entries up to number `seq`, of which the answers are kept.

    Raises:
        StoreFailure: the store cannot be read.
    """
    since = max(0, seq - DECISIONS, store.journal.base().seq - 1)
    answers = store.projection.answers(since, seq)
    chronicle = SiteTimeline(nodes={name: number for number, name in enumerate(nodes)})
    for entry in store.journal.entries(since):
        if entry.seq > seq:
            break
        told = [command_of(one, store.database.url) for one in answers.get(entry.seq, ())]
        chronicle.note(entry, told)
    return chronicle


def _with_memory_of(known: Blueprint, wanted: Blueprint) -> Blueprint:
    """What is wanted, with the memory that is known of a machine that is the same by its memory.

    Whatever else is wanted is then compared by itself: a new kernel that leaves some MiB less and a
    new version that comes with it must not have what runs begin anew.
    """
    was, now = _memories(known), _memories(wanted)
    if len(was) != len(now) or not all(map(_alike, was, now)):
        return wanted
    of_node, of_gpu, *of_parts = was
    return replace(
        wanted,
        node=replace(wanted.node, memory_mib=of_node),
        gpu=replace(wanted.gpu, memory_mib=of_gpu),
        parts=tuple(
            replace(one, memory_mib=memory_mib)
            for one, memory_mib in zip(wanted.parts, of_parts, strict=True)
        ),
    )


def _memories(blueprint: Blueprint) -> list[int]:
    parts = (one.memory_mib for one in blueprint.parts)
    return [blueprint.node.memory_mib, blueprint.gpu.memory_mib, *parts]


def _alike(was_mib: int, now_mib: int) -> bool:
    return abs(was_mib - now_mib) <= SAME_MEMORY * was_mib


def book_of(store: ClusterStore) -> DrawBook:
    """The last hour's samples, joules, and what was drawn above the budget."""
    last = store.projection.samples(0.0, limit=1, newest=True)
    since_s = last[0]["at_s"] - FINE_S if last else 0.0
    book = DrawBook(energy_j=store.projection.energy_j(live=True))
    told = bill_of(store.journal.known_fact(BILL))
    if told is not None:
        book.site_bill, book.currency = told
    take_bills(book, store.projection.bills(live=True))
    book.samples.extend(sample_of(row) for row in store.projection.samples(since_s))
    over = store.journal.known_fact(OVER)
    if over is not None:
        book.over_s, book.over_j = json.loads(over)
    return book
