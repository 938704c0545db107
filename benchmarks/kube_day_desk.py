"""The day of jobs of `kube_day.py` at a scheduler's desk: its decisions, without a control plane.

    python benchmarks/kube_day.py --desk --nodes 1000 --jobs 3000 --only wattherd,gang

The scheduler is the process's own (`KubeScheduler`), its clock is the day's, and its orders are
carried out here: bindings at once, caps `ANSWER_S` later, and a pod that is evicted is gone
`GRACE_S` later and made anew by its Job. So a day takes as long as its plans take, which are timed
by the processor, and a plan is as old as it is on a cluster: nothing is compressed.
"""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

from kube_builders import a_node, a_pod, bound, fleet_of, node_json, pod_json
from kube_day_ledger import (
    DAY_S,
    NODE_GPUS,
    PRIORITIES,
    DayJob,
    DayLedger,
    fleet_models,
    gpus_by_model,
)

from wattherd.kube.account.binding_mode import ByBinding
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.orders import (
    BindPod,
    CapPod,
    EvictPod,
    Order,
    TellGroup,
    TellPod,
)
from wattherd.model.cluster import NodeSpec
from wattherd.model.job import Request
from wattherd.server.kube.core_choice import core_choice

ANSWER_S = 1.0
"""For an agent to set a cap and say so."""
GRACE_S = 5.0
"""Between an eviction and the end of a pod."""
MOST_PLANS = 300
"""At one time: then a scheduler does not come to rest."""
OURS = "wattherd.dev/"


class DayDesk:
    """`play` has the day go by under a budget; `scheduler` is a name, empty for gangs."""

    def __init__(
        self, jobs: Sequence[DayJob], nodes: int, budget_w: float, scheduler: str = ""
    ) -> None:
        choice = core_choice(scheduler, "water-filling")
        self.scheduler = KubeScheduler(
            fleet_of("wattherd"), holder="desk", way=ByBinding("wattherd"), choice=choice
        )
        self._computers = choice.computers
        self.ledger = DayLedger(jobs, gpus_by_model(nodes), budget_w)
        self.now_s = 0.0
        self.plan_cpu_s: list[float] = []
        self.reasons: list[str] = []
        """Why pods were evicted."""
        self._due = sorted(jobs, key=lambda job: job.at_s, reverse=True)
        self._pods: dict[str, Any] = {}
        self._jobs: dict[str, DayJob] = {}
        """By uid of each pod."""
        self._uids: dict[str, set[str]] = {job.name: set() for job in jobs}
        self._made = 0
        self._later: list[tuple[float, int, str, float | None, bool]] = []
        """When, a running number, which pod, its cap, and whether it is gone instead."""
        for row, model in enumerate(fleet_models(nodes)):
            spec = NodeSpec(
                name=f"node-{row:05}", cpu_milli=512_000, memory_mib=4 << 20,
                gpu_count=NODE_GPUS, gpu_model=model,
            )  # fmt: skip
            made = node_json(spec)
            made["metadata"]["labels"][f"{OURS}agent"] = "true"
            self.scheduler.node_seen(a_node(made))
        budgets_mw = {"": round(1000 * budget_w)}
        self.scheduler.power_seen(self.scheduler.domains.tree, budgets_mw)

    def play(self, until_s: float = DAY_S) -> dict[str, float]:
        """From the first second to `until_s`; what came of it."""
        while self.now_s < until_s:
            self.now_s = max(self.now_s, min(until_s, *self._next_s()))
            for name in self.ledger.advance(self.now_s):
                self._end(name)
            while self._later and self._later[0][0] <= self.now_s:
                self._happens(*heapq.heappop(self._later)[2:])
            while self._due and self._due[-1].at_s <= self.now_s:
                self._make(self._due.pop())
            self._settle()
        spent = sorted(self.plan_cpu_s)
        return self.ledger.scores() | {
            "plans": float(len(spent)),
            "plan_median_ms": 1000 * spent[len(spent) // 2],
            "plan_p99_ms": 1000 * spent[int(0.99 * len(spent))],
            "scheduler_cpu_s": sum(spent),
        }

    def _next_s(self) -> Iterable[float]:
        wake_s = self.scheduler.dialogue.wake_s
        yield self._due[-1].at_s if self._due else math.inf
        yield self.ledger.next_end_s()
        yield self._later[0][0] if self._later else math.inf
        yield math.inf if wake_s is None else max(wake_s, self.now_s + 0.1)

    def _settle(self) -> None:
        for _ in range(MOST_PLANS):
            began_s = time.process_time()
            orders = self.scheduler.plan(self.now_s)
            self.plan_cpu_s.append(time.process_time() - began_s)
            for order in orders:
                self._obey(order)
            asked = self.scheduler.dialogue.take_questions()
            for one in asked:
                found = self._computers[one.order.kind](one.order.payload)
                self.scheduler.dialogue.answer(one, found)
            if not orders and not asked:
                return
        raise AssertionError(f"no rest at {self.now_s:.0f} s")

    # Pods ------------------------------------------------------------------------------------

    def _make(self, job: DayJob) -> None:
        for number in range(job.pods):
            self._made += 1
            asked = Request(
                cpu_milli=1000, gpu_count=job.gpus, gpu_milli=job.milli, models=(job.model,)
            )
            made = pod_json(
                f"{job.name}-{number}-{self._made}",
                asked,
                schedulerName="wattherd",
                priority=PRIORITIES[job.priority],
                terminationGracePeriodSeconds=round(GRACE_S),
            )
            meta = made["metadata"]
            notes = meta["annotations"]
            notes[f"{OURS}duration"] = f"{3600 * job.hours:.0f}s"
            if job.kind:
                notes[f"{OURS}power-profile"] = job.kind
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name}
            meta["ownerReferences"] = [owner | {"uid": f"uid-{job.name}", "controller": True}]
            if job.pods > 1:
                meta["labels"] = {"kueue.x-k8s.io/pod-group-name": job.name}
                notes["kueue.x-k8s.io/pod-group-total-count"] = str(job.pods)
            self._jobs[meta["uid"]] = job
            self._uids[job.name].add(meta["uid"])
            self._put(made)

    def _put(self, made: Any) -> None:
        self._pods[made["metadata"]["uid"]] = made
        self.scheduler.pod_seen(a_pod(made), self.now_s)

    def _end(self, name: str) -> None:
        for uid in sorted(self._uids[name]):
            done = self._pods.pop(uid) | {"status": {"phase": "Succeeded"}}
            self.scheduler.pod_seen(a_pod(done), self.now_s)
            del self._jobs[uid]
        self._uids[name].clear()

    # What is ordered -------------------------------------------------------------------------

    def _obey(self, order: Order) -> None:
        match order:
            case TellPod() | TellGroup():
                pass
            case BindPod():
                made = bound(self._pods[order.uid], order.node, **order.annotations)
                asked = order.annotations.get(f"{OURS}cap-w")
                if asked is not None:  # an agent sets it before the pod begins
                    made["metadata"]["annotations"][f"{OURS}cap-applied-w"] = asked
                self._put(made | {"status": {"phase": "Running"}})
                self._runs(order.uid)
            case CapPod():
                if order.uid not in self._pods:
                    return
                text = None if order.cap_w is None else f"{order.cap_w:g}"
                self._note(order.uid, "cap-w", text)
                if order.forgets:
                    self._note(order.uid, "cap-applied-w", None)
                self._after(ANSWER_S, order.uid, order.cap_w, gone=False)
            case EvictPod():
                if order.uid not in self._pods:
                    return
                self.reasons.append(order.why)
                made = self._pods[order.uid]
                meta = made["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
                self._put(made | {"metadata": meta})
                self._after(GRACE_S, order.uid, None, gone=True)
            case _:
                raise AssertionError(f"nobody carries out {order}")

    def _after(self, seconds: float, uid: str, cap_w: float | None, *, gone: bool) -> None:
        self._made += 1
        heapq.heappush(self._later, (self.now_s + seconds, self._made, uid, cap_w, gone))

    def _happens(self, uid: str, cap_w: float | None, gone: bool) -> None:  # noqa: FBT001
        if uid not in self._pods:
            return
        if not gone:
            self._note(uid, "cap-applied-w", None if cap_w is None else f"{cap_w:g}")
            self._runs(uid, cap_w)
            return
        self.ledger.gone(uid)
        self.scheduler.pod_gone(uid)
        job = self._jobs.pop(uid)
        del self._pods[uid]
        self._uids[job.name].discard(uid)
        if not self._uids[job.name]:
            self._make(job)

    def _note(self, uid: str, name: str, text: str | None) -> None:
        made = self._pods[uid]
        notes = dict(made["metadata"]["annotations"])
        notes.pop(OURS + name, None)
        if text is not None:
            notes[OURS + name] = text
        self._put(made | {"metadata": made["metadata"] | {"annotations": notes}})

    def _runs(self, uid: str, cap_w: float | None = None) -> None:
        """It draws by the cap that its agent has set."""
        made, job = self._pods[uid], self._jobs[uid]
        notes, node = made["metadata"]["annotations"], made["spec"].get("nodeName")
        if node is None:
            return
        read = notes.get(f"{OURS}cap-applied-w")
        cap_w = float(read) if cap_w is None and read is not None else cap_w
        numbers = notes.get(f"{OURS}gpus")
        device = (node, numbers) if numbers else (uid,)
        each_w = None if cap_w is None else cap_w / job.gpus
        self.ledger.runs(uid, job.name, device=device, cap_w=each_w)
