"""What is looked up without replay, in either kind of database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")
pytest.importorskip("psycopg", reason="needs the extra `postgres`")

import sqlalchemy as sa

from wattherd.model.command import FinishJob, StartJob
from wattherd.model.event import JobCancelled, JobExited, JobProgressed, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.hardware.draw import DrawBook, DrawSample, sample_of, sample_row
from wattherd.server.journal.job_history import JobHistory, PastJob, past_of, row_of
from wattherd.server.recovery.projector import Projector
from wattherd.store.entry import JournalEntry, StoreFailure
from wattherd.store.projection import JobFilter, ProjectionBatch
from wattherd.store.snapshots import StateSnapshot
from wattherd.store.store import ClusterStore


@pytest.fixture
def store(url: str) -> Iterator[ClusterStore]:
    store = ClusterStore.open(url)
    yield store
    store.close()


def submitted(number: int, **more: Any) -> JournalEntry:
    spec = JobSpec(
        id=f"j-{number}", submit_s=float(number), roles=(TaskRole(count=1),),
        user=f"u{number % 2}", queue="a" if number <= 3 else "b", **more,
    )  # fmt: skip
    event = JobSubmitted(at_s=float(number), job=spec)
    return JournalEntry(
        seq=number, event=event, by=f"u{number % 2}", paper={"name": f"train_{number}%"}
    )


def a_scribe(store: ClusterStore, history: JobHistory, book: DrawBook | None = None) -> Projector:
    return Projector(store.projection, history.forgettable, book or DrawBook())


def tell(scribe: Projector, history: JobHistory, entry: JournalEntry, *commands: Any) -> None:
    scribe.told([(entry, commands)], history.note(entry, commands))


def filled(store: ClusterStore) -> JobHistory:
    """Six jobs; j-2 is over."""
    history = JobHistory(archive=store.projection)
    scribe = a_scribe(store, history)
    for number in range(1, 7):
        tell(scribe, history, submitted(number))
    start = StartJob(job_id="j-2", attempt=1, allocations=(), cap_w=None)
    tell(scribe, history, event_entry(7, JobProgressed, progress=3.0, loss=0.25, total=4.0), start)
    over = FinishJob(job_id="j-2", state="Succeeded")
    tell(scribe, history, event_entry(8, JobExited, exit_code=0), over)
    assert scribe.write()
    return history


def event_entry(seq: int, kind: Any, **more: Any) -> JournalEntry:
    event = kind(at_s=float(seq), job_id="j-2", attempt=1, **more)
    return JournalEntry(seq=seq, event=event, by="system")


def asked(store: ClusterStore, **more: Any) -> list[str]:
    return [row["id"] for row in store.projection.jobs(JobFilter(**more))]


def test_jobs_are_found_by_what_is_asked(store: ClusterStore) -> None:
    filled(store)
    assert asked(store) == ["j-6", "j-5", "j-4", "j-3", "j-2", "j-1"]
    assert asked(store, limit=2) == ["j-6", "j-5"]
    assert asked(store, limit=2, before=5) == ["j-4", "j-3"]
    assert asked(store, owner="u1") == ["j-5", "j-3", "j-1"]
    assert asked(store, queue="a", owner="u0") == ["j-2"]
    assert asked(store, states=("Succeeded", "Failed")) == ["j-2"]
    assert asked(store, text="TRAIN_4") == ["j-4"]
    assert asked(store, text="n_5%") == ["j-5"]  # a wildcard is a character like any other
    assert asked(store, text="%x") == []
    assert asked(store, tenant="nobody") == []


def test_who_is_over_leaves_memory_and_is_found_in_the_archive(store: ClusterStore) -> None:
    history = filled(store)
    before = history["j-2"]
    tell(a_scribe(store, history), history, submitted(9))
    assert "j-2" not in history.jobs
    assert history["j-2"] == before
    assert (before.state, before.progress, before.total, before.loss, before.attempts) == (
        "Succeeded", 3.0, 4.0, 0.25, 1
    )  # fmt: skip
    assert (before.number, before.finish_s, before.exit_code) == (2, 8.0, 0)
    assert "j-2" in history
    assert "j-77" not in history
    row = store.projection.job("j-2")
    assert row is not None
    assert past_of(row) == before


def test_a_row_holds_all_of_a_job(store: ClusterStore) -> None:
    """Whatever is known of a job in memory is known of it in the archive."""
    spec = submitted(1).event.job
    past = PastJob(
        spec=spec, paper={"name": "a"}, by="u1", number=7, state="Failed", first_start_s=1.5,
        finish_s=2.5, attempts=3, progress=4.5, loss=5.5, total=6.5, exit_code=9, why="so",
        energy_j=7.5, bill='["EUR", 7.5, 1.0, 2.0, 0.0, 0.0]',
    )  # fmt: skip
    unset = {"paper": {}, "by": ""}
    for one in fields(PastJob):
        if one.name != "spec":
            assert getattr(past, one.name) != unset.get(one.name, one.default), one.name
    store.projection.write(ProjectionBatch(seq=1, jobs={past.spec.id: row_of(past)}))
    row = store.projection.job(spec.id)
    assert row is not None
    assert past_of(row) == past


def test_after_a_crash_only_what_is_new_is_written(store: ClusterStore) -> None:
    history = filled(store)
    assert store.projection.projected() == 8
    again = a_scribe(store, history)
    again.told([(submitted(3), ())], [])
    assert again.write()
    assert store.projection.projected() == 8
    tell(again, history, submitted(9))
    assert again.write()
    assert store.projection.projected() == 9


def test_the_audit_tells_who_did_what(store: ClusterStore) -> None:
    history = filled(store)
    scribe = a_scribe(store, history)
    cancelled = JobCancelled(at_s=9.0, job_id="j-5", cause="no use")
    tell(scribe, history, JournalEntry(seq=9, event=cancelled, by="ops"))
    assert scribe.write()
    rows = store.projection.audit(by="ops")
    assert [(row["what"], row["about"], row["at_s"]) for row in rows] == [
        ("JobCancelled", "j-5", 9.0)
    ]
    assert json.loads(rows[0]["detail"])["cause"] == "no use"
    assert [row["seq"] for row in store.projection.audit(about="j-5")] == [9, 5]
    assert [row["seq"] for row in store.projection.audit(limit=2)] == [9, 6]
    assert [row["seq"] for row in store.projection.audit(before=6, limit=2)] == [5, 4]


def test_what_cannot_be_written_now_is_written_later(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = JobHistory(archive=store.projection)
    scribe = a_scribe(store, history)
    tell(scribe, history, submitted(1))
    with monkeypatch.context() as broken:
        broken.setattr(store.projection, "write", _refuse)
        assert not scribe.write()
        assert "no space" in scribe.problem
        tell(scribe, history, submitted(2))
        assert not scribe.write()
    assert scribe.write()
    assert scribe.problem == ""
    assert asked(store) == ["j-2", "j-1"]
    assert store.projection.projected() == 2


def test_what_no_one_foresaw_loses_nothing_and_is_told(store: ClusterStore) -> None:
    """The thread that writes would end by it, and lists would stand still for good."""
    history = JobHistory(archive=store.projection)
    scribe = a_scribe(store, history)
    tell(scribe, history, submitted(1))
    real = store.projection.write

    def fail(batch: ProjectionBatch) -> None:
        raise RuntimeError("can't start new thread")

    store.projection.write = fail  # type: ignore[method-assign]
    assert not scribe.write()
    assert scribe.problem == "can't start new thread"
    store.projection.write = real  # type: ignore[method-assign]
    assert scribe.write()
    assert scribe.problem == ""
    assert asked(store) == ["j-1"]


def _refuse(batch: ProjectionBatch) -> None:
    raise StoreFailure("no space")


def sample(at_s: float, draw_w: float, **by_job: float) -> DrawSample:
    return DrawSample(at_s=at_s, draw_w=draw_w, budget_w=100.0, by_job=by_job, stated="model")


def test_joules_outlive_the_job_and_the_service(store: ClusterStore) -> None:
    book, history = DrawBook(), JobHistory(archive=store.projection)
    scribe = Projector(store.projection, history.forgettable, book)
    tell(scribe, history, submitted(1))
    for second in range(1, 12):
        one = sample(float(second), 150.0, **{"j-1": 50.0})
        scribe.sampled(one.at_s, sample_row(one, book.add(one)))
    assert scribe.write()
    assert store.projection.energy_j(live=True) == {"j-1": 500.0}
    over = FinishJob(job_id="j-1", state="Failed")
    exited = JobExited(at_s=12.0, job_id="j-1", attempt=1, exit_code=1)
    tell(scribe, history, JournalEntry(seq=2, event=exited, by="system"), over)
    assert scribe.write()
    assert store.projection.energy_j() == {"j-1": 500.0}
    assert store.projection.energy_j(live=True) == {}
    assert list(history.forgettable) == ["j-1"]
    assert json.loads(store.journal.known_fact("over") or "") == [book.over_s, book.over_j]
    assert book.over_j == 500.0
    assert [sample_of(row) for row in store.projection.samples(10.0)] == [
        sample(11.0, 150.0, **{"j-1": 50.0})
    ]


def test_old_samples_become_means_of_a_minute_and_then_nothing(store: ClusterStore) -> None:
    batch = ProjectionBatch()
    for second in range(600):
        job = {"j-1": 10.0} if second % 60 < 30 else {}
        batch.samples.append(sample_row(sample(float(second), 100.0 + second % 2, **job), 1.0))
    store.projection.write(batch)
    store.projection.thin(3600.0 + 300.0)
    rows = store.projection.samples(-1.0)
    assert len(rows) == 5 + 300
    assert [row["span_s"] for row in rows[:5]] == [60.0] * 5
    assert rows[0]["draw_w"] == pytest.approx(100.5)
    assert json.loads(rows[0]["by_job"]) == {"j-1": pytest.approx(5.0)}
    store.projection.thin(3600.0 + 300.0)
    assert store.projection.samples(-1.0) == rows
    store.projection.thin(86_400.0 * 40)
    assert store.projection.samples(-1.0) == []


def test_snapshots_come_back_as_they_were_and_changed_ones_show(store: ClusterStore) -> None:
    for seq in (5, 9, 7):
        store.snapshots.put(
            StateSnapshot(
                seq=seq, digest=f"d{seq}", version="v", setting="s", body=bytes([seq, 0, 255])
            )
        )
    found = store.snapshots.newest()
    assert [(one.seq, one.body, one.sound) for one in found] == [
        (9, b"\x09\x00\xff", True),
        (7, b"\x07\x00\xff", True),
    ]
    with store.database.writing() as connection:
        connection.execute(sa.text("UPDATE snapshots SET body = :new WHERE seq = 9"), {"new": b"x"})
    assert [one.sound for one in store.snapshots.newest()] == [False, True]


def test_settings_hold_from_an_entry_on(store: ClusterStore) -> None:
    store.snapshots.begin_with("x")
    store.snapshots.begin_with("a")
    store.snapshots.add_setting(9, "y")
    store.snapshots.add_setting(7, "b")
    store.snapshots.add_setting(7, "c")
    assert list(store.snapshots.settings()) == [(0, "a"), (7, "b"), (7, "c")]
