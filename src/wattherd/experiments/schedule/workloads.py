"""Training-job files by format name, and the published simulators' settings by preset name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from wattherd.errors import UserError
from wattherd.estimate.application import Application
from wattherd.estimate.throughput_table import ThroughputTable
from wattherd.model.job import JobSpec
from wattherd.plugin_watch import PluginWatch
from wattherd.plugins import GUIDE, announced, loaded
from wattherd.spelling import hint_for
from wattherd.workload.ps_jobs import PsWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadJobs:
    """Jobs and whatever profiles their file format brings."""

    specs: tuple[JobSpec, ...]
    applications: Mapping[str, Application] = field(default_factory=dict)
    throughputs: ThroughputTable | None = None
    ps: PsWorkload | None = None


PROFILED = ("pollux", "sia", "gavel")
"""Formats whose jobs run as measured profiles say."""
TIMED = ("native", "muri", "tiresias", "philly", "elasticflow", "chronus", "pai")
"""Formats whose jobs say how long they run."""
MODELLED = "aiturbo"
"""The format whose jobs run as their model does; its profiles are optional."""
FORMATS = (*PROFILED, *TIMED, MODELLED)


def read_workload(kind: str, jobs: Path, profiles: Path | None) -> ReadJobs:
    """The jobs of a file and the profiles that its format needs.

    Raises:
        UserError: unknown format, missing profiles, or bad content.
    """
    from wattherd.workload import aiturbo_jobs, gavel, pollux

    if kind in TIMED:
        reader = import_module(f"wattherd.workload.{kind}")
        return ReadJobs(specs=reader.read_jobs(jobs))
    if kind not in FORMATS and kind in announced("workloads"):
        return ReadJobs(specs=_read_by_package(kind, jobs))
    if kind == MODELLED:
        workload = aiturbo_jobs.read_jobs(jobs, profiles)
        return ReadJobs(specs=workload.specs, ps=workload)
    known = read_profiles(kind, profiles)
    if known.throughputs is not None:
        return replace(known, specs=gavel.read_jobs(jobs, known.throughputs))
    return replace(known, specs=pollux.read_jobs(jobs, known.applications))


def read_profiles(kind: str, profiles: Path | None) -> ReadJobs:
    """What a format knows besides jobs.

    Raises:
        UserError: unknown format, missing profiles, or bad content.
    """
    from wattherd.workload.gavel import read_throughputs
    from wattherd.workload.pollux import read_applications

    if kind not in FORMATS:
        known = [*FORMATS, *announced("workloads")]
        raise UserError(f"unknown format {kind!r}", field="--format", hint=hint_for(kind, known))
    if kind in TIMED or kind == MODELLED:
        return ReadJobs(specs=())
    if profiles is None:
        raise UserError("the format needs profiles", field="--profiles", hint="--profiles PATH")
    if kind == "gavel":
        return ReadJobs(specs=(), throughputs=read_throughputs(profiles))
    return ReadJobs(specs=(), applications=read_applications(profiles))


def _read_by_package(kind: str, path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a format that an installed package reads.

    Raises:
        UserError: what the package says, or that it failed.
    """
    read = loaded("workloads", kind)
    try:
        with PluginWatch(f"format {kind!r}"):
            specs = tuple(read(path))
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        problem = f"cannot be read as {kind!r}: {type(error).__name__}: {error}"
        raise UserError(problem, where=str(path), hint=GUIDE) from error
    strange = next((one for one in specs if not isinstance(one, JobSpec)), None)
    if strange is not None:
        problem = f"{kind!r} gave a {type(strange).__name__} for a job"
        raise UserError(problem, where=str(path), hint=GUIDE)
    names = Counter(one.id for one in specs)
    if len(names) < len(specs):
        problem = f"{kind!r} gave two jobs the id {names.most_common(1)[0][0]!r}"
        raise UserError(problem, where=str(path), hint=GUIDE)
    return tuple(sorted(specs, key=lambda spec: spec.submit_s))
