"""Scenarios: what the fields of the file do to a run, and what is said when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from wattherd.cli.sim import sim
from wattherd.errors import UserError
from wattherd.experiments.schedule.run import simulate
from wattherd.experiments.schedule.setup import setting_of
from wattherd.model.event import NodeLost, NodeReturned, QueueStarted, QueueStopped
from wattherd.workload.scenario import Scenario, beside, validated


def a_scenario(suite: Path, **more: Any) -> Scenario:
    document = {
        "cluster": "2x4:T4",
        "jobs": {"file": "jobs.csv", "profiles": "profiles"},
        **more,
    }
    return beside(validated(document, "test"), suite)


def run(scenario: Scenario, *, record: bool = False) -> Any:
    setting = setting_of(
        scenario, budget=scenario.budgets[0], power=scenario.power[0], record=record
    )
    return simulate(setting, scenario.policies[0])


def cli(*arguments: str) -> Result:
    return CliRunner().invoke(sim, list(arguments), catch_exceptions=False)


# --- faults ----------------------------------------------------------------------------------


def test_a_node_is_lost_and_comes_back(suite: Path) -> None:
    fault = {"at": "10m", "node": "node-00001", "lasts": "1h"}
    result = run(a_scenario(suite, faults=[fault]), record=True)
    events = [one for one in result.recording.events if isinstance(one, NodeLost | NodeReturned)]
    assert [(type(one), one.at_s) for one in events] == [(NodeLost, 600), (NodeReturned, 4200)]
    plain = run(a_scenario(suite))
    assert result.row["finished"] == plain.row["finished"] == 12
    assert result.row["makespan_s"] > plain.row["makespan_s"]


def test_a_queue_is_stopped_for_a_while(suite: Path) -> None:
    fault = {"at": 0, "queue": "default", "lasts": "2h"}
    scenario = a_scenario(suite, faults=[fault], policies=["capacity"])
    result = run(scenario, record=True)
    kinds = [type(one) for one in result.recording.events]
    assert QueueStopped in kinds
    assert QueueStarted in kinds
    assert min(one.start_s for one in result.outcomes) >= 7200


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        ({"at": 1, "node": "node-00009"}, "faults.0.node"),
        ({"at": 1}, "faults.0"),
        ({"at": 1, "node": "node-00001", "queue": "default"}, "faults.0"),
        ({"at": "soon", "node": "node-00001"}, "faults.0.at"),
        ({"at": 1, "node": "node-00001", "lasts": "-3"}, "faults.0.lasts"),
    ],
)
def test_a_fault_that_means_nothing_is_refused(suite: Path, fault: Any, field: str) -> None:
    with pytest.raises(UserError) as refused:
        run(a_scenario(suite, faults=[fault]))
    assert refused.value.field == field
    assert refused.value.hint


# --- queues and cells ------------------------------------------------------------------------


def test_a_queue_nobody_configured_rejects_its_jobs_with_its_name(suite: Path) -> None:
    queues = {"name": "root", "children": [{"name": "prod", "guaranteed_pct": 100}]}
    result = run(a_scenario(suite, queues=queues, policies=["capacity"]))
    assert result.row["rejected"] == 12
    assert "default" in result.outcomes[0].detail


def test_virtual_clusters_are_cut_as_the_scenario_says(suite: Path) -> None:
    cells = {
        "within": {4: [2, 2]},
        "shares": {"default": {"T4x4": {"node": 1}}, "other": {"T4x4": {"node": 1}}},
    }
    result = run(a_scenario(suite, cells=cells, policies=["hived"]))
    alone = run(a_scenario(suite, policies=["hived"]))
    assert result.row["finished"] == alone.row["finished"] == 12
    assert result.row["avg_jct_s"] > alone.row["avg_jct_s"]


def test_guarantees_that_do_not_add_up_are_refused(suite: Path) -> None:
    queues = {"name": "root", "children": [{"name": "a", "guaranteed_pct": 60}]}
    with pytest.raises(UserError, match="add up to 60"):
        run(a_scenario(suite, queues=queues, policies=["capacity"]))


# --- sleep, end of time ----------------------------------------------------------------------


def test_sleeping_nodes_save_idle_energy_and_cost_wake_ups(suite: Path) -> None:
    awake = run(a_scenario(suite, node_idle_w=100))
    asleep = run(a_scenario(suite, node_idle_w=100, sleep={"after": "1min", "boots": "2min"}))
    assert awake.row["energy_j"]["wake"] == 0
    assert asleep.row["finished"] == 12
    assert asleep.row["energy_j"]["idle"] < awake.row["energy_j"]["idle"]


def test_the_rest_of_a_node_draws_its_watts(suite: Path) -> None:
    without, with_it = run(a_scenario(suite)), run(a_scenario(suite, node_idle_w=100))
    span_s = with_it.row["makespan_s"]
    more_j = with_it.row["energy_j"]["idle"] - without.row["energy_j"]["idle"]
    assert more_j == pytest.approx(2 * 100 * span_s, rel=0.02)
    assert with_it.row["avg_jct_s"] == without.row["avg_jct_s"]


def test_restarts_cost_what_the_scenario_says(suite: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,submit_s,gpus,duration_s\na,0,1,100\n")
    scenario = {"cluster": "1x1:T4", "preset": "none", "policies": ["fifo"], "restart": "30s"}
    document = {**scenario, "jobs": {"file": str(jobs), "format": "native"}}
    assert run(validated(document, "test")).row["avg_jct_s"] == 130
    with pytest.raises(UserError, match="pollux-osdi21 fixes it"):
        run(a_scenario(suite, restart="30s"))


def test_nothing_happens_after_the_end_of_time(suite: Path) -> None:
    result = run(a_scenario(suite, until="10m"), record=True)
    assert max(one.at_s for one in result.recording.events) <= 600
    assert result.row["waiting"] == 12 - result.row["finished"]


# --- the command line ------------------------------------------------------------------------


def test_options_go_before_the_fields_of_the_file(suite: Path, tmp_path: Path) -> None:
    done = cli(
        "run", str(suite / "scenario.yaml"), "--policy", "drf", "--set", "budgets=['600W']",
        "--out", str(tmp_path), "-o", "json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "sim.json").read_text())
    assert [row["policy"] for row in document["policies"]] == ["drf"]
    assert (document["budget"], document["cluster"]) == ("600W", "2x4:T4")


def test_a_job_that_never_fits_is_told_at_once_with_the_numbers(
    suite: Path, tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,submit_s,gpus,duration_s\nwide,0,16,10\nsmall,0,1,10\n")
    done = cli(
        "run", "--jobs", str(jobs), "--format", "native", "--preset", "none", "--policy", "fifo",
        "--cluster", "2x4:T4", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert "rejected wide: NeverFits: asked 16 worker tasks, available 8" in done.stderr
    rows = (tmp_path / "out" / "jobs-fifo.csv").read_text().splitlines()
    assert rows[1].startswith("wide,Rejected,16,")
    assert "asked 16" in rows[1]


def test_nothing_to_run_is_said(suite: Path) -> None:
    with pytest.raises(UserError, match="no jobs"):
        cli("run", "--cluster", "2x4:T4")


@pytest.mark.parametrize(
    ("field", "hint"),
    [("polices", "policies"), ("jobs.profile", "profiles"), ("sleep.aftr", "after")],
)
def test_an_unknown_field_is_answered_with_its_neighbour(
    suite: Path, field: str, hint: str
) -> None:
    with pytest.raises(UserError) as refused:
        cli("run", str(suite / "scenario.yaml"), "--set", f"{field}=1")
    assert hint in refused.value.hint


@pytest.fixture(scope="module")
def kept(suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with its log, under a budget that makes jobs wait."""
    out = tmp_path_factory.mktemp("kept")
    done = cli(
        "run", str(suite / "scenario.yaml"), "--policy", "tiresias,drf", "--budget", "300W",
        "--power", "pause", "--out", str(out),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return out


def test_explain_tells_why_a_job_waited(kept: Path) -> None:
    stories = []
    for number in (0, 1, 2, 4, 5, 6, 8, 9, 10):
        done = cli("explain", str(kept), f"job-{number}", "-o", "json")
        told = json.loads(done.output)
        assert told["schema"] == "wattherd.explain/1"
        assert (told["policy"], told["state"]) == ("tiresias", "Succeeded")
        stories.append(told)
    waited = [told["waited_s"].get("WaitingForPower", 0.0) for told in stories]
    assert max(waited) > 0
    lines = [line["what"] for told in stories for line in told["story"]]
    assert any(line.startswith("waits: WaitingForPower: asked") for line in lines)
    for told in stories:
        times = [line["at_s"] for line in told["story"]]
        assert times == sorted(times)
        assert told["story"][0]["what"].startswith("submitted")
        assert told["story"][-1]["what"] == "over: Succeeded"


@pytest.mark.long
def test_a_job_the_budget_never_allows_waits_and_keeps_nobody_from_running(kept: Path) -> None:
    """Four T4s need 240 W above idle; of 300 W there are 220 above the idle draw of eight."""
    for policy in ("tiresias", "drf"):
        states = {}
        for number in range(12):
            name = f"job-{number}"
            done = cli("explain", str(kept), name, "--policy", policy, "-o", "json")
            states[name] = json.loads(done.output)
        waiting = {name for name, told in states.items() if told["state"] == "Queued"}
        assert waiting == {"job-3", "job-7", "job-11"}
        for name in waiting:
            assert "NeverFits: asked 320 W, available 300 W" in states[name]["story"][-1]["what"]


def test_what_is_waited_is_the_time_not_run(kept: Path) -> None:
    import csv

    with (kept / "jobs-drf.csv").open() as file:
        rows = {row["job"]: row for row in csv.DictReader(file)}
    for name, row in rows.items():
        if row["state"] != "Succeeded":
            continue
        told = json.loads(cli("explain", str(kept), name, "--policy", "drf", "-o", "json").output)
        first_start_s = float(row["start_s"]) - float(row["submit_s"])
        assert sum(told["waited_s"].values()) >= first_start_s - 1e-6


@pytest.mark.parametrize(
    ("arguments", "about"),
    [(["job-99"], "job-99"), (["job-1", "--policy", "hived"], "hived")],
)
def test_explain_knows_what_it_does_not_know(kept: Path, arguments: list[str], about: str) -> None:
    with pytest.raises(UserError, match=about) as refused:
        cli("explain", str(kept), *arguments)
    assert refused.value.hint


def test_a_run_without_a_log_cannot_be_explained(suite: Path, tmp_path: Path) -> None:
    cli("run", str(suite / "scenario.yaml"), "--out", str(tmp_path), "--no-log")
    with pytest.raises(UserError, match="no log"):
        cli("explain", str(tmp_path), "job-1")
