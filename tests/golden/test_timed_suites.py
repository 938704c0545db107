"""Figures that Muri's and Tiresias' simulators print: the quick ones, all by `reproduce`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wattherd.experiments.published import muri_sigcomm22, tiresias_nsdi19
from wattherd.experiments.published.figures import PublishedFigure, Suite


def figures(suite: Suite, *traces: str) -> list[PublishedFigure]:
    return [one for one in suite.figures if one.trace in traces]


@pytest.mark.parametrize(
    ("folder", "suite", "figure"),
    [
        *(("muri", muri_sigcomm22.SUITE, one) for one in figures(muri_sigcomm22.SUITE, "trace3")),
        *(("tiresias", tiresias_nsdi19.SUITE, one) for one in tiresias_nsdi19.SUITE.figures),
    ],
    ids=lambda one: f"{one.trace}-{one.policy}" if isinstance(one, PublishedFigure) else "",
)
def test_published_figures(
    folder: str, suite: Suite, figure: PublishedFigure, traces: Path
) -> None:
    checks = list(replace(suite, figures=(figure,)).compare(traces / folder))
    assert checks
    assert all(check.holds for check in checks), checks
