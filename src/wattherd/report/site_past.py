"""The past of a service, as its page and sections of packages read it: jobs, runs, watts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSample:
    """Watts of a site and of each job at one time; without a budget `budget_w` is infinite."""

    at_s: float
    draw_w: float
    budget_w: float
    by_job: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteJob:
    """One job; `runs` are begin and end of each of its runs, times in seconds of the journal."""

    id: str
    name: str
    user: str
    state: str
    submit_s: float
    finish_s: float | None
    runs: tuple[tuple[float, float], ...]
    progress: float
    loss: float | None
    energy_j: float

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePast:
    """All that is told of a site; `began` says when the journal did, `estimated` whether watts are.

    `over_s` and `over_j` are the meter's own account of what was above the budget.
    """

    jobs: Sequence[SiteJob]
    samples: Sequence[StateSample]
    began: str
    estimated: bool
    over_s: float
    over_j: float
    source: str
