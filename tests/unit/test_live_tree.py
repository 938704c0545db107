"""The power tree of a service: silent meters, hostile names, broken shapes, many levels."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `server` is not installed")

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from wattherd.cli.power_tree import _stems
from wattherd.engine.core.core import Core, CoreConfig
from wattherd.errors import UserError
from wattherd.local.devices import slots
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import BudgetChanged
from wattherd.policy.schedule.drf import Drf
from wattherd.server.api.metrics import _family, level_series
from wattherd.server.documents.documents import SiteView
from wattherd.server.hardware.draw import WORST_CASE, DrawBook, DrawSample
from wattherd.server.limits.site_limits import SiteLevel, SiteLimits, SiteWatch
from wattherd.server.site.metric_names import METRICS
from wattherd.server.site.power_tree import LiveRow, TreeBook, live_rows, tree_document
from wattherd.server.web.power import power_view
from wattherd.server.web.render import render

MACHINE = slots("here", 2)
HOSTILE = '<script>alert("x")</script>'


def a_look(*samples: DrawSample, budget_w: float | None = None) -> SiteView:
    cluster = ClusterSpec(nodes=(MACHINE.node,))
    gpus = {MACHINE.gpu.name: MACHINE.gpu}
    core = Core(CoreConfig(cluster=cluster, planner=Drf(), round_s=3600.0, gpus=gpus))
    core.handle(BudgetChanged(at_s=0.0, budget_w=budget_w))
    book = DrawBook()
    for one in samples:
        book.add(one)
    return SiteView(core, {}, book, MACHINE, 0.0)


def a_sample(at_s: float, *read: float | None) -> DrawSample:
    silent = any(one is None for one in read)
    by_device = tuple(MACHINE.gpu.max_w if one is None else one for one in read)
    return DrawSample(
        at_s=at_s,
        draw_w=math.fsum(by_device) + 10.0,
        budget_w=None,
        by_job={},
        stated=WORST_CASE if silent else "measured",
        by_device=by_device,
        read=read,
    )


def a_level(name: str, parent: str = "", **more: float) -> SiteLevel:
    numbers = {"limit_w": math.inf, "draw_w": math.nan, "other_w": math.nan, "held_w": 0.0, **more}
    return SiteLevel(name=name, parent=parent, **numbers)


def seen(
    levels: Sequence[SiteLevel], place: str, *, look: SiteView | None = None
) -> dict[str, LiveRow]:
    book = TreeBook([one.name for one in levels], place)
    book.look(levels, 100.0)
    rows = live_rows(look or a_look(), levels, book, 100.0)
    return {one.name: one for one in rows}


def test_every_level_has_what_it_may_carry_and_what_really_is_free() -> None:
    levels = [
        a_level("rack", "row", limit_w=500.0, draw_w=300.0, other_w=180.0),
        a_level("row", "site", limit_w=900.0, draw_w=850.0, other_w=730.0),
        a_level("site", limit_w=5000.0, draw_w=4000.0, other_w=3880.0),
    ]
    look = a_look(a_sample(99.0, 50.0, 60.0), budget_w=150.0)
    book = TreeBook(["rack", "row", "site"], "rack")
    book.sampled(look.book.samples[-1])
    book.look(levels, 99.5)
    rows = live_rows(look, levels, book, 100.0)
    assert [(one.name, one.kind, one.parent, one.depth) for one in rows] == [
        ("site", "level", "", 0),
        ("row", "level", "site", 1),
        ("rack", "level", "row", 2),
        ("here", "node", "rack", 3),
        ("GPU 0", "device", "here", 4),
        ("GPU 1", "device", "here", 4),
    ]
    site, row, rack, here, first, _ = rows
    assert (row.headroom_w, row.free_w, rack.headroom_w, rack.free_w) == (50.0, 50.0, 200.0, 50.0)
    assert (here.limit_w, here.limit_by, here.draw_w, here.other_w) == (
        150.0,
        "operators",
        120.0,
        10.0,
    )
    assert (here.free_w, here.age_s, first.draw_w, first.age_s) == (30.0, 1.0, 50.0, 1.0)
    assert (site.age_s, site.limit_by, first.limit_by) == (0.5, "configuration", "device")
    assert not any(one.over for one in rows if one.kind != "device")


def test_a_meter_that_is_silent_for_an_hour_is_unknown_and_never_zero() -> None:
    known = a_level("rack", "site", limit_w=500.0, draw_w=450.0, other_w=330.0)
    silent = a_level("rack", "site", limit_w=500.0)
    site = a_level("site", limit_w=1000.0, draw_w=600.0, other_w=480.0)
    book = TreeBook(["rack", "site"], "rack")
    book.look([known, site], 10.0)
    for at_s in range(11, 3611, 5):
        book.look([silent, site], float(at_s))
    look = a_look(a_sample(3609.0, 50.0, 60.0))
    rack = next(one for one in live_rows(look, [silent, site], book, 3610.0) if one.name == "rack")
    assert (rack.draw_w, rack.headroom_w, rack.other_w) == (None, None, None)
    assert rack.least_w == 120.0  # this machine hangs on it
    assert (rack.free_w, rack.free_complete, rack.age_s) == (380.0, False, 3600.0)
    series = level_series([silent, site], book, 3610.0)
    assert [labels for labels, _ in series["wattherd_level_draw_watts"]] == [("site", "")]
    assert (("rack", "site"), 3600.0) in series["wattherd_level_silent_seconds"]
    shown = a_page([silent, site], book, look, 3610.0)
    assert "unknown, ≥ 120.0 W" in shown
    assert "No reading: rack" in shown
    assert "<td>0.0 W</td>" not in shown


def test_a_level_that_never_had_a_reading_is_silent_from_the_start() -> None:
    book, level = TreeBook(["rack"], "rack"), a_level("rack", limit_w=1.0)
    book.look([level], 5.0)
    book.look([level], 65.0)
    assert book.silent_s("rack", 65.0) == 60.0
    assert TreeBook().silent_s("rack", 65.0) is None
    row = next(iter(live_rows(a_look(), [level], book, 65.0)))
    assert (row.age_s, row.draw_w) == (None, None)


def test_a_device_that_is_silent_is_unknown_although_it_counts_at_its_worst() -> None:
    look, book = a_look(a_sample(1.0, 50.0, 60.0), a_sample(2.0, None, 60.0)), TreeBook()
    for one in look.book.samples:
        book.sampled(one)
    here, first, second = live_rows(look, [], book, 62.0)
    assert (first.draw_w, first.age_s) == (None, 61.0)
    assert (second.draw_w, second.age_s) == (60.0, 60.0)
    assert (here.draw_w, here.least_w) == (None, 60.0 + MACHINE.node.idle_w)


def test_time_above_a_limit_is_counted_as_far_as_it_was_seen() -> None:
    book = TreeBook(["rack"], "rack")
    above = a_level("rack", limit_w=100.0, draw_w=101.0, other_w=0.0)
    below = a_level("rack", limit_w=100.0, draw_w=100.0, other_w=0.0)
    for at_s, level in (
        (0.0, above),
        (1.0, above),
        (2.5, above),
        (3.0, below),
        (4.0, a_level("rack", limit_w=100.0)),
    ):
        book.look([level], at_s)
    assert book.past["rack"].over_s == 2.5
    book.look([above], 3604.0)  # a gap counts as one second
    assert book.past["rack"].over_s == 3.5
    book.look([above], 3000.0)  # a clock that was set back
    assert book.past["rack"].over_s == 3.5


@pytest.mark.parametrize(
    ("levels", "problems"),
    [
        ([("a", "b"), ("b", "a")], {"hangs on itself"}),
        ([("a", "a")], {"hangs on itself"}),
        ([("a", "ghost"), ("b", "a")], {"hangs on 'ghost', which is not known"}),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("site", "")], {"hangs on itself"}),
        ([("a", ""), ("a", "a"), ("b", "a"), ("b", "b")], {"hangs on itself"}),
    ],
    ids=["two", "one", "unknown", "three-and-more", "twice"],
)
def test_shapes_that_are_no_trees_are_drawn_with_what_is_wrong(
    levels: list[tuple[str, str]], problems: set[str]
) -> None:
    rows = seen([a_level(name, parent, draw_w=1.0) for name, parent in levels], "a")
    assert {name for name, _ in levels} <= set(rows)
    assert "here" in rows
    told = {one.problem.partition(", by")[0] for one in rows.values() if one.problem}
    assert told == problems


def test_a_tree_of_a_thousand_levels_in_one_line_is_drawn() -> None:
    levels = [a_level(f"l{n}", f"l{n + 1}", draw_w=float(n)) for n in range(999)]
    levels.append(a_level("l999", draw_w=999.0, limit_w=2000.0))
    rows = seen(levels, "l0")
    assert rows["here"].depth == 1000
    assert rows["here"].free_w == 1001.0


def test_a_page_of_a_thousand_levels_stays_small() -> None:
    levels = [a_level(f"rack-{n}", "site", limit_w=100.0, draw_w=90.0) for n in range(1000)]
    levels.append(a_level("site", draw_w=9e4))
    book = TreeBook([], "rack-7")
    text = a_page(levels, book, a_look(), 1.0)
    assert "1 of 6" in text
    assert len(text) < 250_000
    assert "rack-999" in a_page(levels, book, a_look(), 1.0, number=6)


def a_page(
    levels: Sequence[SiteLevel], book: TreeBook, look: SiteView, now_s: float, number: int = 1
) -> str:
    scene: Any = SimpleNamespace(
        look=lambda of: of(look), levels=lambda: levels, tree=book, now_s=lambda: now_s
    )
    frame = {"part": True, "live": True, "here": "/power", "path": "/power"}
    return render("power.html.j2", **frame, **power_view(scene, number))


def test_names_that_are_markup_stay_names() -> None:
    level = a_level(HOSTILE, limit_w=1.0, draw_w=2.0, other_w=1.0)
    book = TreeBook([HOSTILE], HOSTILE)
    book.look([level], 1.0)
    text = a_page([level], book, a_look(), 1.0)
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    "name", ['a"} 1\nevil{x="', "back\\slash", "ünï\u202etfel", "\x1b[31m", ""]
)
def test_names_that_are_labels_of_their_own_stay_one_label(name: str) -> None:
    level = a_level(name, limit_w=5.0, draw_w=2.0, other_w=1.0)
    book = TreeBook([name], name)
    book.look([level], 1.0)
    found = level_series([level], book, 1.0)

    class Page:
        def collect(self) -> Any:
            return (_family(one, METRICS[one].kind, series) for one, series in found.items())

    text = generate_latest(Page()).decode()  # type: ignore[arg-type]
    parsed = [one for family in text_string_to_metric_families(text) for one in family.samples]
    assert {one.labels["level"] for one in parsed} == {name}
    assert len(parsed) == 6


def test_a_feed_that_is_called_as_the_whole_is_refused() -> None:
    limits = SiteLimits(feeds={"site": {}}, feed="site")  # type: ignore[dict-item]
    with pytest.raises(UserError, match="whole site") as refused:
        SiteWatch(None, MACHINE, limits, lambda: (0.0, 0.0))  # type: ignore[arg-type]
    assert refused.value.hint


def test_the_book_knows_meters_and_where_the_machine_hangs() -> None:
    assert TreeBook.of(None).metered == frozenset()
    one = TreeBook.of(SiteLimits(feeds={"a": {"meter": "nvml://0"}}))  # type: ignore[dict-item]
    assert (one.metered, one.place) == ({"a"}, "a")
    none = TreeBook.of(SiteLimits(limit="1kW", meter="nvml://0"))
    assert (none.metered, none.place) == ({"site"}, "site")


def test_the_document_is_one_that_json_can_say() -> None:
    levels = [a_level("site")]
    document = tree_document(a_look(), levels, TreeBook(), 1.0)
    assert not re.search(r"NaN|Infinity|inf", repr(document).replace("infinite", ""))
    assert document["rows"][0]["limit_w"] is None
    assert document["rows"][0]["draw_w"] is None


def test_branches_are_drawn_as_for_a_file() -> None:
    assert _stems([0, 1, 2, 2, 1, 2, 0, 1]) == [
        "",
        "├─ ",
        "│  ├─ ",
        "│  └─ ",
        "└─ ",
        "   └─ ",
        "",
        "└─ ",
    ]
