"""The keeper: journal first, nothing lost, the same after a crash."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from wattherd.engine.core.core import Core, CoreConfig
from wattherd.engine.core.invariants import validate
from wattherd.errors import ClusterError
from wattherd.model.event import BudgetChanged, JobCancelled, JobHeld
from wattherd.model.job import JobSpec, TaskRole
from wattherd.policy.contract import Draft, View
from wattherd.policy.schedule.drf import Drf
from wattherd.server.journal.core_loop import GAP_S, CoreLoop
from wattherd.server.site.site import LiveSite
from wattherd.store.entry import StoreDoubt, StoreFailure
from wattherd.testing.live import MemoryJournal, PaperExecutor, SetClock
from wattherd.testing.timed_world import t4_nodes


def a_core() -> Core:
    return Core(CoreConfig(cluster=t4_nodes(2), planner=Drf(), round_s=0.0))


def a_job(gpus: int = 1, **more: Any) -> JobSpec:
    return JobSpec(id="new", submit_s=0.0, roles=(TaskRole(count=gpus),), **more)


class Site:
    """A keeper whose turns are taken by hand."""

    def __init__(self, journal: MemoryJournal | None = None, hands: PaperExecutor | None = None):
        self.journal = journal or MemoryJournal()
        self.hands = hands or PaperExecutor()
        self.clock = SetClock()
        self.keeper = CoreLoop(a_core(), self.journal, self.clock)
        self.keeper.recover(self.hands)

    def submit(self, spec: JobSpec) -> Future[str]:
        done = self.keeper.submit(spec, {"run": "true"}, by="ann")
        self.turns()
        return done

    def turns(self) -> None:
        for _ in range(5):
            self.keeper.turn()

    @property
    def states(self) -> dict[str, str]:
        return {job.id: str(job.state) for job in self.keeper.core.jobs.values()}


def test_a_submission_gets_an_id_a_time_and_a_run() -> None:
    site = Site()
    site.clock.at_s = 7.0
    assert site.submit(a_job()).result(0) == "j-1"
    (entry, *_) = site.journal.kept
    assert (entry.seq, entry.by, entry.paper) == (1, "ann", {"run": "true"})
    assert entry.event.at_s == 7.0
    assert site.hands.begun == [("j-1", 1)]
    assert site.hands.runs["j-1", 1].paper == {"run": "true"}


def test_a_full_journal_refuses_wishes_and_keeps_facts() -> None:
    site = Site()
    site.submit(a_job())
    site.keeper.tell(site.hands.started(("j-1", 1)))
    site.turns()
    site.journal.full = True
    refused = site.submit(a_job())
    with pytest.raises(StoreFailure, match="full"):
        refused.result(0)
    site.keeper.tell(site.hands.exited(("j-1", 1)))
    site.turns()
    assert site.keeper.store_problem == "the journal is full"
    assert site.states == {"j-1": "Running"}
    site.journal.full = False
    site.turns()
    assert site.states == {}
    assert site.keeper.store_problem == ""
    assert site.submit(a_job()).result(0) == "j-2"


def test_what_was_kept_without_an_answer_happens_once() -> None:
    site = Site()
    site.submit(a_job())
    site.journal.silent = True
    doubtful = site.keeper.submit(a_job(), {}, by="ann", key="once")
    site.keeper.tell(site.hands.started(("j-1", 1)))
    site.turns()
    with pytest.raises(StoreDoubt):
        doubtful.result(0)
    kept = len(site.journal.kept)
    assert site.states == {"j-1": "Starting"}
    site.keeper.tell(site.hands.exited(("j-1", 1)))
    again = site.keeper.submit(a_job(), {}, by="ann", key="once")
    site.turns()
    assert len(site.journal.kept) == kept  # nothing is written on top of what is not known
    site.journal.silent = False
    last = site.keeper.submit(a_job(), {}, by="ann", key="once")
    site.turns()
    with pytest.raises(StoreFailure):
        again.result(0)
    assert last.result(0) == "j-2"
    assert site.states == {"j-2": "Starting"}
    kinds = [type(entry.event).__name__ for entry in site.journal.kept]
    assert (kinds.count("JobStarted"), kinds.count("JobSubmitted")) == (1, 2)
    assert [entry.seq for entry in site.journal.kept] == list(range(1, len(kinds) + 1))


def test_the_same_request_submits_once() -> None:
    site = Site()
    twins = [site.keeper.submit(a_job(), {}, by="ann", key="k") for _ in range(2)]
    other = site.keeper.submit(a_job(), {}, by="bob", key="k")
    site.turns()
    assert [one.result(0) for one in (*twins, other)] == ["j-1", "j-1", "j-2"]
    successor = Site(MemoryJournal(site.journal.kept), site.hands)
    late = successor.keeper.submit(a_job(), {}, by="ann", key="k")
    successor.turns()
    assert late.result(0) == "j-1"


def test_after_a_crash_runs_are_adopted_not_begun_again() -> None:
    site = Site()
    site.submit(a_job())
    site.submit(a_job())
    site.submit(a_job(gpus=2))
    site.keeper.tell(site.hands.started(("j-1", 1)))
    site.turns()
    successor = Site(MemoryJournal(site.journal.kept), site.hands)
    assert successor.states == site.states
    assert site.hands.begun == [("j-1", 1), ("j-2", 1)]
    successor.keeper.tell(site.hands.exited(("j-1", 1)))
    successor.keeper.tell(site.hands.exited(("j-2", 1)))
    successor.turns()
    assert site.hands.begun == [("j-1", 1), ("j-2", 1), ("j-3", 1)]
    assert successor.submit(a_job()).result(0) == "j-4"


def test_a_run_ordered_but_never_begun_is_begun_by_the_successor() -> None:
    site = Site()
    site.submit(a_job())
    successor = Site(MemoryJournal(site.journal.kept), PaperExecutor())
    assert successor.hands.begun == [("j-1", 1)]


def test_a_stop_outlives_a_crash() -> None:
    site = Site()
    site.submit(a_job())
    site.keeper.tell(site.hands.started(("j-1", 1)))
    site.keeper.post(JobHeld(at_s=0.0, job_id="j-1"), by="ann")
    site.turns()
    site.hands.stops.clear()
    Site(MemoryJournal(site.journal.kept), site.hands)
    assert list(site.hands.stops) == [("j-1", 1)]


def test_a_strange_run_is_ended() -> None:
    hands = PaperExecutor()
    site = Site()
    site.submit(a_job())
    hands.start(site.hands.runs["j-1", 1])
    Site(MemoryJournal(), hands)
    assert hands.runs == {}


def test_back_off_is_waited_for_by_the_clock() -> None:
    site = Site()
    site.submit(a_job(restarts=1, backoff_s=10.0))
    site.keeper.tell(site.hands.exited(("j-1", 1), 1))
    site.turns()
    assert site.states == {"j-1": "BackingOff"}
    site.clock.at_s = 10.0
    site.turns()
    assert site.hands.begun == [("j-1", 1), ("j-1", 2)]


def test_questions_see_the_state_between_turns() -> None:
    site = Site()
    site.submit(a_job())
    answer = site.keeper.ask(lambda core: list(core.jobs))
    bad = site.keeper.ask(lambda core: core.jobs["none"])
    site.turns()
    assert answer.result(0) == ["j-1"]
    with pytest.raises(KeyError):
        bad.result(0)


def test_the_thread_answers_and_ends() -> None:
    site = Site()
    site.keeper.begin()
    ids = [site.keeper.submit(a_job(), {}, by="ann") for _ in range(100)]
    assert [one.result(10) for one in ids] == [f"j-{n}" for n in range(1, 101)]
    site.keeper.post(JobCancelled(at_s=0.0, job_id="j-100"), by="ann").result(10)
    assert len(site.keeper.ask(lambda core: list(core.jobs)).result(10)) == 99
    site.keeper.end()
    assert threading.active_count() < 20
    validate(site.keeper.core)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_broken_core_leaves_nobody_waiting() -> None:
    site = Site()
    site.keeper.core.handle = lambda event: 1 / 0  # type: ignore[assignment, method-assign]
    site.keeper.begin()
    first = site.keeper.post(BudgetChanged(at_s=0.0, budget_w=1.0), by="ann")
    site.keeper._thread.join(10)
    second = site.keeper.submit(a_job(), {}, by="ann")
    for lost in (first, second):
        with pytest.raises(ClusterError, match="stopped"):
            lost.result(10)
    assert isinstance(site.keeper.broken, ZeroDivisionError)


def test_a_wake_up_in_a_million_years_is_waited_for_in_parts() -> None:
    site = Site()
    site.submit(a_job(time_limit_s=3e13))
    site.keeper.tell(site.hands.started(("j-1", 1)))
    site.turns()
    assert site.keeper.orders.next_wake_s() == 3e13
    assert site.keeper._patience_s() == 3600.0


def test_a_submission_is_acknowledged_while_the_core_thinks() -> None:
    site = Site()
    thinks, goes_on = threading.Event(), threading.Event()
    site.keeper.begin()

    def think(core: Core) -> int:
        thinks.set()
        assert goes_on.wait(30)
        return len(core.jobs)

    thought = site.keeper.ask(think)
    assert thinks.wait(30)
    wish = site.keeper.hand_in(a_job(), {}, "ann", then=lambda core, job_id: core.jobs[job_id])
    twin = site.keeper.hand_in(a_job(), {}, "ann", key="k")
    again = site.keeper.hand_in(a_job(), {}, "ann", key="k")
    cancelled = site.keeper.post(JobCancelled(at_s=0.0, job_id="j-2"), by="ann")
    assert [one.done.result(30) for one in (wish, twin, again)] == ["j-1", "j-2", "j-2"]
    assert (twin.again, again.again) == (False, True)
    assert [entry.event.job.id for entry in site.journal.kept[:2]] == ["j-1", "j-2"]  # type: ignore[attr-defined]
    assert not thought.done()
    assert not cancelled.done()  # what is no submission is done when it has happened
    goes_on.set()
    assert thought.result(30) == 0
    assert wish.told.result(30).id == "j-1"
    assert again.told.result(30) is None
    assert cancelled.result(30) == "j-2"
    assert site.keeper.ask(lambda core: list(core.jobs)).result(30) == ["j-1"]
    site.keeper.end()


class Held:
    """Plans when a test lets it."""

    def __init__(self) -> None:
        self.plans, self.goes_on = threading.Event(), threading.Event()

    def plan(self, view: View, draft: Draft) -> None:
        self.plans.set()
        assert self.goes_on.wait(30)
        Drf().plan(view, draft)


def test_a_turn_that_is_abandoned_starts_nothing_and_its_journal_is_whole() -> None:
    """Of a planner that does not come back: its service ends, and a successor decides again."""
    planner, journal, hands = Held(), MemoryJournal(), PaperExecutor()
    core = Core(CoreConfig(cluster=t4_nodes(2), planner=planner, round_s=0.0))
    keeper = CoreLoop(core, journal, SetClock())
    keeper.recover(hands)
    assert not keeper.at_work
    keeper.begin()
    assert keeper.at_work
    assert keeper.submit(a_job(), {"run": "true"}, by="ann").result(10) == "j-1"
    assert planner.plans.wait(10)
    waits = keeper.ask(lambda core: list(core.jobs))
    keeper.abandon(ClusterError("it plans"))
    assert not keeper.at_work
    for question in (waits, keeper.ask(lambda core: list(core.jobs))):
        with pytest.raises(ClusterError, match="it plans"):
            question.result(10)
    keeper.end()
    planner.goes_on.set()
    keeper._thread.join(10)
    assert hands.begun == []

    after = Site(journal)
    after.turns()
    assert after.hands.begun == [("j-1", 1)]


def test_who_no_longer_waits_harms_nobody() -> None:
    site = Site()
    wish = site.keeper.hand_in(a_job(), {}, "ann", then=lambda core, job_id: core.jobs["none"])
    forgotten = site.keeper.hand_in(a_job(), {}, "ann", then=lambda core, job_id: job_id)
    question = site.keeper.ask(lambda core: len(core.jobs))
    assert forgotten.told.cancel()
    assert forgotten.done.cancel()
    assert question.cancel()
    site.turns()
    assert set(site.states) == {"j-1", "j-2"}
    with pytest.raises(KeyError):
        wish.told.result(0)


def test_wake_ups_of_a_stream_of_submissions_share_a_turn() -> None:
    site = Site()
    site.keeper.begin()
    for _ in range(50):
        site.clock.at_s += GAP_S / 10
        site.keeper.submit(a_job(), {}, by="ann").result(30)
    site.keeper.end()
    kinds = [type(entry.event).__name__ for entry in site.journal.kept]
    assert kinds.count("JobSubmitted") == 50
    assert kinds.count("Woke") <= 6


def test_a_core_that_thinks_for_too_long_is_no_defect_of_the_service() -> None:
    """The API answers 503 then, and says to ask again."""
    asking = SimpleNamespace(asking=lambda of: Future())
    with pytest.raises(ClusterError, match="has not answered within 0 s"):
        LiveSite.look(asking, lambda look: look, 0.01)  # type: ignore[arg-type]
