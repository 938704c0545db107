"""Jobs that wait for cheap or clean energy (`time.defer`): when they begin, and why then.

A job gets its begin time at its submission: that of the cheapest run, among those that keep its
deadline and end while the rates are known (GAIA's "lowest window", ASPLOS 2024). When other rates
are read, the begin of jobs that still wait for theirs is chosen again. A begin time that a user
sets (`wattherd edit --begin`) ends that for the job. The core knows begin times only; whether
devices and watts are free by then is for the planner to see, and a queue may be longer than the
deadline allows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.errors import ClusterError, UserError
from wattherd.estimate.deferral import Deferrable, RateSignal, cheapest_known_start
from wattherd.estimate.rates import EnergyRates
from wattherd.model.event import JobEdited
from wattherd.model.job import JobSpec
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.journal.job_history import DEFERRED_BY, JobHistory
from wattherd.server.periodic import PeriodicThread
from wattherd.server.settings.energy_rates import RatesWatch

PERIOD_S = 15.0
ANSWER_S = 30.0
SAME_S = 60.0
"""A begin is left as it is for less than that."""
_LOG = logging.getLogger(__name__)


def chosen_begin_s(
    spec: JobSpec, paper: Mapping[str, Any], rates: EnergyRates, now_s: float, epoch: float
) -> float | None:
    """When a job of this paper begins, not before `now_s` (both s of the journal).

    None where the rates of then are not known. `spec` tells its deadline and how long it takes, in
    seconds of the journal. One that cannot keep its deadline any more begins at once.
    """
    work_s = spec.duration_s if spec.duration_s is not None else spec.time_limit_s
    if work_s is None or spec.deadline_s is None:
        return None
    if spec.deadline_s <= now_s + work_s:
        return now_s
    job = Deferrable(
        name=spec.id,
        submit_s=epoch + now_s,
        work_s=max(work_s, 1.0),
        gpus=1.0,
        watts=1.0,
        deadline_s=epoch + spec.deadline_s,
    )
    try:
        signal = RateSignal(rates, paper["defer"]["by"], job.submit_s)
    except UserError:
        return None
    if signal.edges_s[0] > job.submit_s:
        return None
    return cheapest_known_start(job, signal) - epoch


def deferred(
    spec: JobSpec, paper: dict[str, Any], watch: RatesWatch | None, now_s: float, epoch: float
) -> tuple[JobSpec, dict[str, Any]]:
    """A new job with the begin time that suits it, and the paper that says so; others as they are.

    Its deadline and begin are still seconds from its submission, which is now. Its paper keeps the
    begin that its user asked for, as nothing later chosen may come before that.

    Raises:
        UserError: it waits for cheap energy where nobody knows what energy costs.
    """
    if not paper.get("defer"):
        return spec, paper
    if watch is None:
        hint = "an operator starts `wattherd serve --rates FILE|URL`; or leave `defer` out"
        raise UserError("this service knows no rates", field="time.defer", hint=hint)
    earliest_s = now_s + (spec.begin_s or 0.0)
    paper = {**paper, "defer": {**paper["defer"], "earliest_s": earliest_s}}
    if watch.rates is None:
        return spec, paper
    due_s = None if spec.deadline_s is None else now_s + spec.deadline_s
    placed = replace(spec, deadline_s=due_s)
    begin_s = chosen_begin_s(placed, paper, watch.rates, earliest_s, epoch)
    if begin_s is None or begin_s <= earliest_s:
        return spec, paper
    return replace(spec, begin_s=begin_s - now_s), paper


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job whose begin is still to come, and when (s of the journal)."""

    spec: JobSpec
    paper: Mapping[str, Any]
    begin_s: float


class DeferWatch(PeriodicThread):
    """Chooses again, whenever other rates are read, when jobs begin that wait for cheap energy."""

    def __init__(self, keeper: CoreLoop, history: JobHistory, rates: RatesWatch, epoch: float):
        """`epoch` is the Unix time at which the journal began."""
        super().__init__("defer", PERIOD_S)
        self._keeper, self._history, self._rates, self._epoch = keeper, history, rates, epoch
        self._seen: EnergyRates | None = None

    def look(self) -> None:
        """Post an edit for each job that had better begin at another time."""
        rates = self._rates.rates
        if rates is None or rates is self._seen:
            return
        try:
            now_s, waiting = self._keeper.ask(self._waiting).result(ANSWER_S)
            for one in waiting:
                event = self.moved(one.spec, one.paper, one.begin_s, rates, now_s)
                if event is not None:
                    self._keeper.post(event, by=DEFERRED_BY).result(ANSWER_S)
        except (TimeoutError, ClusterError) as error:
            _LOG.warning("begin times are not chosen again yet: %s", error)
            return
        self._seen = rates

    def _waiting(self, core: Core) -> tuple[float, list[_Waiting]]:
        found = []
        for job_id, record in core.jobs.items():
            past = self._history.jobs.get(job_id)
            begin_s = record.not_before_s
            if past is not None and past.paper.get("defer") and begin_s is not None:
                found.append(_Waiting(record.spec, past.paper, begin_s))
        return core.now_s, found

    def moved(
        self, spec: JobSpec, paper: Mapping[str, Any], begin_s: float, rates: EnergyRates,
        now_s: float,
    ) -> JobEdited | None:  # fmt: skip
        """What makes a job begin when it is cheapest by these rates; None: as it is."""
        earliest_s = max(now_s, float(paper["defer"].get("earliest_s", 0.0)))
        chosen_s = chosen_begin_s(spec, paper, rates, earliest_s, self._epoch)
        if chosen_s is None or abs(chosen_s - begin_s) < SAME_S:
            return None
        return JobEdited(at_s=now_s, cause="by other rates", job_id=spec.id, begin_at_s=chosen_s)
