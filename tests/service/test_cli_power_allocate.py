"""`wattherd power allocate`, `compare`, `train-rl`, `judge-rl` as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from wattherd.cli.power import power
from wattherd.errors import UserError
from wattherd.experiments.allocate.run import ORACLES
from wattherd.policy.power.rules import RULES

CURVES = """\
job,cap_w,power_w,rate,weight,domain,priority,floor_w
a,100,90,1.0,1,rack-1,0,
a,200,180,1.6,1,rack-1,0,
a,300,260,1.9,1,rack-1,0,
b,100,95,10,2,rack-1,5,150
b,200,190,18,2,rack-1,5,150
b,300,280,20,2,rack-1,5,150
c,150,140,3,1,rack-2,0,
c,250,240,5,1,rack-2,0,
"""
TREE = """\
name: site
budget: 700W
loss: 0.02
children:
  - {name: rack-1, budget: 400W}
  - {name: rack-2}
"""


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    path = tmp_path / "curves.csv"
    path.write_text(CURVES)
    return path


def json_of(*words: str) -> Any:
    result = CliRunner().invoke(power, [*words, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(power, words, catch_exceptions=False)
    return caught.value.line()


@pytest.mark.parametrize("policy", [*RULES, *ORACLES])
def test_every_policy_keeps_tree_floors_and_measured_points(
    policy: str, curves: Path, tmp_path: Path
) -> None:
    if policy in ORACLES:
        pytest.importorskip("scipy", reason="extra lp")
    tree = tmp_path / "tree.yaml"
    tree.write_text(TREE)
    words = ["--curves", str(curves), "--tree", str(tree), "--policy", policy]
    document = json_of("allocate", *words)
    jobs = {job["job"]: job for job in document["jobs"]}
    rack_w = jobs["a"]["power_w"] + jobs["b"]["power_w"]
    assert rack_w <= 400
    assert (rack_w + jobs["c"]["power_w"]) / 0.98 <= 700 + 1e-9
    assert jobs["b"]["cap_w"] in {None, 200, 300}
    assert document["objective"] <= document["bound"] + 1e-9
    assert set(document["prices_per_w"]) == {"site", "rack-1"}
    assert not any(job["paused"] for job in document["jobs"])


def test_the_greedy_baseline_leaves_nothing_to_those_who_come_last(curves: Path) -> None:
    words = ["--curves", str(curves), "--budget", "400W", "--policy", "priority-greedy"]
    jobs = {job["job"]: job for job in json_of("allocate", *words)["jobs"]}
    assert (jobs["b"]["cap_w"], jobs["a"]["cap_w"]) == (300, 100)
    assert (jobs["c"]["paused"], jobs["c"]["power_w"], jobs["c"]["rate"]) == (True, 0, 0)


def test_the_market_tells_prices_and_what_each_would_buy(curves: Path) -> None:
    document = json_of("allocate", "--curves", str(curves), "--budget", "600W", "--policy", "nash")
    market = document["market"]
    assert market["prices_per_w"]["budget"] > 0
    assert sum(job["power_w"] for job in market["jobs"]) == pytest.approx(600)
    assert market["geometric_mean"] <= market["bound"]
    assert "market" not in json_of("allocate", "--curves", str(curves), "--budget", "600W")


def test_tiers_go_by_the_priority_column(curves: Path) -> None:
    words = ["--curves", str(curves), "--budget", "520W", "--policy"]
    first = {job["job"]: job["cap_w"] for job in json_of("allocate", *words, "tiers")["jobs"]}
    assert first == {"a": 100, "b": 300, "c": 150}


def test_energy_budgets_come_from_a_file(curves: Path, tmp_path: Path) -> None:
    joules = tmp_path / "joules.csv"
    joules.write_text("job,work,energy_budget_j\na,1000,100000\n")
    words = ["--curves", str(curves), "--budget", "5kW", "--joules", str(joules)]
    job = json_of("allocate", *words)["jobs"][0]
    assert (job["cap_w"], job["energy_j"]) == (100, 90_000)
    joules.write_text("job,work,energy_budget_j\na,1000,80000\n")
    assert "80 kJ do not last" in refusal("allocate", *words)


def test_compare_has_a_row_per_policy_and_budget(curves: Path) -> None:
    document = json_of("compare", "--curves", str(curves), "--parts", "0.4,0.7")
    rows = document["allocations"]
    assert len(rows) == 2 * len(RULES)
    best = max(row["objective"] for row in rows if row["part"] == 0.7)
    filled = next(r for r in rows if (r["policy"], r["part"]) == ("water-filling", 0.7))
    assert filled["objective"] == best
    assert all("W are less than" in r["problem"] for r in rows if "problem" in r)
    table = CliRunner().invoke(power, ["compare", "--curves", str(curves)])
    assert "water-filling" in table.stdout
    assert "too little" in table.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "--parts", "half"], "'half' is no list of numbers"),
        (["compare", "--parts", "1.5"], "1.5 is no part"),
        (["compare", "--policies", "nahs"], "unknown policy 'nahs'"),
        (["allocate", "--budget", "1kW", "--policy", "rl:none.json"], "none.json: cannot be read"),
        (["allocate"], "no budget"),
        (["allocate", "--budget", "300W"], "300 W are less than the"),
        (["allocate", "--budget", "300W", "--pause", "--policy", "nash"], "nash pauses nobody"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(words: list[str], said: str, curves: Path) -> None:
    message = refusal(*words, "--curves", str(curves))
    assert said in message
    assert "\n" not in message


@pytest.mark.long
def test_a_policy_is_trained_judged_and_used(curves: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    words = ["train-rl", "--generations", "1", "--seed", "2", "--out", str(policy)]
    assert CliRunner().invoke(power, words, catch_exceptions=False).exit_code == 0
    rows = json_of("judge-rl", str(policy), "--episodes", "3")["policies"]
    assert "rl" in {row["policy"] for row in rows}
    assert max(row["over_budget_w"] for row in rows) <= 1e-6
    answer = json_of(
        "allocate", "--curves", str(curves), "--budget", "550W", "--policy", f"rl:{policy}"
    )
    assert answer["total_w"] <= 550
    table = CliRunner().invoke(power, ["judge-rl", str(policy), "--episodes", "2"])
    assert "SLOWDOWN" in table.stdout
