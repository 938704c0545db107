"""A job speaks with wattherd by files, and with nobody where there is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from train_runs import RunDir
from wattherd_train import any_rank, current
from wattherd_train.progress import Reporter
from wattherd_train.trouble import Trouble


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# --- without wattherd ----------------------------------------------------------------------------


def test_without_wattherd_nothing_is_written_and_nothing_asked(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with current({}) as job:
        for step in range(1, 100):
            job.step(step, loss=1 / step, samples=8, total=99)
            assert not job.should_stop
            assert not job.should_stop()
    assert (job.managed, job.id, job.attempt, job.world.size) == (False, "", 1, 1)
    assert job.stop_order is None
    assert job.notice is None
    assert job.failures == 0
    assert list(tmp_path.iterdir()) == []
    assert job.checkpoints.folder == Path("checkpoint")


def test_nonsense_in_the_environment_is_one_process() -> None:
    job = current({"WATTHERD_ATTEMPT": "x", "RANK": "seven", "WORLD_SIZE": "-2", "LOCAL_RANK": ""})
    assert (job.attempt, job.world.rank, job.world.size) == (1, 0, 1)


def test_the_environment_of_torchrun_is_read() -> None:
    more = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "4"}
    world = current({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x", **more}).world
    assert (world.rank, world.size, world.local_rank, world.local_size) == (3, 4, 1, 2)
    assert (world.restarts, world.elastic, world.leads) == (4, True, False)


# --- progress ------------------------------------------------------------------------------------


def test_progress_is_told_at_once_and_then_once_a_second(run: RunDir) -> None:
    clock = Clock()
    reporter = Reporter(run.run / "progress.jsonl", Trouble(), clock=clock)
    for step in range(1, 31):
        reporter.step(step, 8, {"loss": 1 / step, "total": 30})
        clock.now_s += 0.125
    reporter.flush()
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 9, 17, 25, 30]
    assert "rate_per_s" not in lines[0]
    assert [line["rate_per_s"] for line in lines[1:4]] == [8.0, 8.0, 8.0]
    assert [line["samples"] for line in lines] == [8, 72, 136, 200, 240]
    assert lines[2]["samples_per_s"] == 64.0
    assert lines[-1]["loss"] == 1 / 30


def test_the_last_step_is_told_when_the_job_ends(run: RunDir) -> None:
    with current(run.environ()) as job:
        for step in range(1, 4):
            job.step(step, loss=step)
    assert [line["step"] for line in run.lines()] == [1, 3]


def test_only_the_first_rank_reports(run: RunDir) -> None:
    job = current(run.environ(rank=1, size=2))
    job.step(1)
    assert not (run.run / "progress.jsonl").exists()


def test_a_job_that_says_nothing_yet_is_known_to_cooperate(run: RunDir) -> None:
    current(run.environ())
    assert (run.run / "progress.jsonl").read_text() == ""


class Tensor:
    """Costs something to read."""

    reads = 0

    def __float__(self) -> float:
        Tensor.reads += 1
        return 0.5


def test_losses_are_read_only_when_written(run: RunDir) -> None:
    job = current(run.environ())
    for step in range(1, 1001):
        job.step(step, loss=Tensor())
    assert Tensor.reads == len(run.lines()) <= 3


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), None])
def test_what_json_has_no_number_for_is_left_out(run: RunDir, loss) -> None:
    job = current(run.environ())
    job.step(1, loss=loss)
    (line,) = run.lines()
    assert line["step"] == 1
    assert "loss" not in line


@pytest.mark.parametrize("given", [{"loss": "high"}, {"samples": "many"}, {"loss": [1, 2]}])
def test_nonsense_does_not_raise_into_training(run: RunDir, given) -> None:
    job = current(run.environ())
    job.step(1, **given)
    assert job.failures == 1


def test_a_step_back_begins_the_rate_anew(run: RunDir) -> None:
    clock = Clock()
    reporter = Reporter(run.run / "progress.jsonl", Trouble(), clock=clock)
    for step in (10, 20, 5, 10):
        reporter.step(step, None, {})
        clock.now_s += 1
    assert [line.get("rate_per_s") for line in run.lines()] == [None, 10.0, None, 5.0]


# --- stop ----------------------------------------------------------------------------------------


def test_a_stop_is_seen_after_the_step_and_says_why(run: RunDir) -> None:
    job = current(run.environ())
    job.step(1)
    assert not job.should_stop
    run.stop()
    assert job.should_stop
    assert job.should_stop()
    assert job.should_stop.reason == "budget cut"
    assert job.stop_order.by == 2e9
    assert (job.id, job.attempt, job.world.devices) == ("j-7", 3, 2)


def test_a_notice_is_passed_on(run: RunDir) -> None:
    job = current(run.environ())
    run.want(notice={"reason": "maintenance"})
    assert job.notice == {"reason": "maintenance"}
    assert not job.should_stop


def test_a_pod_finds_its_notice_in_the_file_that_its_annotation_is_shown_in(tmp_path: Path) -> None:
    file = tmp_path / "stop-at"
    file.write_text("")
    job = current({"WATTHERD_NOTICE": str(file)})
    assert job.notice is None
    file.write_text("2026-01-31T12:00:00Z Reclaimed")
    assert job.notice == {"by": 1769860800.0, "reason": "Reclaimed"}
    assert not job.should_stop
    assert not job.managed


@pytest.mark.parametrize("content", ["soon", "\x00", "2026-13-01T00:00:00Z x"])
def test_a_notice_that_cannot_be_read_announces_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "stop-at").write_text(content)
    job = current({"WATTHERD_NOTICE": str(tmp_path / "stop-at")})
    assert job.notice is None
    assert job.failures == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stop": 7}', '{"stop": null}', "\x00"])
def test_half_a_control_file_stops_nobody(run: RunDir, content) -> None:
    job = current(run.environ())
    (run.run / "control.json").write_text(content)
    assert not job.should_stop
    run.stop()
    assert job.should_stop


def test_a_run_directory_that_vanished_does_not_raise(run: RunDir) -> None:
    job = current(run.environ(rank=0, size=2))
    for path in run.run.iterdir():
        path.unlink()
    run.run.rmdir()
    with job:
        for step in range(1, 50):
            job.step(step, loss=1.0)
            assert not job.should_stop
    assert job.failures > 0


def test_exit_code_and_marker_tell_that_it_was_checkpointed(run: RunDir) -> None:
    job = current(run.environ())
    job.step(41)
    job.step(42)
    with pytest.raises(SystemExit) as ended:
        job.exit_checkpointed()
    assert ended.value.code == 143
    assert json.loads((run.run / "checkpointed").read_text())["step"] == 42
    assert run.lines()[-1]["step"] == 42


def test_under_torchrun_the_code_is_no_failure(run: RunDir) -> None:
    for rank in (1, 0):
        job = current(run.environ(rank=rank, size=2, TORCHELASTIC_RUN_ID="x"))
        with pytest.raises(SystemExit) as ended:
            job.exit_checkpointed()
        assert ended.value.code == 0
        assert (run.run / "checkpointed").exists() == (rank == 0)


TERMINATED = """
import time, wattherd_train
with wattherd_train.current() as job:
    print("ready", flush=True)
    for step in range(1, 2000):
        time.sleep(0.01)
        job.step(step)
        if job.should_stop():
            print(job.should_stop.reason, flush=True)
            job.exit_checkpointed()
"""


def test_sigterm_is_a_wish_to_stop() -> None:
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", TERMINATED],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": path},
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "SIGTERM\n"
    assert process.returncode == 143


def test_who_handles_sigterm_already_keeps_doing_so() -> None:
    def own(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, own)
    try:
        with current({}):
            assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    with current({}):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# --- ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(5))
def test_ranks_without_a_launcher_stop_after_the_same_step(run: RunDir, round_) -> None:
    """Threads that meet in every step, as ranks do; the stop comes while they are under way."""
    width, stopped, meet = 4, {}, threading.Barrier(4, timeout=20)

    def rank(number: int) -> None:
        job = current(run.environ(rank=number, size=width))
        for step in range(1, 5000):
            meet.wait()
            if step == 20 + round_ and number == round_ % width:
                run.stop()
            job.step(step)
            if job.should_stop:
                stopped[number] = step
                return

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(stopped) == width
    assert len(set(stopped.values())) == 1
    assert 20 <= stopped[0] <= 30


def test_one_rank_that_is_asked_suffices(run: RunDir) -> None:
    """Only rank 1 can read what is wanted."""
    deaf = current({**run.environ(rank=0, size=2), "WATTHERD_CONTROL": ""})
    asked = current(run.environ(rank=1, size=2))
    run.stop()
    answers = []
    for step in (1, 2):
        for job in (asked, deaf):
            job.step(step)
            answers.append(job.should_stop())
    assert answers == [False, False, True, True]
    assert deaf.should_stop.reason == "another rank"


def test_a_reduction_may_decide_instead(run: RunDir) -> None:
    asked: list[bool] = []
    job = current(run.environ(rank=1, size=2))

    def reduce(wanted: bool) -> bool:
        asked.append(wanted)
        return len(asked) == 3

    job.agree_by(reduce)
    job.step(1)
    assert [job.should_stop() for _ in range(3)] == [False, False, True]
    assert asked == [False, False, False]


def test_without_a_process_group_the_reduction_is_ones_own_wish() -> None:
    assert [any_rank(True), any_rank(False)] == [True, False]


# --- when to save --------------------------------------------------------------------------------


def saves(phase: str, every_s: float, began_s: float, lasts_s: int) -> list[float]:
    job = current({"WATTHERD_CHECKPOINT_PHASE": phase})
    times = [began_s + second for second in range(lasts_s)]
    return [now_s for now_s in times if job.checkpoint_due(every_s, now_s=now_s)]


def test_a_job_saves_once_a_period_in_its_own_window() -> None:
    assert saves("0.25", 100.0, 1_000.0, 300) == [1025.0, 1125.0, 1225.0]
    assert saves("0.25", 100.0, 1_060.0, 240) == [1125.0, 1225.0]  # whenever it began


def test_a_job_that_just_began_and_one_whose_clock_was_put_back_do_not_save_at_once() -> None:
    job = current({"WATTHERD_CHECKPOINT_PHASE": "0.5"})
    assert not job.checkpoint_due(100.0, now_s=1050.0)
    assert job.checkpoint_due(100.0, now_s=1150.0)
    assert not job.checkpoint_due(100.0, now_s=900.0)
    assert job.checkpoint_due(100.0, now_s=960.0)


@pytest.mark.parametrize("phase", ["", "x", "nan", "-0.1", "1.5"])
def test_a_phase_that_makes_no_sense_is_none(phase: str) -> None:
    assert saves(phase, 100.0, 1_010.0, 200) == [1100.0, 1200.0]


def test_no_period_is_no_period() -> None:
    with pytest.raises(ValueError, match="no period"):
        current({}).checkpoint_due(0.0)
