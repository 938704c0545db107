"""What runs on GPUs draw while they compute all of the time, so that a duty keeps their cap.

A duty that is reckoned from the most a GPU can draw stops jobs that draw less for nothing; and one
whose GPU computes on after a stop, as steps are long, draws more than its cap. Both show in what is
measured. Runs whose micro-batch may be chosen are looked after by the core (`draw_reports`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wattherd.local.devices import Machine
from wattherd.local.executor import Key, Pace
from wattherd.server.hardware.draw import DrawSample

SETTLE_S = 3.0
"""After a change: a period of freezing, and meters that say means of a second."""
WINDOW_S = 4.0
"""Of a mean; with it a period's part more or less is 5 %."""
MARGIN = 1.05
"""On what was measured: means of seconds hide what is between."""
FORGETS = 0.5
"""Of the distance to a lower draw that is kept at each look: a peak counts for a while."""
SAME = 0.03
"""Changes by less than this are not worth another duty."""
LEAST_DUTY = 0.05
"""Below it nothing is reckoned back: the error would be larger than the figure."""


@dataclass(slots=True)
class _Run:
    """Since when a run has its duty, its draw since the last look, and what was told of it."""

    duty: float
    since_s: float
    watts: list[float] = field(default_factory=list)
    told_w: float | None = None


class FullDraws:
    """Looks once a second; `tell` hears full draws (W per GPU) of runs in `throttled`."""

    def __init__(
        self,
        machine: Machine,
        throttled: Callable[[], Mapping[Key, Pace]],
        tell: Callable[[Key, float], None],
    ) -> None:
        """Nothing was sampled yet."""
        self._machine, self._throttled, self._tell = machine, throttled, tell
        self._runs: dict[Key, _Run] = {}

    def look(self, sample: DrawSample) -> None:
        """What jobs drew; a sample in which a meter is silent tells nothing."""
        if not sample.read or None in sample.read:
            return
        at_s, by_job = sample.at_s, sample.by_job
        paces = self._throttled()
        self._runs = {key: run for key, run in self._runs.items() if key in paces}
        for key, pace in paces.items():
            if key[0] in by_job and pace.devices:
                self._note(key, pace, at_s, by_job[key[0]] / pace.devices)

    def _note(self, key: Key, pace: Pace, at_s: float, watts: float) -> None:
        duty = 1.0 if pace.duty is None else pace.duty
        run = self._runs.setdefault(key, _Run(duty, at_s))
        if run.duty != duty:
            run.duty, run.since_s, run.watts = duty, at_s, []
        if at_s < run.since_s + SETTLE_S or duty < LEAST_DUTY:
            return
        run.watts.append(watts)
        if len(run.watts) >= WINDOW_S:
            full_w = MARGIN * self._machine.full_w(sum(run.watts) / len(run.watts), duty)
            run.watts = []
            self._learn(key, run, full_w)

    def _learn(self, key: Key, run: _Run, full_w: float) -> None:
        known_w = run.told_w
        if known_w is not None:
            full_w = max(full_w, full_w + FORGETS * (known_w - full_w))
            if abs(full_w - known_w) <= SAME * known_w:
                return
        run.told_w = full_w
        self._tell(key, full_w)
