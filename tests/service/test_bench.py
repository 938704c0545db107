"""The leaderboard: fixed workloads, all policies and a plug-in's, ties, one JSON and a page."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from service.test_sweep import worst
from wattherd.cli.main import main
from wattherd.experiments.leaderboard import workloads
from wattherd.experiments.leaderboard.leaderboards import (
    PLACEMENT,
    POWER,
    SCHEDULERS,
    document,
    placement_cells,
    schedule_cells,
)
from wattherd.experiments.leaderboard.workloads import BoardJobs, BoardPods
from wattherd.experiments.schedule.simulators import PRESETS
from wattherd.library.sweep import run_cells

__all__ = ["worst"]
pytestmark = pytest.mark.long
JOBS = "id,submit_s,gpus,duration_s\n" + "".join(
    f"j{n},{60 * n},{1 + n % 3},{900 + 400 * (n % 4)}\n" for n in range(12)
)


def small(folder: Path) -> BoardJobs:
    (folder / "jobs.csv").write_text(JOBS)
    return BoardJobs(
        name="small", about="twelve jobs", source="this test", cluster="1x4:V100M16",
        jobs={"file": str(folder / "jobs.csv"), "format": "native"},
    )  # fmt: skip


def board(folder: Path, kind: Any, policies: list[str] | None = None) -> dict[str, Any]:
    found = [small(folder)]
    done = run_cells(schedule_cells(kind, found, policies), limit_s=6.0)
    return document(kind, found, done.results(), "test")


def test_every_scheduler_is_on_the_board(worst: Path) -> None:
    result = board(worst, SCHEDULERS)
    assert {one["policy"] for one in result["overall"]} == set(PRESETS["none"].schedulers)
    assert len(result["problems"]) == 3
    assert [one["budget"] for one in result["problems"]] == [None, "800W", "600W"]
    by_name = {one["policy"]: one for one in result["problems"][0]["standings"]}
    assert by_name["fifo"]["rank"] is not None
    why = {name: by_name[name]["why"] for name in ("raises", "falls", "midway", "endless")}
    assert why == {
        "raises": "worst:raises: raises: failed: ValueError: made of nothing "
        "(hint: see docs/guides/plugins.md)",
        "falls": "its process ended with exit code 7",
        "midway": "12 jobs not finished",
        "endless": "took longer than 6 s",
    }
    overall = {one["policy"]: one["why"] for one in result["overall"]}
    assert overall["raises"] == "ranked on 0 of 3 problems"


def test_a_plugin_of_the_same_deeds_is_a_tie(worst: Path) -> None:
    result = board(worst, SCHEDULERS, ["noted", "gang", "fifo"])
    for problem in result["problems"]:
        place = {one["policy"]: one["place"] for one in problem["standings"]}
        assert place["noted"] == place["gang"]
        assert place["noted"].startswith("=")


def test_the_power_board_shares_by_every_way(worst: Path) -> None:
    result = board(worst, POWER)
    names = {one["policy"] for one in result["overall"]}
    assert {"water-filling", "uniform", "pause", "nash"} <= names
    assert all(problem["budget"] for problem in result["problems"])


def test_the_placement_board(worst: Path) -> None:
    nodes, pods = workloads.write_openb(
        workloads.generate_cluster(nodes=12, seed=1),
        workloads.generate_pods(family="default", seed=1, pods=60), worst,
    )  # fmt: skip
    found = [BoardPods(name="few", about="", source="", nodes=str(nodes), pods=str(pods))]
    done = run_cells(placement_cells(found, ["fgd", "first-fit"]))
    result = document(PLACEMENT, found, done.results(), "test")
    one = result["problems"][0]["standings"]
    assert {line["policy"] for line in one} == {"fgd", "first-fit"}
    assert one[0]["score"] >= one[1]["score"]
    again = run_cells(placement_cells(found, ["fgd", "first-fit"]))
    assert again.known == 6
    assert again.results() == done.results()


def say(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def test_the_command_writes_a_page_without_any_data(
    worst: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WATTHERD_DATA", raising=False)
    line = f"bench schedulers --workload short --policy fifo,srtf --out {worst / 'out'} -o json"
    assert say(*line.split()) == 0
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads((worst / "out" / "leaderboard.json").read_text())
    assert kept == printed
    assert (kept["schema"], kept["board"], kept["tie"]) == (
        "wattherd.leaderboard/1", "schedulers", 0.005,
    )  # fmt: skip
    assert kept["workloads"][0]["seed"] == 4
    assert "seed 4" in kept["workloads"][0]["source"]
    page = (worst / "out" / "report.html").read_text()
    for words in ("short under", "srtf", "Microsoft&#39;s Philly", "a tie is no difference"):
        assert words in page
    assert not re.search(r'(?:src|href)="https?:', page)
    assert "/tmp/" not in page.replace(str(worst), "")
    first = (worst / "out" / "leaderboard.json").read_bytes()
    assert say(*line.split()) == 0
    assert "6 cells: 0 computed, 6 known" in capsys.readouterr().err
    assert (worst / "out" / "leaderboard.json").read_bytes() == first


@pytest.mark.parametrize(
    "line",
    [
        "bench schedulers --generated --policy fifoo",
        "bench schedulers --generated --workload nosuch",
        "bench schedulers --generated --workload ,",
        "bench power --generated --policy srtf",
        "bench placement --generated --policy fgdd",
        "bench schedulers --generated --limit 0s",
    ],
)
def test_wrong_names_are_refused_with_a_hint(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert say(*line.split()) == 2
    assert "hint: " in capsys.readouterr().err


def test_generated_workloads_are_the_same_every_time(tmp_path: Path) -> None:
    one, two = workloads.generated_jobs(tmp_path / "a"), workloads.generated_jobs(tmp_path / "b")
    assert [w.name for w in one] == ["busy", "calm", "wide", "short", "measured"]
    for a, b in zip(one, two, strict=True):
        assert Path(a.jobs["file"]).read_bytes() == Path(b.jobs["file"]).read_bytes()
        budgets = [a.budget(part) for part in SCHEDULERS.parts]
        assert budgets[0] is None
        assert None not in budgets[1:]


def test_public_workloads_are_those_of_the_data(tmp_path: Path) -> None:
    root = os.environ.get("WATTHERD_DATA", "")
    if not root:
        pytest.skip("WATTHERD_DATA is not set")
    found, absent = workloads.public_jobs(Path(root))
    assert (len(found), absent) == (5, [])
    pods, absent = workloads.public_pods(Path(root))
    assert (len(pods), absent) == (5, [])
    assert len(workloads.public_jobs(tmp_path)[1]) == 5
