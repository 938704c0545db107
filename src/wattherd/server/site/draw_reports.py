"""Tells the core what runs draw whose training may be steered: means of seconds in which all stood.

A run that was just told something else, or throttled otherwise, says nothing yet: what it reports
of its speed is a mean over its last reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wattherd.local.executor import Key, Pace
from wattherd.model.event import Event, JobDrew

SETTLE_S = 8.0
"""After a change: reports of speed are means of eight seconds."""
WINDOW_S = 5.0
"""Of a mean."""


@dataclass(slots=True)
class _Run:
    """Since when a run computes as it does, and its draw since the last word."""

    as_it_is: tuple[float | None, int | None]
    since_s: float
    told_s: float
    watts: list[float] = field(default_factory=list)


class DrawReports:
    """`sampled` once a second; `tell` hears of runs that `steered` names."""

    def __init__(
        self, steered: Callable[[], Mapping[Key, Pace]], tell: Callable[[Event], None]
    ) -> None:
        """Nothing was sampled yet."""
        self._steered, self._tell = steered, tell
        self._runs: dict[Key, _Run] = {}

    def sampled(self, at_s: float, by_job: Mapping[str, float]) -> None:
        """What jobs drew at `at_s`, watts by job."""
        paces = self._steered()
        self._runs = {key: run for key, run in self._runs.items() if key in paces}
        for key, pace in paces.items():
            if key[0] in by_job and pace.devices:
                self._note(key, pace, at_s, by_job[key[0]] / pace.devices)

    def _note(self, key: Key, pace: Pace, at_s: float, watts: float) -> None:
        as_it_is = (pace.duty, pace.micro_batch)
        run = self._runs.get(key)
        if run is None or run.as_it_is != as_it_is:
            self._runs[key] = _Run(as_it_is, at_s, at_s + SETTLE_S)
            return
        if at_s < run.since_s + SETTLE_S:
            return
        run.watts.append(watts)
        if at_s >= run.told_s + WINDOW_S:
            self._report(key, pace, sum(run.watts) / len(run.watts))
            run.told_s, run.watts = at_s, []

    def _report(self, key: Key, pace: Pace, watts: float) -> None:
        self._tell(
            JobDrew(
                at_s=0.0,
                job_id=key[0],
                attempt=key[1],
                watts=round(watts, 3),
                duty=1.0 if pace.duty is None else pace.duty,
                micro_batch=pace.micro_batch,
                rate_per_s=pace.rate_per_s,
            )
        )
