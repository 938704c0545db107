"""Watts as devices on a cluster: slices published, templates made, pods ended after a cut.

kube-scheduler allocates and binds; nothing here is asked when a pod is placed. While this process
is away the slices stay as they are, and budgets hold. The account is that of `scheduler.live`, in
which nobody waits: from it come the watts that pods without a claim take, and the pods to evict
when a budget falls below what runs. All that is written belongs to the device class, which comes
and goes with the installation; where there is none, nothing is written.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np

from wattherd.kube.account.cluster_news import by_name, by_place, each, kept
from wattherd.kube.account.domains import columns_of
from wattherd.kube.account.lacking_claims import Claimable
from wattherd.kube.account.power_metrics import PREFIX, Series
from wattherd.kube.account.watt_claims import (
    ClaimCover,
    allocated_mw,
    same_template,
    template_of,
    wanted_of,
)
from wattherd.kube.account.watt_devices import WattDevice, WattSite, drawn_mw, loads_of
from wattherd.kube.account.watt_slices import (
    CLASS,
    DRIVER,
    MANAGED,
    after,
    class_as_owner,
    pool_name,
    same_slice,
    slice_of,
)
from wattherd.kube.api.access import Access
from wattherd.kube.api.api_objects import decoder, encode
from wattherd.kube.api.changes import Key
from wattherd.kube.api.feed import LOOK_S
from wattherd.kube.api.objects import ObjectMeta, OwnerReference, Pod
from wattherd.kube.api.reflector import Selection
from wattherd.kube.api.transport import ApiUnreachable, RefusedByApi
from wattherd.kube.decide.foreign_reasons import ForeignReasons, StuckPods
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.claim_objects import (
    API,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from wattherd.kube.facts.finding import PodFinding
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.facts.workload import WorkloadPod
from wattherd.kube.live.foreign_reasons import ForeignReasonsWriter
from wattherd.kube.live.scheduler import LiveScheduler
from wattherd.model.reason import ReasonCode

_SLICES = f"{API}/resourceslices"
_SLICE = decoder(ResourceSlice)
_LABELS = ",".join(f"{key}={value}" for key, value in MANAGED.items())
_OF_WATTS = (str(ReasonCode.WAITING_FOR_POWER), str(ReasonCode.WAITING_FOR_TURN))
"""Reasons of pods for which there is room."""
_PUBLISHED = "watts are not published"
_SETTLED = (http.HTTPStatus.CONFLICT, http.HTTPStatus.NOT_FOUND)
"""Somebody, or we before an answer was lost, did it already: the watch will tell."""


@dataclass(frozen=True, slots=True)
class _Write:
    """A request that brings the API nearer to what is to be."""

    method: str
    path: str
    body: bytes | None = None


class LiveClaims(LiveScheduler):
    """Slices and templates kept true; `begin` and `close` it."""

    def __init__(
        self,
        scheduler: KubeScheduler,
        access: Access,
        draws: np.random.Generator,
        *,
        lease: ObjectMeta | None = None,
        identity: str = "",
        power: PowerPlan | None = None,
    ) -> None:
        """`scheduler` places nobody (`ByClaim`); `lease` as for any other."""
        super().__init__(scheduler, access, draws, lease=lease, identity=identity, power=power)
        self._classes: dict[str, DeviceClass] = {}
        self._slices: dict[str, ResourceSlice] = {}
        self._templates: dict[tuple[str, str], ResourceClaimTemplate] = {}
        self._allocated: dict[str, dict[str, int]] = {}
        self._claiming: dict[str, Pod] = {}
        self._cover = ClaimCover()
        self._stuck = StuckPods()
        scheduler.curb.is_undeclared = lambda pod: pod.metadata.uid in self._cover.beyond_mw
        self._devices: list[WattDevice] = []
        self._hungriest_mw = 0
        """What the hungriest GPU of the cluster adds in use."""
        follow = self._follow
        classes = Selection(f"{API}/deviceclasses", DeviceClass, fields=f"metadata.name={CLASS}")
        follow(classes, kept(self._classes, by_name))
        slices = Selection(_SLICES, ResourceSlice, fields=f"spec.driver={DRIVER}")
        follow(slices, kept(self._slices, by_name))
        templates = Selection(
            f"{API}/resourceclaimtemplates", ResourceClaimTemplate, labels=_LABELS
        )
        follow(templates, kept(self._templates, by_place))
        claims = Selection(f"{API}/resourceclaims", ResourceClaim, labels=_LABELS)
        follow(claims, each(self._claim_seen, self._claim_gone))
        self.feed.also(self._publish)
        onlooker = ForeignReasons(self._claims, self._why, scheduler.groups, self._notes_stuck)
        self.onlooking = ForeignReasonsWriter(self.feed, onlooker, self.voice, self.seat.leads)
        self.feed.also(self.onlooking.work)

    # News -----------------------------------------------------------------------------------------

    def _pod_seen(self, pod: Pod) -> None:
        self._claiming.pop(pod.metadata.uid, None)
        if self.scheduler.way.is_ours(pod):
            self._claiming[pod.metadata.uid] = pod
        if pod.spec.node_name:
            self._stuck.forget(pod.metadata.uid)
        super()._pod_seen(pod)
        self.onlooking.pod_seen(pod)

    def _pod_gone(self, key: Key) -> None:
        self._claiming.pop(key.uid, None)
        self._stuck.forget(key.uid)
        super()._pod_gone(key)
        self.onlooking.pod_gone(key)

    def _claim_seen(self, claim: ResourceClaim) -> None:
        self._allocated[claim.metadata.uid] = allocated_mw(claim)
        self._cover.claim_seen(claim)

    def _claim_gone(self, key: Key) -> None:
        self._allocated.pop(key.uid, None)
        self._cover.claim_gone(key.uid)

    # Work -----------------------------------------------------------------------------------------

    def _publish(self) -> None:
        while not self.feed.over.wait(LOOK_S):
            if not self.seat.ready():
                continue
            writes = self.feed.turn(self._writes)
            if writes:
                self.feed.loop.run(self._write_all(writes))
            else:
                lacks = f"there is no DeviceClass {CLASS}: that of the chart, or of dra.yaml"
                self.feed.note(_PUBLISHED, "" if CLASS in self._classes else lacks)

    def _writes(self) -> list[_Write]:
        """What the API lacks of what it should say."""
        fleet = self.scheduler.fleet
        if fleet.placer is None:
            return []
        domains, columns = self.scheduler.domains, columns_of(fleet.order)
        there = (uid for uid, pod in self._claiming.items() if pod.spec.node_name)
        self._cover.look(drawn_mw(fleet, columns, there), time.monotonic())
        site = WattSite(
            loads=loads_of(fleet, columns, self._claiming.__contains__, self._cover.beyond_mw),
            path=domains.tree.path,
            budgets_mw=domains.budgets_mw,
        )
        self._devices = site.devices()
        known = self._classes.get(CLASS)
        if known is None:
            return []
        owner = class_as_owner(known)
        return [*self._slice_writes(owner), *self._template_writes(site, owner)]

    def _slice_writes(self, owner: OwnerReference) -> list[_Write]:
        writes: list[_Write] = []
        wanted = [
            slice_of(device, self.scheduler.nodes_of.needs(*device.leaves), owner)
            for device in self._devices
            if device.leaves
        ]
        for one in wanted:
            name = one.metadata.name
            known = self._slices.get(name)
            if known is None:
                writes.append(_Write("POST", _SLICES, encode(one)))
            elif not same_slice(known, one):
                writes.append(_Write("PUT", f"{_SLICES}/{name}", encode(after(known, one))))
        if not writes and wanted and self._stuck.are_due(time.monotonic()):
            known = self._slices[wanted[0].metadata.name]
            again = encode(after(known, wanted[0]))
            writes.append(_Write("PUT", f"{_SLICES}/{known.metadata.name}", again))
        gone = sorted(self._slices.keys() - {one.metadata.name for one in wanted})
        return writes + [_Write("DELETE", f"{_SLICES}/{name}") for name in gone]

    def _notes_stuck(self, uid: str) -> bool:
        """Nothing keeps a pod that found no node; a change of the pod would not wake it."""
        self._stuck.note(uid, time.monotonic())
        return False

    def _template_writes(self, site: WattSite, owner: OwnerReference) -> list[_Write]:
        """Templates that pods wait for; one that says something else is made anew."""
        loads = site.loads.values()
        hungriest = self._hungriest_mw = max((load.most_gpu_mw for load in loads), default=0)
        writes: dict[tuple[str, str], _Write] = {}
        for pod in self._claiming.values():
            wanted = None if pod.spec.node_name else wanted_of(pod, hungriest)
            if wanted is None:
                continue
            space = pod.metadata.namespace
            made = template_of(wanted, space, site.depth, owner)
            known = self._templates.get((space, wanted.name))
            path = f"{API}/namespaces/{space}/resourceclaimtemplates"
            if known is None:
                writes[space, wanted.name] = _Write("POST", path, encode(made))
            elif not same_template(known, made):
                writes[space, wanted.name] = _Write("DELETE", f"{path}/{wanted.name}")
        return list(writes.values())

    async def _write_all(self, writes: list[_Write]) -> None:
        await asyncio.gather(*map(self._write, writes))

    async def _write(self, write: _Write) -> None:
        """What fails is found missing again at the next look."""
        try:
            answer = await self.feed.transport.request(write.method, write.path, body=write.body)
        except ApiUnreachable:
            return
        except RefusedByApi as refused:
            if refused.status not in _SETTLED:
                self.feed.note(_PUBLISHED, str(refused))
                self.feed.refusals.heard(str(refused), time.monotonic())
            return
        self.feed.note(_PUBLISHED)
        self.feed.refusals.heard("", time.monotonic())
        self.feed.turns.submit(self._took, write, answer.body)

    def _took(self, write: _Write, body: bytes) -> None:
        """The answer, until the watch tells the same."""
        if not write.path.startswith(_SLICES) or write.method == "DELETE":
            return
        try:
            taken = _SLICE.decode(body)
        except msgspec.MsgspecError:
            return
        self._slices[taken.metadata.name] = taken

    # Telling --------------------------------------------------------------------------------------

    def _series(self) -> Series:
        """Beside the account, the watts that may be claimed of each domain, and that are."""
        rows = self._rows()
        found = super()._series()
        for name in ("claimable", "claimed"):
            values = [((domain,), row[name] / 1000) for domain, row in rows.items()]
            found[f"{PREFIX}{name}_watts"] = [*values]
        return found

    def _rows(self) -> dict[str, dict[str, int]]:
        held = self._held_mw()
        return {
            device.domain: {"claimable": device.capacity_mw, "claimed": held[device.domain]}
            for device in self._devices
            if device.limited
        }

    def _held_mw(self) -> dict[str, int]:
        """What claims hold of each device with a limit, by its domain."""
        held: Counter[str] = Counter()
        for pools in self._allocated.values():
            held.update(pools)
        return {one.domain: held[pool_name(one)] for one in self._devices if one.limited}

    def _claims(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._claiming

    def _why(self, member: WorkloadPod, behind: int) -> PodFinding:
        """What keeps a pod with a claim; of watts those count that claims leave."""
        diagnosis, order = self.scheduler.diagnosis, self.scheduler.fleet.order
        found = diagnosis.of(member, behind)
        wanted = wanted_of(member.pod, self._hungriest_mw)
        if found.token not in _OF_WATTS or wanted is None:
            return self._kept(member, found)
        rows = np.flatnonzero(diagnosis.eligible.mask(member.pod)).tolist()
        leaves = {order[row].domain for row in rows if order[row].spec.gpu_count}
        path = self.scheduler.domains.tree.path
        lacks = Claimable(self._devices, self._held_mw(), path)
        return self._kept(member, lacks.finding(leaves, wanted.gpus * wanted.gpu_mw) or found)

    def _kept(self, member: WorkloadPod, found: PodFinding) -> PodFinding:
        if found.token != str(ReasonCode.WAITING_FOR_TURN):
            self._stuck.forget(member.uid)
        return found
