"""Kueue's check in worlds by chance: its three accounts agree, and who waits gets what is free.

Workloads come, end and are evicted, budgets fall and rise, agents cap, nodes are deleted and come
back, the check starts anew. The core's plan, the account on which places are looked for and the
pods that are there must name the same devices: where they did not, places were proposed that the
core had given away, and a workload waited for ever beside a free node.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable
from typing import Any

import pytest
from kube_builders import a_node, a_pod, node_json
from test_kube_kueue import RETRY, SETTLE_S, World, _state, watts_of

from effort import times
from wattherd.kube.facts.orders import CapPod, Order
from wattherd.testing.builders import a_node as a_machine

Json = dict[str, Any]
NODES, GPUS = 4, 4
QUOTA, NO_QUOTA = (
    [{"type": "QuotaReserved", "status": "True"}],
    [
        {"type": "QuotaReserved", "status": "False"},
        {"type": "Evicted", "status": "True"},
    ],
)


class Chance:
    """Pods are by name: of which workload, on which node, and whether they are being deleted."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.world = World({"": watts_of(NODES, GPUS, 8)})
        self.sizes: dict[str, int] = {}
        self.pods: dict[str, tuple[str, str, bool]] = {}
        self.serial = 0
        agents = {"wattherd.dev/agent": "true", "wattherd.dev/gpu-cap-min-w": "40"}
        for row in range(NODES):
            made = node_json(a_machine(f"n{row}", gpus=GPUS, model="T4"))
            made["metadata"]["labels"] |= {"wattherd.dev/power-domain": "ab"[row % 2]}
            made["metadata"]["labels"] |= agents if seed % 2 else {}
            self.world.nodes[f"n{row}"] = made
            self.world.check.scheduler.node_seen(a_node(made))

    # What happens ---------------------------------------------------------------------------------

    def submit(self) -> None:
        if len(self.sizes) < 8:
            name = f"w{len(self.sizes)}"
            self.sizes[name] = self.draws.randint(1, 4)
            self.world.submit(name, quota=False, main=self.sizes[name])
            self.world.workloads[f"uid-{name}"]["spec"]["priority"] = self.draws.randint(-1, 1)
            self.world.change(name, conditions=QUOTA)

    def budget(self, busy: int | None = None) -> None:
        busy = self.draws.choice([2, 4, 6, 8]) if busy is None else busy
        scheduler = self.world.check.scheduler
        self.obey(scheduler.budget("", watts_of(NODES, GPUS, busy), self.world.now_s))

    def kueue(self) -> None:
        """Whoever is to try again loses his quota and his pods, and has quota again some day."""
        for made in list(self.world.workloads.values()):
            name, told = made["metadata"]["name"], self.conditions(made)
            if told.get("Finished") == "True":
                continue
            if self.world.answer(name)["state"] == RETRY and told["QuotaReserved"] == "True":
                self.world.change(name, conditions=NO_QUOTA)
                for pod in [one for one, (of, _, going) in self.pods.items() if of == name]:
                    self.delete(pod)
            elif told["QuotaReserved"] == "False" and self.draws.random() < 0.5:
                self.world.change(name, conditions=QUOTA, admissionChecks=[_state("Pending")])

    def controllers(self) -> None:
        """One pod more of who was let in, on a node that the kube-scheduler likes."""
        for name in sorted(self.world.ready):
            there = [one for one, (of, _, going) in self.pods.items() if of == name and not going]
            over = self.conditions(self.world.workloads[f"uid-{name}"]).get("Finished") == "True"
            free = {f"n{row}": GPUS for row in range(NODES)}
            for _, node, _ in self.pods.values():
                free[node] -= 1
            node = max(free, key=lambda one: (free[one], self.draws.random()))
            if not over and len(there) < self.sizes[name] and free[node]:
                self.serial += 1
                pod = f"{name}-p{self.serial}"
                self.pods[pod] = (name, node, False)
                self.world.run(name, pod, node)

    def finish(self, name: str = "") -> None:
        if self.sizes:
            name = name or self.draws.choice(sorted(self.sizes))
            self.world.finish(name)
            for pod in [one for one, (of, _, _) in self.pods.items() if of == name]:
                self.gone(pod)

    def restart(self) -> None:
        budgets = self.world.check.scheduler.domains.budgets_mw
        self.world.budgets_mw = dict(budgets)
        self.world.restart()

    def bounce(self) -> None:
        """A node is deleted, and registers again; its pods are lost."""
        name = self.draws.choice(sorted(self.world.nodes))
        self.world.check.scheduler.node_gone(name)
        for pod in [one for one, (_, node, _) in self.pods.items() if node == name]:
            if self.draws.random() < 0.5:
                self.delete(pod)
        self.pass_time()
        self.world.check.scheduler.node_seen(a_node(self.world.nodes[name]))
        for pod in [one for one, (_, node, _) in self.pods.items() if node == name]:
            self.gone(pod)

    def some_go(self) -> None:
        going = [one for one, (_, _, goes) in self.pods.items() if goes]
        for pod in going[:1]:
            self.gone(pod)

    # The cluster ----------------------------------------------------------------------------------

    @staticmethod
    def conditions(made: Json) -> dict[str, str]:
        return {one["type"]: one["status"] for one in made["status"]["conditions"]}

    def delete(self, pod: str) -> None:
        of, node, going = self.pods[pod]
        if not going:
            self.pods[pod] = (of, node, True)
            self.change(f"uid-{pod}", deletionTimestamp="2026-01-01T00:00:00Z")

    def change(self, uid: str, **about: Any) -> None:
        made = copy.deepcopy(self.world.pods[uid])
        made["metadata"] |= about
        self.world.pods[uid] = made
        self.world.check.pod_seen(a_pod(made), self.world.now_s)

    def gone(self, pod: str) -> None:
        del self.pods[pod]
        self.world.end(pod)

    def obey(self, orders: Iterable[Order]) -> None:
        given = list(orders)
        for order in given:
            real = self.world.check.real_of(order.uid) if isinstance(order, CapPod) else None
            if isinstance(order, CapPod) and real is not None:
                self.note(real.metadata.uid, "wattherd.dev/cap-w", order.cap_w)
        for verdict in self.world.check.verdicts(given):
            self.world.write(verdict)

    def note(self, uid: str, key: str, value: object) -> None:
        notes = dict(self.world.pods[uid]["metadata"].get("annotations", {}))
        notes.pop(key, None)
        notes |= {} if value is None else {key: str(value)}
        self.change(uid, annotations=notes)

    def agents_act(self) -> None:
        for uid, made in list(self.world.pods.items()):
            notes = made["metadata"].get("annotations", {})
            asked = notes.get("wattherd.dev/cap-w")
            if asked != notes.get("wattherd.dev/cap-applied-w"):
                self.note(uid, "wattherd.dev/cap-applied-w", asked)

    def pass_time(self) -> None:
        self.world.now_s += self.draws.choice([0.2, 1.0, SETTLE_S])
        if self.draws.random() < 0.6:
            self.agents_act()
        self.obey(self.world.check.scheduler.plan(self.world.now_s))
        self.obey(self.world.check.scheduler.curb_orders(self.world.now_s))

    def come_to_rest(self) -> None:
        for _ in range(60):
            for pod in [one for one, (_, _, going) in self.pods.items() if going]:
                self.gone(pod)
            self.kueue()
            self.controllers()
            self.pass_time()

    # What must hold -------------------------------------------------------------------------------

    def accounts(self) -> tuple[set[tuple[int, int]], ...]:
        """Devices (node, GPU) of pods that are there, of the core's plan, and of the search's."""
        scheduler = self.world.check.scheduler
        planner, core = scheduler._planner, scheduler.core
        assert planner is not None
        assert planner.seating is not None
        assert core is not None
        real, planned = scheduler.fleet, planner.seating.planned.fleet
        return (
            {(seat.node, gpu) for uid in real.holdings for seat in real.seats(uid)
             for gpu in seat.gpus},
            {(one.node, gpu) for job in core.jobs.values() for one in job.wanted
             for gpu in one.gpus},
            {(seat.node, gpu) for uid in planned.holdings for seat in planned.seats(uid)
             for gpu in seat.gpus},
        )  # fmt: skip

    def waiting(self) -> list[str]:
        over = {
            name
            for name in self.sizes
            if self.conditions(self.world.workloads[f"uid-{name}"]).get("Finished") == "True"
        }
        return sorted(self.sizes.keys() - over - self.world.ready)


ACTS = ("submit", "budget", "kueue", "controllers", "finish", "restart", "bounce", "some_go", "")
OFTEN = (12, 10, 28, 20, 4, 2, 3, 10, 11)


@pytest.mark.parametrize("seed", range(times(160)))
def test_accounts_agree_and_who_waits_gets_what_is_free(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(60):
        (act,) = chance.draws.choices(ACTS, OFTEN)
        if act:
            getattr(chance, act)()
        chance.pass_time()
    chance.budget(NODES * GPUS)
    chance.come_to_rest()
    there, core, searched = chance.accounts()
    assert core <= there
    assert searched == core
    for name in chance.waiting()[:1]:
        for other in sorted(chance.sizes.keys() - {name}):
            chance.finish(other)
        chance.come_to_rest()
        assert name in chance.world.ready, chance.world.answer(name)
