"""Samples of watts as a picture: nothing is averaged away, nothing invented."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="the extra `server` is not installed")

from wattherd.report.draw_picture import draw_draw, hue_of
from wattherd.report.svg import Frame
from wattherd.server.hardware.draw import DrawSample
from wattherd.server.web.now import MOST_LAYERS, draw_picture
from wattherd.server.web.paging import paged

FRAME = Frame(width=600, height=300)


def sample(at_s: float, budget_w: float | None = 100.0, **by_job: float) -> DrawSample:
    return DrawSample(
        at_s=at_s, draw_w=10.0 + sum(by_job.values()), budget_w=budget_w, by_job=by_job,
        stated="model",
    )  # fmt: skip


def test_layers_add_up_to_the_draw() -> None:
    plot = draw_picture([sample(t, a=20.0 + t, b=5.0) for t in range(60)], 0.0, 60.0, ago=False)
    assert plot is not None
    assert [one.name for one in plot.layers] == ["idle and host", "a", "b"]
    total = np.sum([one.watts for one in plot.layers], axis=0)
    np.testing.assert_allclose(total, plot.most_w)


def test_one_second_above_the_budget_is_seen_in_two_hours() -> None:
    samples = [sample(t, a=150.0 if t == 3333 else 50.0) for t in range(7200)]
    plot = draw_picture(samples, 0.0, 7200.0, ago=True)
    assert plot is not None
    assert len(plot.at) <= 241
    assert int(plot.over.sum()) == 1
    assert plot.most_w.max() == 160.0
    drawn = draw_draw(plot, FRAME, "k").render()
    assert "above budget" in drawn
    assert drawn.count('class="offence"') == 2  # one span, and the key


def test_the_lowest_budget_of_a_span_counts() -> None:
    samples = [sample(t, budget_w=50.0 if t == 500 else 100.0, a=60.0) for t in range(7200)]
    plot = draw_picture(samples, 0.0, 7200.0, ago=True)
    assert plot is not None
    assert plot.budget_w.min() == 50.0
    assert plot.over.any()


def test_without_a_budget_there_is_no_line() -> None:
    plot = draw_picture([sample(t, budget_w=None, a=1.0) for t in range(9)], 0.0, 9.0, ago=True)
    assert plot is not None
    assert math.isinf(plot.budget_w[0])
    assert "ceiling" not in draw_draw(plot, FRAME, "k").render()
    assert "no budget" in plot.about


def test_nothing_is_drawn_while_nobody_looked() -> None:
    samples = [sample(t, a=40.0) for t in (*range(100), *range(200, 300))]
    plot = draw_picture(samples, 0.0, 300.0, ago=False)
    assert plot is not None
    inside = (plot.at > 100.0) & (plot.at < 199.0)
    assert not plot.most_w[inside].any()
    assert not plot.most_w[np.searchsorted(plot.at, 99.5)]


def test_no_samples_no_picture() -> None:
    assert draw_picture([sample(5.0, a=1.0)], 10.0, 20.0, ago=True) is None


def test_small_jobs_share_a_layer() -> None:
    jobs = {f"j-{n}": float(n) for n in range(1, 21)}
    plot = draw_picture([sample(t, **jobs) for t in range(5)], 0.0, 5.0, ago=True)
    assert plot is not None
    assert len(plot.layers) == MOST_LAYERS + 2
    assert plot.layers[-1].name == "11 others"
    assert plot.layers[-1].watts[0] == pytest.approx(sum(range(1, 12)))


def test_names_in_a_picture_are_text() -> None:
    plot = draw_picture([sample(t, **{"<b>": 90.0}) for t in range(50)], 0.0, 50.0, ago=True)
    assert plot is not None
    assert "<b>" not in draw_draw(plot, FRAME, "k").render()


def test_neighbours_in_order_of_submission_differ_in_colour() -> None:
    hues = [hue_of(f"j-{n}") for n in range(1, 12)]
    assert len(set(hues[:10])) == 10
    assert hues[10] == hues[0]


@pytest.mark.parametrize(("page", "items"), [(1, [0, 1, 2]), (3, [6]), (9, [6]), (-1, [0, 1, 2])])
def test_a_page_that_is_not_there_is_the_nearest(page: int, items: list[int]) -> None:
    cut = paged(range(7), page, 3)
    assert (list(cut.items), cut.pages, cut.total) == (items, 3, 7)


def test_an_empty_list_has_one_page() -> None:
    assert paged([], 1, 3).pages == 1
