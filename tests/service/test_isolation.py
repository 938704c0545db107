"""What a job must not see or do: files of others, secrets of others, the service's own."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from collections.abc import Iterator

import pytest
from local_site import MOST_S, Site, passable_site, until

from wattherd.errors import UserError
from wattherd.local import cgroups, run_dir
from wattherd.local.rlimits import rlimits_of
from wattherd.model.event import JobCancelled
from wattherd.workload.job_file import validated_job

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as other users")
needs_cgroups = pytest.mark.skipif(
    not cgroups.find().complete, reason=f"cgroups: {cgroups.find().why_not}"
)
VICTIM, OTHER = {"user": "nobody"}, {"user": "daemon"}


@pytest.fixture
def site() -> Iterator[Site]:
    with passable_site() as site:
        yield site


def victim(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job with a secret, a checkpoint, reports and a log, that goes on running."""
    monkeypatch.setenv("WATTHERD_SECRET_SOURCE", "open-sesame")
    job = site.submit(
        "echo weights > $WATTHERD_CHECKPOINT_DIR/w; echo words; echo mine > file;"
        """echo '{"step": 3}' >> $WATTHERD_PROGRESS; sleep 600""",
        paper={**VICTIM, "secrets": {"KEY": "env:WATTHERD_SECRET_SOURCE"}},
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


@pytest.mark.long
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


@pytest.mark.long
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


@needs_root
def test_a_job_gets_no_secret_that_its_user_may_not_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hidden")
    secret = site.root.parent / "secret"
    secret.write_text("hidden")
    secret.chmod(0o600)
    for source in (f"file:{secret}", "env:DATABASE_PASSWORD"):
        job = site.submit("echo $KEY", paper={**VICTIM, "secrets": {"KEY": source}})
        site.wait(job, "Failed")
        end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
        assert end is not None
        assert "secrets.KEY" in end["why"]
        assert "hidden" not in end["why"] + site.log(job)
    shutil.chown(secret, "nobody")
    job = site.submit("echo ${#KEY}", paper={**VICTIM, "secrets": {"KEY": f"file:{secret}"}})
    site.wait(job, "Succeeded")
    assert site.log(job) == "6\n"


# --- limits ----------------------------------------------------------------------------------


def test_limits_of_each_process_are_as_asked(site: Site) -> None:
    paper = validated_job({"run": "true", "ulimits": {"nofile": 77, "stack": "1MiB"}}, "").paper()
    job = site.submit("ulimit -n; ulimit -s; ulimit -c", paper=paper)
    site.wait(job, "Succeeded")
    assert site.log(job).split() == ["77", "1024", "0"]


def test_a_job_may_have_many_files_open_unless_it_says_otherwise(site: Site) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    job = site.submit("ulimit -n")
    site.wait(job, "Succeeded")
    assert int(site.log(job)) == (65_536 if hard < 0 else min(hard, 65_536))


def test_only_root_raises_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    assert rlimits_of({})["RLIMIT_NOFILE"] == 4096
    with pytest.raises(UserError, match="above the 4,096"):
        rlimits_of({"ulimits": {"nofile": 5000}})


@pytest.mark.long
@needs_cgroups
def test_a_job_computes_no_more_than_it_asked_for(site: Site) -> None:
    """Four busy loops and half a processor: a limit, so that a busy machine makes it only less."""
    job = site.submit("for n in 1 2 3 4; do (while :; do :; done) & done; wait", cpu_milli=500)
    site.wait(job, "Running")
    usage = site.root / job / "run-1" / run_dir.USAGE

    def used() -> tuple[float, float]:
        found = run_dir.read(usage) or {"cpu_s": 0.0, "at": 0.0}
        return found["cpu_s"], found["at"]

    until(lambda: used()[0] > 0.2)
    before_s, began_s = used()
    until(lambda: used()[1] > began_s + 2.5)
    after_s, ended_s = used()
    assert after_s - before_s <= 0.5 * (ended_s - began_s) * 1.1 + 0.1


@pytest.mark.long
@needs_cgroups
def test_beside_a_fork_bomb_others_go_on(site: Site) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    evil = site.submit(["python3", "-c", bomb], paper={"processes": 50}, grace_s=0.0, cpu_milli=500)
    site.wait(evil, "Running")
    pids = cgroups.find().pids
    assert pids is not None
    order = run_dir.read(site.root / evil / "run-1" / run_dir.ORDER)
    assert order is not None
    inside = pids / order["group"] / "pids.current"
    until(lambda: int(inside.read_text()) == 50)
    beside = site.submit("echo still here")
    site.wait(beside, "Succeeded")
    assert int(inside.read_text()) <= 50
    site.keeper.post(JobCancelled(at_s=0.0, job_id=evil), by="ann").result(MOST_S)
    site.wait(evil, "Cancelled")
    assert not inside.exists()


@needs_cgroups
def test_who_takes_too_much_memory_harms_nobody_else(site: Site) -> None:
    """The children of a job count, too."""
    beside = site.submit("sleep 600", memory_mib=64)
    site.wait(beside, "Running")
    hog = "x = bytearray(40 << 20)\nimport time\ntime.sleep(600)"
    evil = site.submit(f"python3 -c '{hog}' & python3 -c '{hog}' & wait -n", memory_mib=64)
    site.wait(evil, "Failed")
    assert site.state(beside) == "Running"
