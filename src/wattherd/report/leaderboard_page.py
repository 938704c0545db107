"""A leaderboard as files: a page and its JSON.

Knows the document `wattherd.leaderboard/1`, no simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattherd.report.rendering import rendered
from wattherd.store.run_dir import RunDir
from wattherd.units import show_seconds

NAMES: Mapping[str, tuple[str, str]] = {
    "avg_jct_s": ("mean completion time", ""),
    "p99_jct_s": ("99th percentile", ""),
    "makespan_s": ("all jobs", ""),
    "energy_j": ("energy", "MJ"),
    "preemptions": ("preemptions", ""),
    "allocated_pct": ("GPUs allocated", "%"),
    "frag_ratio_pct": ("fragments", "% of free"),
    "power_w": ("draw", "kW"),
    "grar": ("allocated of what arrived", ""),
}
"""What figures are called, and in which unit they are shown; times say theirs."""
_SCALE = {"energy_j": 1e6, "power_w": 1e3}


def write_leaderboard(document: Mapping[str, Any], out: Path) -> Path:
    """Write `leaderboard.json` and `report.html`; returns the page.

    Raises:
        UserError: they cannot be written.
    """
    folder = RunDir(out)
    folder.write_json("leaderboard.json", document)
    return folder.write_text("report.html", page(document))


def page(document: Mapping[str, Any]) -> str:
    """The self-contained page."""
    problems = [_problem(document["metric"], one) for one in document["problems"]]
    return rendered(
        "leaderboard.html.j2",
        1,
        board=document,
        overall=[_overall(one) for one in document["overall"]],
        problems=problems,
        tie=f"{100 * document['tie']:g}",
    )


def _overall(one: Mapping[str, Any]) -> dict[str, str]:
    behind = "" if one["score"] is None else f"{100 * (one['score'] - 1):.1f}"
    return {"policy": one["policy"], "place": one["place"], "behind": behind, "why": one["why"]}


def _problem(metric: str, problem: Mapping[str, Any]) -> dict[str, Any]:
    plain = ("policy", "place", "rank", "tied", "score", "why")
    first = problem["standings"][0] if problem["standings"] else {}
    columns = [metric, *(name for name in first if name not in plain)]
    budget = f" under {problem['budget']}" if problem["budget"] else ""
    lines = [
        {
            "policy": one["policy"],
            "place": one["place"],
            "cells": [_shown(name, one["score"] if name == metric else one[name])
                      for name in columns],
            "why": one["why"],
        }
        for one in problem["standings"]
    ]  # fmt: skip
    return {
        "title": f"{problem['workload']}{budget}",
        "columns": [NAMES.get(name, (name, "")) for name in columns],
        "lines": lines,
    }


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name.endswith("_s"):
        return show_seconds(value)
    return f"{value / _SCALE.get(name, 1):,.2f}".removesuffix(".00")
