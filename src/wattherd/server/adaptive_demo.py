"""The second demonstration: ten trainings of mixed length under one scheduler after the other.

Some trainings report where they end and some do not; all can run on one slot or two. The budget is
cut once a third of the work is done, and raised again. What came of it is one document: mean
completion times, and who was resized when and why, as the stories of the jobs tell it.

A machine that does other work beside is slower for one scheduler than for the next. So completion
is also told by work: how much of all work was done when a job was through. Restarts do not count
there, as no work is done in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from wattherd.server.demo import BATCH

POLICIES = ("fifo", "aiturbo", "wattherd")
SLOTS = 4
LONG, SHORT = 1.0, 0.12
STEPS = {"mlp": 30_000, "cnn": 22_000, "attention": 20_000}
"""Of a long one: some 25 s of a processor core."""
JOBS = (
    ("mlp", LONG, True), ("cnn", SHORT, True), ("attention", LONG, False), ("mlp", SHORT, False),
    ("cnn", LONG, True), ("attention", SHORT, True), ("mlp", SHORT, True), ("cnn", SHORT, False),
    ("attention", SHORT, True), ("mlp", 2 * SHORT, False),
)  # fmt: skip
"""Program, length, and whether it reports where it ends."""
RESIZED = "resized"


def job_documents(
    programs: str, python: str, environment: Mapping[str, str], *, scale: float = 1.0
) -> list[Any]:
    """Job files of the ten trainings, `scale` times as long; `programs` is a folder."""
    return [
        {
            "name": f"{program}-{number}",
            "run": [
                *(python, f"{program}.py", "--steps", str(_steps(program, scale * length))),
                *("--global-batch", str(BATCH[program]), "--micro-batch", str(BATCH[program])),
                *("--seed", str(number), "--every", "1000"),
                *(() if tells else ("--open-ended",)),
            ],
            "workdir": programs,
            "gpus": {"min": 1, "max": 2},
            "envs": dict(environment),
            "checkpoint": {"grace": "20s"},
            "restarts": 2,
        }
        for number, (program, length, tells) in enumerate(JOBS)
    ]


def _steps(program: str, length: float) -> int:
    return max(1, round(length * STEPS[program]))


@dataclass(slots=True)
class Lived:
    """What became of the ten under one scheduler."""

    policy: str
    scale: float = 1.0
    jobs: Sequence[Mapping[str, Any]] = ()
    stories: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By name of the job: when it was resized, and why."""
    work_before: dict[str, float] = field(default_factory=dict)
    """By name of the job that is through: the part of all work that was done by then."""

    def note(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """The documents of the jobs, as they are now; stories end with their jobs."""
        self.jobs = jobs
        for job in jobs:
            told = [
                (str(line["at"]), str(line["what"]))
                for line in job.get("story", ())
                if str(line["what"]).startswith(RESIZED)
            ]
            if len(told) > len(self.stories.get(job["name"], ())):
                self.stories[job["name"]] = told
        done = self._work_done()
        for job in jobs:
            if job["finished"]:
                self.work_before.setdefault(job["name"], done)

    def _work_done(self) -> float:
        """The part of all work that is done, 0 to 1; a step of each program is work of its own."""
        whole = {f"{program}-{at}": (program, length) for at, (program, length, _) in
                 enumerate(JOBS)}  # fmt: skip
        done = 0.0
        for job in self.jobs:
            program, length = whole.get(job["name"], ("", 0.0))
            steps = _steps(program, self.scale * length) if program else 1
            part = 1.0 if job["state"] == "Succeeded" else job.get("progress", 0.0) / steps
            done += length * min(part, 1.0)
        return done / sum(length for _, length, _ in JOBS)

    @property
    def mean_work(self) -> float:
        """Mean part of all work that was done when a job was through."""
        return sum(self.work_before.values()) / max(len(self.work_before), 1)

    @property
    def mean_s(self) -> float:
        """Mean time from submission to the end, of those that ended."""
        found = [
            _seconds(job["submitted"], job["finished"]) for job in self.jobs if job["finished"]
        ]
        return sum(found) / max(len(found), 1)


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def report(runs: Sequence[Lived]) -> str:
    """The document, in Markdown."""
    return "\n".join([*_table(runs), *(line for run in runs for line in _changes(run))]) + "\n"


def _table(runs: Sequence[Lived]) -> Iterator[str]:
    yield "# Ten trainings, one after the other under each scheduler"
    yield ""
    yield "| scheduler | mean completion | fifo's over it | by work | finished | resized |"
    yield "|---|---|---|---|---|---|"
    first_s, first = runs[0].mean_s, runs[0].mean_work
    for run in runs:
        done = sum(job["state"] == "Succeeded" for job in run.jobs)
        resized = sum(map(len, run.stories.values()))
        times = first_s / run.mean_s if run.mean_s else 0.0
        yield (
            f"| {run.policy} | {run.mean_s:.1f} s | {times:.2f} | {_over(first, run.mean_work)} "
            f"| {done} of {len(run.jobs)} | {resized} |"
        )
    yield ""
    yield "`by work` counts, in place of time, the work of all that was done before a job was"
    yield "through: other load on the machine does not move it, and restarts do not count."


def _over(first: float, mean: float) -> str:
    return f"{first / mean:.2f}" if mean else "-"


def _changes(run: Lived) -> Iterator[str]:
    yield ""
    yield f"## {run.policy}: who was resized, when and why"
    yield ""
    began = min((str(job["submitted"]) for job in run.jobs), default="")
    told = sorted((at, name, why) for name, lines in run.stories.items() for at, why in lines)
    for at, name, why in told:
        yield f"- {_seconds(began, at):.0f} s, {name}: {why}"
    if not told:
        yield "Nobody."
