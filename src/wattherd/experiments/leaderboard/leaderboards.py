"""Three boards: schedulers, ways of sharing power, placement policies; cells, judged and ranked.

A board has problems: a workload, under a budget where it has budgets. Every policy runs on each, by
a sweep, and is judged by one figure; the others stand beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattherd import __version__
from wattherd.engine.core.config import RULES
from wattherd.errors import UserError
from wattherd.experiments.leaderboard.ranking import TIE, overall, ranked
from wattherd.experiments.leaderboard.workloads import BoardJobs, BoardPods
from wattherd.experiments.placement.policies import place_policy, scorers
from wattherd.experiments.schedule.run import POWER_POLICIES
from wattherd.experiments.schedule.simulators import PRESETS
from wattherd.experiments.sweep.cell import grid
from wattherd.experiments.sweep.kinds import SweepCell
from wattherd.experiments.sweep.placement_cell import PlacementCell
from wattherd.experiments.sweep.sweep import SweptCell
from wattherd.spelling import hint_for
from wattherd.workload.scenario import validated

SCHEMA = "wattherd.leaderboard/1"
LOAD = 1.3
PLACEMENT_SEEDS = (42, 43, 44)
BLENDS = ("pwr+fgd:0.1",)
"""Published blends of scorers (PWR, CCGrid'25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaderboard:
    """What is compared, by which figure, and which others are shown."""

    name: str
    title: str
    about: str
    policy: str
    """Column of a cell that names who is compared."""
    metric: str
    lowest: bool
    beside: tuple[str, ...]
    parts: tuple[float, ...] = ()
    """Budgets, as parts of the most that all GPUs draw."""


SCHEDULERS = Leaderboard(
    name="schedulers",
    title="Schedulers of training jobs",
    about="Watts are shared by water-filling. A scheduler is ranked where it finished every job "
    "and never drew more than the budget, by the mean completion time.",
    policy="policy",
    metric="avg_jct_s",
    lowest=True,
    beside=("p99_jct_s", "makespan_s", "energy_j", "preemptions"),
    parts=(1.0, 0.7, 0.5),
)
POWER = Leaderboard(
    name="power",
    title="Ways of sharing power",
    about="Jobs are scheduled by fifo-backfill. A way of sharing is ranked where every job was "
    "finished and the budget never exceeded, by the mean completion time. Without measured "
    "profiles all jobs of a GPU model have the same curve, and sharing can gain little.",
    policy="power",
    metric="avg_jct_s",
    lowest=True,
    beside=("p99_jct_s", "makespan_s", "energy_j"),
    parts=(0.8, 0.6, 0.5),
)
PLACEMENT = Leaderboard(
    name="placement",
    title="Placement policies",
    about="Pods arrive until GPU demand is 1.3 times the capacity. A policy is ranked by the "
    "part of all GPUs that is allocated in the end, the mean of three seeds.",
    policy="policy",
    metric="allocated_pct",
    lowest=False,
    beside=("frag_ratio_pct", "power_w", "grar"),
)
BOARDS = {board.name: board for board in (SCHEDULERS, POWER, PLACEMENT)}


def schedule_cells(
    board: Leaderboard, workloads: Sequence[BoardJobs], policies: Sequence[str] | None
) -> list[SweepCell]:
    """Every policy on every workload under every budget; all that there are unless some are named.

    Raises:
        UserError: a policy that no workload's preset has.
    """
    by_power = board.policy == "power"
    known = _known_power() if by_power else _known_schedulers(workloads)
    _check(policies, known)
    cells: list[SweepCell] = []
    for one in workloads:
        names = known if by_power else list(PRESETS[one.preset].schedulers)
        chosen = [name for name in sorted(names) if policies is None or name in policies]
        if not chosen:
            continue
        fields = one.fields() | {"budgets": [one.budget(part) for part in board.parts]}
        fields |= (
            {"policies": ["fifo-backfill"], "power": chosen} if by_power else {"policies": chosen}
        )
        cells += grid(one.name, validated(fields, one.name))
    return cells


def _known_schedulers(workloads: Sequence[BoardJobs]) -> list[str]:
    return sorted({name for one in workloads for name in PRESETS[one.preset].schedulers})


def _known_power() -> list[str]:
    return sorted(POWER_POLICIES)


def placement_cells(
    workloads: Sequence[BoardPods], policies: Sequence[str] | None
) -> list[SweepCell]:
    """Every placement policy with every seed on every workload.

    Raises:
        UserError: a policy that is none.
    """
    names = sorted(policies or (*scorers(), *BLENDS))
    for name in names:
        place_policy(name)
    return [
        PlacementCell(
            workload=one.name, nodes=one.nodes, pods=one.pods, policy=name, load=LOAD, seed=seed
        )
        for one in workloads
        for name in names
        for seed in PLACEMENT_SEEDS
    ]


def _check(policies: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in policies or ():
        if name not in known:
            raise UserError(
                f"unknown policy {name!r} here", field="--policy", hint=hint_for(name, known)
            )


def document(
    board: Leaderboard,
    workloads: Sequence[BoardJobs] | Sequence[BoardPods],
    results: Sequence[SweptCell],
    command: str,
) -> dict[str, Any]:
    """`wattherd.leaderboard/1`: what was run, each problem's ranks, and those over all."""
    problems = _problems(board, results)
    scores = [{one["policy"]: one["score"] for one in problem["standings"]} for problem in problems]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "rules": RULES,
        "command": command,
        "board": board.name,
        "title": board.title,
        "about": board.about,
        "metric": board.metric,
        "lowest_is_best": board.lowest,
        "tie": TIE,
        "workloads": [_stated(one) for one in workloads],
        "overall": [_line(one) for one in overall(scores, lowest=board.lowest)],
        "problems": problems,
    }


def _stated(one: BoardJobs | BoardPods) -> dict[str, Any]:
    """What a workload is, without where its files lie."""
    told = asdict(one)
    return {name: told[name] for name in ("name", "about", "source", "cluster", "preset", "seed")
            if name in told}  # fmt: skip


def _problems(board: Leaderboard, results: Sequence[SweptCell]) -> list[dict[str, Any]]:
    by_problem: dict[tuple[str, str | None], dict[str, list[dict[str, Any]]]] = {}
    for one in results:
        row: dict[str, Any] = one.row()
        where = (str(row["workload"]), row.get("budget"))
        policy = str(_who(board, row, one))
        by_problem.setdefault(where, {}).setdefault(policy, []).append(row)
    return [
        {"workload": workload, "budget": budget, "standings": _standings(board, policies)}
        for (workload, budget), policies in by_problem.items()
    ]


def _who(board: Leaderboard, row: Mapping[str, Any], one: SweptCell) -> Any:
    return one.cell.place()[board.policy] or row["policy"]


def _standings(
    board: Leaderboard, policies: Mapping[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    scores: dict[str, float | None] = {}
    why: dict[str, str] = {}
    for policy, rows in policies.items():
        lack = next(filter(None, map(_lack, rows)), "")
        scores[policy] = None if lack else statistics.fmean(row[board.metric] for row in rows)
        why[policy] = lack
    lines = []
    for one in ranked(scores, lowest=board.lowest, why=why):
        rows = policies[one.policy]
        beside = {name: _mean(name, rows) for name in board.beside}
        lines.append({**_line(one), **beside})
    return lines


def _mean(name: str, rows: Sequence[Mapping[str, Any]]) -> float | None:
    values = [row.get(name) for row in rows]
    known = [float(one) for one in values if one is not None]
    return statistics.fmean(known) if len(known) == len(rows) else None


def _lack(row: Mapping[str, Any]) -> str:
    """Why a run has no rank; nothing where it has."""
    checks: tuple[Callable[[], str], ...] = (
        lambda: str(row["failure"] or ""),
        lambda: f"{row['jobs'] - row['finished']:g} jobs not finished"
        if "finished" in row and row["finished"] != row["jobs"] else "",
        lambda: f"above the budget for {row['over_budget_s']:g} s"
        if row.get("over_budget_s") else "",
    )  # fmt: skip
    return next(filter(None, (check() for check in checks)), "")


def _line(one: Any) -> dict[str, Any]:
    return {
        "policy": one.policy, "place": one.place(), "rank": one.rank, "tied": one.tied,
        "score": one.score, "why": one.why,
    }  # fmt: skip
