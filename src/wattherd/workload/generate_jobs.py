"""Training jobs drawn from the statistics of Microsoft's Philly clusters, for anybody to simulate.

Widths and, by width, run times are those of the 82,247 jobs of the public Philly trace (flattened
as in Sia's artifact, SOSP'23); quantiles are joined log-linearly. The longest 5 % of run times are
left out and all others cut at a limit, as a queue's time limit does: in the trace jobs last weeks,
and a workload of some hundred jobs would consist of one of them.
Arrivals are Poisson at a given load, which is GPU time asked for over GPU time there is. Queues,
users, priorities and deadlines are made up.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
from numpy.random import Generator

from wattherd.errors import UserError
from wattherd.model.job import JobSpec, workers
from wattherd.workload.random_streams import stream

SHARES = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)


@dataclass(frozen=True, slots=True)
class WidthMix:
    """Jobs of so many GPUs: their share, and their run times (s) at `SHARES`."""

    gpus: int
    share: float
    run_s: tuple[float, ...]


_TWO_TO_FOUR = (2.0, 11.0, 15.0, 21.0, 367.0, 45_388.0, 166_120.0, 233_082.0)
_LARGE = (1.0, 35.0, 72.0, 566.0, 21_137.0, 104_218.0, 247_972.0, 443_240.0)
WIDTHS = (
    WidthMix(1, 0.9317, (1.0, 52.0, 62.0, 122.0, 1117.0, 2716.0, 8512.0, 19_137.0)),
    WidthMix(2, 0.0221, _TWO_TO_FOUR),
    WidthMix(4, 0.0227, _TWO_TO_FOUR),
    WidthMix(8, 0.0200, (1.0, 125.0, 216.0, 1876.0, 23_683.0, 173_248.0, 351_982.0, 525_618.0)),
    WidthMix(16, 0.0026, _LARGE),
    WidthMix(32, 0.0009, _LARGE),
)
QUEUES = ("prod", "research", "students")
QUEUE_SHARES = (0.3, 0.5, 0.2)
PRIORITIES = (2, 1, 0)
"""Of the queues, in their order."""
USERS_PER_QUEUE = 4
DEADLINE_SHARE = 0.2
MOST_JOBS = 1_000_000
COLUMNS = (
    "id", "submit_s", "gpus", "duration_s", "priority", "queue", "user", "deadline_s",
    "power_profile",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMix:
    """How many jobs for how many GPUs; none is wider than `widest` or longer than `longest_s`.

    Each has one of `power_profiles`, if there are any.

    Raises:
        UserError: a number that makes no sense.
    """

    jobs: int
    gpus: int
    load: float = 1.0
    widest: int = 8
    longest_s: float = 43_200.0
    power_profiles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        for name, value, most in (
            ("jobs", self.jobs, MOST_JOBS),
            ("gpus", self.gpus, MOST_JOBS),
            ("widest", self.widest, self.gpus),
        ):
            if not 1 <= value <= most:
                raise UserError(f"{value} is too few or too many", field=name, hint=f"1 to {most}")
        if not self.longest_s > 0:
            raise UserError(f"{self.longest_s} s is no limit", field="longest", hint="say 12h")
        if not 0 < self.load < 100:
            raise UserError(f"{self.load} is no load", field="load", hint="1.0 asks for all GPUs")


def generate_jobs(mix: JobMix, seed: int) -> tuple[JobSpec, ...]:
    """Jobs in order of submission; the first comes at 0 s."""
    shape = stream(seed, "job shapes")
    widths = [one for one in WIDTHS if one.gpus <= mix.widest]
    share = np.array([one.share for one in widths])
    picks = shape.choice(len(widths), size=mix.jobs, p=share / share.sum())
    gpus = np.array([widths[pick].gpus for pick in picks])
    drawn_s = np.array([_run_s(widths[pick], float(shape.random())) for pick in picks])
    run_s = np.minimum(drawn_s, mix.longest_s)
    gaps = stream(seed, "job arrivals").exponential(1.0, size=mix.jobs)
    gaps[0] = 0.0
    span_s = float((gpus * run_s).sum()) / (mix.gpus * mix.load)
    submit_s = np.cumsum(gaps) * span_s / max(gaps.sum(), 1e-9)
    people, models = stream(seed, "job owners"), stream(seed, "job models")
    profiles = mix.power_profiles or ("",)
    specs = (
        _job(number, round(float(submit_s[number]), 1), int(gpus[number]), run_s[number], people)
        for number in range(mix.jobs)
    )
    return tuple(
        replace(spec, power_profile=profiles[int(models.integers(len(profiles)))]) for spec in specs
    )


def _run_s(width: WidthMix, share: float) -> float:
    logs = np.log(width.run_s)
    return round(float(np.exp(np.interp(share * SHARES[-1], SHARES, logs))), 1)


def _job(number: int, submit_s: float, gpus: int, run_s: float, people: Generator) -> JobSpec:
    queue = int(people.choice(len(QUEUES), p=QUEUE_SHARES))
    user = f"{QUEUES[queue]}-{int(people.integers(USERS_PER_QUEUE)) + 1}"
    hurried, slack = people.random() < DEADLINE_SHARE, float(people.uniform(1.5, 6.0))
    return JobSpec(
        id=f"job-{number:05}",
        submit_s=submit_s,
        roles=workers(gpus),
        duration_s=float(run_s),
        priority=PRIORITIES[queue],
        queue=QUEUES[queue],
        user=user,
        deadline_s=round(submit_s + slack * float(run_s), 1) if hurried else None,
    )


def jobs_csv(specs: tuple[JobSpec, ...]) -> str:
    """The jobs as a native CSV file (docs/reference/job-files.md)."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in specs:
        deadline = "" if one.deadline_s is None else one.deadline_s
        writer.writerow(
            (one.id, one.submit_s, one.gpus, one.duration_s, one.priority, one.queue, one.user,
             deadline, one.power_profile)
        )  # fmt: skip
    return text.getvalue()
