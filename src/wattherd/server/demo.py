"""The demonstration: which jobs, which budget when, and whether it went as it should.

Six small trainings share two parts of a processor. Once part of the work is done the budget is cut
by a quarter, towards the end it is raised again. Nothing here knows of time or of the service:
documents of the REST API go in, and what to ask of it comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PROGRAMS = ("mlp", "cnn", "attention")
STEPS = {"mlp": 14_000, "cnn": 12_000, "attention": 11_000}
"""Ten to fifteen seconds of a processor core each."""
BATCH = {"mlp": 256, "cnn": 64, "attention": 128}
SEEDS = (0, 1)
OF_FULL = 0.9
"""The first budget, as part of what the machine can draw."""
CUT = 0.25
CUT_AT, RAISE_AT = 0.35, 0.75
"""Parts of all steps after which the budget is cut and raised again."""
NOTICE_S = 6.0
"""How long ahead the cut is announced: caps are lowered in time, so that the draw is under the new
budget when it comes."""
FINAL = frozenset({"Succeeded", "Failed", "Cancelled", "TimedOut"})


def job_documents(
    programs: str, python: str, environment: Mapping[str, str], *, scale: float = 1.0
) -> list[Any]:
    """Job files of all trainings, `scale` times as long; `programs` is a folder."""
    return [
        {
            "name": f"{program}-{seed}",
            "run": [
                *(python, f"{program}.py", "--steps", str(_steps(program, scale))),
                *("--global-batch", str(BATCH[program]), "--micro-batch", str(BATCH[program])),
                *("--seed", str(seed), "--every", "1000"),
            ],
            "workdir": programs,
            "envs": dict(environment),
            "checkpoint": {"grace": "20s"},
            "restarts": 2,
        }
        for seed in SEEDS
        for program in PROGRAMS
    ]


def _steps(program: str, scale: float) -> int:
    return max(1, round(scale * STEPS[program]))


def full_w(nodes: Mapping[str, Any]) -> float:
    """What all devices of a site can draw, by its document `wattherd.nodes/1`."""
    devices = sum(len(node["gpus"]) for node in nodes["nodes"])
    return float(devices * nodes["gpu_max_w"])


def part_done(jobs: Sequence[Mapping[str, Any]]) -> float:
    """The part of all jobs' steps that is done, 0 to 1."""
    return sum(_done(job) for job in jobs) / max(len(jobs), 1)


def _done(job: Mapping[str, Any]) -> float:
    if job["state"] in FINAL:
        return 1.0
    return min(1.0, job["progress"] / job["total"]) if job["total"] else 0.0


@dataclass(frozen=True, slots=True)
class DemoChange:
    """A budget, what to call the change, and how long before it is announced (0: at once)."""

    budget_w: float
    words: str
    notice_s: float = 0.0

    @property
    def document(self) -> dict[str, Any]:
        """What to put to `/power`."""
        within = {"in": self.notice_s} if self.notice_s else {}
        return {"budget": self.budget_w, **within}


@dataclass(slots=True)
class Course:
    """The budgets of a demonstration one after the other, from the first on."""

    full_w: float
    _rest: list[tuple[float, DemoChange]] = field(init=False)

    def __post_init__(self) -> None:
        """All budgets are still to come."""
        first_w = round(OF_FULL * self.full_w, 2)
        cut_w = round((1 - CUT) * first_w, 2)
        self._rest = [
            (0.0, DemoChange(first_w, "budget")),
            (CUT_AT, DemoChange(cut_w, f"budget cut by {CUT:.0%} in {NOTICE_S:g} s", NOTICE_S)),
            (RAISE_AT, DemoChange(first_w, "budget raised again")),
        ]

    def due(self, done: float) -> DemoChange | None:
        """The next budget, if the work has come so far."""
        if not self._rest or done < self._rest[0][0]:
            return None
        return self._rest.pop(0)[1]


def problems(
    jobs: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """What did not go as it should, in words; nothing if all went well."""
    for job in jobs:
        if job["state"] != "Succeeded":
            why = (job["reason"] or {}).get("text", "")
            yield f"{job['name']} is {job['state']}{': ' if why else ''}{why}"
    if not samples:
        yield "no draw was measured"
    above = list(crossings(samples))
    if above:
        worst_w = max(one["draw_w"] - one["budget_w"] for one in above)
        yield f"the draw was above the budget in {len(above)} samples, by up to {worst_w:.2f} W"


def crossings(samples: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Samples above the budget."""
    for one in samples:
        if one["budget_w"] is not None and one["draw_w"] > one["budget_w"]:
            yield one
