"""Carries out what budgets ask of those who run: caps, suspended jobs, evictions; and runs them on.

A job is suspended at the object that decides over it: a Job of a JobSet would be started again at
once, so that the JobSet is suspended, and the TrainJob above that. What was suspended is labelled
(`names.SUSPENDED`) and found again by that, whoever leads then.

A run whose turn is over is stopped in the same way, and its job runs again as soon as the pods are
gone: the pods that are made then wait for their turn. A pod that is evicted counts as failed for a
Job, one that its own controller deletes does not (KEP-2232; the finalizer by which pods are counted
is taken off first).
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from wattherd.kube.account.enforcement_tally import Suspended, ids_of, job_ids, owner_of
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import (
    DeleteOptions,
    Eviction,
    Preconditions,
    decoder,
    encode,
)
from wattherd.kube.api.changes import ObjectChange
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Object, ObjectMeta, OwnerReference, Pod
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi, Transport
from wattherd.kube.decide.budget_enforcer import BudgetEnforcer
from wattherd.kube.facts.orders import (
    CapPod,
    EvictPod,
    Order,
    ResizeOwner,
    ResumeOwner,
    StopPods,
    StopRun,
)
from wattherd.kube.facts.stopping import WAIT_S

AGAIN_S = 5.0
POWER, TURN = "power", "turn"
"""Why something was suspended: it runs again when there are watts, or when its pods are gone."""
PRIORITY = "priority"
"""Beside the domains in the annotation of what a suspended job needs."""


class PodOwner(Object, frozen=True):
    """Whatever owns pods, or other owners: who it is."""

    metadata: ObjectMeta = ObjectMeta()


class _SizeOfJob(Object, frozen=True):
    completion_mode: str = ""


class _SizedJob(Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _SizeOfJob = _SizeOfJob()


_OWNER, _JOB = decoder(PodOwner), decoder(_SizedJob)
_SERVER_FAILED = 500
"""From this status on it is the API server that failed, and not what it was asked for."""
_INDEXED = "Indexed"
"""Such a Job has as many completions as pods, and both may be changed together (since 1.31)."""


@dataclass(frozen=True, slots=True)
class Suspendable:
    """A kind that can be suspended: where it is, and by which field of its spec."""

    kind: str
    group: str
    version: str
    plural: str
    field: tuple[str, ...] = ("suspend",)

    @property
    def api(self) -> str:
        """The address of its group and version."""
        return f"/apis/{self.group}/{self.version}"

    def path(self, namespace: str, name: str) -> str:
        """The address of one object."""
        return f"{self.api}/namespaces/{namespace}/{self.plural}/{name}"

    def spec(self, *, suspend: bool) -> dict[str, Any]:
        """The part of a spec that suspends it, or lets it run."""
        found: Any = suspend
        for name in reversed(self.field):
            found = {name: found}
        made: dict[str, Any] = found
        return made


KINDS = (
    Suspendable("Job", "batch", "v1", "jobs"),
    Suspendable("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets"),
    Suspendable("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    Suspendable("PyTorchJob", "kubeflow.org", "v1", "pytorchjobs", ("runPolicy", "suspend")),
    Suspendable("MPIJob", "kubeflow.org", "v2beta1", "mpijobs", ("runPolicy", "suspend")),
    Suspendable("RayJob", "ray.io", "v1", "rayjobs"),
    Suspendable("RayCluster", "ray.io", "v1", "rayclusters"),
    Suspendable("AppWrapper", "workload.codeflare.dev", "v1beta2", "appwrappers"),
)


class Decider(Protocol):
    """Who keeps to budgets."""

    @property
    def curb(self) -> BudgetEnforcer:
        """What it does about those who run."""
        ...


class EnforcerIo:
    """At work for `decider` on the cluster of `feed`; `begin` it before its feed.

    `evict` is told the pods that nothing can be suspended for, and why they are to go.
    """

    def __init__(
        self, feed: ApiFeed, decider: Decider, evict: Callable[[Iterable[str], str], None]
    ) -> None:
        """Nothing is asked for yet."""
        self._feed, self._decider, self._evict = feed, decider, evict
        self.returning: dict[str, Suspended] = {}
        """Jobs by uid that run again once their pods are gone."""
        self._resumed: set[str] = set()
        self._of_job: dict[str, tuple[asyncio.Lock, int]] = {}
        """By uid of a job: who writes it now, and how many want to, in the order of their orders.

        Of two sizes the one that was ordered last is the one that stays.
        """

    def begin(self) -> None:
        """Follow what was suspended, of those kinds that the API server knows at the time."""
        labels = f"{names.SUSPENDED} in ({POWER},{TURN})"
        for kind in KINDS:
            path = f"{kind.api}/{kind.plural}"
            there = Served.WHILE_INSTALLED
            selection = Selection(path, PodOwner, labels=labels, served=there, optional=True)
            self._feed.follow(selection, self._hear(kind))

    def _hear(self, kind: Suspendable) -> Callable[[list[ObjectChange[PodOwner]]], None]:
        def hear(batch: list[ObjectChange[PodOwner]]) -> None:
            suspended = self._decider.curb.suspended
            for change in batch:
                uid = change.key.uid
                for known in (suspended, self.returning):
                    known.pop(uid, None)
                self._resumed.discard(uid)
                if change.item is not None:
                    about = change.item.metadata
                    returns = about.label(names.SUSPENDED) == TURN
                    (self.returning if returns else suspended)[uid] = _suspended(kind, about)

        return hear

    @contextlib.asynccontextmanager
    async def _in_turn(self, uid: str) -> AsyncIterator[None]:
        """What was ordered of a job before is done."""
        lock, wanting = self._of_job.get(uid, (asyncio.Lock(), 0))
        self._of_job[uid] = lock, wanting + 1
        try:
            async with lock:
                yield
        finally:
            lock, wanting = self._of_job[uid]
            self._of_job[uid] = lock, wanting - 1
            if wanting == 1:
                del self._of_job[uid]

    def resume_those_without(self, pods: Iterable[Pod], orders: Iterable[Order] = ()) -> None:
        """Of the jobs whose turn was over, those that have none of these `pods` run again.

        Who is told another size by these `orders`, of the same plan, runs again in that one.
        """
        self._resumed.update(one.uid for one in orders if isinstance(one, ResizeOwner))
        there = {name for pod in pods for name in job_ids(pod)} if self.returning else set()
        for uid, job in self.returning.items():
            if uid not in self._resumed and there.isdisjoint(ids_of({uid: job})):
                self._resumed.add(uid)
                self._feed.loop.begin(self._resume(ResumeOwner(uid, job.path)))

    def carry_out(self, order: CapPod | StopPods | ResumeOwner | ResizeOwner) -> None:
        """Begin to."""
        match order:
            case CapPod():
                self._feed.loop.begin(self._cap(order))
            case StopPods():
                self._feed.loop.begin(self._stop(order))
            case ResumeOwner():
                self._feed.loop.begin(self._resume(order))
            case ResizeOwner():
                self._resumed.add(order.uid)
                self._feed.loop.begin(self._resize(order))

    async def _patch(self, path: str, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        await self._feed.transport.request("PATCH", path, body=text, kind=MERGE)

    async def _note(self, key: str, about: dict[str, Any]) -> None:
        """Annotations of a pod, written with its status: that takes no right to change its spec."""
        namespace, _, name = key.partition("/")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        await self._patch(path, {"metadata": about})

    async def _cap(self, order: CapPod) -> None:
        """One that does not arrive is ordered again: what it asks for is not seen on the pod."""
        asked = None if order.cap_w is None else f"{order.cap_w:g}"
        notes = {names.CAP_ASKED_W: asked}
        if order.forgets:
            notes[names.CAP_APPLIED_W] = None
        about = {"uid": order.uid, "annotations": notes}
        try:
            await self._note(order.key, about)
        except (RefusedByApi, ApiUnreachable):
            return

    # Jobs -----------------------------------------------------------------------------------------

    async def _stop(self, order: StopPods) -> None:
        try:
            needs = json.dumps({**order.needs_w, PRIORITY: order.priority}, sort_keys=True)
            notes = {names.SUSPENDED_W: needs, names.SUSPENDED_WHY: order.why}
            if not await self._suspend(order.namespace, order.owner, POWER, notes):
                self._feed.turns.submit(self._evict, order.uids, order.why)
        except RefusedByApi:
            self._feed.turns.submit(self._evict, order.uids, order.why)
        except ApiUnreachable:
            await asyncio.sleep(AGAIN_S)
            self._feed.turns.submit(self._decider.curb.not_stopped, order.uids)

    async def stop_run(self, order: StopRun, leads: Callable[[], bool]) -> list[str]:
        """Tell pods, wait, and stop them; the uids of those that are to be asked for again.

        What is suspended in vain is evicted, as is what nothing can be suspended for. Of which
        nobody knows whether it is suspended is asked again: evicted pods count as failed.
        """
        if order.notice_s:
            await self._announce(order)
            await asyncio.sleep(order.notice_s)
        if not leads():
            return [one.uid for one in order.evictions]  # whoever does decides anew
        if order.owner is not None:
            ends = await self._end_turn(order, order.owner)
            if ends is None:
                return [one.uid for one in order.evictions]
            await asyncio.sleep(WAIT_S if ends else 0.0)
        done = await asyncio.gather(
            *(evicted(self._feed.transport, one) for one in order.evictions)
        )
        return [one.uid for one, gone in zip(order.evictions, done, strict=True) if not gone]

    async def _announce(self, order: StopRun) -> None:
        """Write on the pods when they are stopped, and why; who cannot be told is stopped then."""
        at = datetime.now(UTC) + timedelta(seconds=order.notice_s)

        async def tell(one: EvictPod) -> None:
            notes = {names.STOP_AT: f"{at:%Y-%m-%dT%H:%M:%SZ} {one.why}"}
            with contextlib.suppress(RefusedByApi, ApiUnreachable):
                await self._note(one.key, {"uid": one.uid, "annotations": notes})

        await asyncio.gather(*map(tell, order.evictions))

    async def _end_turn(self, order: StopRun, owner: OwnerReference) -> bool | None:
        """Suspend the job until its pods are gone; whether that was done, None: nobody knows."""
        first = order.evictions[0]
        namespace = first.key.partition("/")[0]
        try:
            async with self._in_turn(owner.uid):
                notes = {names.SUSPENDED_WHY: first.why}
                return await self._suspend(namespace, owner, TURN, notes)
        except ApiUnreachable:
            return None
        except RefusedByApi as refused:
            passes = refused.status == http.HTTPStatus.CONFLICT
            return None if passes or refused.status >= _SERVER_FAILED else False

    async def _suspend(
        self, namespace: str, owner: OwnerReference | None, label: str, notes: dict[str, str]
    ) -> bool:
        """Suspend the highest owner of pods that can be; whether there is one.

        Raises:
            RefusedByApi: it may not be, or is gone.
            ApiUnreachable: nobody knows.
        """
        found = await self._top(namespace, owner)
        if found is None:
            return False
        kind, about = found
        meta = {"uid": about.uid, "labels": {names.SUSPENDED: label}, "annotations": notes}
        path = kind.path(about.namespace, about.name)
        await self._patch(path, {"metadata": meta, "spec": kind.spec(suspend=True)})
        return True

    async def _top(
        self, namespace: str, owner: OwnerReference | None
    ) -> tuple[Suspendable, ObjectMeta] | None:
        """The highest owner that can be suspended."""
        found = None
        while owner is not None and (kind := _kind(owner)) is not None:
            path = kind.path(namespace, owner.name)
            answer = await self._feed.transport.request("GET", path)
            about = _OWNER.decode(answer.body).metadata
            found = kind, about
            owner = owner_of(Pod(metadata=about))
        return found

    async def _resume(self, order: ResumeOwner) -> None:
        kind = next(one for one in KINDS if order.path.startswith(one.api))
        gone = {names.SUSPENDED_W: None, names.SUSPENDED_WHY: None}
        meta = {"uid": order.uid, "labels": {names.SUSPENDED: None}, "annotations": gone}
        try:
            async with self._in_turn(order.uid):
                await self._patch(order.path, {"metadata": meta, "spec": kind.spec(suspend=False)})
        except (RefusedByApi, ApiUnreachable):
            await asyncio.sleep(AGAIN_S)
            self._feed.turns.submit(self._not_resumed, order.uid)

    async def _resize(self, order: ResizeOwner) -> None:
        """Pods beyond that number are deleted by the Job's controller, which counts no failure."""
        try:
            async with self._in_turn(order.uid):
                await self._write_size(order)
        except (RefusedByApi, ApiUnreachable):
            await asyncio.sleep(AGAIN_S)
            self._feed.turns.submit(self._not_resumed, order.uid)

    async def _write_size(self, order: ResizeOwner) -> None:
        path = KINDS[0].path(order.namespace, order.name)
        answer = await self._feed.transport.request("GET", path)
        job = _JOB.decode(answer.body)
        spec: dict[str, Any] = {"parallelism": order.pods}
        if job.spec.completion_mode == _INDEXED:
            spec["completions"] = order.pods
        meta: dict[str, Any] = {"uid": order.uid}
        if job.metadata.label(names.SUSPENDED) == TURN:
            spec["suspend"] = False
            meta |= {"labels": {names.SUSPENDED: None}}
            meta |= {"annotations": {names.SUSPENDED_WHY: None}}
        await self._patch(path, {"metadata": meta, "spec": spec})

    def _not_resumed(self, uid: str) -> None:
        self._resumed.discard(uid)
        self._decider.curb.not_resumed(uid)


def _kind(owner: OwnerReference) -> Suspendable | None:
    group = owner.api_version.partition("/")[0]
    return next((one for one in KINDS if (one.kind, one.group) == (owner.kind, group)), None)


def _suspended(kind: Suspendable, about: ObjectMeta) -> Suspended:
    """As it is written; what cannot be read needs nothing, and runs again at once."""
    try:
        written = json.loads(about.annotation(names.SUSPENDED_W) or "{}")
        priority = int(written.pop(PRIORITY, 0))
        needs = {str(name): round(1000 * float(watts)) for name, watts in written.items()}
    except (ValueError, TypeError, AttributeError):
        priority, needs = 0, {}
    path = kind.path(about.namespace, about.name)
    return Suspended(path, needs, priority, about.creation_timestamp or "")


async def evicted(transport: Transport, order: EvictPod) -> bool:
    """Whether a pod is on its way, by the eviction API: disruption budgets are kept."""
    namespace, _, name = order.key.partition("/")
    body = Eviction(
        api_version="policy/v1",
        kind="Eviction",
        metadata=ObjectMeta(name=name, namespace=namespace),
        delete_options=DeleteOptions(
            grace_period_seconds=int(order.grace_s), preconditions=Preconditions(uid=order.uid)
        ),
    )
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    try:
        await transport.request("POST", path, body=encode(body))
    except RefusedByApi as refused:
        return refused.status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.CONFLICT)
    except ApiUnreachable:
        return False
    return True
