"""Colours of the report: a light and a dark set, and the style sheets made from them.

Lines use the palette of Okabe and Ito (jfly.uni-koeln.de/color), which people with the common
forms of colour blindness can tell apart, without its yellow, which is too faint on white, and then
wine, olive and a violet after Paul Tol's sets; text of the same colour is darker (lighter on a
dark page) to stay readable. Past ten series the colours repeat, dashed or hollow. The heat scale
runs through one hue from free to full.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

HEAT_STEPS = 10
"""Classes `h0` (free) to `h10` (fully used)."""

Colours = dict[str, str]

_SERIES = (  # light line, light text, dark line, dark text
    ("#0072b2", "#00629a", "#4aa3df", "#6db8ec"),
    ("#d55e00", "#b34e00", "#f0803c", "#f59a62"),
    ("#009e73", "#007a59", "#2bbf94", "#4fd0a9"),
    ("#cc79a7", "#a8487f", "#df94bd", "#e8aecd"),
    ("#e69f00", "#8f6300", "#edb437", "#f0c25c"),
    ("#56b4e9", "#2274a5", "#8fd0f5", "#a5daf8"),
    ("#3b3f45", "#3b3f45", "#d5d9de", "#d5d9de"),
    ("#882255", "#882255", "#d4406a", "#ee7d9b"),
    ("#999933", "#6b6b1d", "#c2c25a", "#cfcf7a"),
    ("#5b3fb5", "#5b3fb5", "#9f8af0", "#b6a6f5"),
)
_DASHES = ("", "6 3", "2 3")

_PAGE_LIGHT = {
    "page": "#f6f7f9", "card": "#ffffff", "ink": "#1d2127", "muted": "#5a626d",
    "faint": "#e4e7eb", "edge": "#c9ced6", "accent": "#00629a", "best": "#e3f3ec",
    "best-ink": "#00573f", "warn": "#fff4dc", "cpu": "#e69f00",
    "busy": "#4d83ad", "limit": "#b3261e",
}  # fmt: skip
_PAGE_DARK = {
    "page": "#14171b", "card": "#1c2026", "ink": "#e9ecf0", "muted": "#a3acb8",
    "faint": "#2d333b", "edge": "#454d58", "accent": "#6db8ec", "best": "#173a30",
    "best-ink": "#8fe3c6", "warn": "#3a3017", "cpu": "#edb437",
    "busy": "#5f8fb8", "limit": "#ff8a80",
}  # fmt: skip
_HEAT_LIGHT = ("#dde4ec", "#0b4f82")
_HEAT_DARK = ("#2b323b", "#7cc4f4")


def series_class(index: int) -> str:
    """The class of marks that belong to series `index`."""
    return f"k{index}"


def light(series: int) -> Colours:
    """Names and values of the light page's colours for `series` series."""
    return {**_PAGE_LIGHT, **_lines(series, 0), **_heat(*_HEAT_LIGHT)}


def dark(series: int) -> Colours:
    """Names and values of the dark page's colours for `series` series."""
    return {**_PAGE_DARK, **_lines(series, 2), **_heat(*_HEAT_DARK)}


def _lines(series: int, column: int) -> Colours:
    found = {}
    for index in range(series):
        colours = _SERIES[index % len(_SERIES)]
        found[f"c{index}"], found[f"t{index}"] = colours[column], colours[column + 1]
    return found


def _heat(free: str, full: str) -> Colours:
    return {f"h{step}": _mix(free, full, step / HEAT_STEPS) for step in range(HEAT_STEPS + 1)}


def _mix(one: str, two: str, share: float) -> str:
    channels = [(int(one[i : i + 2], 16), int(two[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in channels)


def plot_rules(series: int) -> str:
    """Rules for marks inside plots, colours still as `var(--name)`."""
    rules = [read_asset("plot.css")]
    for index in range(series):
        me = series_class(index)
        dash = _DASHES[_round(index) % len(_DASHES)]
        pattern = f"stroke-dasharray:{dash};" if dash else ""
        rules.append(f".{me}.line,.{me}.leader,.{me}.whisker{{stroke:var(--c{index})}}")
        rules.append(f".{me}.line{{{pattern}fill:none}}")
        rules.append(f".{me}.band,.{me}.dot,.{me}.bar{{fill:var(--c{index})}}")
        rules.append(f".{me}.name{{fill:var(--t{index})}}")
        if _round(index):
            hollow = f"stroke:var(--c{index});stroke-width:1.5;fill-opacity:.25"
            rules.append(f".{me}.bar,.{me}.dot{{{hollow}}}")
    rules += [f".h{step}{{fill:var(--h{step})}}" for step in range(HEAT_STEPS + 1)]
    return "\n".join(rules)


def _round(index: int) -> int:
    """How often the colours have been used up before series `index`."""
    return index // len(_SERIES)


def _swatch(index: int) -> str:
    colour = f"var(--c{index})"
    return f"box-shadow:inset 0 0 0 3px {colour}" if _round(index) else f"background:{colour}"


def page_rules(series: int) -> str:
    """The whole style sheet of the page: both colour sets, page and plots."""
    legend = [
        f".{series_class(index)}.swatch{{{_swatch(index)}}}\n"
        f".hide-{index} .{series_class(index)}:not(.swatch):not(.entry){{display:none}}"
        for index in range(series)
    ]
    return "\n".join(
        (
            f":root{{{_declare(light(series))}}}",
            f"@media (prefers-color-scheme:dark){{:root{{{_declare(dark(series))}}}}}",
            plot_rules(series),
            read_asset("page.css"),
            *legend,
        )
    )


def standalone_rules(series: int) -> str:
    """Rules for a picture on white without a page around it, colours written out."""
    return _written_out(plot_rules(series), {**light(series), "page": "#ffffff"})


def dark_rules(series: int) -> str:
    """The same for readers who prefer dark pages, to stand behind `standalone_rules`.

    What has no class in such a picture is its ground.
    """
    ground = ".plot>rect:not([class]){fill:var(--page)}"
    rules = _written_out(f"{plot_rules(series)}\n{ground}", dark(series))
    return f"@media (prefers-color-scheme:dark){{\n{rules}\n}}"


def _written_out(rules: str, colours: Colours) -> str:
    return re.sub(r"var\(--([\w-]+)\)", lambda name: colours[name[1]], rules)


def _declare(colours: Colours) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


def read_asset(name: str) -> str:
    """A file of `report/assets`."""
    return resources.files("wattherd.report").joinpath("assets", name).read_text("utf-8")


FIXED = {"fgd": 0, "wattherd": 1}
"""Policies that keep their colour in every report."""


def series_numbers(policies: Sequence[str]) -> dict[str, int]:
    """Policy to series number: the fixed ones keep theirs, the others fill up in order."""
    numbers = {policy: FIXED[policy] for policy in policies if policy in FIXED}
    free = (index for index in range(len(policies) + len(FIXED)) if index not in numbers.values())
    for policy in policies:
        if policy not in numbers:
            numbers[policy] = next(free)
    return {policy: numbers[policy] for policy in policies}


def series_count(numbers: dict[str, int]) -> int:
    """How many series the style sheet must describe."""
    return max(numbers.values(), default=0) + 1
