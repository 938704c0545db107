"""Arrays handed to a keeper: all of their tasks or none, once, whatever breaks meanwhile."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_keeper import Site, a_core

from effort import times
from wattherd.engine.core.invariants import validate
from wattherd.errors import UserError
from wattherd.model.event import ArrayLimited, JobCancelled, JobHeld, JobReleased, JobSubmitted
from wattherd.server.documents import arrays
from wattherd.server.journal.job_history import JobHistory, PastJob
from wattherd.server.journal.journal_writer import EventWish
from wattherd.server.journal.replay_state import ReplayState
from wattherd.server.journal.snapshot_codec import FrozenState, freeze, thaw
from wattherd.server.journal.succession import succeed
from wattherd.store.entry import StoreDoubt, StoreFailure
from wattherd.testing.live import MemoryJournal
from wattherd.workload.job_file import JobFile


def hand_in(
    site: Site, count: int, most: int | None = None, key: str = "k", **more: Any
) -> EventWish:
    array = f"0-{count - 1}" + ("" if most is None else f"%{most}")
    job = JobFile.model_validate({"run": "true", "array": array, "name": "s", **more})
    wish = site.keeper.hand_in_all(list(job.tasks(user="ann")), "ann", key)
    site.turns()
    return wish


def test_tasks_get_consecutive_ids_and_the_array_is_called_by_the_first() -> None:
    site = Site()
    hand_in(site, 1, key="first")
    assert hand_in(site, 3).done.result(0) == "j-2"
    specs = [record.spec for record in site.keeper.core.jobs.values()][1:]
    assert [(one.id, one.array, one.array_index) for one in specs] == [
        ("j-2", "a-2", 0),
        ("j-3", "a-2", 1),
        ("j-4", "a-2", 2),
    ]
    assert hand_in(site, 1, key="last").done.result(0) == "j-5"


def test_the_same_request_hands_an_array_in_once_also_after_a_kill() -> None:
    site = Site()
    assert hand_in(site, 4).done.result(0) == hand_in(site, 4).done.result(0) == "j-1"
    assert len(site.keeper.core.jobs) == 4
    successor = Site(MemoryJournal(site.journal.kept), site.hands)
    again = hand_in(successor, 4)
    assert (again.done.result(0), again.again) == ("j-1", True)
    assert len(successor.keeper.core.jobs) == 4


def test_an_array_that_the_journal_does_not_take_leaves_nothing_behind() -> None:
    site = Site()
    site.journal.full = True
    refused = hand_in(site, 4)
    with pytest.raises(StoreFailure):
        refused.done.result(0)
    site.journal.full = False
    assert site.journal.kept == []
    assert hand_in(site, 2).done.result(0) == "j-1"
    assert len(site.keeper.core.jobs) == 2


def test_an_array_that_was_kept_without_an_answer_is_there_once() -> None:
    site = Site()
    site.journal.silent = True
    doubtful = hand_in(site, 3)
    with pytest.raises(StoreDoubt):
        doubtful.done.result(0)
    site.journal.silent = False
    assert hand_in(site, 3).done.result(0) == "j-1"
    assert [record.id for record in site.keeper.core.jobs.values()] == ["j-1", "j-2", "j-3"]


@pytest.mark.parametrize("cut", range(8))
def test_a_service_that_was_killed_anywhere_has_all_tasks_or_none(cut: int) -> None:
    """One commit is one list that the journal takes: a kill falls between lists."""
    site = Site()
    taken: list[int] = []
    append = site.journal.append

    def counted(entries: Any) -> None:
        append(entries)
        taken.append(len(site.journal.kept))

    site.journal.append = counted  # type: ignore[method-assign]
    hand_in(site, 2, key="one")
    hand_in(site, 5, key="two")
    kept = site.journal.kept[: ([0, *taken][min(cut, len(taken))])]
    successor = Site(MemoryJournal(kept), site.hands)
    by_array: dict[str, int] = {}
    for entry in kept:
        if isinstance(entry.event, JobSubmitted):
            by_array[entry.event.job.array] = by_array.get(entry.event.job.array, 0) + 1
    assert by_array.items() <= {"a-1": 2, "a-3": 5}.items()
    for count, key in ((2, "one"), (5, "two")):
        hand_in(successor, count, key=key)
    assert len(successor.keeper.core.jobs) == 7


def test_a_task_that_would_wait_for_itself_refuses_the_whole_array() -> None:
    site = Site()
    for after in ("j-3", "a-1"):
        wish = hand_in(site, 4, key=after, after=[after])
        with pytest.raises(UserError, match="waits for itself"):
            wish.done.result(0)
    assert site.journal.kept == []
    assert hand_in(site, 2).done.result(0) == "j-1"


def test_half_an_array_is_cancelled_in_one_commit() -> None:
    site = Site()
    hand_in(site, 6, most=1)
    events = [JobCancelled(at_s=0.0, job_id=f"j-{number}") for number in range(4, 7)]
    done = site.keeper.post_all(events, by="ann")
    site.turns()
    assert done.result(0) == "j-4"
    assert list(site.keeper.core.jobs) == ["j-1", "j-2", "j-3"]


def test_only_the_first_paper_tells_what_the_array_was_made_of() -> None:
    site = Site()
    hand_in(site, 3, run="x {index}")
    papers = [entry.paper for entry in site.journal.kept if entry.paper]
    assert papers[0]["array"] == {
        "indices": "0-2",
        "template": {"commands": [["/bin/sh", "-c", "x {index}"]]},
    }
    assert [paper["array"] for paper in papers[1:]] == [{}, {}]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["end", "fail", "stop", "cancel", "pause", "resume", "kill", "rival", "raise"]
        ),
        st.integers(0, 11),
    ),
    max_size=40,
)


@settings(max_examples=times(60), deadline=None)
@given(most=st.integers(1, 3), steps=STEPS)
def test_never_more_tasks_run_than_may_whatever_happens_to_them(
    most: int, steps: list[tuple[str, int]]
) -> None:
    """Ends, failures that are tried again, holds, rivals, and services that are killed."""
    site = Site()
    hand_in(site, 8, most=most, restarts=1, backoff=0)

    def running() -> list[tuple[str, int]]:
        return [run for run in site.hands.runs if site.hands.runs[run].spec.array]

    for number, (what, which) in enumerate(steps):
        runs = list(site.hands.runs)
        run = runs[which % len(runs)] if runs else None
        job_id = f"j-{1 + which % 8}"
        if what in ("end", "fail") and run is not None:
            site.keeper.tell(site.hands.exited(run, 0 if what == "end" else 1))
        elif what == "stop" and run is not None:  # as it was told to, or by itself: it comes again
            site.keeper.tell(site.hands.stopped(run))
        elif what == "kill":
            site = Site(MemoryJournal(site.journal.kept), site.hands)
        elif what == "rival":
            rival = JobFile.model_validate({"run": "true", "gpus": 2, "priority": "high"})
            site.keeper.submit(rival.spec(user="bob"), {}, "bob", key=str(number))
        elif what == "raise":
            most += which % 2
            site.keeper.post(ArrayLimited(at_s=0.0, array="a-1", most=most), by="ann")
        elif what in ("cancel", "pause", "resume"):
            kinds = {"cancel": JobCancelled, "pause": JobHeld, "resume": JobReleased}
            site.keeper.post(kinds[what](at_s=0.0, job_id=job_id), by="ann")
        site.turns()
        assert len(running()) <= most
        site.clock.at_s += 1.0
    replayed = a_core()
    for _ in ReplayState().replay(replayed, site.journal.kept):
        pass
    assert {one.id: one.state for one in replayed.jobs.values()} == {
        one.id: one.state for one in site.keeper.core.jobs.values()
    }


def test_a_core_that_takes_over_knows_which_tasks_are_over_and_how_they_ended() -> None:
    site = Site()
    hand_in(site, 4, most=1)
    site.submit(replace(JobFile.model_validate({"run": "x"}).spec(), after_any=("a-1",)))
    site.submit(replace(JobFile.model_validate({"run": "x"}).spec(), after=("a-1",)))
    any_end, success = "j-5", "j-6"
    for number, code in ((1, 0), (2, 1)):
        site.keeper.tell(site.hands.exited((f"j-{number}", 1), code))
        site.turns()
    old = site.keeper
    live = {
        job_id: PastJob(spec=one.spec, paper={}, by="") for job_id, one in old.core.jobs.items()
    }
    core = a_core()
    succeed(FrozenState(old.core, old.standing, live, old.standing.submitted), core)
    validate(core)
    assert {one.id: str(one.state) for one in core.jobs.values() if one.spec.array} == {
        "j-3": "Queued",
        "j-4": "Blocked",
    }
    for job_id in ("j-3", "j-4"):
        core.handle(JobCancelled(at_s=1.0, job_id=job_id))
    assert str(core.finished["a-1"]) == "Failed"
    assert str(core.jobs[any_end].state) == "Queued"
    assert str(core.finished[success]) == "Failed"


def test_a_snapshot_in_the_midst_of_an_array_goes_on_as_the_journal_would() -> None:
    site = Site()
    hand_in(site, 5, most=2)
    site.submit(replace(JobFile.model_validate({"run": "x"}).spec(), after=("a-1",)))
    site.keeper.tell(site.hands.exited(("j-2", 1)))
    site.keeper.post(JobHeld(at_s=0.0, job_id="j-4"), by="ann")
    site.turns()
    old = site.keeper
    body = freeze(FrozenState.of(old.core, old.standing, JobHistory()))
    thawed = thaw(body, old.core.config).core
    for core in (old.core, thawed):
        for job_id in ("j-1", "j-3", "j-5"):
            core.handle(JobCancelled(at_s=1.0, job_id=job_id))
        core.handle(JobReleased(at_s=2.0, job_id="j-4"))
        validate(core)
    assert {one.id: one.told() for one in thawed.jobs.values()} == {
        one.id: one.told() for one in old.core.jobs.values()
    }


def test_one_user_cannot_fill_the_queue_with_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    hand_in(site, 3)
    look = SimpleNamespace(core=site.keeper.core)
    monkeypatch.setattr(arrays, "MOST_LIVE", 5)
    arrays.check_room(look, "ann", "", 2)  # type: ignore[arg-type]
    arrays.check_room(look, "bob", "", 5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="3 jobs of yours are not over, 5 at most"):
        arrays.check_room(look, "ann", "", 3)  # type: ignore[arg-type]


@pytest.mark.long
def test_ten_thousand_tasks_are_handed_in_within_seconds_and_planned_as_fast_as_single_jobs() -> (
    None
):
    """Processor seconds of this process; on disk it is one commit."""

    def used(site: Site) -> tuple[float, float]:
        begun_s = time.process_time()
        site.keeper.turn()
        in_s = time.process_time() - begun_s
        site.clock.at_s = 50.0
        site.turns()
        rounds = []
        for number in range(1, 8):
            site.clock.at_s = 100.0 * number
            site.keeper.tell(site.hands.exited(next(iter(site.hands.runs))))
            begun_s = time.process_time()
            site.keeper.turn()
            site.keeper.turn()
            rounds.append(time.process_time() - begun_s)
        return in_s, sorted(rounds)[3]

    job = JobFile.model_validate({"run": "true", "array": "0-9999", "name": "s"})
    array, single = Site(), Site()
    begun_s = time.process_time()
    array.keeper.hand_in_all(list(job.tasks(user="ann")), "ann", "k")
    handed_s, round_s = used(array)
    made_s = time.process_time() - begun_s
    spec = JobFile.model_validate({"run": "true", "name": "s"}).spec(user="ann")
    for number in range(10_000):
        single.keeper.submit(spec, {"name": "s"}, "ann", key=str(number))
    alone_s, single_s = used(single)
    assert len(array.keeper.core.jobs) == len(single.keeper.core.jobs) == 10_000 - 7
    assert made_s < 20
    assert handed_s < 3 * alone_s + 1
    assert round_s < 3 * single_s + 0.1
