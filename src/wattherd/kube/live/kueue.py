"""The admission check on a cluster: follows Kueue's workloads, and writes our answers on them.

Answers are applied (server-side apply) by a name of our own, so that neither Kueue's entries nor
those of other checks are touched, and only to the workload as it was seen: one that changed
meanwhile is gone through again.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from wattherd.kube.account.cluster_news import each
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import decoder, encode
from wattherd.kube.api.changes import Key, ObjectChange
from wattherd.kube.api.names import CHECK
from wattherd.kube.api.objects import ObjectMeta, Pod, StatusCondition
from wattherd.kube.api.reflector import Selection
from wattherd.kube.api.transport import APPLY, ApiUnreachable, RefusedByApi
from wattherd.kube.decide.kueue_check import RETRY, CheckVerdict, KueueCheck
from wattherd.kube.facts.kueue_objects import (
    API,
    VERSION,
    AdmissionCheck,
    CheckState,
    CheckStatus,
    KueueWorkload,
    WorkloadStatus,
)
from wattherd.kube.facts.orders import CapPod, Order
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.live.scheduler import LiveScheduler

RETRY_S = 60
_WORKLOAD = decoder(KueueWorkload)
_AGAIN_S = 2.0
_UNANSWERED = "Kueue is not answered"
_APPLIED = {"fieldManager": "wattherd-power-check", "force": "true"}


class LiveKueueCheck(LiveScheduler):
    """A check at work; `begin` and `close` it."""

    def __init__(
        self,
        check: KueueCheck,
        access: Access,
        draws: np.random.Generator,
        *,
        lease: ObjectMeta | None = None,
        identity: str = "",
        power: PowerPlan | None = None,
        retry_s: int = RETRY_S,
    ) -> None:
        """`retry_s` is how long Kueue leaves a workload alone for which there are no watts."""
        super().__init__(
            check.scheduler, access, draws, lease=lease, identity=identity, power=power
        )
        self._check = check
        self._retry_s = retry_s
        follow = self._follow
        follow(Selection(f"{API}/admissionchecks", AdmissionCheck), self._hear_checks)
        follow(
            Selection(f"{API}/workloads", KueueWorkload),
            each(self._workload_seen, self._workload_gone),
        )

    # News -----------------------------------------------------------------------------------------

    def _pod_seen(self, pod: Pod) -> None:
        self._check.pod_seen(pod, time.monotonic())

    def _pod_gone(self, key: Key) -> None:
        self._check.pod_gone(key.uid, time.monotonic())

    def _hear_checks(self, batch: list[ObjectChange[AdmissionCheck]]) -> None:
        for change in batch:
            ours = change.item is not None and change.item.spec.controller_name == CHECK
            self._check.check_seen(change.key.name, time.monotonic(), ours=ours)
            if change.item is not None and ours and not _is_active(change.item):
                self.feed.loop.begin(self._activate(change.item))

    def _workload_seen(self, workload: KueueWorkload) -> None:
        self._check.workload_seen(workload, time.monotonic())

    def _workload_gone(self, key: Key) -> None:
        self._check.workload_gone(key.uid, time.monotonic())

    # Answers --------------------------------------------------------------------------------------

    def _carry_out_all(self, orders: Iterable[Order]) -> None:
        wanted = list(orders)
        for verdict in self.feed.turn(self._check.verdicts, wanted):
            self.feed.loop.begin(self._answer(verdict))
        for order in wanted:
            self._carry_out(order)

    def _tell(self, order: Order) -> None:
        """Stand-ins are no objects: what is to be said of them is in our answers."""

    def _carry_out(self, order: Order) -> None:
        """Of orders to stand-ins only caps are for their pods; all else is told to Kueue."""
        if isinstance(order, CapPod):
            pod = self.feed.turn(self._check.real_of, order.uid)
            if pod is not None:
                about = pod.metadata
                key = f"{about.namespace}/{about.name}"
                self.steward.carry_out(CapPod(about.uid, key, order.cap_w, order.forgets))

    async def _answer(self, verdict: CheckVerdict) -> None:
        """Until it is known whether it was taken: an answer that may come through is kept."""
        seen = verdict.workload.metadata
        path = f"{API}/namespaces/{seen.namespace}/workloads/{seen.name}"
        while self.seat.leads() and await self._sent(verdict, path) is None:
            await asyncio.sleep(_AGAIN_S)
            found = await self._read(path)
            if found is None:
                continue
            if _says(found, verdict):
                return self._tell_check(self._check.written, verdict)
            if found.metadata.resource_version != seen.resource_version:
                self._tell_check(self._check.workload_seen, found)
                return self._tell_check(self._check.not_written, verdict)
        return None

    async def _sent(self, verdict: CheckVerdict, path: str) -> bool | None:
        """Whether it is settled; None where it is to be looked at."""
        body = encode(self._told(verdict))
        try:
            await self.feed.transport.request(
                "PATCH", f"{path}/status", query=_APPLIED, body=body, kind=APPLY
            )
        except ApiUnreachable:
            return None
        except RefusedByApi as refused:
            if refused.status == http.HTTPStatus.NOT_FOUND:
                return True
            if refused.status == http.HTTPStatus.FORBIDDEN:
                self.feed.note(_UNANSWERED, str(refused))
                self.feed.refusals.heard(str(refused), time.monotonic())
            return None
        self.feed.note(_UNANSWERED)
        self.feed.refusals.heard("", time.monotonic())
        self._tell_check(self._check.written, verdict)
        return True

    async def _read(self, path: str) -> KueueWorkload | None:
        try:
            return _WORKLOAD.decode((await self.feed.transport.request("GET", path)).body)
        except (RefusedByApi, ApiUnreachable):
            return None

    def _tell_check(
        self, tell: Callable[[Any, float], None], what: CheckVerdict | KueueWorkload
    ) -> None:
        self.feed.turns.submit(tell, what, time.monotonic())

    def _told(self, verdict: CheckVerdict) -> KueueWorkload:
        about = verdict.workload.metadata
        state = CheckState(
            name=verdict.check,
            state=verdict.state,
            last_transition_time=_now(),
            message=verdict.message,
            requeue_after_seconds=self._retry_s if verdict.state == RETRY else None,
            pod_set_updates=list(verdict.updates) or None,
        )
        return KueueWorkload(
            api_version=VERSION,
            kind="Workload",
            metadata=ObjectMeta(
                name=about.name,
                namespace=about.namespace,
                uid=about.uid,
                resource_version=about.resource_version,
            ),
            status=WorkloadStatus(admission_checks=[state]),
        )

    async def _activate(self, check: AdmissionCheck) -> None:
        """Kueue admits nothing by a check that is not active."""
        name = check.metadata.name
        condition = StatusCondition(
            type="Active",
            status="True",
            reason="Active",
            message="wattherd answers by the power budgets",
            last_transition_time=_now(),
            observed_generation=check.metadata.generation,
        )
        body = encode(
            AdmissionCheck(
                api_version=VERSION,
                kind="AdmissionCheck",
                metadata=ObjectMeta(name=name),
                status=CheckStatus(conditions=[condition]),
            )
        )
        path = f"{API}/admissionchecks/{name}/status"
        try:
            await self.feed.transport.request("PATCH", path, query=_APPLIED, body=body, kind=APPLY)
        except (RefusedByApi, ApiUnreachable):
            await asyncio.sleep(_AGAIN_S)
            await self._activate(check)


def _says(workload: KueueWorkload, verdict: CheckVerdict) -> bool:
    """Whether our answer is what is written there."""
    states = workload.status.admission_checks or ()
    told = (verdict.check, verdict.state, verdict.message)
    return told in [(one.name, one.state, one.message) for one in states]


def _is_active(check: AdmissionCheck) -> bool:
    conditions = check.status.conditions or ()
    return any(one.type == "Active" and one.status == "True" for one in conditions)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
