"""What a job must not see or do: files of others, secrets of others, the service's own."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_site import MOST_S, Site, until

from wattherd.model.event import JobCancelled
from wattherd.runtime.local import run_dir
from wattherd.runtime.local.executor import end_stray
from wattherd.testing.live import MemoryJournal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")
VICTIM, OTHER = {"user": "nobody"}, {"user": "daemon"}


@pytest.fixture
def site() -> Iterator[Site]:
    """Below /tmp itself: folders of tests are closed to other users."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o711)
    site = Site(above / "jobs", MemoryJournal())
    yield site
    site.keeper.end()
    for folder in site.root.glob("*/run-*"):
        end_stray(folder)
    shutil.rmtree(above)


def victim(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job with a secret, a checkpoint, reports and a log, that goes on running."""
    monkeypatch.setenv("SOURCE", "open-sesame")
    job = site.submit(
        "echo weights > $WATTHERD_CHECKPOINT_DIR/w; echo words; echo mine > file;"
        """echo '{"step": 3}' >> $WATTHERD_PROGRESS; sleep 600""",
        paper={**VICTIM, "secrets": {"KEY": "env:SOURCE"}},
    )
    until(lambda: "words" in site.log(job))
    until(lambda: site.keeper.ask(lambda core: core.jobs[job].progress).result(MOST_S) == 3.0)
    return job


@needs_root
def test_a_job_of_its_own_user_reads_its_orders_reports_and_keeps_checkpoints(site: Site) -> None:
    job = site.submit(
        "id -un; cat $WATTHERD_CONTROL > /dev/null && echo reads; umask;"
        " echo x > $WATTHERD_CHECKPOINT_DIR/w && touch $WATTHERD_RUN_DIR/checkpointed-not && pwd",
        paper=VICTIM,
    )
    site.wait(job, "Succeeded")
    assert site.log(job).split() == ["nobody", "reads", "0077", str(site.root / job / "work")]
    assert stat.S_IMODE((site.root / job / "checkpoint" / "w").stat().st_mode) == 0o600


@needs_root
def test_another_user_sees_neither_files_nor_logs_nor_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one of these would print something if it could be read."""
    job = victim(site, monkeypatch)
    folder = site.root / job
    wanted = ["", "checkpoint/w", "work/file", "run-1/logs/0.log", "run-1/control.json",
              "run-1/order.json", "run-1/progress.jsonl"]  # fmt: skip
    tries = "; ".join(f"ls {folder / one}; cat {folder / one}" for one in wanted)
    thief = site.submit(
        f"exec 2>/dev/null; ls {site.root}; {tries};"
        " for one in /proc/[0-9]*; do tr '\\0' '\\n' < $one/environ | grep sesame; done; true",
        paper=OTHER,
    )
    site.wait(thief, "Succeeded")
    assert site.log(thief) == ""


@needs_root
def test_a_job_cannot_rewrite_what_was_ordered_of_it_or_have_root_write_elsewhere(
    site: Site,
) -> None:
    """Links under every name that the supervisor is about to use, and a pipe for its reports."""
    target = site.root / "target"
    target.write_text("untouched")
    job = site.submit(
        "cd $WATTHERD_RUN_DIR; rm -f control.json order.json; echo x > control.json;"
        f" for one in usage heeded exit; do ln -s {target} .$one.json.$PPID; done;"
        " mv progress.jsonl old; mkfifo progress.jsonl; sleep 2; exit 0",
        paper=VICTIM,
    )
    beside = site.submit("sleep 0.1", paper=OTHER)
    site.wait(beside, "Succeeded")
    site.wait(job, "Succeeded")
    assert target.read_text() == "untouched"
    assert run_dir.read(site.root / job / "run-1" / run_dir.CONTROL) is not None


@needs_root
def test_a_user_who_cannot_reach_the_folders_is_told_where(site: Site) -> None:
    site.root.parent.chmod(0o700)
    job = site.submit("true", paper=VICTIM)
    site.wait(job, "Failed")
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert "cannot get in" in end["why"]
    assert str(site.root.parent) in end["why"]


def test_jobs_see_no_gpu_that_is_not_theirs_and_leave_no_core_dumps(site: Site) -> None:
    job = site.submit('echo "[$CUDA_VISIBLE_DEVICES] $NVIDIA_VISIBLE_DEVICES"; ulimit -c')
    site.wait(job, "Succeeded")
    assert site.log(job) == "[] void\n0\n"


def test_the_environment_of_the_service_is_not_that_of_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hidden")
    job = site.submit("env")
    site.wait(job, "Succeeded")
    assert "hidden" not in site.log(job)
    assert "PATH=" in site.log(job)


def test_a_job_without_a_user_keeps_its_folder_to_the_service(site: Site) -> None:
    job = site.submit("sleep 600")
    site.wait(job, "Running")
    assert stat.S_IMODE((site.root / job).stat().st_mode) == 0o700
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")
