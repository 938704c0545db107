"""Muri (Zhao et al., SIGCOMM'22), its simulator's baselines on its four Philly-derived traces.

8 nodes of 8 GPUs. At every event all jobs are placed anew by YARN's rule (2D-LAS counts GPUs) and
every running job pays its start once more. Published are the figures that the authors' simulator
prints; a figure is held to the digits in which it was noted.
"""

from __future__ import annotations

from wattherd.experiments.published.figures import PublishedFigure, Suite

FOUR_DIGITS = 5e-4
MILLIONS = 1e-3


def _rounded(trace: str, policy: str, avg_jct_s: float) -> PublishedFigure:
    """A mean that was noted in millions of seconds, to three decimals."""
    return PublishedFigure(trace=trace, policy=policy, avg_jct_s=avg_jct_s, within=MILLIONS)


def _exact(trace: str, policy: str, avg_jct_s: float, makespan_s: float) -> PublishedFigure:
    return PublishedFigure(
        trace=trace,
        policy=policy,
        avg_jct_s=avg_jct_s,
        makespan_s=makespan_s,
        within=FOUR_DIGITS,
    )


SUITE = Suite(
    preset="muri-sigcomm22",
    kind="muri",
    cluster="8x8:V100M16",
    figures=(
        _exact("trace3", "srsf", 185_022, 8.174e6),
        _exact("trace3", "tiresias", 347_213, 8.174e6),
        _rounded("trace1", "srtf", 1.371e6),
        _rounded("trace1", "srsf", 0.980e6),
        _rounded("trace1", "tiresias", 3.330e6),
        _rounded("trace4", "srtf", 0.582e6),
        _rounded("trace4", "srsf", 0.487e6),
        _rounded("trace4", "tiresias", 1.319e6),
        _rounded("trace2", "srtf", 2.666e6),
    ),
)
