"""The page Power: the tree from the site down to devices, each with its limit and its draw."""

from __future__ import annotations

from typing import Any

from wattherd.server.site.power_tree import LiveRow, live_rows
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.paging import paged
from wattherd.server.web.render import show_w

ROWS = 200
"""On one page; more would be neither read nor drawn in time."""
MOST_INDENT = 12
"""Deeper ones stand no farther to the right."""
STALE_S = 10.0
"""From then on a reading is marked as old."""


def power_view(scene: PageSource, page: int) -> dict[str, Any]:
    """All that the page shows."""
    levels, now_s = scene.levels(), scene.now_s()
    rows = scene.look(lambda look: live_rows(look, levels, scene.tree, now_s))
    cut = paged(rows, page, ROWS)
    return {
        "rows": [_cells(one) for one in cut.items],
        "cut": cut,
        "over": [one.name for one in rows if one.over][:ROWS],
        "silent": [one.name for one in rows if one.draw_w is None and one.age_s is not None][:ROWS],
        "estimated": any(one.stated == "model" for one in rows),
    }


def _cells(row: LiveRow) -> dict[str, Any]:
    known_w = row.least_w if row.draw_w is None else row.draw_w
    share = known_w / row.limit_w if known_w is not None and row.limit_w else None
    return {
        "name": row.name,
        "kind": row.kind,
        "indent": min(row.depth, MOST_INDENT),
        "depth": row.depth,
        "limit": show_w(row.limit_w) if row.limit_w is not None else "none",
        "by": row.limit_by,
        "draw": _drawn(row),
        "other": "" if row.kind == "device" else show_w(row.other_w),
        "headroom": show_w(row.headroom_w),
        "free": ("" if row.free_complete or row.free_w is None else "\u2264 ") + show_w(row.free_w),
        "share": None if share is None else max(0.0, min(share, 1.0)),
        "used": "" if share is None else f"{share:.0%}",
        "age_s": row.age_s,
        "old": row.age_s is not None and row.age_s > STALE_S,
        "over": row.over,
        "problem": row.problem,
    }


def _drawn(row: LiveRow) -> str:
    if row.draw_w is not None:
        return show_w(row.draw_w)
    return "unknown" if row.least_w is None else f"unknown, \u2265 {show_w(row.least_w)}"
