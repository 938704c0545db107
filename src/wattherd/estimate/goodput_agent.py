"""The agent beside a training job: measures its steps, picks its batch size, reports (Pollux).

Every configuration (nodes, replicas, samples per replica) that the job runs in is kept with its
step time; a new one has the step time model fitted again. The batch size is the one of most
goodput under that model and the latest gradient statistics (OSDI'21, section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from wattherd.estimate.application import Application, BatchPlan
from wattherd.estimate.goodput import best
from wattherd.estimate.step_time_fit import Configuration, fit
from wattherd.model.training import BatchRange, StepTime, TrainingReport


@dataclass(slots=True)
class GoodputAgent:
    """One job's agent, on an application with these batch sizes; knows nothing at first."""

    application: Application
    steps: dict[Configuration, tuple[float, float]] = field(default_factory=dict)
    gradient: tuple[float, float] = (0.0, 0.0)
    _model: StepTime | None = None

    def observe(
        self,
        placement: Sequence[int],
        local: int,
        times_s: tuple[float, float],
        gradient: tuple[float, float],
    ) -> None:
        """Take note of (step, synchronisation) seconds and (squared norm, variance)."""
        self.gradient = gradient
        configuration = len(placement), sum(placement), local
        if configuration not in self.steps:
            self.steps[configuration] = times_s
            self._model = None

    def report(self) -> TrainingReport | None:
        """What is known, or None before the first step."""
        if not self.steps:
            return None
        if self._model is None:
            self._model = fit(self.steps)
        application = self.application
        return TrainingReport(
            step_time=self._model,
            grad_sqr=self.gradient[0],
            grad_var=self.gradient[1],
            most_replicas=max(replicas for _, replicas, _ in self.steps),
            batches=BatchRange(
                initial=application.initial_batch,
                most=application.largest_batch,
                least_local=application.least_local,
                most_local=application.most_local,
            ),
        )

    def batch(self, placement: Sequence[int]) -> BatchPlan:
        """The batch size to train with on this placement (GPUs per node)."""
        application, replicas = self.application, sum(placement)
        if application.pinned_batch is not None:
            return application.batch_plan(application.pinned_batch, replicas)
        report = self.report()
        if report is None:
            first = max(application.initial_batch, application.least_local * replicas)
            return application.batch_plan(first, replicas)
        plan = best(report, len(placement), replicas).plan()
        most = math.floor(application.largest_batch / (replicas * (plan.accumulation + 1)))
        return BatchPlan(local=min(plan.local, most), accumulation=plan.accumulation)
