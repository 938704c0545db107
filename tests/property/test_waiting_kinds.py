"""A walk that passes over jobs of a kind tells and starts what a look at every job does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.model.reason import Reason, ReasonCode
from wattherd.policy.contract import View
from wattherd.policy.queue.waiting import KindLines, KindWalk, Standing

JOBS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.integers(0, 2), st.sampled_from([-5, 0, 0, 5])),
    min_size=1,
    max_size=25,
)
"""User, needs and priority of each job."""


class World:
    """What becomes of a job follows from its kind and from how often anything has changed."""

    def __init__(self, fates: list[str], apart: set[str]) -> None:
        self.fates, self.apart = fates, apart
        self.changes = 0
        self.started: list[str] = []
        self.told: dict[str, str] = {}
        self.blocked: dict[str, str] = {}
        self.looks = 0

    def look(self, job: Any) -> str:
        """Serve a job that was taken; the fate that others share, empty: there is none."""
        self.looks += 1
        if job.user in self.blocked:
            self.told[job.id] = self.blocked[job.user]
            return "blocked"
        fate = self.fates[(hash(job.needs) + 3 * "xyz".index(job.user) + self.changes) % 5]
        self.told[job.id] = f"{fate} {self.changes} {job.user} {job.needs}"
        if job.id in self.apart:
            fate = "holds"
        if fate == "starts":
            self.started.append(job.id)
        if fate in ("starts", "holds"):
            self.changes += 1
        if fate == "blocked":
            self.blocked[job.user] = self.told[job.id]
        return fate


def jobs_of(asked: list[tuple[str, int, int]]) -> list[Any]:
    return [
        SimpleNamespace(
            id=f"j{number}", number=number, user=user, needs=needs, priority=priority, wanted=()
        )
        for number, (user, needs, priority) in enumerate(asked)
    ]


def standing(job: Any) -> Standing:
    return Standing("line", (job.user, job.needs), (-job.priority,))


def view_of(live: list[Any], came: list[Any], left: list[Any], changed: list[Any]) -> View:
    told = {"live": live, "entered": came, "left": left, "replanned": changed}
    return cast("View", SimpleNamespace(**{k: (lambda v=v: v) for k, v in told.items()}))


@settings(max_examples=times(200), deadline=None)
@given(
    asked=JOBS,
    fates=st.lists(
        st.sampled_from(["starts", "waits", "waits", "blocked", "alone"]), min_size=5, max_size=5
    ),
    apart=st.sets(st.integers(0, 24), max_size=3),
)
def test_who_is_passed_over_fares_as_if_looked_at(
    asked: list[tuple[str, int, int]], fates: list[str], apart: set[int]
) -> None:
    jobs, held = jobs_of(asked), {f"j{number}" for number in apart}
    each = World(fates, held)
    for job in sorted(jobs, key=lambda job: (-job.priority, job.number)):
        each.look(job)

    lines, walked = KindLines(), World(fates, held)
    lines.hear(view_of(jobs, [], [], []), standing)

    def tell(passed: list[Any], why: Reason) -> None:
        assert passed
        walked.told.update((job.id, why.unblocks) for job in passed)

    kinds = lines.lines["line"]
    walk = KindWalk(kinds, lines.entries(held, ["line"]), lambda: walked.changes, tell)
    for taken in walk:
        job: Any = taken
        fate = walked.look(job)
        why = Reason(code=ReasonCode.WAITING_FOR_GPUS, since_s=0.0, unblocks=walked.told[job.id])
        if fate == "starts":
            lines.remove(job.id)
        elif fate == "blocked":
            walk.pass_over_all(job.user, why)
        elif fate == "waits":
            walk.pass_over(why)
    assert (walked.started, walked.told) == (each.started, each.told)
    assert walked.looks <= each.looks
    assert [job.id for job in lines.jobs(["line"])] == [
        job.id for job in jobs if job.id not in walked.started
    ]


@settings(max_examples=times(100), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 7),
            st.sampled_from(["comes", "goes", "starts", "stops", "edited"]),
            st.sampled_from(["a", "b"]),
            st.integers(0, 2),
        ),
        max_size=30,
    ),
    first=st.integers(0, 5),
)
def test_lines_that_are_kept_are_those_made_anew(
    steps: list[tuple[int, str, str, int]], first: int
) -> None:
    """Whoever begins to listen at the `first` step hears of all that live then."""
    lines, live, count = KindLines(), dict[int, Any](), 0
    for at, (number, what, line, needs) in enumerate(steps):
        came, left, changed = list[Any](), list[Any](), list[Any]()
        job = live.get(number)
        if job is not None and what in ("goes", "edited"):
            left.append(live.pop(number))
        if (job is None and what == "comes") or (left and what == "edited"):
            count += 1
            job = live[number] = SimpleNamespace(
                id=f"j{number}", number=count, line=line, needs=needs, wanted=()
            )
            came.append(job)
        elif job is not None and what in ("starts", "stops"):
            job.wanted = ("somewhere",) if what == "starts" else ()
            changed.append(job)
        if at < first:
            continue

        def place(job: Any) -> Standing:
            return Standing(job.line, (job.needs,), ())

        lines.hear(view_of(list(live.values()), came, left, changed), place)
        waiting = sorted((one for one in live.values() if not one.wanted), key=lambda j: j.number)
        assert lines.names() == list(dict.fromkeys(one.line for one in waiting))
        for name in ("a", "b"):
            mine = [one for one in waiting if one.line == name]
            assert lines.jobs([name]) == mine
            kinds = {
                kind: [e[2] for e in alike] for kind, alike in lines.lines.get(name, {}).items()
            }
            assert kinds == {
                (needs,): [one for one in mine if one.needs == needs]
                for needs in {one.needs for one in mine}
            }
        assert all((one.id in lines) is not bool(one.wanted) for one in live.values())
