"""What is looked up without replay: jobs, who did what, watts over time.

A projection is written behind the journal, in one transaction with the number of the last entry it
has seen (`projected`), so that after a crash it goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import sqlalchemy as sa

from wattherd.store import bulk
from wattherd.store.database import Database
from wattherd.store.journal import put_fact
from wattherd.store.tables import ANSWERS, AUDIT, FACTS, JOBS, SAMPLES

PROJECTED = "projected"
FINE_S, COARSE_S = 3600.0, 60.0
"""Samples are kept as they were taken for an hour, then as means of a minute."""
KEPT_S = 30 * 86_400.0
Row: TypeAlias = Mapping[str, Any]


@dataclass(slots=True)
class ProjectionBatch:
    """Rows to write at once, up to entry `seq`; those of a job replace what it had."""

    seq: int = 0
    answers: list[Row] = field(default_factory=list)
    jobs: dict[str, Row] = field(default_factory=dict)
    audit: list[Row] = field(default_factory=list)
    samples: list[Row] = field(default_factory=list)
    energy_j: dict[str, float] = field(default_factory=dict)
    bills: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)


ANY_GROUP = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs are asked for; the newest first, below number `before` if there is one.

    `text` is looked for in id and name, `name` in the name alone; a label without a value may have
    any; `numbers` are the first and the last in order of submission; `group` is a search group, or
    with ANY_GROUP whichever; with `since_s` those that were not over then (seconds since the
    journal began).
    """

    states: tuple[str, ...] = ()
    owner: str | None = None
    tenant: str | None = None
    queue: str | None = None
    text: str = ""
    name: str = ""
    labels: tuple[tuple[str, str | None], ...] = ()
    numbers: tuple[int, int] | None = None
    group: str | None = None
    since_s: float | None = None
    before: int | None = None
    limit: int = 100


class Projection:
    """The tables that follow the journal."""

    def __init__(self, database: Database) -> None:
        """Use the tables of a store that is open."""
        self._database = database

    # Writing ------------------------------------------------------------------------------------

    def projected(self) -> int:
        """The last entry that these tables know of.

        Raises:
            StoreFailure: it cannot be read.
        """
        query = sa.select(FACTS.c.value).where(FACTS.c.name == PROJECTED)
        with self._database.reading() as connection:
            return int(connection.scalar(query) or 0)

    def write(self, batch: ProjectionBatch) -> None:
        """Keep all of a batch or nothing; what is there already is replaced.

        A power cut may undo the last of them, all together: they are made of entries that it
        cannot undo.

        Raises:
            StoreFailure: nothing was kept.
        """
        with self._database.writing(durable=False) as connection:
            _replace(connection, ANSWERS.c.seq, batch.answers)
            _replace(connection, JOBS.c.id, list(batch.jobs.values()))
            _replace(connection, AUDIT.c.seq, batch.audit)
            _replace(connection, SAMPLES.c.at_s, batch.samples)
            bulk.raise_to(connection, JOBS.c.id, JOBS.c.energy_j, batch.energy_j)
            if batch.bills:
                rows = [{"job": job, "text": text} for job, text in batch.bills.items()]
                connection.execute(_BILL, rows)
            for name, value in batch.facts.items():
                put_fact(connection, name, value)
            if batch.seq:
                put_fact(connection, PROJECTED, str(batch.seq))

    def forget(self, after: int) -> None:
        """Drop what was made of entries with numbers above `after`, so that it can be made again.

        Raises:
            StoreFailure: nothing was dropped.
        """
        with self._database.writing() as connection:
            connection.execute(AUDIT.delete().where(AUDIT.c.seq > after))
            put_fact(connection, PROJECTED, str(after))

    def tidy(self) -> None:
        """Keep the database's log short.

        Raises:
            StoreFailure: it is as it was.
        """
        self._database.tidy()

    def thin(self, now_s: float) -> None:
        """Make means of a minute of old samples, and drop the oldest.

        Raises:
            StoreFailure: nothing was changed.
        """
        edge_s = (now_s - FINE_S) // COARSE_S * COARSE_S
        old = sa.and_(SAMPLES.c.at_s < edge_s, SAMPLES.c.span_s < COARSE_S / 2)
        with self._database.writing() as connection:
            fine = connection.execute(sa.select(SAMPLES).where(old).order_by(SAMPLES.c.at_s))
            means = _by_minute(cast("Sequence[Row]", fine.mappings().all()))
            connection.execute(SAMPLES.delete().where(old))
            _replace(connection, SAMPLES.c.at_s, means)
            connection.execute(SAMPLES.delete().where(SAMPLES.c.at_s < now_s - KEPT_S))

    # Reading ------------------------------------------------------------------------------------

    def answers(self, after: int, until: int) -> dict[int, list[dict[str, Any]]]:
        """The core's words to entries above `after` up to `until`, by number, as documents.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = sa.select(ANSWERS).where(ANSWERS.c.seq > after, ANSWERS.c.seq <= until)
        return {row["seq"]: json.loads(row["commands"]) for row in self._rows(query)}

    def job(self, job_id: str) -> Row | None:
        """One job.

        Raises:
            StoreFailure: it cannot be read.
        """
        query = sa.select(JOBS).where(JOBS.c.id == job_id)
        found = self._rows(query)
        return found[0] if found else None

    def jobs(self, asked: JobFilter) -> Sequence[Row]:
        """Jobs that pass a filter.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = _filtered(sa.select(JOBS), asked)
        if asked.before is not None:
            query = query.where(JOBS.c.number < asked.before)
        return self._rows(query.order_by(JOBS.c.number.desc()).limit(asked.limit))

    def count(self, asked: JobFilter) -> int:
        """How many jobs pass a filter, whatever its `before` and `limit`.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = _filtered(sa.select(sa.func.count()).select_from(JOBS), asked)
        with self._database.reading() as connection:
            return int(connection.scalar(query) or 0)

    def audit(
        self, *, by: str | None = None, about: str | None = None, before: int | None = None,
        what: str | None = None, since_s: float | None = None, limit: int = 100,
    ) -> Sequence[Row]:  # fmt: skip
        """Who did what, the latest first; `since_s` counts from the journal's beginning.

        Raises:
            StoreFailure: it cannot be read.
        """
        query = sa.select(AUDIT).order_by(AUDIT.c.seq.desc()).limit(limit)
        if by is not None:
            query = query.where(AUDIT.c.by_whom == by)
        if about is not None:
            query = query.where(AUDIT.c.about == about)
        if what is not None:
            query = query.where(AUDIT.c.what == what)
        if since_s is not None:
            query = query.where(AUDIT.c.at_s >= since_s)
        if before is not None:
            query = query.where(AUDIT.c.seq < before)
        return self._rows(query)

    def samples(
        self, after_s: float, limit: int = 100_000, *, newest: bool = False
    ) -> Sequence[Row]:
        """Watts taken after `after_s`, oldest first, or `newest` first.

        Raises:
            StoreFailure: they cannot be read.
        """
        order = SAMPLES.c.at_s.desc() if newest else SAMPLES.c.at_s
        query = sa.select(SAMPLES).where(SAMPLES.c.at_s > after_s).order_by(order)
        return self._rows(query.limit(limit))

    def energy_j(self, *, live: bool = False) -> dict[str, float]:
        """Joules of every job, or of those that are not over.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = sa.select(JOBS.c.id, JOBS.c.energy_j).where(JOBS.c.energy_j > 0)
        rows = self._rows(query.where(JOBS.c.finish_s.is_(None)) if live else query)
        return {row["id"]: row["energy_j"] for row in rows}

    def bills(self, *, live: bool = False) -> dict[str, str]:
        """The bill of every job that has one, or of those that are not over.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = sa.select(JOBS.c.id, JOBS.c.bill).where(JOBS.c.bill.is_not(None))
        rows = self._rows(query.where(JOBS.c.finish_s.is_(None)) if live else query)
        return {row["id"]: row["bill"] for row in rows}

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state, as written down; live ones count as they came.

        Raises:
            StoreFailure: they cannot be read.
        """
        query = sa.select(JOBS.c.state, sa.func.count()).group_by(JOBS.c.state)
        with self._database.reading() as connection:
            found = connection.execute(query.order_by(JOBS.c.state)).all()
        return {str(state): int(count) for state, count in found}

    def _rows(self, query: sa.Select[Any]) -> Sequence[Row]:
        with self._database.reading() as connection:
            return cast("Sequence[Row]", connection.execute(query).mappings().all())


_BILL = JOBS.update().where(JOBS.c.id == sa.bindparam("job")).values(bill=sa.bindparam("text"))
_TEXTS = (JOBS.c.id, JOBS.c.name)


def _replace(connection: sa.Connection, key: sa.Column[Any], rows: Sequence[Row]) -> None:
    if not rows:
        return
    bulk.delete(connection, key, [row[key.name] for row in rows])
    bulk.insert(connection, key.table, rows)


def _by_minute(samples: Sequence[Row]) -> list[Row]:
    minutes: dict[float, list[Row]] = {}
    for sample in samples:
        minutes.setdefault(sample["at_s"] // COARSE_S, []).append(sample)
    return [_mean(group) for group in minutes.values()]


def _mean(group: Sequence[Row]) -> Row:
    """The samples of a minute as one, each weighted by the time it stands for."""
    span_s = sum(one["span_s"] for one in group) or 1.0
    by_job: dict[str, float] = {}
    for one in group:
        for job, watts in json.loads(one["by_job"]).items():
            by_job[job] = by_job.get(job, 0.0) + watts * one["span_s"] / span_s
    return {
        **group[-1],
        "span_s": max(span_s, COARSE_S / 2),
        "draw_w": sum(one["draw_w"] * one["span_s"] for one in group) / span_s,
        "by_job": json.dumps(by_job),
    }


def _written(key: str, value: str | None) -> str:
    """A label as specifications have it; its beginning, where any value will do.

    Nothing else in them is a pair of texts but a command of two words, in brackets of its own.
    """
    pair = json.dumps([key, value or ""], separators=(",", ":"), ensure_ascii=False)
    return pair if value is not None else pair.removesuffix('"]')


def _in_group(name: str) -> str:
    """A search group as specifications have it; texts have no quotes of their own."""
    return f'"group":{json.dumps(name, ensure_ascii=False)}'


def _filtered(query: sa.Select[Any], asked: JobFilter) -> sa.Select[Any]:
    """Only jobs that pass, on whatever page."""
    if asked.states:
        query = query.where(JOBS.c.state.in_(asked.states))
    for column, value in (
        (JOBS.c.owner, asked.owner),
        (JOBS.c.tenant, asked.tenant),
        (JOBS.c.queue, asked.queue),
    ):
        if value is not None:
            query = query.where(column == value)
    if asked.text:
        contains = (column.icontains(asked.text, autoescape=True) for column in _TEXTS)
        query = query.where(sa.or_(*contains))
    if asked.name:
        query = query.where(JOBS.c.name.icontains(asked.name, autoescape=True))
    for pair in asked.labels:
        without = sa.func.replace(JOBS.c.spec, _written(*pair), "")
        query = query.where(without != JOBS.c.spec)  # SQLite's LIKE takes an `a` for an `A`
    if asked.numbers is not None:
        query = query.where(JOBS.c.number.between(*asked.numbers))
    if asked.group == ANY_GROUP:
        without = sa.func.replace(JOBS.c.spec, _in_group(""), "")
        query = query.where(without == JOBS.c.spec)
    elif asked.group is not None:
        without = sa.func.replace(JOBS.c.spec, _in_group(asked.group), "")
        query = query.where(without != JOBS.c.spec)
    if asked.since_s is not None:
        still = JOBS.c.finish_s.is_(None), JOBS.c.finish_s >= asked.since_s
        query = query.where(sa.or_(*still))
    return query
