"""A power tree of three levels under `sim run`: no level above its budget, and it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from wattherd.cli.main import cli
from wattherd.experiments.schedule.run import POWER_POLICIES
from wattherd.workload.generate_jobs import JobMix, generate_jobs

MIX = JobMix(
    jobs=120,
    gpus=32,
    load=1.5,
    longest_s=7200.0,
    power_profiles=("resnet50", "bert-squad", "deepspeech2", "shufflenet"),
)
TREE: dict[str, Any] = {
    "name": "site",
    "budget": "0:7kW,1h:5.6kW,3h:7kW",
    "loss": 0.03,
    "children": [
        {
            "name": "row-a",
            "level": "row",
            "budget": "4kW",
            "loss": 0.02,
            "children": [
                {"name": "rack-1", "level": "rack", "budget": "2kW", "nodes": ["node-00000"]},
                {
                    "name": "rack-2",
                    "budget": "2.2kW",
                    "signal": "30m:1.4kW,2h:2.2kW",
                    "nodes": ["node-00001"],
                },
            ],
        },
        {
            "name": "row-b",
            "children": [{"name": "rack-3", "nodes": ["node-00002", "node-00003"]}],
        },
    ],
}


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    rows = ["id,submit_s,gpus,duration_s,power_profile"]
    rows += [
        f"{one.id},{one.submit_s},{one.gpus},{one.duration_s},{one.power_profile}"
        for one in generate_jobs(MIX, 1)
    ]
    (folder / "jobs.csv").write_text("\n".join(rows) + "\n")
    (folder / "tree.yaml").write_text(yaml.safe_dump(TREE))
    document = {
        "cluster": "4x8:V100M16",
        "jobs": {"file": "jobs.csv", "format": "native"},
        "preset": "none",
        "policies": ["tiresias", "fifo-backfill"],
        "power_tree": "tree.yaml",
    }
    (folder / "scenario.yaml").write_text(yaml.safe_dump(document))
    return folder / "scenario.yaml"


def run(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["sim", "run", *arguments, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("power", sorted(POWER_POLICIES))
def test_not_a_second_above_any_budget_on_any_level(scenario: Path, power: str) -> None:
    for row in run(str(scenario), "--power", power)["policies"]:
        assert row["finished"] == MIX.jobs
        assert [(one["level"], one["domains"], one["budgets"]) for one in row["levels"]] == [
            ("site", 1, 1),
            ("row", 2, 1),
            ("rack", 3, 2),
        ]
        assert [one["over_budget_s"] for one in row["levels"]] == [0.0, 0.0, 0.0]
        assert [one["worst_w"] for one in row["levels"]] == [0.0, 0.0, 0.0]
        # The budgets bind: at times they are used to within a few watts.
        assert max(one["peak_use_pct"] for one in row["levels"]) > 98
        assert all(one["peak_use_pct"] <= 100 for one in row["levels"])


def test_without_the_guard_the_same_tree_is_exceeded(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meter sees what the guard prevents."""
    from wattherd.engine.power.account import PowerAccount

    monkeypatch.setattr(PowerAccount, "_over", lambda *_: False)
    monkeypatch.setattr(PowerAccount, "_caps_w", lambda _, asks, branches: asks.top_w.tolist())
    row = run(str(scenario))["policies"][0]
    assert row["levels"][0]["over_budget_s"] > 60
    assert row["levels"][2]["over_budget_s"] > 60
    assert row["levels"][2]["worst_domain"] == "rack-2"
    assert row["over_budget_s"] == row["levels"][0]["over_budget_s"]


@pytest.mark.long
def test_the_page_and_the_replay_know_the_levels(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(str(scenario), "--out", str(out))
    runner = CliRunner()
    told = runner.invoke(cli, ["sim", "replay", str(out)], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    done = runner.invoke(cli, ["report", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    page = next(out.glob("*.html")).read_text()
    assert "Levels of the power tree" in page
    for word in ("site", "row", "rack"):
        assert f"<td>{word}</td>" in page
    plain = tmp_path / "plain"
    run(str(scenario), "--set", "power_tree=null", "--out", str(plain))
    runner.invoke(cli, ["report", str(plain)], catch_exceptions=False)
    assert "Levels of the power tree" not in next(plain.glob("*.html")).read_text()


def test_a_rack_that_is_misspelt_is_named_with_its_file(scenario: Path) -> None:
    change = "power_tree={name: site, children: [{name: a, nodes: [node-9]}]}"
    done = CliRunner().invoke(cli, ["sim", "run", str(scenario), "--set", change])
    assert "a: nodes: no node is called 'node-9'" in str(done.exception)
