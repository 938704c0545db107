"""Every rank tells how long it needs for its own part of a step."""

from __future__ import annotations

import json
from pathlib import Path

from wattherd_train import current
from wattherd_train.pace import RankPace
from wattherd_train.trouble import Trouble
from wattherd_train.world import World


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(folder: Path, rank: int) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / f"rank-{rank}.json").read_text())
    return found


def test_what_was_waited_for_others_is_left_out(tmp_path: Path) -> None:
    clock = Clock()
    pace = RankPace(tmp_path, World(rank=1, size=3), Trouble(), clock=clock)
    for step in range(1, 6):
        clock.now_s += 0.5
        with pace.waiting():
            clock.now_s += 1.5
        pace.step(step)
    found = told(tmp_path, 1)
    assert (found["rank"], found["ranks"], found["own_s"]) == (1, 3, 0.5)
    assert found["step"] == 5


def test_a_job_of_one_process_writes_nothing(tmp_path: Path) -> None:
    pace = RankPace(tmp_path, World(), Trouble())
    for step in range(3):
        pace.step(step)
    assert list(tmp_path.iterdir()) == []


def test_at_most_one_line_a_second_is_written(tmp_path: Path) -> None:
    clock = Clock()
    pace = RankPace(tmp_path, World(rank=0, size=2), Trouble(), clock=clock)
    for step in range(1, 6):
        clock.now_s += 0.125
        pace.step(step)
    assert told(tmp_path, 0)["step"] == 2
    clock.now_s += 1.0
    pace.step(6)
    assert told(tmp_path, 0)["step"] == 6


def test_a_full_disk_does_not_end_training(tmp_path: Path) -> None:
    trouble = Trouble()
    pace = RankPace(tmp_path / "gone", World(rank=0, size=2), trouble)
    pace.step(1)
    pace.step(2)
    assert trouble.count == 1


def test_a_step_of_a_job_tells_its_rank_s_pace(tmp_path: Path) -> None:
    environ = {
        "WATTHERD_JOB_ID": "j-1",
        "WATTHERD_RUN_DIR": str(tmp_path),
        "WORLD_SIZE": "2",
        "RANK": "1",
    }
    with current(environ) as job:
        for step in (1, 2):
            with job.waiting():
                pass
            job.step(step)
    assert told(tmp_path, 1)["own_s"] >= 0
