"""The report of `sim run` directories: read with care, drawn to scale, complete and accessible."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from sim_runs import a_row, a_sim, write_sim
from test_report_page import HOSTILE, check, pictures

from wattherd.errors import UserError
from wattherd.report import write_report
from wattherd.report.findings import sim_findings
from wattherd.report.schedule_charts import (
    MOST_ROWS,
    draw_gantt,
    policy_charts,
    shown_jobs,
    sim_charts,
)
from wattherd.report.schedule_page import render_sim, sim_plots
from wattherd.report.schedule_pareto import front
from wattherd.report.schedule_runs import load_sim
from wattherd.report.svg import Frame
from wattherd.report.theme import series_numbers
from wattherd.report.timeline import averaged, time_unit

FRAME = Frame(width=560, height=340)


def page_of(folder: Path) -> str:
    (written,) = write_report(folder)
    return written.read_text(encoding="utf-8")


def test_a_page_is_complete_self_contained_and_says_what_was_run(tmp_path: Path) -> None:
    page = page_of(write_sim(tmp_path))
    text = " ".join(check(page).text)
    for word in ("fifo", "srtf", "pollux", "jobs.csv", "2x4:T4", "400W", "wattherd sim run"):
        assert word in text
    for title in ("Completion times", "GPUs in use", "vCPUs in use", "When jobs ran: srtf",
                  "Power: pollux", "Completion time against energy"):  # fmt: skip
        assert title in text


def test_every_picture_is_well_formed_and_told_to_those_who_do_not_see_it(tmp_path: Path) -> None:
    found = pictures(page_of(write_sim(tmp_path)))
    assert len(found) == 2 * (4 + 2 * 3)
    for picture in found:
        title, about = picture[0], picture[1]
        assert title.tag.endswith("title")
        assert about.tag.endswith("desc")
        assert title.text
        assert about.text
        assert picture.attrib["role"] == "img"


def test_the_same_directory_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (load_sim(write_sim(tmp_path / name / "run")) for name in ("a", "b"))
    assert render_sim(one) == render_sim(two)


def test_names_are_escaped(tmp_path: Path) -> None:
    document = a_sim("fifo", "srtf", command=HOSTILE, cluster=HOSTILE, jobs=3)
    page = page_of(write_sim(tmp_path, document))
    check(page)
    assert "<script>alert" not in page


def test_plots_are_written_one_by_one(tmp_path: Path) -> None:
    folder = write_sim(tmp_path)
    written = write_report(folder, formats=("svg",))
    assert {file.stem for file in written} == set(sim_plots(load_sim(folder)))
    for file in written:
        ET.fromstring(file.read_text(encoding="utf-8"))


def test_a_directory_without_history_still_shows_completion_times(tmp_path: Path) -> None:
    text = " ".join(check(page_of(write_sim(tmp_path, history=False))).text)
    assert "Completion times" in text
    assert "When jobs ran" not in text
    assert "Power:" not in text


def test_a_run_in_which_no_job_was_done_has_a_page(tmp_path: Path) -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        ("avg_jct_s", "median_jct_s", "p99_jct_s", "avg_queue_s", "gpu_utilisation_pct")
    )
    row = a_row("fifo", 0, 0, makespan_s=0.0, **nothing)
    page = page_of(write_sim(tmp_path, a_sim(policies=[row]), history=False))
    assert "fifo" in " ".join(check(page).text)


BAD = {
    "another schema": ({"schema": "wattherd.sim/9"}, "schema"),
    "no policies": ({"policies": []}, "policies"),
    "a policy twice": ({"policies": [a_row("a", 0, 1), a_row("a", 0, 1)]}, "policies"),
    "a name with a slash": ({"policies": [a_row("../x", 0, 1)]}, "policies"),
    "a figure that is no number": ({"policies": [a_row("a", 0, 1, makespan_s="x")]}, "makespan_s"),
    "a figure that is endless": ({"policies": [a_row("a", 0, 1, makespan_s=math.inf)]}, "makespan"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_documents_are_refused_with_the_field(name: str, tmp_path: Path) -> None:
    changes, field = BAD[name]
    (tmp_path / "sim.json").write_text(json.dumps(a_sim(**changes)))
    with pytest.raises(UserError) as problem:
        load_sim(tmp_path)
    assert field in problem.value.field


@pytest.mark.parametrize(
    ("file", "line"), [("runs-fifo.csv", "j0,x,2,1,n"), ("power-fifo.csv", "0,1,1,nan,1,1,")]
)
def test_bad_cells_are_refused_with_their_line(file: str, line: str, tmp_path: Path) -> None:
    write_sim(tmp_path)
    head = (tmp_path / file).read_text().splitlines()[0]
    (tmp_path / file).write_text(f"{head}\n{line}\n")
    with pytest.raises(UserError, match="is no number") as problem:
        load_sim(tmp_path)
    assert problem.value.where.endswith(f"{file}:2")


def test_averages_keep_the_integral() -> None:
    time_s = np.array([0.0, 10.0, 15.0, 60.0])
    values = np.array([4.0, 0.0, 8.0, 1.0])
    spans = averaged(time_s, 100.0, values, 7)
    assert spans.sum() * 100 / 7 == pytest.approx(10 * 4 + 45 * 8 + 40)
    assert averaged(time_s, 100.0, values, 10)[:2].tolist() == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize(("span_s", "unit"), [(600.0, "min"), (20_000.0, "h"), (86400.0 * 30, "d")])
def test_time_is_told_in_a_unit_that_fits(span_s: float, unit: str) -> None:
    assert time_unit(span_s)[1] == unit


def test_a_bar_is_where_and_as_long_as_the_job_ran(tmp_path: Path) -> None:
    run = load_sim(write_sim(tmp_path, a_sim("fifo", jobs=1))).runs[0]
    drawn = draw_gantt(run, 7200.0, (3600.0, "h"), FRAME, "g").render()
    width = FRAME.width - 16 - 14
    begin = 16 + width * 60 / 7200
    assert f"M{begin:.1f} " in drawn
    lengths = [float(found) for found in re.findall(r"h([\d.]+)v[\d.]+h-", drawn)]
    assert pytest.approx(width * 3600 / 7200, abs=0.06) in lengths


def test_many_jobs_are_stood_for_by_some(tmp_path: Path) -> None:
    found = load_sim(write_sim(tmp_path, a_sim("fifo", jobs=500)))
    shown = shown_jobs(found.runs[0])
    assert len(shown) == MOST_ROWS
    assert [job.submit_s for job in shown] == sorted(job.submit_s for job in shown)
    (gantt,) = (one for one in policy_charts(found, found.runs[0]) if one.key == "gantt-fifo")
    assert "160 of 500 jobs" in gantt.caption


def test_the_distribution_counts_jobs_that_were_never_done(tmp_path: Path) -> None:
    folder = write_sim(tmp_path, a_sim("fifo", jobs=4))
    jobs = (folder / "jobs-fifo.csv").read_text().replace("3000.0,7200.0", ",")
    lines = jobs.splitlines()
    lines[-1] = "j3,Waiting,2,1800.0,,,,0,0,0,"
    (folder / "jobs-fifo.csv").write_text("\n".join(lines) + "\n")
    found = load_sim(folder)
    chart = sim_charts(found, series_numbers(found.policies))[0]
    drawn = chart.draw(FRAME, "c").render()
    (points,) = re.findall(r'points="([^"]+)"', drawn)
    bottom, top = 340 - 44, 10
    last = float(points.split(",")[-1])
    assert (bottom - last) / (bottom - top) == pytest.approx(0.75, abs=0.01)


def rows(*changes: dict[str, Any]) -> Any:
    return a_sim(policies=[a_row(f"p{at}", at, 5, **one) for at, one in enumerate(changes)])


def figures(tmp_path: Path, *changes: dict[str, Any]) -> Any:
    return [run.figures for run in load_sim(write_sim(tmp_path, rows(*changes))).runs]


def test_only_those_that_did_their_job_stand_on_the_front(tmp_path: Path) -> None:
    shown = figures(tmp_path, {}, {"finished": 4}, {"over_budget_s": 3.0}, {})
    assert front(shown) == ["p0", "p3"]


def findings(tmp_path: Path, *changes: dict[str, Any], **more: Any) -> list[str]:
    document = {**rows(*changes), **more}
    return sim_findings(load_sim(write_sim(tmp_path, document)).sim)


def test_findings_name_the_fastest_the_undone_and_the_overdrawn(tmp_path: Path) -> None:
    told = findings(tmp_path, {}, {"finished": 4}, {"over_budget_s": 90.0}, {})
    assert "p1 finished 4 of 5 jobs." in told
    assert told[0] == (
        "p3 completes jobs soonest: 100.0 min on average, 14.3 % sooner than p2, the next."
    )
    assert "p2 drew more than the budget for 90.0 s." in told


def test_the_second_sentence_is_energy_in_kwh_with_joules_beside(tmp_path: Path) -> None:
    told = findings(tmp_path, {"energy_j": {"gpu": 7.2e9}}, {"energy_j": {"gpu": 3.6e9}})
    assert told[1] == (
        "p1 uses the least energy: 1,000.0 kWh (3,600.0 MJ), 50.0 % less than p0, the next."
    )


def test_what_prints_alike_is_a_tie(tmp_path: Path) -> None:
    alike = {"avg_jct_s": 6000.0, "energy_j": {"gpu": 3.6e9}}
    told = findings(tmp_path, alike, {**alike, "avg_jct_s": 6000.4}, {"avg_jct_s": 12000.0})
    assert told[0] == (
        "p0 and p1 complete jobs equally soon: 100.0 min on average, 50.0 % sooner than p2, "
        "the next."
    )
    told = findings(tmp_path / "two", alike, alike)
    assert told[:2] == [
        "p0 and p1 complete jobs equally soon: 100.0 min on average.",
        "p0 and p1 use the same energy: 1,000.0 kWh (3,600.0 MJ).",
    ]
    assert not any("beats" in one for one in told)


def test_watts_that_nobody_measured_are_called_priors(tmp_path: Path) -> None:
    told = findings(tmp_path, {}, watts={"jobs": 5, "prior": 5}, power="water-filling")
    assert told[-1] == (
        "Watts of all 5 jobs are priors: nobody measured their power curves. `water-filling` then "
        "tells jobs apart by their GPU model and GPU count only; compare it with `uniform` before "
        "you rely on it."
    )
    told = findings(tmp_path / "some", {}, watts={"jobs": 5, "prior": 2})
    assert told[-1] == "Watts of 2 of 5 jobs are priors: nobody measured their power curves."
    assert "priors" not in " ".join(findings(tmp_path / "none", {}, watts={"jobs": 5, "prior": 0}))


def test_no_job_model_is_not_called_a_runner(tmp_path: Path) -> None:
    page = page_of(write_sim(tmp_path, a_sim("fifo", preset="none")))
    assert "none" not in " ".join(check(page).text).partition("Results")[0]
