"""One contract for every database that may hold a store: SQLite and a real PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")
pytest.importorskip("psycopg", reason="needs the extra `postgres`")

import sqlalchemy as sa
from postgres_server import Postgres, Wire

from wattherd.errors import UserError
from wattherd.model.event import BudgetChanged, JobSubmitted
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.journal.job_history import PastJob, past_of, row_of
from wattherd.store.database import Database, in_folder
from wattherd.store.entry import JournalEntry, StoreDoubt, StoreFailure
from wattherd.store.journal import Journal
from wattherd.store.projection import ProjectionBatch
from wattherd.store.store import ClusterStore
from wattherd.store.tables import SCHEMA

pytestmark = pytest.mark.long


def entries(first: int, last: int) -> list[JournalEntry]:
    return [
        JournalEntry(seq=seq, event=BudgetChanged(at_s=float(seq), budget_w=100.0 * seq), by="änn")
        for seq in range(first, last + 1)
    ]


def test_what_is_appended_is_there_for_the_next_service(url: str) -> None:
    spec = JobSpec(id="j-1", submit_s=0.5, roles=(TaskRole(count=2, command=("sh", "-c", "é")),))
    paper = {"envs": {"A": "1"}, "secrets": {}, "nested": [1, {"b": None}]}
    kept = [
        JournalEntry(seq=1, event=JobSubmitted(at_s=0.5, job=spec), by="ann", paper=paper),
        *entries(2, 3),
    ]
    journal = Journal(url)
    journal.append(kept[:1])
    journal.append(kept[1:])
    journal.close()
    journal = Journal(url)
    assert list(journal.entries()) == kept
    assert list(journal.entries(after=2)) == kept[2:]
    assert (journal.last_seq, journal.last_s()) == (3, 3.0)
    journal.append(entries(4, 4))
    assert [entry.seq for entry in journal.entries()] == [1, 2, 3, 4]
    journal.close()


def test_all_of_a_turn_is_kept_or_none(url: str) -> None:
    journal = Journal(url)
    journal.append(entries(1, 2))
    with pytest.raises(StoreFailure):
        journal.append([*entries(3, 4), *entries(2, 2)])
    journal.append(entries(3, 3))
    assert [entry.seq for entry in journal.entries()] == [1, 2, 3]
    journal.close()


def test_a_fact_stays(url: str) -> None:
    journal = Journal(url)
    assert journal.fact("epoch", "1.5") == "1.5"
    assert journal.fact("epoch", "2.5") == "1.5"
    journal.set_fact("epoch", "3.5")
    assert journal.known_fact("epoch") == "3.5"
    assert journal.known_fact("nothing") is None
    journal.close()


def test_only_one_service_writes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattherd.store.lock.PATIENCE_S", 0.2)
    journal = Journal(url)
    with pytest.raises(UserError, match="in use") as refused:
        Journal(url)
    assert "other service" in refused.value.hint
    reader = Journal(Database(url, sole=False))
    journal.append(entries(1, 1))
    assert [entry.seq for entry in reader.entries()] == [1]
    reader.close()
    journal.close()
    Journal(url).close()


def test_a_killed_service_leaves_no_lock(url: str) -> None:
    code = (
        "import sys, time; from wattherd.store.journal import Journal\n"
        "journal = Journal(sys.argv[1]); print('open', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    Journal(url).close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("DELETE FROM entries WHERE seq = 2", "entry 2 is missing"),
        ("UPDATE entries SET by_whom = 'eve' WHERE seq = 2", "entry 2 is not as it was written"),
        ("UPDATE entries SET digest = 'x' WHERE seq = 3", "entry 3 is not as it was written"),
    ],
)
def test_a_changed_journal_is_not_believed(url: str, change: str, said: str) -> None:
    journal = Journal(url)
    journal.append(entries(1, 3))
    with journal.database.writing() as connection:
        connection.execute(sa.text(change))
    with pytest.raises(UserError, match=said):
        list(journal.entries())
    journal.close()


# --- versions --------------------------------------------------------------------------------


def as_version_1(url: str) -> list[JournalEntry]:
    """A store as the first version made it: three tables, and none that tells a version."""
    journal = Journal(url)
    journal.append(kept := entries(1, 3))
    with journal.database.writing() as connection:
        for table in ("alembic_version", "settings", "snapshots", "jobs", "samples", "audit"):
            connection.execute(sa.text(f"DROP TABLE {table}"))
    journal.close()
    return kept


def test_a_store_of_version_1_becomes_one_of_today(url: str) -> None:
    kept = as_version_1(url)
    journal = Journal(url)
    assert list(journal.entries()) == kept
    with journal.database.reading() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == SCHEMA
        assert connection.scalar(sa.text("SELECT count(*) FROM jobs")) == 0
    journal.append(entries(4, 4))
    journal.close()


@pytest.mark.parametrize(
    ("version", "fresh"), [("0002", ("total", "bill")), ("0003", ("bill",))], ids=["2", "3"]
)
def test_a_store_of_an_earlier_version_keeps_its_jobs(
    url: str, version: str, fresh: tuple[str, ...]
) -> None:
    store = ClusterStore.open(url)
    past = PastJob(
        spec=JobSpec(id="j-1", submit_s=0.0, roles=(TaskRole(count=1),)), paper={}, by=""
    )
    store.projection.write(ProjectionBatch(seq=1, jobs={past.spec.id: row_of(past)}))
    store.close()
    journal = Journal(url)
    with journal.database.writing() as connection:
        for name in fresh:
            connection.execute(sa.text(f"ALTER TABLE jobs DROP COLUMN {name}"))
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{version}'"))
    journal.close()
    store = ClusterStore.open(url)
    row = store.projection.job("j-1")
    assert row is not None
    assert past_of(row) == past
    store.close()


def test_migrations_make_the_tables_that_the_program_knows(url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from wattherd.store.tables import META

    as_version_1(url)
    journal = Journal(url)
    with journal.database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, META) == []
    journal.close()


def test_a_reader_does_not_migrate(url: str) -> None:
    with pytest.raises(UserError, match="no service has used it"):
        Database(url, sole=False)
    as_version_1(url)
    with pytest.raises(UserError, match="has no tables of schema"):
        Database(url, sole=False)


def test_a_store_of_a_later_version_is_left_alone(url: str) -> None:
    journal = Journal(url)
    with journal.database.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0099'"))
    journal.close()
    with pytest.raises(UserError, match=r"later version.*schema 0099") as refused:
        Journal(url)
    assert "export" in refused.value.hint


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://x/y", "is no place for a store"),
        ("nonsense", "is no database URL"),
        ("postgresql+psycopg://wattherd@127.0.0.1:1/none", "cannot be opened"),
        ("sqlite:////no/such/folder/store", "cannot be opened"),
    ],
)
def test_what_is_no_store_is_said(url: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        Journal(url)
    assert refused.value.hint


def test_a_password_is_not_shown() -> None:
    with pytest.raises(UserError) as refused:
        Journal("postgresql+psycopg://ann:hush@127.0.0.1:1/none")
    assert "hush" not in refused.value.line()


@pytest.mark.long
def test_a_database_that_was_killed_is_used_again(postgres: Postgres) -> None:
    journal = Journal(postgres.database())
    journal.append(entries(1, 2))
    postgres.kill()
    for _ in range(2):
        with pytest.raises(StoreFailure):
            journal.append(entries(3, 3))
    postgres.start()
    assert journal.settle() == []
    journal.append(entries(3, 3))
    assert [entry.seq for entry in journal.entries()] == [1, 2, 3]
    journal.close()


def test_a_commit_whose_answer_is_lost_is_found_at_once(postgres: Postgres) -> None:
    wire = Wire(postgres.port)
    name = postgres.database().rpartition("/")[2]
    journal = Journal(postgres.url(name, wire.port))
    journal.append(entries(1, 1))
    wire.lose_commit = True
    journal.append(entries(2, 3))  # the connection is lost, another one finds the entries
    assert not wire.lose_commit
    assert journal.settle() == []
    journal.append(entries(4, 4))
    assert [entry.seq for entry in journal.entries()] == [1, 2, 3, 4]
    journal.close()
    wire.close()


def test_a_commit_in_doubt_is_settled_when_the_database_is_back(postgres: Postgres) -> None:
    wire = Wire(postgres.port)
    name = postgres.database().rpartition("/")[2]
    journal = Journal(postgres.url(name, wire.port))
    journal.append(entries(1, 1))
    wire.lose_commit = True
    wire.cut = True  # no second connection either
    with pytest.raises(StoreDoubt):
        journal.append(entries(2, 3))
    with pytest.raises(StoreFailure):
        journal.settle()
    wire.cut = False
    assert journal.settle() == entries(2, 3)
    assert journal.settle() == []
    journal.append(entries(4, 4))
    assert [entry.seq for entry in journal.entries()] == [1, 2, 3, 4]
    journal.close()
    wire.close()


@pytest.mark.long
def test_who_lost_the_lock_with_its_session_does_not_write(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattherd.store.lock.PATIENCE_S", 0.2)
    url = postgres.database()
    first = Journal(url)
    first.append(entries(1, 1))
    postgres.kill()
    postgres.start()
    second = Journal(url)
    second.append(entries(2, 2))
    with pytest.raises(StoreFailure):
        first.append(entries(2, 2))
    second.close()
    first.close()


def test_a_file_locked_by_another_program_is_waited_for_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    monkeypatch.setattr("wattherd.store.database.LOCK_WAIT_S", 0.2)
    journal = Journal(in_folder(tmp_path))
    journal.append(entries(1, 1))
    other = sqlite3.connect(tmp_path / "journal.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFailure, match="locked"):
        journal.append(entries(2, 2))
    other.execute("ROLLBACK")
    other.close()
    assert journal.settle() == []
    journal.append(entries(2, 2))
    journal.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount a file system: needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    journal = Journal(in_folder(small_disk))
    journal.append(entries(1, 1))
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    seq = 2
    with contextlib.suppress(StoreFailure):
        while True:
            journal.append(entries(seq, seq + 9))
            seq += 10
    with pytest.raises(StoreFailure, match=r"full|I/O"):
        journal.append(entries(seq, seq + 9))
    kept = [entry.seq for entry in journal.entries()]
    assert kept == list(range(1, seq))
    filler.unlink()
    journal.append(entries(seq, seq))
    journal.close()
    again = Journal(in_folder(small_disk))
    assert [entry.seq for entry in again.entries()] == [*kept, seq]
    again.close()


def test_a_read_only_file_system_refuses_and_recovers(small_disk: Path) -> None:
    journal = Journal(in_folder(small_disk))
    journal.append(entries(1, 1))
    journal.close()
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    with pytest.raises(UserError, match=r"cannot be opened.*ead-only"):
        Journal(in_folder(small_disk))
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    journal = Journal(in_folder(small_disk))
    journal.append(entries(2, 2))
    journal.close()
