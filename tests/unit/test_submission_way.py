"""The script that counts what a submission passes sees all of it; the way grows by no accident."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from wattherd.spelling import hint_for

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "submission_way.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("submission_way", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PASSED_BY_ALL = {
    "engine/core/core.py": {"Core.handle", "Core._submit", "Core._make_plan", "Core._hand_over"},
    "engine/core/draft.py": {"GuardedDraft.start"},
    "engine/power/account.py": {"PowerAccount.refused", "PowerAccount.share"},
    "policy/power/water_filling.py": {"WaterFilling.levels"},
    "policy/schedule/ordered.py": {"Ordered.plan"},
}
"""Functions on every way of a submission under a budget, as ARCHITECTURE.md tells it."""
MOST = {"core": (23, 180), "sim": (29, 219), "serve": (30, 254)}
"""Files and functions, as counted where nothing is remembered yet of curves and bits.

Four of the functions keep the line of planned jobs (`StartingJobs`): without it each of them was
asked after every event whether its devices are free. Two keep what the plan gives to whom
(`PlannedUse`): without it every plan with a quota added up all jobs. Three, in a file of their own,
keep who runs in order (`running_jobs`): without it every plan sorted all who run. One is for what a
proposal of nonsense had booked when looking at it failed (`_refused`): that is taken back.
"""


@pytest.mark.parametrize("name", MOST)
def test_a_way_passes_guard_power_policy_and_planner_and_stays_short(
    script: ModuleType, name: str
) -> None:
    passed = script.WAYS[name]()
    for file, functions in PASSED_BY_ALL.items():
        assert functions <= passed.by_file[file]
    assert all(found <= most for found, most in zip(passed.sums, MOST[name], strict=True))


def test_only_what_is_called_counts_and_each_once(script: ModuleType) -> None:
    passed = script.PassedFunctions()
    passed.during(lambda: [hint_for("fifo", ["fifo-x"]) for _ in range(3)])
    files, functions = passed.sums
    assert set(passed.by_file) == {"spelling.py"}
    assert (files, functions) == (1, len(passed.by_file["spelling.py"]))
    assert "hint_for" in passed.by_file["spelling.py"]
    before = passed.sums
    hint_for("fifo", ["fifo-x"])
    assert passed.sums == before
    assert sys.getprofile() is None


def test_it_prints_a_line_for_every_way(
    script: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["submission_way.py", "--brief"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(MOST)
    assert all(line.split()[2::2] == ["files", "functions"] for line in lines)
