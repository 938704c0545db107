"""What planners foresee of real jobs: by what the core has learned from their own reports.

Nobody profiles these jobs beforehand, and no workload says how long they last. Steps left come
from `View.steps_left`, step times from `View.rates`, restarts from `View.restart_time`, each
with its source. Where no speed was learned, a job is taken to scale as jobs do on average
(`SERIAL_SHARE`, a prior) and to last as long again as it has run: that may size it, and never
orders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from wattherd.estimate.job_rate import JobRate, RateSource, step_s_at
from wattherd.estimate.speed import JobShape
from wattherd.policy.contract import JobView, View


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveForecast:
    """Implements `SpeedForecast` on what a view tells; it keeps nothing but who is predictable."""

    learns: ClassVar[bool] = True

    def note(self, view: View, job: JobView, memory: dict[str, Any]) -> bool:
        """Whether it is told from now on how long the job lasts."""
        tells = self.steps_left(view, job, memory) is not None
        before = job.id in memory
        if tells and not before:
            memory[job.id] = True
        elif before and not tells:
            del memory[job.id]
        return tells and not before

    def steps_left(self, view: View, job: JobView, memory: dict[str, Any]) -> float | None:
        """None as well where no speed was learned: steps alone are no time."""
        del memory
        left = view.steps_left(job)
        known = None if left is None else self._rate(view, job, max(job.spec.gpus, 1))
        return None if left is None or known is None else left.steps

    def guessed_steps(self, view: View, job: JobView, step_s: float, young_s: float) -> float:
        """By the time for which it has held devices; steps may be of any size."""
        return max(job.service_s(view.now_s), young_s) / step_s

    def step_s(self, view: View, job: JobView, shape: JobShape) -> float | None:
        """By what was learned; None for a job without GPUs, of which no speed is learned."""
        if shape.gpus < 1:
            return None
        rate = self._rate(view, job, shape.gpus)
        asked = max(job.spec.gpus, 1)
        return step_s_at({asked: 1.0}, shape.gpus) if rate is None else 1.0 / rate.per_s

    def pause_s(self, view: View, job: JobView) -> float | None:
        """As learned, else the published minute."""
        return view.restart_time(job).seconds

    def sources(self, view: View, job: JobView, shape: JobShape) -> str:
        """`steps left by its loss curve, speed learned from this job`."""
        left = view.steps_left(job)
        rate = self._rate(view, job, shape.gpus) if shape.gpus else None
        source = RateSource.PRIOR if rate is None else rate.source
        steps = f"steps left by {left.source}" if left is not None and rate else "length guessed"
        return f"{steps}, speed at this width: {source}"

    def forget(self, live: Mapping[str, JobView], memory: dict[str, Any]) -> None:
        """Keep live jobs only."""
        for gone in [job_id for job_id in memory if job_id not in live]:
            del memory[gone]

    def _rate(self, view: View, job: JobView, gpus: int) -> JobRate | None:
        """On the model on which it runs; of a waiting job on the best of those that it may use."""
        nodes, spec = view.nodes(), job.spec
        held = [nodes[one.node].gpu_model for one in job.wanted if one.gpus]
        models = held[:1] or [
            model
            for model in dict.fromkeys(node.gpu_model for node in nodes if node.gpu_count)
            if not spec.gpu_models or model in spec.gpu_models
        ]
        found = [view.rates.steps_per_s(spec, model, gpus) for model in models]
        return max((one for one in found if one is not None), key=_speed, default=None)


def _speed(rate: JobRate) -> float:
    return rate.per_s
