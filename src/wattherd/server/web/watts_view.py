"""Samples of watts as the picture of draw against budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wattherd.report.draw_picture import DrawPicture, Layer, hue_of
from wattherd.report.timeline import time_unit
from wattherd.server.hardware.draw import LONGEST_S, DrawSample

POINTS = 240
"""Spans across the picture; more could not be told apart."""
SECONDS_UP_TO_S = 300.0
MOST_LAYERS = 9
"""Jobs with a layer of their own: those that drew most; the others share one."""
Floats = NDArray[np.float64]


def draw_picture(
    samples: Sequence[DrawSample], begin_s: float, end_s: float, *, ago: bool
) -> DrawPicture | None:
    """The samples between two times, None if there are none; with `ago` time counts to the end.

    Spans are means, but for the highest draw, so that no violation is averaged away.
    """
    taken = [one for one in samples if begin_s <= one.at_s <= end_s]
    if not taken:
        return None
    groups = _with_gaps(_spans(taken, begin_s, end_s))
    draw_w = np.array([_mean([one.draw_w for one in group]) for _, group in groups])
    layers = _layers(groups, draw_w)
    each, name = unit_of(end_s - begin_s)
    origin_s = end_s if ago else begin_s
    return DrawPicture(
        at=np.array([(at_s - origin_s) / each for at_s, _ in groups]),
        unit=f"{name} before now" if ago else f"time ({name})",
        layers=layers,
        most_w=np.array([max((one.draw_w for one in group), default=0.0) for _, group in groups]),
        budget_w=np.array([_budget(group) for _, group in groups]),
        until=0.0 if ago else (taken[-1].at_s - begin_s) / each,
        estimated=any(one.stated == "model" for one in taken),
    )


def unit_of(span_s: float) -> tuple[float, str]:
    """Seconds per unit of a picture that is so long, and the unit's name."""
    return (1.0, "s") if span_s <= SECONDS_UP_TO_S else time_unit(span_s)


Group = tuple[float, list[DrawSample]]


def _spans(samples: Sequence[DrawSample], begin_s: float, end_s: float) -> list[Group]:
    """Samples by span, and the time of the last in each."""
    width_s = max((end_s - begin_s) / POINTS, 1e-9)
    spans: dict[int, list[DrawSample]] = {}
    for sample in samples:
        spans.setdefault(int((sample.at_s - begin_s) / width_s), []).append(sample)
    return [(group[-1].at_s, group) for group in spans.values()]


def _with_gaps(groups: list[Group]) -> list[Group]:
    """Nothing is known, and so nothing drawn, where no sample was taken for long."""
    usual_s = max(LONGEST_S, 2.5 * _median_step_s(groups))
    found = groups[:1]
    for (before_s, _), (at_s, group) in pairwise(groups):
        if at_s - before_s > usual_s:
            found += [(before_s + 1e-3, []), (at_s - 1e-3, [])]
        found.append((at_s, group))
    return found


def _median_step_s(groups: list[Group]) -> float:
    return float(np.median(np.diff([at_s for at_s, _ in groups]))) if len(groups) > 1 else 0.0


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _budget(group: list[DrawSample]) -> float:
    """The lowest in force within the span."""
    return min((one.budget_w for one in group if one.budget_w is not None), default=math.inf)


def _layers(groups: list[Group], draw_w: Floats) -> list[Layer]:
    """What belongs to no job, then jobs in order of their first sample, then the small ones."""
    by_job: dict[str, Floats] = {}
    for place, (_, group) in enumerate(groups):
        for sample in group:
            for job_id, watts in sample.by_job.items():
                watts_of = by_job.setdefault(job_id, np.zeros(len(groups)))
                watts_of[place] += watts / len(group)
    most = sorted(by_job, key=lambda job: float(by_job[job].sum()), reverse=True)[:MOST_LAYERS]
    rest = draw_w - sum(by_job.values(), np.zeros(len(groups)))
    layers = [Layer(name="idle and host", watts=np.maximum(rest, 0.0))]
    layers += [
        Layer(name=job, watts=watts, hue=hue_of(job))
        for job, watts in by_job.items()
        if job in most
    ]
    others = [watts for job, watts in by_job.items() if job not in most]
    if others:
        layers.append(Layer(name=f"{len(others)} others", watts=np.sum(others, axis=0)))
    return layers
