"""The SVG writer and the placing of labels."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.report.labels import place_around, spread_out
from wattherd.report.lines import LinePlot, Series, draw_lines
from wattherd.report.svg import (
    Element,
    Frame,
    Scale,
    boxes,
    number,
    round_domain,
    tick_label,
    ticks,
)

FRAME = Frame(width=560, height=340)


def test_elements_escape_text_and_attributes() -> None:
    text = Element("text", '<&"', data_name="<a> & 'b'", class_="x", hidden=None).render()
    assert text == '<text data-name="&lt;a&gt; &amp; &#x27;b&#x27;" class="x">&lt;&amp;"</text>'
    ET.fromstring(text)


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (1.26, "1.3"), (-0.01, "0"), (100.0, "100"), (0.5, "0.5")]
)
def test_coordinates_are_short(value: float, text: str) -> None:
    assert number(value) == text


TICKS = {
    "percent": ((0, 100, 5), [0, 20, 40, 60, 80, 100]),
    "a piece": ((85, 130, 5), [90, 100, 110, 120, 130]),
    "small": ((0, 0.03, 3), [0, 0.01, 0.02, 0.03]),
    "across zero": ((-13, 16, 6), [-10, -5, 0, 5, 10, 15]),
}


@pytest.mark.parametrize("name", TICKS)
def test_ticks_are_round(name: str) -> None:
    (low, high, count), wanted = TICKS[name]
    assert ticks(low, high, count) == pytest.approx(wanted)


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(2, 10))
def test_a_round_domain_holds_what_it_rounds(low: float, span: float, count: int) -> None:
    start, stop = round_domain(low, low + span, count)
    assert start < stop
    rounding = 1e-6 * max(1, abs(low), span)
    assert start <= low + rounding
    assert stop >= low + span - rounding


def test_a_round_domain_of_nothing_is_usable() -> None:
    assert round_domain(float("nan"), 1.0, 5) == (0.0, 1.0)


def test_a_scale_maps_ends_to_ends() -> None:
    scale = Scale(0, 100, 300, 10)
    assert (scale(0), scale(100), scale(50)) == (300, 10, 155)


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [(1234.5, 1, "1,234.5"), (-3, 0, "\N{MINUS SIGN}3"), (-0.01, 1, "0.0"), (0, 2, "0.00")],
)
def test_tick_labels_are_for_people(value: float, places: int, text: str) -> None:
    assert tick_label(value, places) == text


def test_boxes_are_one_path() -> None:
    assert boxes([(0, 1, 2, 3)], "c").render() == '<path d="M0 1h2v3h-2z" class="c"/>'


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15))
def test_a_column_of_labels_keeps_order_and_distance(wanted: list[float]) -> None:
    placed = spread_out(wanted, 15, 0, 300)
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    gaps = [placed[b] - placed[a] for a, b in pairwise(order)]
    assert all(gap >= 15 - 1e-6 for gap in gaps)
    assert min(placed) >= -1e-6
    assert max(placed) <= 300 + 1e-6


def test_labels_far_apart_stay_where_they_are() -> None:
    assert spread_out([10, 200, 100], 15, 0, 300) == [10, 200, 100]


def test_two_labels_on_one_spot_part_evenly() -> None:
    assert spread_out([100, 100], 15, 0, 300) == [92.5, 107.5]


def test_labels_around_points_cover_neither_points_nor_each_other() -> None:
    points = [(100.0, 100.0), (108.0, 104.0), (112.0, 96.0), (300.0, 20.0), (104.0, 112.0)]
    widths = [80.0, 70.0, 90.0, 60.0, 75.0]
    places = place_around(points, widths, 15, (0, 0, 400, 200))
    found = []
    for place, width in zip(places, widths, strict=True):
        left = {"start": 0.0, "middle": width / 2, "end": width}[place.anchor]
        found.append((place.x - left, place.y - 7.5, place.x - left + width, place.y + 7.5))
    for at, one in enumerate(found):
        assert one[0] >= 0
        assert one[2] <= 400
        for two in found[:at]:
            apart = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
            assert apart
        for x, y in points:
            assert not (one[0] < x < one[2] and one[1] < y < one[3])


def a_plot(*values: list[float], names: str = "abcdefgh") -> LinePlot:
    loads = [float(at) for at in range(len(values[0]))]
    return LinePlot(
        title="Power",
        about="How to read it.",
        x_title="load",
        y_title="power",
        series=tuple(
            Series(name=names[at], number=at, x=loads, y=line) for at, line in enumerate(values)
        ),
        x_low=0,
        x_high=loads[-1],
    )


def drawn(plot: LinePlot) -> ET.Element:
    return ET.fromstring(draw_lines(plot, FRAME, "key").render())


def texts(root: ET.Element) -> list[str]:
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_line_plot_names_itself_for_screen_readers() -> None:
    root = drawn(a_plot([1.0, 2.0]))
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "key-title key-about"
    assert [node.text for node in root[:2]] == ["Power", "How to read it."]


def test_lines_apart_are_named_at_their_ends() -> None:
    found = texts(drawn(a_plot([0.0, 10.0], [0.0, 5.0])))
    assert {"a 10.0", "b 5.0"} <= set(found)
    assert not any("dotted" in text for text in found)


def test_lines_that_meet_are_named_where_they_are_apart() -> None:
    lines = [[0.0, at * 10.0, 100.0] for at in range(8)]
    found = texts(drawn(a_plot(*lines)))
    assert "at 1 %, dotted:" in found
    assert "h 70.0" in found


def test_unknown_values_shorten_a_line() -> None:
    root = drawn(a_plot([1.0, 2.0, float("nan")], [float("nan"), 2.0, 3.0]))
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len((line.get("points") or "").split()) for line in lines] == [2, 2]


def test_a_single_point_is_a_dot() -> None:
    root = drawn(a_plot([float("nan"), 2.0]))
    assert not list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert list(root.iter("{http://www.w3.org/2000/svg}circle"))
