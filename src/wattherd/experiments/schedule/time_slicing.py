"""A crowded cluster: public arrivals on measured GPU sharing, to see what time slicing brings.

Jobs arrive and last as in a stretch of a trace. Each gets one of the training jobs whose speed,
memory and utilisation were measured alone and in pairs on one GPU; those of one GPU may share it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.estimate.job_work import constant
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import JobSubmitted
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Planner
from wattherd.sim.collector import Collector
from wattherd.sim.duration_plant import DurationPlant
from wattherd.sim.feedback import FirstFeedback, GpuUtilisation
from wattherd.sim.surroundings import Surroundings
from wattherd.sim.world import SimWorld, Watcher
from wattherd.workload.pairs import PairMeasurements, SoloUse

REPORT_S = 30.0
RESUME_S = 1.0
"""Gandiva suspends and resumes in under a second (OSDI'18, section 5)."""
FIRST_PART = 0.1


def stretch(
    specs: Sequence[JobSpec], *, queue: str, from_s: float, length_s: float
) -> list[JobSpec]:
    """The jobs of one queue that arrive in a stretch of time, which begins at 0 s."""
    return [
        replace(spec, submit_s=spec.submit_s - from_s, queue="default")
        for spec in specs
        if spec.queue == queue and from_s <= spec.submit_s < from_s + length_s
    ]


def profiled(
    specs: Sequence[JobSpec], alone: Mapping[str, SoloUse], chance: np.random.Generator
) -> list[JobSpec]:
    """Each job with one of the measured profiles, by chance; those of one GPU with its memory."""
    names = sorted(alone)
    picks = chance.integers(len(names), size=len(specs)).tolist()
    return [
        _with_profile(spec, names[pick], alone) for spec, pick in zip(specs, picks, strict=True)
    ]


def _with_profile(spec: JobSpec, name: str, alone: Mapping[str, SoloUse]) -> JobSpec:
    if spec.gpus > 1:
        return replace(spec, profile=name)
    role = replace(spec.roles[0], gpu_memory_mib=alone[name].memory_mib)
    return replace(spec, profile=name, roles=(role,))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlicingFigures:
    """What users felt under one planner; times in seconds, `utilisation` while jobs arrived."""

    jobs: int
    finished: int
    mean_feedback_s: float
    median_feedback_s: float
    p95_feedback_s: float
    utilisation: float
    mean_jct_s: float
    makespan_s: float
    runs_per_job: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlicingExperiment:
    """Jobs on a cluster, and what was measured of them."""

    cluster: ClusterSpec
    specs: Sequence[JobSpec]
    alone: Mapping[str, SoloUse]
    packed: PairMeasurements

    def run(self, planner: Planner) -> TimeSlicingFigures:
        """Simulate to the end."""
        core = Core(CoreConfig(cluster=self.cluster, planner=planner, round_s=0.0))
        plant = DurationPlant(
            cost=constant(RESUME_S),
            report_s=REPORT_S,
            surroundings=Surroundings(pairs=self.packed.speeds),
        )
        work = {spec.id: spec.duration_s or 0.0 for spec in self.specs}
        feedback, collector = FirstFeedback(work, FIRST_PART), Collector(core)
        last_s = max(spec.submit_s for spec in self.specs)
        usage = GpuUtilisation(core, self.utilisation, last_s)
        given = [JobSubmitted(at_s=spec.submit_s, job=spec) for spec in self.specs]
        watchers: list[Watcher] = [feedback, collector, usage]
        began_s = time.process_time()
        SimWorld(core, plant, given, watchers=watchers, record=False).run()
        return self._felt(feedback, collector, usage, time.process_time() - began_s)

    def utilisation(self, profiles: tuple[str, ...]) -> float:
        """Of a GPU by the jobs on it; a pair that was not measured counts as the busier of both."""
        if len(profiles) == 2:
            for pair in ((profiles[0], profiles[1]), (profiles[1], profiles[0])):
                if pair in self.packed.utilisation:
                    return self.packed.utilisation[pair]
        return max(self.alone[one].utilisation for one in profiles)

    def _felt(
        self, feedback: FirstFeedback, collector: Collector, usage: GpuUtilisation, cpu_s: float
    ) -> TimeSlicingFigures:
        submit_s = {spec.id: spec.submit_s for spec in self.specs}
        waits_s = [at_s - submit_s[job_id] for job_id, at_s in feedback.at_s.items()]
        outcomes = list(collector.outcomes.values())
        times_s = [one.jct_s for one in outcomes if one.jct_s is not None]
        return TimeSlicingFigures(
            jobs=len(self.specs),
            finished=len(times_s),
            mean_feedback_s=fmean(waits_s),
            median_feedback_s=median(waits_s),
            p95_feedback_s=float(np.quantile(waits_s, 0.95)),
            utilisation=usage.mean,
            mean_jct_s=fmean(times_s),
            makespan_s=max(one.finish_s or 0.0 for one in outcomes),
            runs_per_job=fmean(one.runs for one in outcomes),
            cpu_s=cpu_s,
        )
