"""What pods say of their progress: what is read of it, how often, and what it can move."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import a_node, a_pod, node_json
from kube_core_desk import CoreDesk, GangJob

from wattherd.estimate.job_rate import RateSource
from wattherd.estimate.learned_noise import StepWorth
from wattherd.kube.facts.progress import MOST, MOST_TEXT, PodProgress, read_progress
from wattherd.kube.facts.workload import alike
from wattherd.model.command import Command
from wattherd.model.event import Event, JobProgressed
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine

MODEL = "A100-40GB"


# --- what is read ---------------------------------------------------------------------------------


def test_a_report_is_steps_and_what_else_is_known() -> None:
    assert read_progress('{"step": 12}') == PodProgress(12.0)
    told = '{"step": 12.5, "total": 100, "loss": 2.25, "at": "today", "rate_per_s": 1e9}'
    assert read_progress(told) == PodProgress(12.5, 100.0, 2.25)
    noisy = '{"step": 12, "noise_scale": 900, "batch": 64}'
    assert read_progress(noisy) == PodProgress(12.0, noise_scale=900.0, batch=64.0)


@pytest.mark.parametrize("name", ["noise_scale", "batch"])
@pytest.mark.parametrize("told", ["0", "-5", "1e16"])
def test_samples_that_cannot_be_are_left_out(name: str, told: str) -> None:
    assert read_progress(f'{{"step": 3, "{name}": {told}}}') == PodProgress(3.0)


@pytest.mark.parametrize(
    "text",
    ["", "12", "{}", "[]", "null", '{"step": "12"}', '{"step": null}', '{"step": -1}',
     '{"step": NaN}', '{"step": Infinity}', '{"step": 1e16}', '{"step": 1e999}', '{"step": 1',
     '{"step": 1, "total": "x"}', '{"step": true}', '{"step": 1}' + " " * MOST_TEXT, "\ud800"],
)  # fmt: skip
def test_what_is_no_report_says_nothing(text: str) -> None:
    assert read_progress(text) is None


@pytest.mark.parametrize("total", ["0", "-5", "1e16"])
def test_an_end_that_cannot_be_is_left_out(total: str) -> None:
    assert read_progress(f'{{"step": 3, "total": {total}}}') == PodProgress(3.0)


@given(st.text(max_size=600) | st.dictionaries(st.text(), st.floats() | st.text()).map(json.dumps))
def test_whatever_is_written_is_bounded_or_nothing(text: str) -> None:
    found = read_progress(text)
    if found is not None:
        assert 0 <= found.step <= MOST
        assert found.total is None or 0 < found.total <= MOST
        assert found.loss is None or abs(found.loss) <= MOST
        assert all(one is None or 0 < one <= MOST for one in (found.noise_scale, found.batch))


def test_a_report_makes_no_other_pod() -> None:
    made = desk_of("fifo").pods_of("a")
    told = made | {"metadata": made["metadata"] | {"annotations": {"wattherd.dev/progress": "1"}}}
    bare = made | {"metadata": made["metadata"] | {"annotations": {}}}
    assert alike(a_pod(told), a_pod(bare))
    assert not alike(a_pod(made), a_pod(bare))


# --- how often, and to what avail -----------------------------------------------------------------


class Desk(CoreDesk):
    """It notes what the core heard of progress."""

    def __init__(self, scheduler: str, nodes: int = 2, gpus: int = 2) -> None:
        machines = [a_machine(f"n{at}", gpus=gpus, model=MODEL) for at in range(nodes)]
        super().__init__(machines, core_choice(scheduler))
        self.heard: list[JobProgressed] = []
        self.scheduler.dialogue.witness = self._note

    def _note(self, event: Event, commands: list[Command]) -> None:
        del commands
        if isinstance(event, JobProgressed):
            self.heard.append(event)

    def come(self, name: str, **more: Any) -> None:
        self.submit(GangJob(name=name, at_s=self.now_s, duration_s=1e6, **more))
        self.settle()

    def pods_of(self, name: str) -> Mapping[str, Any]:
        return next(one for uid, one in self.pods.items() if uid.startswith(f"uid-{name}-"))

    def tell(self, name: str, steps_per_s: float, seconds: int, **more: float) -> None:
        """A report every ten seconds of a job that goes on at this pace."""
        for _ in range(0, seconds, 10):
            self.now_s += 10.0
            self.report(name, step=steps_per_s * self.now_s, **more)
            self.settle()

    def rate(self, name: str) -> tuple[float, RateSource] | None:
        core = self.scheduler.core
        assert core is not None
        spec = next(job.spec for job in core.jobs.values() if f"/{name}-" in job.id)
        found = core.speeds.rates(core.config).steps_per_s(spec, MODEL, spec.gpus)
        return None if found is None else (found.per_s, found.source)


def desk_of(scheduler: str, **jobs: Any) -> Desk:
    desk = Desk(scheduler)
    for name, about in ({"a": {}} | jobs).items():
        desk.come(name, **about)
    return desk


def test_who_writes_all_the_time_is_heard_now_and_then_and_latest() -> None:
    desk = desk_of("fifo")
    for hundredth in range(6000):
        desk.now_s += 0.01
        desk.report("a", step=hundredth)
        assert not desk.scheduler._dirty, "no plan is made for it"
        desk.settle()
    assert 11 <= len(desk.heard) <= 13
    assert desk.heard[-1].progress > 5400


def test_garbage_is_heard_of_by_nobody_and_the_next_report_counts() -> None:
    desk = desk_of("fifo")
    for text in ("garbage", '{"step": -5}', '{"step": 1e300}'):
        desk.now_s += 10.0
        desk.write_progress(min(desk._runs["a"].places), text)
        desk.settle()
    assert desk.heard == []
    desk.now_s += 10.0
    desk.report("a", step=7, total=70)
    desk.settle()
    assert [(one.progress, one.total) for one in desk.heard] == [(7.0, 70.0)]


def test_what_a_step_is_worth_is_learned_from_noise_and_batch() -> None:
    desk = desk_of("fifo", b={})
    desk.tell("a", 1.0, 60, noise_scale=96.0, batch=32.0)
    core = desk.scheduler.core
    assert core is not None
    worth = {job_id.split("/")[1][0]: core.speeds.noise.worth(job_id, 1) for job_id in core.jobs}
    assert worth == {"a": StepWorth(0.25, 96.0, 32.0), "b": StepWorth()}


def test_a_pod_that_waits_says_nothing_and_is_heard_once_it_runs() -> None:
    desk = desk_of("fifo", b={"pods": 2, "gpus": 2})
    assert desk.running() == ["a"]
    waits = desk.pods_of("b")
    notes = waits["metadata"]["annotations"] | {"wattherd.dev/progress": '{"step": 5}'}
    desk._put(dict(waits) | {"metadata": waits["metadata"] | {"annotations": notes}})
    desk.settle()
    assert desk.heard == []
    desk.end("a")
    desk.settle()
    desk.now_s += 10.0
    desk.settle()
    assert [one.job_id.partition("-")[0] for one in desk.heard] == ["default/b"]


def test_speed_is_learned_and_known_to_the_next_core() -> None:
    desk = desk_of("fifo@fastest")
    assert desk.rate("a") is None
    desk.tell("a", 2.0, 120)
    known = desk.rate("a")
    assert known is not None
    assert known[0] == pytest.approx(2.0, rel=0.02)
    before = desk.scheduler.core
    made = node_json(a_machine("n9", gpus=2, model=MODEL))
    desk.nodes["n9"] = made
    desk.scheduler.node_seen(a_node(made))
    desk.settle()
    assert desk.scheduler.core is not before
    desk.tell("a", 2.0, 120)
    assert desk.rate("a") == (pytest.approx(2.0, rel=0.02), RateSource.LEARNED_JOB)


def profiled(desk: Desk, name: str, user: str) -> None:
    desk.profile = "bert"
    desk.come(name, user=user)


def test_a_kind_is_learned_within_one_namespace_and_no_further() -> None:
    desk = Desk("fifo@fastest", nodes=3)
    profiled(desk, "a", "ann")
    desk.tell("a", 2.0, 120)
    profiled(desk, "b", "ann")
    profiled(desk, "c", "bob")
    known = desk.rate("b")
    assert known is not None
    assert (known[0], known[1]) == (pytest.approx(2.0, rel=0.02), RateSource.LEARNED_KIND)
    assert desk.rate("c") is None, "a tenant's reports tell nothing of another's jobs"


def test_what_jobs_have_received_counts_for_the_next_core() -> None:
    """AITurbo keeps books of its own, which begin anew with the nodes; jobs do not."""
    desk = Desk("aiturbo")
    desk.now_s = 1e6  # a machine that has been on for long
    for name in ("a", "b"):
        desk.come(name)
    desk.tell("b", 1.0, 300)
    before = received(desk)
    made = node_json(a_machine("n9", gpus=2, model=MODEL))
    desk.scheduler.node_seen(a_node(made))
    desk.settle()
    desk.tell("b", 1.0, 10)
    assert min(before.values()) > 0
    assert received(desk) == pytest.approx(before, rel=0.1)


def received(desk: Desk) -> dict[str, float]:
    core = desk.scheduler.core
    assert core is not None
    known = core._memory["aiturbo"].service
    return {job_id.partition("/")[2].partition("-")[0]: one for job_id, one in known.items()}


# --- lies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.0, 1.0, 1e15])
@pytest.mark.parametrize("scheduler", ["fifo", "srtf", "tiresias", "drf", "capacity", "optimus"])
def test_lies_take_no_watts_and_no_place_of_others(scheduler: str, step: float) -> None:
    """Caps and who runs are the same, whatever a tenant says of its own job."""

    def played(lies: bool) -> tuple[list[str], dict[str, float]]:
        desk = Desk(scheduler)
        desk.scheduler.power_seen(desk.scheduler.domains.tree, {"": 1_000_000})
        for name, user in (("a", "ann"), ("b", "bob"), ("c", "bob")):
            desk.come(name, user=user)
        for number in range(1, 30):
            desk.now_s += 10.0
            for name in ("b", "c"):
                desk.report(name, step=10.0 * number, total=1e5)
            if lies:
                desk.report("a", step=step * number if number % 2 else 0.0, total=1e15)
            desk.settle()
        desk.come("d", user="bob", gpus=2)
        return desk.running(), dict(desk.caps_w)

    assert played(lies=True) == played(lies=False)


# --- how jobs ended -------------------------------------------------------------------------------


def test_lengths_of_jobs_that_succeeded_are_learned_and_those_of_deleted_ones_are_not() -> None:
    desk = Desk("tiresias-gittins")

    def known() -> int:
        core = desk.scheduler.core
        assert core is not None
        return core.speeds.services.known().jobs

    for number in range(8):
        desk.come(f"j{number}")
        desk.now_s += 100.0
        desk.end(f"j{number}")
        desk.settle()
    assert known() == 8
    desk.come("deleted")
    desk.now_s += 100.0
    for uid in [uid for uid in desk.pods if "deleted" in uid]:
        desk._gone(uid)
    desk.settle()
    assert known() == 8
    made = node_json(a_machine("n9", gpus=2, model=MODEL))
    desk.scheduler.node_seen(a_node(made))
    desk.settle()
    assert known() == 8, "the next core knows them, too"


def test_answers_to_questions_of_a_core_that_is_gone_are_told_to_nobody() -> None:
    choice = core_choice("gavel-max-min")
    assert choice.computers
    machines = [a_machine("n0", gpus=2, model=MODEL), a_machine("n1", gpus=2, model="T4")]
    desk = CoreDesk(machines, replace(choice, computers={}))
    for name in ("a", "b", "c"):
        desk.submit(GangJob(name=name, at_s=0.0, duration_s=1e6, gpus=2))
    desk.scheduler.plan(0.0)
    (question,) = desk.scheduler.dialogue.take_questions()
    made = node_json(a_machine("n9", gpus=2, model=MODEL))
    desk.scheduler.node_seen(a_node(made))
    desk.scheduler.plan(1.0)
    desk.scheduler.dialogue.answer(question, {"nonsense": True})
    assert not desk.scheduler.dialogue.is_answered
