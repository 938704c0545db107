"""Any legal sequence of events, whatever the planner: nothing breaks, and every job ends.

Hypothesis plays users, operators, jobs and a network that delays, repeats and reorders. The shell
beside the core keeps its own book of the world's devices (`core_shell`). At the end the world is
healed and every job must reach a final state: a gang that could deadlock or be lost shows there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from core_shell import Run, Shell
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from effort import times
from wattherd.engine.core.core import CoreConfig
from wattherd.engine.core.job_table import parents
from wattherd.engine.placement.placer import Placer
from wattherd.experiments.placement.policies import build_placer, place_policy
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.event import (
    ArrayLimited,
    BudgetChanged,
    DeviceDrained,
    DeviceReturned,
    JobCancelled,
    JobEdited,
    JobHeld,
    JobProgressed,
    JobReleased,
    JobStarted,
    NodeLost,
    NodeReturned,
    QueueStarted,
    QueueStopped,
    RankLagged,
    RunEvent,
    Woke,
)
from wattherd.model.job import JobSpec, Request, TaskRole, TracePod
from wattherd.model.topology import chains_of
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.queue.hive_invariants import validate as validate_hive
from wattherd.policy.queue.tree import CapacityQueue, QueueTree
from wattherd.policy.rebalance.sleep import AfterIdle, SleepPolicy
from wattherd.policy.schedule.capacity import CapacityScheduler
from wattherd.policy.schedule.drf import Drf
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.hived import HiveD
from wattherd.policy.schedule.per_job_placement import PerJobPlacement
from wattherd.policy.schedule.search import Search, SuccessiveHalving
from wattherd.policy.schedule.tiresias import Tiresias

NAMES = [f"j{number}" for number in range(14)]
JOBS = st.sampled_from(NAMES)
CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(
            name=f"n{number}", cpu_milli=16_000, memory_mib=64_000, gpu_count=gpus, gpu_model="T4"
        )
        for number, gpus in enumerate((4, 4, 2))
    )
)
QUEUES = st.sampled_from(["default", "ab", "a", "b"])
NODES = st.sampled_from(["n0", "n1", "n2", "unheard-of"])
SMALL_BUDGETS_W = st.sampled_from([None, 150.0, 300.0, 500.0, 10_000.0])


@st.composite
def specs(
    draw: st.DrawFn, roles: st.SearchStrategy[tuple[TaskRole, ...]], *, elastic: bool
) -> JobSpec:
    """A job of any shape the core takes; ids come from a small set so that they repeat."""
    name = draw(JOBS)
    made = draw(roles)
    least = draw(st.integers(1, made[0].count))
    array = draw(st.sampled_from(["", "", "sweep", "grid"]))
    others = st.sampled_from([one for one in NAMES if one != name])
    waits = st.booleans()
    return JobSpec(
        id=name,
        submit_s=0.0,
        roles=made,
        min_width=draw(st.sampled_from([None, least])) if elastic else None,
        max_width=draw(st.sampled_from([None, made[0].count, made[0].count + 2])),
        after=tuple(draw(st.lists(others, max_size=2, unique=True))) if draw(waits) else (),
        after_any=tuple(draw(st.lists(others, max_size=1))),
        after_notok=tuple(draw(st.lists(others, max_size=1))) if draw(waits) else (),
        singleton=draw(st.sampled_from([False, False, True])) and not array,
        begin_s=draw(st.sampled_from([None, None, 0.0, 30.0, 300.0])),
        labels=(("name", draw(st.sampled_from(["red", "blue"]))),) if draw(st.booleans()) else (),
        priority=draw(st.integers(-1, 2)),
        queue=draw(st.sampled_from(["default", "a", "b"])),
        user=draw(st.sampled_from(["ann", "bob"])),
        restarts=draw(st.integers(0, 2)),
        backoff_s=draw(st.sampled_from([0.0, 10.0])),
        time_limit_s=draw(st.sampled_from([None, None, 50.0])),
        grace_s=draw(st.sampled_from([0.0, 30.0])),
        group=draw(st.sampled_from(["", "g", "h"])),
        array=array,
        array_index=NAMES.index(name) if array else 0,
        array_count=len(NAMES) if array else 0,
        array_most={"sweep": 2, "grid": 1}.get(array),
    )


FLAT = st.integers(1, 10).map(lambda count: (TaskRole(count=count, cpu_milli=500),))
NARROW = st.integers(1, 4).map(lambda count: (TaskRole(count=count, cpu_milli=500),))
WIDE = st.tuples(st.integers(1, 5), st.integers(1, 4)).map(
    lambda shape: (TaskRole(count=shape[0], gpu_count=shape[1], cpu_milli=1000),)
)
POD = st.sampled_from(
    [
        TaskRole(gpu_count=gpus, gpu_milli=milli, cpu_milli=cpu)
        for gpus, milli in ((0, 0), (1, 250), (1, 600), (1, 1000), (2, 1000), (4, 1000))
        for cpu in (500, 5000)
    ]
).map(lambda role: (role,))
SHARED = st.sampled_from([1_000, 6_000, 9_000]).map(
    lambda memory_mib: (TaskRole(cpu_milli=500, gpu_memory_mib=memory_mib),)
)
SERVED = st.tuples(st.integers(1, 4), st.integers(1, 2)).map(
    lambda counts: (
        TaskRole(count=counts[0], cpu_milli=1000),
        TaskRole(name="ps", count=counts[1], gpu_count=0, cpu_milli=3000),
    )
)


class CoreMachine(RuleBasedStateMachine):
    planner: Callable[[], Planner]
    roles: st.SearchStrategy[tuple[TaskRole, ...]]
    quota: Quota | None = None
    elastic: bool = True
    pods: bool = False
    cluster: ClusterSpec = CLUSTER

    @initialize(
        round_s=st.sampled_from([None, 60.0]),
        sleep=st.sampled_from([None, AfterIdle(after_s=20.0), AfterIdle(after_s=5.0, spare=1)]),
    )
    def begin(self, round_s: float | None, sleep: SleepPolicy | None) -> None:
        config = CoreConfig(
            cluster=self.cluster,
            planner=self.planner(),
            quota=self.quota,
            round_s=round_s,
            sleep=sleep,
            narrow=self.quota is not HIVED,
        )
        self.shell = Shell(config)

    def pick(self, runs: list[Run], number: int) -> Run:
        return runs[number % len(runs)]

    # --- users and operators -----------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 4))
    def submit(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            spec = data.draw(specs(self.roles, elastic=self.elastic))
            self.shell.submit(self.shell.submitted.get(spec.id, spec))

    @rule(what=st.sampled_from([JobHeld, JobReleased, JobCancelled]), job_id=JOBS)
    def operate(self, what: type[JobHeld | JobReleased | JobCancelled], job_id: str) -> None:
        self.shell.deliver(what(at_s=self.shell.now_s, job_id=job_id))

    @rule(
        job_id=JOBS,
        priority=st.sampled_from([None, -1, 2]),
        queue=st.sampled_from([None, "default", "a", "b"]),
        limit_s=st.sampled_from([None, 20.0, 500.0]),
        gpus=st.sampled_from([None, (1, 1), (3, 3), (99, 99)]),
        wait_s=st.sampled_from([None, 0.0, 100.0]),
    )
    def edit(
        self,
        job_id: str,
        priority: int | None,
        queue: str | None,
        limit_s: float | None,
        gpus: tuple[int, int] | None,
        wait_s: float | None,
    ) -> None:
        begin_at_s = None if wait_s is None else self.shell.now_s + wait_s
        if self.pods and gpus == (3, 3):
            gpus = (1, 1)  # a pod is one task: where this planner decides, nobody edits it to more
        self.shell.deliver(
            JobEdited(
                at_s=self.shell.now_s,
                job_id=job_id,
                priority=priority,
                queue=queue,
                time_limit_s=limit_s,
                gpus=gpus,
                begin_at_s=begin_at_s,
            )
        )

    @rule(array=st.sampled_from(["sweep", "grid"]), most=st.sampled_from([None, 1, 2, 5]))
    def limit_array(self, array: str, most: int | None) -> None:
        self.shell.deliver(ArrayLimited(at_s=self.shell.now_s, array=array, most=most))

    @rule(what=st.sampled_from([QueueStopped, QueueStarted]), queue=QUEUES)
    def operate_queue(self, what: type[QueueStopped | QueueStarted], queue: str) -> None:
        self.shell.deliver(what(at_s=self.shell.now_s, queue=queue))

    @rule(budget_w=SMALL_BUDGETS_W)
    def change_budget(self, budget_w: float | None) -> None:
        self.shell.deliver(BudgetChanged(at_s=self.shell.now_s, budget_w=budget_w))

    @rule(what=st.sampled_from([NodeLost, NodeReturned]), node=NODES)
    def break_or_repair(self, what: type[NodeLost | NodeReturned], node: str) -> None:
        self.shell.deliver(what(at_s=self.shell.now_s, node=node))

    @rule(what=st.sampled_from([DeviceDrained, DeviceReturned]), node=NODES, gpu=st.integers(0, 4))
    def drain_or_return(
        self, what: type[DeviceDrained | DeviceReturned], node: str, gpu: int
    ) -> None:
        self.shell.deliver(what(at_s=self.shell.now_s, node=node, gpu=gpu))

    @precondition(lambda self: self.shell.with_status("running"))
    @rule(number=st.integers(0, 99), rank=st.integers(0, 3))
    def lag(self, number: int, rank: int) -> None:
        run = self.pick(self.shell.with_status("running"), number)
        ranks = sum(len(part.gpus) for part in run.parts)
        self.shell.deliver(
            RankLagged(
                at_s=self.shell.now_s,
                job_id=run.job_id,
                attempt=run.attempt,
                rank=rank,
                ranks=ranks,
                slowdown=2.0,
            )
        )

    @precondition(lambda self: self.shell.switching())
    @rule(number=st.integers(0, 9))
    def confirm_switch(self, number: int) -> None:
        switching = self.shell.switching()
        self.shell.switched(switching[number % len(switching)])

    # --- jobs --------------------------------------------------------------------------------

    @precondition(lambda self: self.shell.with_status("ordered"))
    @rule(number=st.integers(0, 99))
    def confirm_start(self, number: int) -> None:
        self.shell.started(self.pick(self.shell.with_status("ordered"), number))

    @precondition(lambda self: self.shell.with_status("stopping"))
    @rule(number=st.integers(0, 99))
    def confirm_stop(self, number: int) -> None:
        self.shell.stopped(self.pick(self.shell.with_status("stopping"), number))

    @precondition(lambda self: self.shell.runs)
    @rule(number=st.integers(0, 99), code=st.sampled_from([0, 0, 1, 137, 143]))
    def exit_by_itself(self, number: int, code: int) -> None:
        self.shell.exited(self.pick(list(self.shell.runs.values()), number), code)

    @precondition(lambda self: any(run.cap_order for run in self.shell.runs.values()))
    @rule(number=st.integers(0, 99))
    def confirm_cap(self, number: int) -> None:
        ordered = [run for run in self.shell.runs.values() if run.cap_order]
        self.shell.capped(self.pick(ordered, number))

    @precondition(lambda self: self.shell.runs)
    @rule(number=st.integers(0, 99), progress=st.floats(0, 100), rate=st.sampled_from([0, 1, 2]))
    def report(self, number: int, progress: float, rate: float) -> None:
        run = self.pick(list(self.shell.runs.values()), number)
        self.shell.deliver(
            JobProgressed(
                at_s=self.shell.now_s,
                job_id=run.job_id,
                attempt=run.attempt,
                progress=progress,
                rate_per_s=rate,
                loss=100.0 - progress,
            )
        )

    # --- time and a bad network --------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 7.0, 60.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        self.shell.now_s += seconds

    @precondition(lambda self: self.shell.wakes)
    @rule()
    def wake(self) -> None:
        self.shell.wake()

    @precondition(lambda self: self.shell.events)
    @rule(number=st.integers(0, 9999))
    def repeat_old_news(self, number: int) -> None:
        """Run events and wake-ups once more, with the time and attempt they had."""
        events = self.shell.events
        event = events[number % len(events)]
        if isinstance(event, Woke):
            self.shell.deliver(event)
        elif isinstance(event, RunEvent):
            over = (event.job_id, event.attempt) not in self.shell.runs
            if over or isinstance(event, JobStarted | JobProgressed):
                self.shell.deliver(event)

    @rule(job_id=JOBS, attempt=st.integers(0, 3))
    def start_of_nothing(self, job_id: str, attempt: int) -> None:
        """News of runs that are over, or never were."""
        if (job_id, attempt) not in self.shell.runs:
            self.shell.deliver(JobStarted(at_s=self.shell.now_s, job_id=job_id, attempt=attempt))

    @invariant()
    def cells_follow_the_plan(self) -> None:
        """What the hive gave is what the plan holds, device by device."""
        memory = self.shell.core._memory.get("hived") if hasattr(self, "shell") else None
        for hive in memory.hives.values() if memory else ():
            validate_hive(hive)
            size = hive.chain.sizes[hive.chain.node_level]
            for job_id, held in hive.jobs.items():
                job = self.shell.core.jobs.get(job_id)
                if job is None or not job.wanted:
                    continue  # gone since the last plan
                planned = sorted((one.node, gpu) for one in job.wanted for gpu in one.gpus)
                cells = sorted((hive.chain.nodes[gpu // size], gpu % size) for gpu in held.gpus)
                assert planned == cells

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        for name in sorted(self.shell.submitted):
            for missing in parents(self.shell.submitted[name]):
                if missing not in self.shell.submitted:
                    self.shell.submit(JobSpec(id=missing, submit_s=0.0))
        self.shell.finish()
        self.shell.replay()


def machine(
    planner: Callable[[], Planner],
    *roles: object,
    quota: Quota | None = None,
    elastic: bool = True,
    pods: bool = False,
    kind: type[CoreMachine] = CoreMachine,
) -> type[CoreMachine]:
    """A machine for one planner and the shapes of jobs it is meant for."""
    made = {
        "planner": staticmethod(planner),
        "roles": st.one_of(*roles),
        "quota": quota,
        "elastic": elastic,
        "pods": pods,
    }
    return type("Machine", (kind,), made)


TREE = QueueTree(
    CapacityQueue(
        name="root",
        children=(
            CapacityQueue(
                name="default", guaranteed_pct=30, user_limit_pct=50, user_limit_factor=4
            ),
            CapacityQueue(
                name="ab",
                guaranteed_pct=70,
                children=(
                    CapacityQueue(name="a", guaranteed_pct=60, user_limit_factor=3, order="fair"),
                    CapacityQueue(name="b", guaranteed_pct=40, user_limit_factor=4, order="drf"),
                ),
            ),
        ),
    )
)
HIVED = HiveD(
    chains=chains_of(CLUSTER, within={4: (2, 2)}),
    shares={
        "default": {"T4x4": {"node": 1}, "T4x2": {"node": 1}},
        "a": {"T4x4": {"2-gpu": 1, "gpu": 1}},
        "b": {"T4x4": {"gpu": 1}},
    },
)


def fgd_desk() -> Placer:
    """FGD on an empty cluster, for pods as they come here."""
    pods = tuple(
        TracePod(
            name=f"{milli}-{gpus}",
            request=Request(cpu_milli=500, gpu_count=gpus, gpu_milli=milli),
        )
        for gpus, milli in ((1, 250), (1, 600), (1, 1000), (2, 1000), (4, 1000))
    )
    return build_placer(CLUSTER, pods, place_policy("fgd"), draws=np.random.default_rng(1))


PLANNERS = {
    "placed": machine(lambda: PerJobPlacement(fgd_desk), POD, elastic=False, pods=True),
    "hived": machine(lambda: HIVED, NARROW, WIDE, SERVED, quota=HIVED),
    "tiresias": machine(Tiresias, FLAT, elastic=False),
    "capacity": machine(lambda: CapacityScheduler(tree=TREE), FLAT, WIDE, SERVED, quota=TREE),
    "drf": machine(Drf, FLAT, WIDE, SERVED),
    "search": machine(
        lambda: Search(planner=Gandiva(), rule=SuccessiveHalving(first=5.0, asynchronous=True)),
        *(FLAT, WIDE, SHARED),
    ),
    "search-synchronous": machine(
        lambda: Search(planner=Tiresias(), rule=SuccessiveHalving(first=5.0, eta=2)),
        FLAT,
        elastic=False,
    ),
    "gandiva": machine(Gandiva, FLAT, WIDE, SERVED, SHARED, SHARED),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_every_job_ends_whatever_happens(name: str) -> None:
    PLANNERS[name].TestCase.settings = settings(max_examples=times(120), stateful_step_count=50)
    PLANNERS[name].TestCase().runTest()
