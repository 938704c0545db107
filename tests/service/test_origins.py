"""Run folders of another store or of another history never count for a job of this store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from local_site import until
from serving import WATTHERD, Serving

from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.orphans import end_stray
from wattherd.model.event import JobHeld, JobReleased
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.settings.config import ServeConfig
from wattherd.server.site.site import LiveSite, open_site

pytestmark = pytest.mark.long

OLD = Path(__file__).parent / "old_states" / "schema-0003.tar.gz"
MOST_S = 30.0


class Service:
    """One life after the other on one state folder."""

    def __init__(self, state: Path, **config: Any) -> None:
        self.state = state
        self.config = {"slots": 2, **config}

    @contextlib.contextmanager
    def life(self, *, accept: bool = False) -> Iterator[LiveSite]:
        config = ServeConfig.model_validate({"state": self.state, **self.config})
        site = open_site(config, accept_store=accept)
        try:
            yield site
        finally:
            site.close()

    def refused(self) -> UserError:
        with pytest.raises(UserError) as found, self.life():
            pass
        return found.value

    @property
    def journal(self) -> Path:
        return self.state / "journal.sqlite"

    def log(self, job: str, run: int = 1) -> str:
        path = self.state / "jobs" / job / f"run-{run}" / "logs" / "0.log"
        return path.read_text() if path.exists() else ""

    def aside(self) -> list[str]:
        root = self.state / "set-aside"
        return sorted(
            str(one.relative_to(root)).partition("/")[2] for one in root.glob("*/*/run-*")
        )


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "state")
    yield service
    for folder in tmp_path.glob("**/jobs/*/run-*"):
        end_stray(folder)


def submit(site: LiveSite, run: str, *, held: bool = False) -> str:
    role = TaskRole(count=1, command=("/bin/sh", "-c", run))
    spec = JobSpec(id="new", submit_s=0.0, roles=(role,))
    if held:  # both slots are taken, so that it does not begin before it is held
        blockers = [submit(site, "sleep 60"), submit(site, "sleep 60")]
    job = site.keeper.submit(spec, {}, by="ann").result(MOST_S)
    if held:
        site.keeper.post(JobHeld(at_s=0.0, job_id=job), by="ann").result(MOST_S)
        for one in blockers:
            cancel(site, one)
        for one in blockers:  # their supervisors write in their folders until they have ended
            wait(site, one, "Cancelled")
    return job


def cancel(site: LiveSite, job: str) -> None:
    from wattherd.model.event import JobCancelled

    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    wait(site, job, "Cancelled")


def state_of(site: LiveSite, job: str) -> str:
    site.catch_up()
    live = site.look(lambda look: look.core.jobs.get(job))
    past = site.look(lambda look: look.history.get(job))
    return str(live.state if live is not None else past.state if past is not None else "")


def wait(site: LiveSite, job: str, state: str) -> None:
    until(lambda: state_of(site, job) == state)


def copied(service: Service, backup: Path) -> None:
    """A backup as operators make it, of a service at work."""
    source, target = sqlite3.connect(service.journal), sqlite3.connect(backup)
    with contextlib.closing(source), contextlib.closing(target):
        source.backup(target)


def put_back(service: Service, backup: Path) -> None:
    for path in service.state.glob("journal.sqlite*"):
        if not path.name.endswith(".lock"):
            path.unlink()
    shutil.copy(backup, service.journal)


def lost_journal(service: Service, how: str) -> None:
    if how == "deleted":
        service.journal.unlink()
    elif how == "empty":
        os.truncate(service.journal, 0)
    else:
        service.journal.write_bytes(bytes(service.journal.stat().st_size))


@pytest.mark.parametrize("how", ["deleted", "empty", "zeroed"])
def test_a_lost_journal_beside_runs_is_no_empty_service(service: Service, how: str) -> None:
    with service.life() as site:
        wait(site, submit(site, "echo of the first life"), "Succeeded")
    lost_journal(service, how)
    error = service.refused()
    assert "--accept-store" in error.hint
    assert "1 runs of jobs" in error.problem
    assert how == "deleted" or not any(service.journal.read_bytes())
    if how == "zeroed":
        service.journal.unlink()
    with service.life(accept=True) as site:
        assert any("set aside" in note and "j-1 (run 1)" in note for note in site.notes)
        job = submit(site, "echo of the second life; exit 3")
        assert job == "j-1"
        wait(site, job, "Failed")
    assert service.log(job) == "of the second life\n"
    assert service.aside() == ["j-1/run-1"]
    with service.life() as site:
        assert state_of(site, job) == "Failed"
    assert service.aside() == ["j-1/run-1"]


def test_a_lost_journal_with_jobs_that_only_waited_is_missed_too(service: Service) -> None:
    with service.life() as site:
        submit(site, "true", held=True)
    shutil.rmtree(service.state / "jobs")
    service.journal.unlink()
    assert "journal.head knows of entry" in service.refused().problem


def test_a_run_of_an_earlier_version_counts_although_the_list_of_jobs_is_behind(
    service: Service,
) -> None:
    """Killed before the list was written: the journal alone knows that the run was ordered."""
    with service.life() as site:
        wait(site, submit(site, "echo done"), "Succeeded")
    (service.state / "jobs" / "j-1" / "run-1" / run_dir.ORIGIN).unlink()
    with contextlib.closing(sqlite3.connect(service.journal)) as store, store:
        store.execute("DELETE FROM jobs")
        store.execute("UPDATE facts SET value = '0' WHERE name = 'projected'")
    with service.life() as site:
        assert service.aside() == []
        assert service.log("j-1") == "done\n"
        assert state_of(site, "j-1") == "Succeeded"


def test_nothing_is_missed_where_nothing_ever_happened(service: Service) -> None:
    with service.life():
        pass
    service.journal.unlink()
    with service.life() as site:
        wait(site, submit(site, "true"), "Succeeded")


def test_after_a_restored_backup_no_job_has_the_result_of_another(
    service: Service, tmp_path: Path
) -> None:
    with service.life() as site:
        wait(site, submit(site, "echo of both"), "Succeeded")
        copied(service, tmp_path / "backup")
        assert submit(site, "echo of the lost history") == "j-2"
        wait(site, "j-2", "Succeeded")
    put_back(service, tmp_path / "backup")
    assert "what came after it is missing" in service.refused().problem
    with service.life(accept=True) as site:
        assert any("j-2 (run 1)" in note for note in site.notes)
        assert state_of(site, "j-1") == "Succeeded"
        assert submit(site, "echo of the new history; exit 3") == "j-2"
        wait(site, "j-2", "Failed")
    assert service.log("j-1") == "of both\n"
    assert service.log("j-2") == "of the new history\n"
    with service.life() as site:
        assert not any("set aside" in note for note in site.notes)


def test_a_backup_that_went_on_elsewhere_does_not_take_the_first_ones_runs(
    service: Service, tmp_path: Path
) -> None:
    """Both histories have a j-2, and neither journal has lost its end."""
    with service.life() as site:
        wait(site, submit(site, "true"), "Succeeded")
        copied(service, tmp_path / "backup")
        wait(site, submit(site, "echo of the first history"), "Succeeded")
    other = Service(tmp_path / "other" / "state")
    other.state.mkdir(parents=True)
    shutil.copy(tmp_path / "backup", other.journal)
    with other.life() as site:
        for _ in range(3):
            wait(site, submit(site, "echo of the second history; exit 3"), "Failed")
    shutil.rmtree(other.state / "jobs" / "j-2")
    shutil.copytree(service.state / "jobs" / "j-2", other.state / "jobs" / "j-2")
    with other.life() as site:
        assert any("j-2 (run 1)" in note for note in site.notes)
        assert state_of(site, "j-2") == "Failed"
    assert other.aside() == ["j-2/run-1"]
    shutil.copy(other.state / "journal.head", service.state / "journal.head")
    assert "missing" in service.refused().problem


def test_a_job_keeps_its_checkpoint_where_only_its_run_is_of_a_lost_history(
    service: Service, tmp_path: Path
) -> None:
    with service.life() as site:
        job = submit(site, "echo x > $WATTHERD_CHECKPOINT_DIR/step; echo run", held=True)
        wait(site, job, "Held")
        copied(service, tmp_path / "backup")
        site.keeper.post(JobReleased(at_s=0.0, job_id=job), by="ann").result(MOST_S)
        wait(site, job, "Succeeded")
    put_back(service, tmp_path / "backup")
    with service.life(accept=True) as site:
        assert state_of(site, job) == "Held"
        assert f"{job}/run-1" in service.aside()
        assert (service.state / "jobs" / job / "checkpoint" / "step").exists()
        site.keeper.post(JobReleased(at_s=0.0, job_id=job), by="ann").result(MOST_S)
        wait(site, job, "Succeeded")
    assert service.log(job) == "run\n"


def test_runs_of_another_store_that_are_alive_keep_the_service_from_starting(
    service: Service, tmp_path: Path
) -> None:
    with service.life() as site:
        job = submit(site, "echo $$ > pid; exec sleep 300")
        wait(site, job, "Running")
    pid = int((service.state / "jobs" / job / "work" / "pid").read_text())
    other = Service(service.state, store=f"sqlite:///{tmp_path / 'new.sqlite'}")
    error = other.refused()
    assert "--accept-store" in error.hint
    os.kill(pid, 0)
    with service.life() as site:  # its own store takes it on
        assert state_of(site, job) == "Running"
    with other.life(accept=True) as site:
        assert any("ended runs" in note and f"{job} (run 1)" in note for note in site.notes)
        until(lambda: not Path(f"/proc/{pid}").exists())
        assert state_of(site, job) == ""
        wait(site, submit(site, "echo new; exit 3"), "Failed")
    assert service.log(job) == "new\n"


def test_two_stores_cannot_share_a_state_folder_at_the_same_time(
    service: Service, tmp_path: Path
) -> None:
    with service.life():
        other = Service(service.state, store=f"sqlite:///{tmp_path / 'new.sqlite'}")
        assert "in use by" in other.refused().problem


def test_an_export_that_was_imported_goes_on_as_the_same_store(
    service: Service, tmp_path: Path
) -> None:
    with service.life() as site:
        wait(site, submit(site, "echo one"), "Succeeded")
        identity = site.store.journal.identity()
    call = Serving(service.state).store
    assert call("export", str(tmp_path / "export")).returncode == 0
    put_back(service, tmp_path / "export")  # only to be rid of the journal
    service.journal.unlink()
    done = call("import", str(tmp_path / "export"))
    assert done.returncode == 0, done.stderr
    with service.life() as site:
        assert site.store.journal.identity() == identity
        assert not any("set aside" in note for note in site.notes)
        assert state_of(site, "j-1") == "Succeeded"
        wait(site, submit(site, "echo two"), "Succeeded")
    assert service.log("j-1") == "one\n"


def test_runs_are_known_again_after_a_compaction(service: Service, tmp_path: Path) -> None:
    with service.life() as site:
        wait(site, submit(site, "echo one"), "Succeeded")
        job = submit(site, "sleep 300")
        wait(site, job, "Running")
    done = Serving(service.state).store("compact", "--keep", "0s", "--archive", str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    with service.life() as site:
        assert state_of(site, job) == "Running"
        assert not any("set aside" in note for note in site.notes)


def test_a_state_of_an_earlier_version_gets_an_identity_and_keeps_its_runs(tmp_path: Path) -> None:
    service = Service(tmp_path / "state", policy="capacity", budget="9W", queues=QUEUES)
    service.state.mkdir()
    with tarfile.open(OLD) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.11.2
        packed.extractall(service.state)
    stranger = service.state / "jobs" / "j-9" / "run-1"
    shutil.copytree(service.state / "jobs" / "j-1" / "run-1", stranger)
    again = service.state / "jobs" / "j-1" / "run-2"
    shutil.copytree(service.state / "jobs" / "j-1" / "run-1", again)
    unread = Serving(service.state).store("verify")
    assert "start a service on it once" in unread.stderr, "tables are of an earlier schema"
    with service.life() as site:
        assert any("j-1 (run 2), j-9 (run 1)" in note for note in site.notes)
        assert [state_of(site, f"j-{n}") for n in (1, 2)] == ["Succeeded", "Failed"]
        assert site.store.journal.identity()
        assert (service.state / "jobs" / "j-3" / "checkpoint" / "step").read_text() == "7"
    origin = json.loads((service.state / "jobs" / "j-1" / "run-1" / "origin.json").read_text())
    assert origin["store"] == json.loads(info(service))["identity"]
    assert Serving(service.state).store("verify").stdout.endswith("sound\n")
    for folder in service.state.glob("jobs/*/run-*"):
        end_stray(folder)


QUEUES = {
    "name": "root",
    "children": [
        {"name": "default", "guaranteed_pct": 50, "maximum_pct": 100},
        {"name": "night", "guaranteed_pct": 50, "maximum_pct": 100},
    ],
}


def info(service: Service) -> str:
    return Serving(service.state).store("info", "-o", "json").stdout


def test_the_command_line_says_what_it_refuses_and_how_to_go_on(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "state" / "jobs" / "j-1" / "run-1").mkdir(parents=True)
    done = subprocess.run(
        [*WATTHERD, "serve", "--state", str(tmp_path / "state"), "--port", "0", "--slots", "1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "journal.sqlite: is missing, but there are 1 runs of jobs in" in done.stderr
    assert "--accept-store" in done.stderr
    assert not (tmp_path / "state" / "journal.sqlite").exists()
