"""Backup, restore, check and compaction, on either kind of database, by the command line."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")
pytest.importorskip("psycopg", reason="needs the extra `postgres`")

import sqlalchemy as sa

from wattherd.cli.store import store as command
from wattherd.errors import UserError
from wattherd.local.devices import slots
from wattherd.model.event import BudgetChanged, JobProgressed
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.recovery.recovery import recover
from wattherd.server.recovery.snapshot_process import make_snapshot
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.store.database import in_folder
from wattherd.store.store import ClusterStore
from wattherd.testing.live import PaperExecutor, SetClock


class Life:
    """A service without processes, on a real store."""

    def __init__(self, url: str, hands: PaperExecutor | None = None, policy: str = "drf") -> None:
        self.store = ClusterStore.open(url)
        plan = Blueprint.of(ServeConfig(policy=policy), slots("here", 4))
        self.recovered = recover(self.store, plan)
        replay, scribe = self.recovered.replay, self.recovered.scribe

        def on_turn(told: Any) -> None:
            scribe.told(told, [past for turn in told for past in replay.history.note(*turn)])

        self.clock = SetClock(self.store.journal.last_s())
        self.hands = hands or PaperExecutor()
        self.keeper = CoreLoop(
            replay.state.core,
            self.store.journal,
            self.clock,
            on_turn=on_turn,
            standing=replay.state.standing,
        )
        self.keeper.recover(self.hands)

    def turns(self) -> None:
        for _ in range(4):
            self.keeper.turn()

    def submit(self, count: int) -> None:
        for number in range(count):
            spec = JobSpec(id="new", submit_s=0.0, roles=(TaskRole(count=1 + number % 2),))
            self.keeper.submit(spec, {"name": f"job-{number}"}, by="ann")
            self.clock.at_s += 60.0
            self.turns()

    def work(self, rounds: int) -> None:
        for number in range(rounds):
            self.clock.at_s += 1.0
            for key in sorted(self.hands.runs):
                self.keeper.tell(self.hands.started(key))
                self.keeper.tell(
                    JobProgressed(
                        at_s=0.0, job_id=key[0], attempt=key[1], progress=float(number), loss=0.1
                    )
                )
                if number % 3 == 2:
                    self.keeper.tell(self.hands.exited(key))
            budget_w = 40.0 + number
            self.keeper.post(BudgetChanged(at_s=0.0, budget_w=budget_w), by="ops")
            self.turns()

    def end(self) -> PaperExecutor:
        assert self.recovered.scribe.write()
        self.store.close()
        return self.hands


def lived(url: str) -> PaperExecutor:
    life = Life(url)
    life.submit(8)
    life.work(5)
    return life.end()


def call(url: str, *arguments: str, code: int = 0) -> Result:
    name, *rest = arguments
    done = CliRunner().invoke(command, [name, "--store", url, *rest], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def verdict(url: str, *options: str, code: int = 0) -> Any:
    return json.loads(call(url, "verify", "-o", "json", *options, code=code).stdout)


def an_other(folder: Path) -> str:
    """Another, empty store."""
    (folder / "other").mkdir()
    return in_folder(folder / "other")


def change(url: str, statement: str, **values: Any) -> None:
    store = ClusterStore.open(url)
    with store.database.writing() as connection:
        connection.execute(sa.text(statement), values)
    store.close()


def rows(url: str, table: str) -> list[Any]:
    store = ClusterStore.open(url, sole=False)
    with store.database.reading() as connection:
        found = connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1")).all()
    store.close()
    return [tuple(row) for row in found]


def test_a_sound_store_is_found_sound(url: str) -> None:
    lived(url)
    found = verdict(url)
    assert found["problems"] == []
    assert found["entries"] > 40
    assert found["answers"] > 20
    text = call(url, "verify").stdout
    assert text.endswith("sound\n")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM entries WHERE seq = 7", "entry 7 is missing"),
        ("UPDATE entries SET by_whom = 'eve' WHERE seq = 7", "entry 7 is not as it was written"),
        ("UPDATE answers SET commands = '[]' WHERE seq = 2", "entry 2 is answered differently"),
        ("DELETE FROM answers WHERE seq = 2", "entry 2 is answered differently"),
        ("UPDATE snapshots SET body = :new", "cannot be read"),
        ("DELETE FROM entries WHERE seq > 9", "what came after it is missing"),
        ("DELETE FROM entries", "the journal is empty"),
    ],
)
def test_what_is_wrong_is_named(url: str, statement: str, said: str) -> None:
    lived(url)
    store = ClusterStore.open(url)
    make_snapshot(store.database)
    store.close()
    assert verdict(url)["snapshots"] == 1
    change(url, statement, **({"new": b"nonsense"} if ":new" in statement else {}))
    (problem, *_) = verdict(url, code=1)["problems"]
    assert said in problem


@pytest.mark.long
def test_an_export_is_the_same_twice_and_fills_an_empty_store(url: str, tmp_path: Path) -> None:
    lived(url)
    first, second, third = (tmp_path / f"{n}.gz" for n in range(3))
    told = call(url, "export", str(first)).stdout
    time.sleep(1.1)  # a time stamp would show
    call(url, "export", str(second))
    assert first.read_bytes() == second.read_bytes()
    other = an_other(tmp_path)
    assert call(other, "import", str(first)).stdout in told
    call(other, "export", str(third))
    assert third.read_bytes() == first.read_bytes()
    assert verdict(other)["problems"] == []
    with pytest.raises(UserError, match="is not empty"):
        call(other, "import", str(first))
    with pytest.raises(UserError, match="exists"):
        call(url, "export", str(first))


def test_what_cannot_be_imported_leaves_the_store_empty(url: str, tmp_path: Path) -> None:
    lived(url)
    good = tmp_path / "good.gz"
    call(url, "export", str(good))
    lines = gzip.decompress(good.read_bytes()).splitlines()
    other = an_other(tmp_path)
    changed = [line.replace(b'"by_whom":"ann"', b'"by_whom":"eve"') for line in lines]
    bad = {
        "cut off": gzip.compress(b"\n".join(lines[:-3])),
        "does not follow": gzip.compress(b"\n".join(changed)),
        "cannot be read": good.read_bytes()[:-100],
        "is no wattherd.store/1 file": gzip.compress(b"{}\n"),
        "is no row": gzip.compress(b"\n".join([*lines, b'["users", {}]'])),
    }
    for said, content in bad.items():
        file = tmp_path / "bad.gz"
        file.write_bytes(content)
        with pytest.raises(UserError, match=said):
            call(other, "import", str(file))
        assert rows(other, "entries") == []
    with pytest.raises(UserError, match="No such file"):
        call(other, "import", str(tmp_path / "none.gz"))
    call(other, "import", str(good))
    assert verdict(other)["problems"] == []


@pytest.mark.long
def test_what_is_projected_can_be_made_anew(url: str) -> None:
    lived(url)
    change(url, "UPDATE jobs SET energy_j = 5.0")
    jobs, audit = rows(url, "jobs"), rows(url, "audit")
    assert len(jobs) == 8
    change(url, "UPDATE jobs SET state = 'Nonsense', name = '', finish_s = 1")
    change(url, "DELETE FROM audit")
    assert verdict(url, "--rebuild")["rebuilt"] is True
    assert [rows(url, table) for table in ("jobs", "audit")] == [jobs, audit]
    change(url, "DELETE FROM answers WHERE seq = 2")
    assert verdict(url, "--rebuild", code=1)["rebuilt"] is False


@pytest.mark.long
def test_a_compacted_store_goes_on_and_is_whole_again_with_its_archive(
    url: str, tmp_path: Path
) -> None:
    hands = lived(url)
    before = json.loads(call(url, "info", "-o", "json").stdout)
    archive = tmp_path / "archive.gz"
    idle = call(url, "compact", "--archive", str(archive), "--keep", "1d").stdout
    assert "no entry is older than 1d" in idle
    assert not archive.exists()
    told = call(url, "compact", "--archive", str(archive), "--keep", "3s").stdout
    after = json.loads(call(url, "info", "-o", "json").stdout)
    assert told.startswith(f"{after['first_entry'] - 1} entries are in {archive} only")
    assert 1 < after["first_entry"] < after["last_entry"] == before["last_entry"]
    assert after["digest"] == before["digest"]
    assert verdict(url)["problems"] == []
    assert len(rows(url, "jobs")) == 8

    life = Life(url, hands)  # a service goes on from the snapshot
    life.work(4)
    life.submit(1)
    live = dict(life.keeper.core.jobs)
    life.end()
    assert "j-9" in live
    assert verdict(url, "--rebuild")["problems"] == []

    backup, other = tmp_path / "backup.gz", an_other(tmp_path)
    call(url, "export", str(backup))
    with pytest.raises(UserError, match="does not follow"):
        call(other, "import", str(backup), str(archive))
    call(other, "import", str(archive), str(backup))
    whole = verdict(other)
    assert whole["problems"] == []
    info = json.loads(call(other, "info", "-o", "json").stdout)
    assert (info["first_entry"], info["digest"]) == (
        1, json.loads(call(url, "info", "-o", "json").stdout)["digest"]
    )  # fmt: skip
    again = Life(other, hands)
    assert set(again.keeper.core.jobs) == set(live)
    again.end()


def test_an_unusable_snapshot_is_noted_and_lived_around(url: str) -> None:
    hands = lived(url)
    store = ClusterStore.open(url)
    make_snapshot(store.database)
    store.close()
    life = Life(url, hands)
    assert life.recovered.entries == 0
    jobs = {job.id: job.state for job in life.keeper.core.jobs.values()}
    life.end()
    for statement, said in (
        ("UPDATE snapshots SET version = '0.0.1'", "made by version 0.0.1"),
        ("UPDATE snapshots SET digest = 'x', version = :now", "has another entry"),
    ):
        from wattherd import __version__

        change(url, statement, **({"now": __version__} if ":now" in statement else {}))
        life = Life(url, hands)
        (note,) = life.recovered.notes
        assert said in note
        assert life.recovered.entries > 40
        assert {job.id: job.state for job in life.keeper.core.jobs.values()} == jobs
        life.end()


def test_another_policy_is_in_the_journal(url: str) -> None:
    hands = lived(url)
    life = Life(url, hands, policy="fifo")
    assert "have changed" in life.recovered.notes[0]
    life.submit(2)
    life.work(3)
    life.end()
    assert len(rows(url, "settings")) == 2
    assert verdict(url)["problems"] == []


@pytest.mark.long
@pytest.mark.parametrize("policies", [["fifo"], ["fifo", "sjf"], ["fifo", "drf", "fifo"]])
def test_a_store_compacted_at_its_last_entry_may_be_configured_anew(
    url: str, tmp_path: Path, policies: list[str]
) -> None:
    hands = lived(url)
    for number, policy in enumerate(policies):
        call(url, "compact", "--archive", str(tmp_path / f"{number}.gz"), "--keep", "0s")
        info = json.loads(call(url, "info", "-o", "json").stdout)
        assert info["first_entry"] == info["last_entry"]
        for _ in range(2):  # with news, and without
            life = Life(url, hands, policy=policy)
            assert life.recovered.replay.blueprint.policy == policy
            assert len(life.keeper.core.jobs) > 0
            life.store.close()  # before anything happened
        assert verdict(url)["problems"] == []
    life = Life(url, hands, policy=policies[-1])
    life.submit(2)
    life.work(3)
    states = {job.id: (job.state, job.attempt) for job in life.keeper.core.jobs.values()}
    life.end()
    assert verdict(url)["problems"] == []
    life = Life(url, hands, policy=policies[-1])
    assert {one.id: (one.state, one.attempt) for one in life.keeper.core.jobs.values()} == states
    life.end()


@pytest.mark.long
def test_a_snapshot_by_a_setting_that_follows_its_entry_is_found_sound(url: str) -> None:
    hands = lived(url)
    Life(url, hands, policy="fifo").store.close()
    store = ClusterStore.open(url)
    make_snapshot(store.database)
    store.close()
    assert verdict(url) | {"problems": [], "snapshots": 1} == verdict(url)
    life = Life(url, hands, policy="drf")
    assert "have changed" in life.recovered.notes[0]
    assert life.recovered.entries == 0
    life.store.close()
    assert verdict(url)["problems"] == []


def test_a_folder_without_a_store_is_said(tmp_path: Path) -> None:
    for name in ("info", "verify"):
        with pytest.raises(UserError, match="there is no store"):
            CliRunner().invoke(command, [name, "--state", str(tmp_path)], catch_exceptions=False)
