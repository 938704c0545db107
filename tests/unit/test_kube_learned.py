"""What jobs taught, from one process to the next: the text, the object, and who may write it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_core_desk import CoreDesk, GangJob

from wattherd.engine.core.view import JobSpeeds
from wattherd.estimate.job_rate import JobRates, RateSource
from wattherd.estimate.learned_memory import LearnedMemory
from wattherd.estimate.learned_rates import MOST_KINDS, JobSpeed, WayRun
from wattherd.estimate.learned_restarts import PRIOR
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.api.transport import ApiAnswer, ApiUnreachable, RefusedByApi, Withheld
from wattherd.kube.decide.learned_speeds import LearnedSpeeds
from wattherd.kube.facts.learned_record import UnusableRecord, read_record, record_text
from wattherd.kube.live.learned_object import AGAIN_S, EVERY_S, PATIENCE_S, LearnedObject
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine

MODEL, OTHER = "A100-40GB", "T4"
TENANTS, KINDS = ("ann", "bob", ""), ("bert", "résumé net", "x")

# --- the text -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A job of a kind that ran in one way, reported, and perhaps ended."""

    tenant: str
    kind: str
    way: WayRun
    pace: float
    relative: float
    starts_s: float
    service_gpu_s: float


RUNS = st.builds(
    Run,
    tenant=st.sampled_from(TENANTS),
    kind=st.sampled_from(KINDS),
    way=st.builds(
        WayRun,
        gpu_model=st.sampled_from([MODEL, OTHER]),
        gpus=st.integers(1, 3),
        nodes=st.integers(1, 2),
        batch=st.none() | st.sampled_from([32, 64]),
        accumulation=st.none() | st.integers(1, 2),
        cap_w=st.none() | st.floats(100.0, 400.0),
    ),
    pace=st.floats(1e-3, 1e6),
    relative=st.floats(0.01, 1.0),
    starts_s=st.floats(0.0, 7200.0),
    service_gpu_s=st.just(0.0) | st.floats(1e-3, 1e9),
)


def taught(runs: list[Run]) -> JobSpeeds:
    speeds = JobSpeeds({})
    for number, run in enumerate(runs):
        kind = f"{run.tenant}\n{run.kind}" if run.tenant else run.kind
        for second in range(8):
            speeds.learned.heard(
                f"{run.tenant}/{number}", kind, 1, run.way, run.pace * 2.0 * second, 2.0 * second,
                relative=run.relative,
            )  # fmt: skip
        speeds.restarts.heard(f"{run.tenant}/{number}", kind, 1, run.starts_s)
        speeds.services.ended(run.tenant, run.service_gpu_s)
    return speeds


def job_of(tenant: str, kind: str, gpus: int, batch: int | None) -> JobSpec:
    role = TaskRole(name="pod", gpu_count=gpus)
    labels = (("kind", kind),)
    return JobSpec(id="new", submit_s=0, roles=(role,), tenant=tenant, labels=labels,
                   batch_size=batch)  # fmt: skip


def predictions(speeds: JobSpeeds) -> dict[Any, Any]:
    """What planners are told of jobs that come, whatever they ask."""
    rates = speeds.learned.rates(JobRates(models=(MODEL, OTHER), unknown_equal=True))
    found: dict[Any, Any] = {}
    for tenant in TENANTS:
        for kind in KINDS:
            for gpus in (1, 2, 3, 4):
                for batch in (None, 32):
                    spec = job_of(tenant, kind, gpus, batch)
                    for model in (MODEL, OTHER):
                        found[spec, model] = rates.steps_per_s(spec, model, gpus)
            found[tenant, kind] = speeds.restarts.of("new", f"{tenant}\n{kind}".lstrip("\n"))
    return found


@given(st.lists(RUNS, max_size=40))
def test_what_was_learned_stored_and_read_gives_the_same_predictions(runs: list[Run]) -> None:
    before, after = taught(runs), JobSpeeds({})
    memory = read_record(record_text(before.remembered()))
    assert memory == before.remembered()
    after.recall(memory)
    assert predictions(after) == predictions(before)
    assert after.remembered() == memory, "and so from process to process"
    known = after.services.known()
    assert known.jobs == before.services.known().jobs
    if before.services.known().of_jobs == known.jobs:  # else its index is of fewer jobs
        assert known == before.services.known()


@given(st.lists(RUNS, max_size=20), st.lists(RUNS, max_size=20))
def test_what_comes_later_is_learned_on_top(earlier: list[Run], later: list[Run]) -> None:
    """A job that is heard again is another voice: nobody knows that it is the same one."""
    speeds = JobSpeeds({})
    speeds.recall(read_record(record_text(taught(earlier).remembered())))
    for run in later:
        kind = f"{run.tenant}\n{run.kind}" if run.tenant else run.kind
        for second in range(8):
            speeds.learned.heard(
                "one", kind, 1, run.way, run.pace * 2.0 * second, 100.0 + 2.0 * second,
                relative=run.relative,
            )  # fmt: skip
    read = read_record(record_text(speeds.remembered()))
    assert read == speeds.remembered()
    assert read.speeds.keys() >= taught(earlier).remembered().speeds.keys()


def many(tenant: str, kinds: int, voices: int = 3) -> dict[str, dict[WayRun, tuple[JobSpeed, ...]]]:
    way = {WayRun(MODEL, 1): (JobSpeed(1.0 / 3.0, 2.0 / 3.0, 31),) * voices}
    return {f"{tenant}\n{'k' * 50} {at}": way for at in range(kinds)}


def of_one(kinds: Mapping[str, Any], tenant: str) -> list[tuple[str, Any]]:
    return [one for one in kinds.items() if one[0].startswith(f"{tenant}\n")]


def is_end_of(whole: list[Any], part: list[Any]) -> bool:
    return whole[len(whole) - len(part) :] == part


@given(st.integers(2_000, 60_000), st.integers(0, 300), st.integers(0, 600))
def test_a_text_is_bounded_and_the_oldest_go_first(most: int, kinds: int, ends: int) -> None:
    speeds = many("flood", kinds) | many("calm", 1)
    memory = LearnedMemory(
        speeds,
        dict.fromkeys(speeds, (1.0 / 3.0,) * 5),
        {"flood": tuple(map(float, range(1, ends + 1))), "calm": (7.0,)},
    )
    text = record_text(memory, most)
    assert len(text.encode()) <= most
    read = read_record(text)
    for tenant in ("flood", "calm"):
        assert is_end_of(of_one(memory.speeds, tenant), of_one(read.speeds, tenant))
        assert is_end_of(of_one(memory.restarts_s, tenant), of_one(read.restarts_s, tenant))
    for tenant, ended in read.services_gpu_s.items():
        assert ended == memory.services_gpu_s[tenant][-len(ended) :]
    calm = next(iter(many("calm", 1)))
    assert calm in read.speeds, "nobody's kinds push out another's"
    assert read.services_gpu_s["calm"] == (7.0,)


def test_all_that_a_cluster_can_teach_fits_a_config_map() -> None:
    speeds: dict[str, dict[WayRun, tuple[JobSpeed, ...]]] = {}
    for tenant in range(5):
        speeds |= many(f"tenant-{tenant}", MOST_KINDS, voices=25)
    ends = {f"tenant-{tenant}": (1e6 / 3.0,) * 500 for tenant in range(100)}
    text = record_text(LearnedMemory(speeds, dict.fromkeys(speeds, (10.0 / 3.0,)), ends))
    assert 500_000 < len(text.encode()) < 1 << 20
    kept = read_record(text)
    assert len({kind.partition("\n")[0] for kind in kept.speeds}) == 5
    assert len(kept.services_gpu_s) == 100


SOUND = record_text(
    taught([Run("ann", "bert", WayRun(MODEL, 2), 2.0, 1.0, 30.0, 9.0)]).remembered()
)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "null", "[]", "garbage", '{"version": "1"}', '{"version": 1}', "[" * 100_000,
     SOUND[:-1], SOUND.replace('"speeds"', '"speed"'), SOUND.replace("[2.0,2.0,", "[-2.0,2.0,"),
     SOUND.replace("[2.0,2.0,", "[1e999,2.0,"), SOUND.replace("[2.0,2.0,", "[2e9,2.0,"),
     SOUND.replace("9.0", "0.0"), SOUND.replace("30.0", "1e30"),
     SOUND.replace(f'"{MODEL}",2,', f'"{MODEL}",0,'), SOUND.replace("ann", "\ud800")],
)  # fmt: skip
def test_what_is_damaged_is_not_used(text: str) -> None:
    assert text != SOUND
    with pytest.raises(UnusableRecord, match="damaged"):
        read_record(text)


def test_what_another_version_wrote_is_not_used() -> None:
    later = SOUND.replace('"version":1', '"version":2').replace("speeds", "paces")
    with pytest.raises(UnusableRecord, match="version 2 wrote it, and version 1 is read here"):
        read_record(later)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries(
    {"version": st.just(1), "speeds": JSON, "restarts_s": JSON, "services_gpu_s": JSON}
)


def cut(at: int, what: str) -> str:
    return SOUND[: at % len(SOUND)] + what + SOUND[at % len(SOUND) + 1 :]


@given(st.text(max_size=80) | PARTS.map(json.dumps) | st.builds(cut, st.integers(0), st.text()))
def test_whatever_stands_there_is_refused_or_can_be_planned_by(text: str) -> None:
    try:
        memory = read_record(text)
    except UnusableRecord:
        return
    speeds = JobSpeeds({})
    speeds.recall(memory)
    predictions(speeds)
    assert read_record(record_text(speeds.remembered())) == speeds.remembered()


# --- the object -----------------------------------------------------------------------------------

ABOUT = ObjectMeta(name="wattherd-learned", namespace="wattherd")
PATH = "/api/v1/namespaces/wattherd/configmaps/wattherd-learned"


@dataclass
class Api:
    """One ConfigMap, with a version for each write; `fails` has the next request fail."""

    text: str | None = ""
    version: int = 1
    writes: int = 0
    fails: Exception | None = None
    loses_answer: bool = False

    async def request(
        self, method: str, path: str, *, body: bytes | None, kind: str, timeout_s: float,
        may_go: Callable[[], bool],
    ) -> ApiAnswer:  # fmt: skip
        assert path == PATH
        assert timeout_s <= 5.0
        assert "merge" in kind
        if self.fails is not None:
            raise self.fails
        if self.text is None:
            raise RefusedByApi(404, "NotFound", 'configmaps "wattherd-learned" not found')
        if body is not None:
            if not may_go():
                raise Withheld("not ours to send any more")
            assert method == "PATCH"
            self._write(json.loads(body))
        made = {"metadata": {"resourceVersion": str(self.version)}, "data": {"learned": self.text}}
        return ApiAnswer(200, json.dumps(made).encode())

    def _write(self, patch: Mapping[str, Any]) -> None:
        if patch["metadata"]["resourceVersion"] != str(self.version):
            raise RefusedByApi(409, "Conflict", "the object has been modified")
        self.text = patch["data"]["learned"]
        self.version += 1
        self.writes += 1
        if self.loses_answer:
            self.loses_answer = False
            raise ApiUnreachable("no answer within 5 s")


class Loop:
    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)


@dataclass
class Feed:
    """What a keeper needs of a feed; everything happens at once."""

    transport: Api
    loop: Loop = field(default_factory=Loop)
    noted: dict[str, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def note(self, what: str, problem: str = "") -> None:
        self.noted[what] = problem
        if not problem:
            del self.noted[what]

    def turn(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


@dataclass
class Seat:
    leading: bool = True
    standing: tuple[str, int] = ("lease", 1)

    def leads(self) -> bool:
        return self.leading


class Copy:
    """One copy of the scheduler, as far as it remembers."""

    def __init__(self, api: Api, term: int = 1, *, leads: bool = True) -> None:
        self.now_s = 1000.0
        self.feed, self.seat = Feed(api), Seat(leads, ("lease", term))
        self.speeds = LearnedSpeeds()
        made: Any = self.feed
        clock = lambda: self.now_s  # noqa: E731
        self.object = LearnedObject(made, self.speeds, self.seat, ABOUT, clock=clock)

    def look(self, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.object.look()

    def learn(self, kind: str) -> None:
        known = dict(self.speeds.remembered().speeds)
        way = {WayRun(MODEL, 1): (JobSpeed(1.0, 1.0, 3),)}
        self.speeds.recall(LearnedMemory(speeds=known | {kind: way}))

    @property
    def kinds(self) -> list[str]:
        return list(self.speeds.remembered().speeds)

    def end(self) -> None:
        """The process is asked to end."""
        self.feed.over.set()
        self.object._work()


def kept(api: Api) -> list[str]:
    assert api.text is not None
    return list(read_record(api.text).speeds)


def test_a_leader_writes_now_and_then_what_is_new_and_the_next_one_reads_it() -> None:
    api = Api()
    first = Copy(api)
    assert not first.object.is_read()
    first.look()
    assert first.object.is_read()
    assert (api.writes, first.feed.noted) == (0, {})
    first.learn("ann\nbert")
    first.look(EVERY_S - 1.0)
    assert api.writes == 0
    first.look(1.0)
    assert kept(api) == ["ann\nbert"]
    for _ in range(100):
        first.learn("ann\nvit")
        first.look(1.0)
    assert api.writes == 2, "what does not change is not written again"
    second = Copy(api, term=2)
    second.look()
    assert second.kinds == ["ann\nbert", "ann\nvit"]


def test_what_was_learned_last_is_written_when_the_process_ends() -> None:
    api = Api()
    copy = Copy(api)
    copy.look()
    copy.learn("ann\nbert")
    copy.end()
    assert kept(api) == ["ann\nbert"]


def test_who_does_not_lead_writes_nothing() -> None:
    api = Api()
    standby = Copy(api, leads=False)
    standby.learn("ann\nbert")
    standby.look(EVERY_S)
    standby.end()
    leader = Copy(api)
    leader.look()
    leader.learn("ann\nbert")
    leader.seat.leading = False
    leader.look(EVERY_S)
    leader.end()
    assert (api.writes, api.text) == (0, "")


def test_a_leader_that_loses_its_lease_on_the_way_does_not_write() -> None:
    """It led when it began to write, and does not when the body is about to go."""
    api = Api()
    copy = Copy(api)
    copy.look()
    copy.learn("ann\nbert")
    asked = iter([True, True])
    copy.seat.leads = lambda: next(asked, False)  # type: ignore[method-assign]
    copy.look(EVERY_S)
    assert (api.writes, copy.feed.noted) == (0, {})


def test_a_term_that_was_not_read_is_not_written() -> None:
    """A copy that leads again first takes what the one between learned."""
    api = Api()
    first = Copy(api)
    first.look()
    first.learn("ann\nold")
    first.look(EVERY_S)
    between = Copy(api, term=2)
    between.look()
    between.learn("bob\nnew")
    between.look(EVERY_S)
    first.seat.standing = "lease", 3
    assert not first.object.is_read()
    first.end()
    assert kept(api) == ["ann\nold", "bob\nnew"], "before it was read it is not written"
    first.feed.over.clear()
    first.look()
    assert first.object.is_read()
    assert first.kinds == ["ann\nold", "bob\nnew"]


def test_a_copy_that_leads_again_with_nobody_between_keeps_what_it_learned_since() -> None:
    api = Api()
    copy = Copy(api)
    copy.look()
    copy.learn("ann\nbert")
    copy.look(EVERY_S)
    copy.learn("ann\nvit")
    copy.seat.standing = "lease", 2
    copy.look(1.0)
    assert copy.kinds == ["ann\nbert", "ann\nvit"]


def test_of_two_writers_the_leader_counts() -> None:
    """A leader before this one wrote late: the first write is refused, and the next one taken."""
    api = Api()
    copy = Copy(api, term=2)
    copy.look()
    api.version += 1
    copy.learn("ann\nbert")
    copy.look(EVERY_S)
    assert api.writes == 0
    assert "409 Conflict" in copy.feed.noted["what jobs teach is not kept"]
    copy.look(EVERY_S)
    assert (api.writes, copy.feed.noted) == (1, {})


def test_a_write_of_which_the_answer_was_lost_is_made_good() -> None:
    api = Api(loses_answer=True)
    copy = Copy(api)
    copy.look()
    copy.learn("ann\nbert")
    copy.look(EVERY_S)
    assert "no answer" in copy.feed.noted["what jobs teach is not kept"]
    copy.look(EVERY_S)
    copy.learn("ann\nvit")
    copy.look(EVERY_S)
    assert kept(api) == ["ann\nbert", "ann\nvit"]
    assert copy.feed.noted == {}


@pytest.mark.parametrize(
    "fails",
    [ApiUnreachable("no answer"), RefusedByApi(403, "Forbidden", "no"),
     RefusedByApi(413, "RequestEntityTooLarge", "too large"), RefusedByApi(500, "Internal", "x")],
)  # fmt: skip
def test_a_write_that_fails_is_told_and_tried_again_later(fails: Exception) -> None:
    api = Api()
    copy = Copy(api)
    copy.look()
    copy.learn("ann\nbert")
    api.fails = fails
    copy.look(EVERY_S)
    assert str(fails) in copy.feed.noted["what jobs teach is not kept"]
    assert copy.object.is_read(), "plans go on"
    api.fails = None
    copy.look(EVERY_S - 1.0)
    assert api.writes == 0
    copy.look(1.0)
    assert (kept(api), copy.feed.noted) == (["ann\nbert"], {})


@pytest.mark.parametrize("text", ["garbage", SOUND.replace('"version":1', '"version":99')])
def test_what_cannot_be_read_is_told_and_learned_anew(text: str) -> None:
    api = Api(text)
    copy = Copy(api)
    copy.look()
    assert copy.object.is_read()
    assert copy.kinds == []
    told = copy.feed.noted["what jobs taught earlier is not known"]
    assert told.endswith("it is learned anew")
    copy.learn("ann\nbert")
    copy.look(EVERY_S)
    assert (kept(api), copy.feed.noted) == (["ann\nbert"], {})


def test_an_object_that_is_missing_is_told_and_taken_once_it_is_there() -> None:
    api = Api(None)
    copy = Copy(api)
    copy.look()
    assert copy.object.is_read(), "nobody waits for what nobody makes"
    told = copy.feed.noted["what jobs taught earlier is not known"]
    assert told.endswith("kubectl create configmap wattherd-learned -n wattherd")
    copy.learn("ann\nbert")
    api.text = ""
    copy.look(1.0)
    assert not api.writes
    copy.look(EVERY_S)
    copy.look(EVERY_S)
    assert (kept(api), copy.feed.noted) == (["ann\nbert"], {})


def test_plans_wait_for_an_api_server_that_does_not_answer_for_seconds_only() -> None:
    api = Api(SOUND, fails=ApiUnreachable("no answer"))
    copy = Copy(api)
    assert not copy.object.is_read()
    copy.look()
    assert not copy.object.is_read()
    copy.now_s += PATIENCE_S
    assert copy.object.is_read()
    api.fails = None
    copy.look(AGAIN_S)
    assert copy.kinds == ["ann\nbert"], "what comes late is known from then on"
    assert copy.feed.noted == {}


# --- at a scheduler's desk ------------------------------------------------------------------------


class Desk(CoreDesk):
    """Jobs of one kind report, and the process is restarted."""

    def __init__(self, scheduler: str) -> None:
        machines = [a_machine(f"n{at}", gpus=2, model=MODEL) for at in range(3)]
        super().__init__(machines, core_choice(scheduler))
        self.profile = "bert"

    def come(self, name: str, user: str = "ann") -> None:
        self.submit(GangJob(name=name, at_s=self.now_s, duration_s=1e6, user=user))
        self.settle()

    def tell(self, name: str, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.now_s += 10.0
            self.report(name, step=2.0 * self.now_s)
            self.settle()

    def restart_with(self, text: str) -> None:
        self.restart()
        self.scheduler.learned.recall(read_record(text))
        self.settle()

    @property
    def text(self) -> str:
        return record_text(self.scheduler.learned.remembered())

    def rate(self, user: str = "ann") -> tuple[float, RateSource] | None:
        core = self.scheduler.core
        assert core is not None
        spec = job_of(user, "bert", 1, None)
        found = core.speeds.rates(core.config).steps_per_s(spec, MODEL, 1)
        return None if found is None else (found.per_s, found.source)


@pytest.mark.parametrize("scheduler", ["wattherd", "aiturbo", "optimus", "fifo@fastest"])
def test_the_next_process_plans_with_what_was_learned(scheduler: str) -> None:
    desk = Desk(scheduler)
    desk.come("a")
    desk.tell("a", 120)
    known = desk.rate()
    assert known == (pytest.approx(2.0, rel=0.02), RateSource.LEARNED_KIND)
    text = desk.text
    desk.restart()
    desk.settle()
    assert desk.rate() is None, "without it nothing is known"
    desk.restart_with(text)
    assert desk.rate() == known
    assert desk.rate("bob") is None, "what one namespace showed is not another's"
    assert desk.text == text


def test_what_is_read_while_a_core_plans_is_known_to_it() -> None:
    desk = Desk("fifo@fastest")
    desk.come("a")
    desk.tell("a", 120)
    text, known = desk.text, desk.rate()
    desk.restart()
    desk.settle()
    desk.scheduler.learned.recall(read_record(text))
    assert desk.rate() == known


def test_lengths_of_jobs_that_ended_before_order_those_that_come() -> None:
    desk = Desk("tiresias-gittins")
    for number in range(20):
        desk.come(f"j{number}")
        desk.now_s += 100.0
        desk.end(f"j{number}")
        desk.settle()
    core = desk.scheduler.core
    assert core is not None
    known = core.speeds.services.known()
    assert known.index is not None
    desk.restart_with(desk.text)
    assert desk.scheduler.core is not None
    assert desk.scheduler.core.speeds.services.known() == known


def test_a_run_that_was_found_at_work_does_not_tell_how_long_a_start_takes() -> None:
    """It reports within seconds of the new process: that is no restart of the job."""
    desk = Desk("fifo")
    desk.come("a")
    desk.tell("a", 60)
    core = desk.scheduler.core
    assert core is not None
    took = core.speeds.restarts.of("new", "ann\nbert")
    assert took.source is RateSource.LEARNED_KIND
    text = desk.text
    for _ in range(3):
        desk.restart_with(text)
        desk.now_s += 1000.0
        desk.tell("a", 30)
        core = desk.scheduler.core
        assert core is not None
        assert core.speeds.restarts.of("new", "ann\nbert") == took
    desk.restart()
    desk.settle()
    desk.tell("a", 30)
    core = desk.scheduler.core
    assert core is not None
    assert core.speeds.restarts.of("new", "ann\nbert") == PRIOR
