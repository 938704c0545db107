"""Machines, agents that die, and a scheduler: what is drawn is read off the GPUs, not off the API.

A GPU that a pod has draws all that its cap lets it. Kubelets give any free GPU, after a while.
Agents are the real rounds over these GPUs; they die and come back, machines boot anew and forget
their caps. The API is one queue of news in the order of writes, heard late.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kube_builders import Json, a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.binding_mode import ByBinding
from wattherd.kube.api.objects import Node
from wattherd.kube.decide.agent_caps import GpuState, Lately, NodeRound
from wattherd.kube.decide.agent_notes import NodeNote, PodNote, show
from wattherd.kube.decide.agent_round import AgentRound
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import BindPod, CapPod, EvictPod, Order
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import core_choice
from wattherd.testing.builders import a_node as a_machine

MODEL = "A100-40GB"
TOP_W, IDLE_W, LOWEST_W = GPUS[MODEL].max_w, GPUS[MODEL].idle_w, 100.0
NOTES = ("gpus-at-rest", "agent-since", "agent-problem", "draw-w", "draw-at")


class Machine:
    """GPUs that hold a cap each until they are told another, or the machine boots."""

    def __init__(self, name: str, gpus: int) -> None:
        self.name, self.caps_w = name, [TOP_W] * gpus
        self.has: dict[str, tuple[int, ...]] = {}
        self.boots = 1

    def uuid(self, gpu: int) -> str:
        return f"GPU-{self.name}-{gpu}"

    def free(self) -> list[int]:
        taken = {gpu for gpus in self.has.values() for gpu in gpus}
        return [gpu for gpu in range(len(self.caps_w)) if gpu not in taken]

    def drawn_w(self) -> float:
        used = [self.caps_w[gpu] for gpus in self.has.values() for gpu in gpus]
        return sum(used) + IDLE_W * (len(self.caps_w) - len(used))

    def boot(self) -> None:
        self.caps_w, self.boots = [TOP_W] * len(self.caps_w), self.boots + 1
        self.has.clear()

    # As the agent sees it.

    def look(self) -> NodeRound:
        gpus = tuple(
            GpuState(uuid=self.uuid(at), number=at, cap_w=w, lowest_w=LOWEST_W, highest_w=TOP_W)
            for at, w in enumerate(self.caps_w)
        )
        told = {f"default/{key}": [self.uuid(at) for at in has] for key, has in self.has.items()}
        return NodeRound(gpus=gpus, draw_w=None, assigned=told)

    def hold(
        self, caps_w: Mapping[str, float], lease_s: float, limit_w: float | None = None
    ) -> NodeRound:
        for at in range(len(self.caps_w)):
            self.caps_w[at] = min(max(caps_w.get(self.uuid(at), TOP_W), LOWEST_W), TOP_W)
        return self.look()

    def put_back(self) -> None:
        self.hold({}, 0.0)


@dataclass
class Room:
    """`step` is a second of it; `rests` says whether agents hold idle GPUs at rest."""

    draws: random.Random
    machines: int
    gpus: int
    budget_w: float
    rests: bool = True
    now_s: float = 0.0
    nodes: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    bound_s: dict[str, float] = field(default_factory=dict)
    done: int = 0
    highest_w: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = KubeScheduler(
            fleet_of("first-fit"), holder="t", way=ByBinding("wattherd"), choice=core_choice("fifo")
        )
        self.plant = {f"n{at}": Machine(f"n{at}", self.gpus) for at in range(self.machines)}
        self.agents: dict[str, AgentRound] = {}
        self.lately = {name: Lately() for name in self.plant}
        self._news: list[tuple[float, str, Json | None]] = []
        self._number = 0
        for name in self.plant:
            made = node_json(a_machine(name, gpus=self.gpus, model=MODEL))
            del made["metadata"]["labels"]["wattherd.dev/gpu-shares"]
            made["status"]["nodeInfo"] = {"bootID": "boot-1"}
            self.nodes[name] = made
            self.revive(name)
            self._write_node(name)
        budget = {"": round(1000 * self.budget_w)}
        self.scheduler.power_seen(self.scheduler.domains.tree, budget)

    # The world ------------------------------------------------------------------------------------

    def drawn_w(self) -> float:
        return sum(machine.drawn_w() for machine in self.plant.values())

    def _see_draw(self) -> None:
        self.highest_w = max(self.highest_w, self.drawn_w())

    def submit(self, gpus: int = 1) -> None:
        self._number += 1
        ask = Request(cpu_milli=1000, gpu_count=gpus, gpu_milli=1000)
        made = pod_json(f"p{self._number}", ask, schedulerName="wattherd")
        made["spec"]["terminationGracePeriodSeconds"] = 0
        self._write_pod(made)

    def end(self, uid: str) -> None:
        """The machine has let go of it before the API says so."""
        made = self.pods.pop(uid)
        for machine in self.plant.values():
            machine.has.pop(made["metadata"]["name"], None)
        self._tell(uid, None)

    def kill_agent(self, name: str) -> None:
        self.agents.pop(name, None)

    def revive(self, name: str) -> None:
        self.agents[name] = AgentRound(self.plant[name], _Writer(self), rests=self.rests)

    def boot(self, name: str) -> None:
        self.kill_agent(name)
        self.plant[name].boot()
        for uid in [uid for uid, made in self.pods.items() if _node(made) == name]:
            self.end(uid)
        made = self.nodes[name]
        info = {"bootID": f"boot-{self.plant[name].boots}"}
        self.nodes[name] = made | {"status": made["status"] | {"nodeInfo": info}}
        self._write_node(name)

    # The API --------------------------------------------------------------------------------------

    def _tell(self, uid: str, made: Json | None) -> None:
        before_s = self._news[-1][0] if self._news else 0.0
        at_s = max(before_s, self.now_s + self.draws.choice((0.0, 0.0, 0.3, 1.7)))
        self._news.append((at_s, uid, made))

    def _write_pod(self, made: Json) -> None:
        self.pods[made["metadata"]["uid"]] = made
        self._tell(made["metadata"]["uid"], made)

    def _write_node(self, name: str) -> None:
        self._tell(name, self.nodes[name])

    def note_pod(self, uid: str, notes: Mapping[str, str | None]) -> None:
        made = self.pods.get(uid)
        if made is None:
            return
        kept = made["metadata"]["annotations"] | notes
        kept = {key: text for key, text in kept.items() if text is not None}
        self._write_pod(made | {"metadata": made["metadata"] | {"annotations": kept}})

    def note_node(self, name: str, note: NodeNote) -> bool:
        if self.draws.random() < 0.05:
            return False  # the API server does not answer
        made = self.nodes[name]
        annotations = made["metadata"].get("annotations", {})
        ours = {key: text for key, text in annotations.items() if key.split("/")[-1] not in NOTES}
        meta = made["metadata"] | {
            "annotations": ours | dict(note.annotations),
            "labels": made["metadata"]["labels"] | dict(note.labels),
        }
        self.nodes[name] = made | {"metadata": meta}
        self._write_node(name)
        return True

    def _hear(self) -> None:
        while self._news and self._news[0][0] <= self.now_s:
            _, key, made = self._news.pop(0)
            if key in self.nodes:
                self.scheduler.node_seen(a_node(made or {}))
            elif made is None:
                self.scheduler.pod_gone(key)
            else:
                self.scheduler.pod_seen(a_pod(made), self.now_s)

    # A second -------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_s += 1.0
        self._hear()
        for _ in range(20):
            orders = self.scheduler.plan(self.now_s)
            for order in [*orders, *self.scheduler.curb_orders(self.now_s)]:
                self._obey(order)
            if not orders and not self.scheduler._dirty:
                break
        self._see_draw()
        for name, machine in self.plant.items():
            self._kubelet(name, machine)
        self._see_draw()
        for name in list(self.agents):
            if self.draws.random() < 0.8:
                self._agent(name)
            self._see_draw()

    def _obey(self, order: Order) -> None:
        match order:
            case BindPod() if order.uid in self.pods:
                self.bound_s[order.uid] = self.now_s
                self._write_pod(bound(self.pods[order.uid], order.node, **order.annotations))
            case EvictPod() if order.uid in self.pods:
                self.end(order.uid)
            case CapPod():
                asked = None if order.cap_w is None else f"{order.cap_w:g}"
                notes = {"wattherd.dev/cap-w": asked}
                if order.forgets:
                    notes["wattherd.dev/cap-applied-w"] = None
                self.note_pod(order.uid, notes)
            case _:
                pass

    def _kubelet(self, name: str, machine: Machine) -> None:
        for uid, made in self.pods.items():
            known = made["metadata"]["name"]
            if _node(made) != name or known in machine.has or self.draws.random() < 0.5:
                continue
            limits = made["spec"]["containers"][0]["resources"]["requests"]
            free, wanted = machine.free(), int(limits["nvidia.com/gpu"])
            if len(free) >= wanted:
                machine.has[known] = tuple(self.draws.sample(free, wanted))
                running = made | {"status": {"phase": "Running"}}
                self.pods[uid] = running
        for uid, made in list(self.pods.items()):
            if made["metadata"]["name"] in machine.has and self.draws.random() < 0.03:
                self.end(uid)
                self.done += 1

    def _agent(self, name: str) -> None:
        node = a_node(self.nodes[name])
        here = [a_pod(made) for made in self.pods.values() if _node(made) == name]
        lately = self.lately[name]
        for pod in here:
            lately.hear(pod, self.now_s)
        lowest_w = lately.lowest_w(self.now_s)
        self.agents[name].work(node, here, lowest_w, self.now_s, self.now_s, 60.0)


@dataclass(frozen=True)
class _Writer:
    room: Room

    def apply_pod(self, told: PodNote) -> None:
        text = show(told.applied_w) or None
        self.room.note_pod(told.uid, {"wattherd.dev/cap-applied-w": text})

    def apply_node(self, node: Node, note: NodeNote) -> bool:
        return self.room.note_node(node.metadata.name, note)


def _node(made: Json) -> Any:
    return made["spec"].get("nodeName")
