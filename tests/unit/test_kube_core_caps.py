"""What the core counts for pods is never below the cap that their agents hold, in whatever order.

A core raises and cuts, its orders and the news of pods are up to a second late, and agents set a
cap in one moment and say so in a later one. They obey a raise once it has stood three seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from kube_builders import a_pod, pod_json

from wattherd.engine.core.power_control import CapOrders, as_number
from wattherd.engine.jobs.record import JobRecord
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.objects import Pod
from wattherd.kube.decide.agent_caps import STANDS_S, Lately
from wattherd.kube.decide.core_caps import AGAIN_S, CoreCaps
from wattherd.kube.facts.orders import CapPod
from wattherd.kube.facts.workload import Workload
from wattherd.model.command import SetCap
from wattherd.model.event import CapApplied
from wattherd.model.job import Request

ASKED, APPLIED = "wattherd.dev/cap-w", "wattherd.dev/cap-applied-w"
MODEL = "V100M16"


@dataclass(slots=True)
class Agent:
    """Holds the GPU of one pod at `cap_w`; `read_w` is what it has read and not yet written."""

    uid: str
    cap_w: float = math.inf
    read_w: float | None = None
    writes: bool = False
    lately: Lately = field(default_factory=Lately)

    def sets(self, now_s: float) -> None:
        """A round: what is asked for is set and read; nothing anew before that is written."""
        if not self.writes:
            self.cap_w = self.lately.lowest_w(now_s)[self.uid]
            self.read_w = None if math.isinf(self.cap_w) else self.cap_w
            self.writes = True


@dataclass(slots=True)
class Room:
    """A job of `gpus` pods with a GPU each, its agents, and the core's orders for it."""

    gpus: int
    notes: list[dict[str, str]] = field(default_factory=list)
    """Of each pod, as the API has them."""
    agents: list[Agent] = field(default_factory=list)
    pods: dict[str, Pod] = field(default_factory=dict)
    """As the scheduler has heard of them."""
    late: list[CapPod] = field(default_factory=list)
    """Orders on their way to the API."""
    orders: CapOrders = field(default_factory=CapOrders)
    counted_w: float = math.inf
    caps: CoreCaps = field(init=False)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.notes = [{} for _ in self.rows]
        self.agents = [Agent(f"uid-p{row}") for row in self.rows]
        self.caps = self._core_caps()

    def _core_caps(self) -> CoreCaps:
        members = tuple(SimpleNamespace(uid=f"uid-p{row}", key=f"p{row}") for row in self.rows)
        uids = frozenset(one.uid for one in members)
        work = cast("Workload", SimpleNamespace(id="job", members=members, uids=uids))
        seats = (SimpleNamespace(node=0, gpus=(0,)),)
        node = SimpleNamespace(spec=SimpleNamespace(gpu_model=MODEL))
        fleet: Any = SimpleNamespace(seats=lambda uid: seats, order=[node], holdings={})
        return CoreCaps({"job": work}, cast("NodeFleet", fleet), self.pods, lambda work: True)

    def begin(self) -> None:
        """All is at rest at 200 W."""
        for row in self.rows:
            self.news(row)
        self.order(200.0)
        self.settle()

    @property
    def rows(self) -> range:
        return range(self.gpus)

    @property
    def job(self) -> JobRecord:
        return cast("JobRecord", SimpleNamespace(id="job", attempt=1))

    def written(self, row: int) -> Pod:
        """As the API has it, which its agent hears at once."""
        made = pod_json(f"p{row}", Request(cpu_milli=1, gpu_count=1, gpu_milli=1000))
        made["metadata"]["annotations"] = dict(self.notes[row])
        pod = a_pod(made)
        self.agents[row].lately.hear(pod, self.now_s)
        return pod

    def news(self, row: int) -> None:
        """The scheduler hears of a pod as it is."""
        self.pods[f"uid-p{row}"] = self.written(row)
        self.caps.saw(f"uid-p{row}")
        self.hear(self.caps.heard(self.now_s))

    def hear(self, events: list[Any]) -> None:
        for event in events:
            assert isinstance(event, CapApplied)
            self.counted_w = as_number(self.orders.read_back(self.job, event.cap_w))
            doubtful = self.counted_w > as_number(event.cap_w)
            if doubtful and self.orders.is_last(self.job, event.cap_w):
                self.obey(self.orders.give(self.job, event.cap_w, self.now_s))

    def order(self, cap_w: float | None) -> None:
        """As `JobCaps` does: a raise counts at once, a cut goes no higher than one under way."""
        wanted_w = as_number(cap_w)
        if wanted_w < self.counted_w:
            wanted_w = min(wanted_w, self.orders.promised_w(self.job))
        self.counted_w = max(self.counted_w, wanted_w)
        told_w = None if math.isinf(wanted_w) else wanted_w
        self.obey(self.orders.give(self.job, told_w, self.now_s))

    def obey(self, order: SetCap) -> None:
        asked, events = self.caps.order(order, self.now_s)
        self.late += asked
        self.hear(events)

    def arrive(self) -> None:
        """The oldest order on its way is written."""
        if not self.late:
            return
        order = self.late.pop(0)
        notes = self.notes[int(order.uid.removeprefix("uid-p"))]
        notes.pop(ASKED, None)
        if order.cap_w is not None:
            notes[ASKED] = f"{order.cap_w:g}"
        if order.forgets:
            notes.pop(APPLIED, None)
        self.written(int(order.uid.removeprefix("uid-p")))

    def second(self) -> None:
        """Nothing is later than that."""
        while self.late:
            self.arrive()
        for row in self.rows:
            self.write(row)
            self.news(row)
        self.now_s += 1.0

    def set_cap(self, row: int) -> None:
        self.agents[row].sets(self.now_s)

    def write(self, row: int) -> None:
        agent, notes = self.agents[row], self.notes[row]
        if agent.writes:
            agent.writes = False
            notes.pop(APPLIED, None)
            if agent.read_w is not None:
                notes[APPLIED] = f"{agent.read_w:g}"
            self.written(row)

    def settle(self) -> None:
        """Everything arrives, agents answer, the core hears it."""
        for _ in range(2):
            self.now_s += 2 * AGAIN_S
            self.late += self.caps.again(self.now_s)
            while self.late:
                self.arrive()
            for row in self.rows:
                self.news(row)
                self.write(row)
                self.now_s += 2 * STANDS_S
                self.set_cap(row)
                self.write(row)
                self.news(row)

    def holds(self) -> None:
        assert max(agent.cap_w for agent in self.agents) <= self.counted_w


def test_a_raise_that_is_taken_back_counts_until_agents_have_read_the_lower_cap_anew() -> None:
    room = Room(gpus=1)
    room.begin()
    room.order(250)
    room.arrive()
    for _ in range(4):  # it is asked for 250 W and shows 200 W of the time before
        room.second()
    room.order(200)
    room.set_cap(0)  # the agent sets 250 W before the cut comes to it
    assert room.counted_w == 250
    room.arrive()
    room.news(0)
    assert room.counted_w == 250, "what it read before it was asked for more says nothing"
    room.write(0)
    room.news(0)
    assert room.counted_w == 250, "and this is what the agent had set meanwhile"
    room.order(200)  # as the core does at every plan until a cut is read back
    room.settle()
    assert room.counted_w == 200
    assert room.agents[0].cap_w == 200


STEP = st.sampled_from(["order", "order", "arrive", "set", "write", "news", "second"])


@settings(deadline=None)
@given(
    gpus=st.integers(1, 2),
    steps=st.lists(st.tuples(STEP, st.integers(0, 5), st.integers(0, 1)), max_size=60),
)
def test_no_agent_holds_a_cap_above_what_is_counted(
    gpus: int, steps: list[tuple[str, int, int]]
) -> None:
    room = Room(gpus)
    room.begin()
    for step, level, row in steps:
        at = row % gpus
        match step:
            case "order":
                room.order(None if level == 5 else 150.0 + 25 * level)
            case "arrive":
                room.arrive()
            case "set":
                room.set_cap(at)
            case "write":
                room.write(at)
            case "news":
                room.news(at)
            case "second":
                room.second()
        room.holds()
    for _ in range(len(steps) + 2):  # of equal orders each may have been the one that is answered
        room.order(150.0)
        room.settle()
    room.holds()
    assert room.counted_w == 150.0
    room.order(225.0)
    room.settle()
    assert {agent.cap_w for agent in room.agents} == {225.0}
    assert not room.caps.at_work
