"""`simulate` and `compare` keep figures, and take none where anything has changed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wattherd as wh
from wattherd.experiments.schedule.run import ComparedRun
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.sweep import cell, fingerprint, kept_run
from wattherd.experiments.sweep.cell import FileDigests
from wattherd.library import simulation
from wattherd.policy.schedule.fifo_gang import FifoGang

JOBS = "id,submit_s,gpus,duration_s\na,0,1,60\nb,30,2,90\nc,40,1,600\n"
CLUSTER = "1x2:T4"


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had begun after the last change of any source."""
    monkeypatch.setattr(kept_run, "_began_s", lambda: time.time() + 3600.0)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The policies that were really simulated, in order."""
    found: list[str] = []

    def counted(real: Callable[..., ComparedRun]) -> Callable[..., ComparedRun]:
        def simulate(setting: Any, policy: str) -> ComparedRun:
            found.append(policy)
            return real(setting, policy)

        return simulate

    monkeypatch.setattr(simulation, "simulate", counted(simulation.simulate))
    monkeypatch.setattr(cell, "simulate", counted(cell.simulate))
    return found


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.csv"
    file.write_text(JOBS)
    return file


def simulated(jobs: Any, folder: Path, **more: Any) -> wh.Simulation:
    asked: dict[str, Any] = {
        "cluster": CLUSTER, "policies": ["fifo", "srtf"], "budget": "0:140W,2min:110W", **more
    }  # fmt: skip
    return wh.simulate(jobs, asked.pop("cluster"), cache=folder / "kept", **asked)


@pytest.mark.usefixtures("began")
def test_the_second_time_nothing_is_simulated_and_everything_is_the_same(
    jobs: Path, tmp_path: Path, ran: list[str]
) -> None:
    first = simulated(jobs, tmp_path)
    assert ran == ["fifo", "srtf"]
    second = simulated(jobs, tmp_path)
    assert ran == ["fifo", "srtf"]
    for name in ("summary", "jobs", "power", "unfinished"):
        assert list(getattr(first, name)) == list(getattr(second, name)), name
    assert first.document == second.document
    one, two = first.save(tmp_path / "one", log=False), second.save(tmp_path / "two", log=False)
    files = sorted(path.name for path in one.iterdir())
    assert files == sorted(path.name for path in two.iterdir())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in files)


@pytest.mark.usefixtures("began")
def test_events_are_there_by_running_it_again_once(
    jobs: Path, tmp_path: Path, ran: list[str]
) -> None:
    first = simulated(jobs, tmp_path)
    second = simulated(jobs, tmp_path)
    del ran[:]
    assert str(second.explain("c", "srtf")) == str(first.explain("c", "srtf"))
    second.explain("b", "srtf")
    assert ran == ["srtf"]
    log = "log-srtf.jsonl.gz"
    one, two = first.save(tmp_path / "one"), second.save(tmp_path / "two")
    assert (one / log).read_bytes() == (two / log).read_bytes()
    assert ran == ["srtf", "fifo"]


@pytest.mark.usefixtures("began")
def test_only_what_is_new_is_simulated(jobs: Path, tmp_path: Path, ran: list[str]) -> None:
    simulated(jobs, tmp_path)
    del ran[:]
    simulated(jobs, tmp_path, policies=["srtf", "fifo-backfill"])
    assert ran == ["fifo-backfill"]


CHANGES: dict[str, dict[str, Any]] = {
    "budget": {"budget": "0:140W,2min:105W"},
    "no budget": {"budget": None},
    "power": {"power": "uniform"},
    "seed": {"seed": 2},
    "cluster": {"cluster": "2x2:T4"},
    "restart": {"restart": "5s"},
    "until": {"until": "3min"},
    "caps": {"caps": {"delay": "5s"}},
}


@pytest.mark.usefixtures("began")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_other_choice_is_simulated(
    jobs: Path, tmp_path: Path, ran: list[str], change: dict[str, Any]
) -> None:
    simulated(jobs, tmp_path)
    del ran[:]
    changed = simulated(jobs, tmp_path, **change)
    assert ran == ["fifo", "srtf"]
    fresh = simulated(jobs, tmp_path / "elsewhere", **change)
    assert len(ran) == 4
    assert list(changed.jobs) == list(fresh.jobs)


@pytest.mark.usefixtures("began")
def test_a_changed_file_is_simulated_and_a_copy_or_a_frame_of_it_is_not(
    jobs: Path, tmp_path: Path, ran: list[str]
) -> None:
    simulated(jobs, tmp_path)
    shutil.copy(jobs, tmp_path / "copy.csv")
    del ran[:]
    simulated(tmp_path / "copy.csv", tmp_path)
    assert ran == []
    jobs.write_text(JOBS.replace("600", "700"))
    changed = simulated(jobs, tmp_path)
    assert ran == ["fifo", "srtf"]
    assert list(changed.jobs) != list(simulated(tmp_path / "copy.csv", tmp_path).jobs)
    rows = [{"id": "a", "submit_s": 0.0, "gpus": 1, "duration_s": 60.0}]
    del ran[:]
    assert list(simulated(rows, tmp_path).jobs) == list(simulated(rows, tmp_path).jobs)
    assert ran == ["fifo", "srtf"]
    simulated([{**rows[0], "duration_s": 61.0}], tmp_path)
    assert ran == ["fifo", "srtf"] * 2


@pytest.mark.usefixtures("began")
def test_a_function_is_run_every_time(jobs: Path, tmp_path: Path, ran: list[str]) -> None:
    """What it does may depend on anything that it sees, as on this number."""
    patience = [0.0]

    def mine(given: SchedulerContext) -> FifoGang:
        del given

        class Patient(FifoGang):
            def plan(self, view: Any, draft: Any) -> None:
                if view.now_s >= patience[0]:
                    super().plan(view, draft)

        return Patient()

    asked = {"policies": ["fifo", mine], "budget": None}
    first = simulated(jobs, tmp_path, **asked)
    patience[0] = 35.0
    second = simulated(jobs, tmp_path, **asked)
    assert ran == ["fifo", "mine", "mine"]
    ours = [list(found.jobs.where(policy="fifo")) for found in (first, second)]
    assert ours[0] == ours[1]
    own = [list(found.jobs.where(policy="mine")) for found in (first, second)]
    assert own[0] != own[1]


@pytest.mark.usefixtures("began")
def test_a_file_that_changes_meanwhile_is_not_kept(
    jobs: Path, tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["before", "after"])
    real = FileDigests.digest

    def digest(self: FileDigests, path: str) -> str | None:
        return next(digests, None) or real(self, path)

    monkeypatch.setattr(FileDigests, "digest", digest)
    simulated(jobs, tmp_path, policies="fifo")
    simulated(jobs, tmp_path, policies="fifo")
    assert ran == ["fifo", "fifo"]


def test_a_process_that_is_older_than_the_source_keeps_nothing(
    jobs: Path, tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules may be those of before a change, while the name is made of the files of today."""
    monkeypatch.setattr(kept_run, "_began_s", lambda: time.time() + 3600.0)
    simulated(jobs, tmp_path, policies="fifo")
    for began_s in (0.0, None):
        monkeypatch.setattr(kept_run, "_began_s", lambda began_s=began_s: began_s)
        del ran[:]
        simulated(jobs, tmp_path, policies=["fifo", "srtf"])  # neither takes nor keeps
        assert ran == ["fifo", "srtf"]
    monkeypatch.setattr(kept_run, "_began_s", lambda: time.time() + 3600.0)
    del ran[:]
    simulated(jobs, tmp_path, policies=["fifo", "srtf"])
    assert ran == ["srtf"]


def test_a_change_is_noticed_whatever_its_times_say(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("x = 1\n")
    now_s = time.time()
    assert not kept_run.changed_since(now_s + 10.0, [file])
    os.utime(file, (0, 0))  # as an archive would set them
    assert kept_run.changed_since(now_s - 10.0, [file])
    assert kept_run.changed_since(now_s + 10.0, [tmp_path / "gone.py"])
    assert kept_run.changed_since(None, [])


def test_this_process_knows_when_it_began() -> None:
    began_s = kept_run._began_s()
    assert began_s is not None
    assert time.time() - 86_400.0 < began_s < time.time() + 2.0


def test_what_stands_behind_a_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {path.name for path in fingerprint.files_behind({"schedule": "fifo"})}
    assert {"core.py", "water_filling.py", "site-packages"} <= found
    assert "simulation.py" not in found  # of the library: no figure comes from it


@pytest.mark.usefixtures("began")
@pytest.mark.parametrize(
    "breaks",
    [
        lambda value: value.replace('"outcomes"', '"other"'),
        lambda value: value.replace('"job_id"', '"job"'),
        lambda value: "[]",
    ],
)
def test_an_entry_of_another_form_is_computed_anew(
    jobs: Path,
    tmp_path: Path,
    ran: list[str],
    breaks: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from wattherd.store import result_cache

    first = simulated(jobs, tmp_path, policies="fifo")
    real = result_cache._read

    def broken(path: Path) -> dict[str, str] | None:
        entry = real(path)
        return entry and {**entry, "value": breaks(entry["value"])}

    monkeypatch.setattr(result_cache, "_read", broken)
    assert list(simulated(jobs, tmp_path, policies="fifo").jobs) == list(first.jobs)
    assert ran == ["fifo", "fifo"]


@pytest.mark.usefixtures("began")
def test_without_a_cache_nothing_is_written_or_read(
    jobs: Path, tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTHERD_CACHE", str(tmp_path / "mine"))
    for _ in range(2):
        wh.simulate(jobs, CLUSTER, "fifo", cache=False)
    assert ran == ["fifo", "fifo"]
    assert not (tmp_path / "mine").exists()
    for _ in range(2):
        wh.simulate(jobs, CLUSTER, "fifo")
    assert len(ran) == 3
    assert (tmp_path / "mine").is_dir()


@pytest.fixture
def fields(jobs: Path) -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "jobs": {"file": str(jobs), "format": "native"},
        "preset": "none",
        "policies": ["fifo", "srtf"],
        "budgets": [None, "120W"],
        "power": ["water-filling", "uniform"],
    }


@pytest.mark.usefixtures("began")
def test_a_comparison_takes_what_it_or_a_sweep_has_computed(
    fields: dict[str, Any], jobs: Path, tmp_path: Path, ran: list[str]
) -> None:
    folder = tmp_path / "kept"
    first = wh.compare(fields, cache=folder)
    assert len(ran) == 6
    assert list(wh.compare(fields, cache=folder).runs) == list(first.runs)
    assert len(ran) == 6
    plain = [dict(row) | {"cpu_s": None} for row in wh.compare(fields, cache=False).runs]
    assert plain == [dict(row) | {"cpu_s": None} for row in first.runs]
    assert len(ran) == 12
    more = fields | {"budgets": [None, "120W", "110W"]}
    assert len(list(wh.compare(more, cache=folder).runs)) == 10
    assert len(ran) == 16
    swept = wh.sweep(
        jobs, CLUSTER, ["fifo"], budgets=["120W"], cache=folder, progress=False, processes=1
    )
    assert swept.computed == 0
