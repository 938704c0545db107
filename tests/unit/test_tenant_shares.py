"""What one tenant may take, learn or be called, so that others keep theirs."""

from __future__ import annotations

import contextlib
import fcntl
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from wattherd.engine.core.feasibility import never_fits
from wattherd.errors import UserError
from wattherd.local import orphans, run_dir, run_lock
from wattherd.local.enforcement import asked
from wattherd.local.ownership import holds_anything
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.documents.job_sessions import MOST_IN_ALL, SessionBook, SessionEnded
from wattherd.server.documents.privacy import check_grace
from wattherd.server.documents.submission_quota import (
    MOST_LIVE_BYTES,
    SMALL_BYTES,
    SubmissionQuota,
    bytes_of,
)
from wattherd.server.settings import tenant_accounts
from wattherd.server.settings.config import ServeConfig
from wattherd.server.settings.tenant_accounts import check_accounts
from wattherd.workload.counted_cpu import LEAST_CPU_MILLI, counted
from wattherd.workload.job_array import PAPER
from wattherd.workload.job_file import validated_job
from wattherd.workload.resubmission import rerun_of, tasks_rerun


def by(user: str, tenant: str = "") -> str:
    return Caller(user=user, role=Role.USER, tenant=tenant).by


def test_no_user_is_called_as_one_of_another_tenant() -> None:
    """An idempotency key is kept by this name, and the audit tells it."""
    people = [("ann", "vision"), ("vision/ann", ""), ("/vision/ann", ""), ("ann", "/vision"),
              ("b/c", "a"), ("c", "a/b"), ("c", "a%2Fb"), ("ann", "")]  # fmt: skip
    assert len({by(*one) for one in people}) == len(people)
    assert (by("ann", "vision"), by("ann@a.org"), by("")) == (
        "vision/ann",
        "ann@a.org",
        "anonymous",
    )


def test_users_of_one_tenant_leave_sessions_to_others() -> None:
    book = SessionBook()
    with contextlib.ExitStack() as held:

        def taken(n: int) -> bool:
            place = book.place(f"j-{n}", f"m/{n}", of_input=False, tenant="m")
            with contextlib.suppress(SessionEnded):
                held.enter_context(place)
                return True
            return False

        assert not all(taken(n) for n in range(MOST_IN_ALL))
        assert 0 < len(book.held) < MOST_IN_ALL
        held.enter_context(book.place("j-99", "victor/v", of_input=False, tenant="victor"))
        held.enter_context(book.place("j-98", "root", of_input=False))  # an admin


def test_a_task_without_a_device_takes_a_part_of_the_machine_and_is_not_limited_to_it() -> None:
    job = validated_job({"run": "true", "gpus": 0}, "")
    paper = job.paper()
    spec = counted(job.spec(), paper)
    assert [role.cpu_milli for role in spec.roles] == [LEAST_CPU_MILLI]
    assert asked(spec, paper).cpus is None
    roles = {"a": {"run": "true", "gpus": 0, "cpus": 2}, "b": {"run": "true", "gpus": 1},
             "c": {"run": "true", "gpus": 0}}  # fmt: skip
    gang = validated_job({"taskRoles": roles}, "")
    paper = gang.paper()
    spec = counted(gang.spec(), paper)
    assert [role.cpu_milli for role in spec.roles] == [2000, 0, LEAST_CPU_MILLI]
    assert asked(spec, paper).cpus == 2


def test_what_is_only_counted_is_no_part_of_the_job_file_when_it_is_run_again() -> None:
    """Else the next run would be limited to it."""
    roles = {"a": {"run": "true", "gpus": 0, "cpus": 2}, "c": {"run": "true", "gpus": 0}}
    for document in ({"run": "true", "gpus": 0}, {"taskRoles": roles}):
        job = validated_job(document, "")
        paper = job.paper()
        fields = rerun_of(counted(job.spec(), paper), paper, own=True)
        assert validated_job(fields, "").spec().roles == job.spec().roles
    array = validated_job({"run": "true", "gpus": 0, "array": "0-1"}, "")
    spec, paper = next(array.tasks())
    again = tasks_rerun(counted(spec, paper), paper, paper[PAPER], [0], own=True)
    assert next(validated_job(again, "").tasks())[0].roles == spec.roles


def test_a_gang_without_devices_that_no_machine_holds_is_refused() -> None:
    node = NodeSpec(name="a", cpu_milli=2_000, memory_mib=1_000, gpu_count=4)
    job = validated_job({"taskRoles": {"w": {"run": "true", "gpus": 0, "count": 41}}}, "")
    refusal = never_fits(counted(job.spec(), {}), ClusterSpec((node,)), 0.0)
    assert refusal is not None
    assert refusal.available == 40


def test_jobs_of_one_user_take_so_many_bytes_until_they_are_over() -> None:
    room, over, mallory = SubmissionQuota(), set[str](), ("m", "mallory")
    half = MOST_LIVE_BYTES // 2

    def handed_in(owner: tuple[str, str], job_id: str, count: int = 1) -> None:
        done: Future[str] = Future()
        done.set_result(job_id)
        room.take(owner, half, over.__contains__).settle(done, count)

    handed_in(mallory, "j-1", count=10)
    handed_in(mallory, "j-11")
    handed_in(("m", "victor"), "j-12")
    for gone in ("", "j-1", "j-12"):  # j-10 is the last of the array
        over.add(gone)
        with pytest.raises(UserError, match="512 at most"):
            room.take(mallory, 1 << 20, over.__contains__)
    over.add("j-10")
    lost = room.take(mallory, half, over.__contains__)
    failed: Future[str] = Future()
    failed.set_exception(OSError())
    lost.settle(failed, 1)
    room.take(mallory, half, over.__contains__)


def test_what_a_user_writes_counts_wherever_it_stands() -> None:
    text = "x" * 100_000
    for document in ({"run": text}, {"run": "true", "envs": {"A": text}},
                     {"run": "true", "labels": {"a": text}}, {"run": ["true", text]},
                     {"run": "true", "inputs": {"a": f"/{text}"}}):  # fmt: skip
        job = validated_job(document, "")
        assert 100_000 <= bytes_of([(job.spec(), job.paper())]) < 101_000
    job = validated_job({"run": "true"}, "")
    assert bytes_of([(job.spec(), job.paper())]) < SMALL_BYTES


def test_no_job_may_take_for_ever_to_stop() -> None:
    check_grace("1h", validated_job({"run": "true", "checkpoint": {"grace": "1h"}}, ""))
    with pytest.raises(UserError, match="longer than 1h"):
        check_grace("1h", validated_job({"run": "true", "checkpoint": {"grace": 1e9}}, ""))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks as somebody else")
def test_what_an_account_may_not_see_is_not_there(tmp_path: Path) -> None:
    """Whether root's folder holds something is not told to jobs that name it."""
    nobody = (65534, 65534)
    (tmp_path / "of-root").mkdir(mode=0o700)
    (tmp_path / "of-root" / "file").touch()
    assert holds_anything(tmp_path / "of-root", None)
    assert not holds_anything(tmp_path / "of-root", nobody)
    assert not holds_anything(tmp_path / "none", nobody)
    assert holds_anything(Path("/usr"), nobody)
    assert not holds_anything(Path("-delete"), nobody)


def test_a_job_that_is_tried_for_ever_keeps_so_many_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of runs that are over, and none that a job has made to look so."""
    monkeypatch.setattr(orphans, "KEPT_RUNS", 3)
    runs = [tmp_path / f"run-{number}" for number in range(1, 8)]
    for folder in runs:
        (folder / "logs").mkdir(parents=True)
        run_dir.write(folder / run_dir.EXIT, {"exit_code": 1, "why": ""})
    (runs[1] / run_dir.EXIT).unlink()  # its end is not known
    run_lock.lock_of(runs[0]).touch()
    orphans.drop_old_runs(tmp_path, 8)
    left = {one.name for one in orphans.run_folders(tmp_path)}
    assert left == {"run-2", "run-6", "run-7"}
    with run_lock.lock_of(runs[0]).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        orphans.drop_old_runs(tmp_path, 99)  # something of the job still runs
    assert {one.name for one in orphans.run_folders(tmp_path)} == left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's service keeps tenants apart")
@pytest.mark.parametrize(("kept", "said"), [(0, True), (1 << 20, False)])
def test_root_s_service_says_where_tenants_can_fill_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: int, said: bool
) -> None:
    """A file system that keeps blocks for root goes on when accounts have filled it."""
    real = os.statvfs(tmp_path)
    sizes = list(real)
    sizes[3] = sizes[4] + kept  # f_bfree, f_bavail
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(sizes))
    config = ServeConfig(state=tmp_path / "state", default_account="nobody")
    monkeypatch.setattr(tenant_accounts, "_check_above", lambda _: None)
    told = " ".join(check_accounts(config, asks=True))
    assert ("can fill the disk" in told) is said


@pytest.mark.parametrize("document", [{"run": []}, {"taskRoles": {"a": {"run": []}}}])
def test_a_list_of_no_words_is_no_command(document: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        validated_job(document, "")
