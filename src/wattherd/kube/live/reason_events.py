"""Says on the cluster what `ReasonThrottle` finds worth saying, by conditions and events.

Pods get the condition `PodScheduled` that kube-scheduler would write, so that autoscalers and
people read it as they are used to; the token comes first in its message. Native groups get
`PodGroupScheduled` (or what their version calls it), older ones as well where their definition has
conditions, and their phase; Volcano's get events.
`kubectl describe` shows events only, so every reason is an event, too; what still holds is counted
in its series. Who may not write is quiet: no decision depends on what is said.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from wattherd.kube.api.api_objects import ObjectReference, PodGroup, encode
from wattherd.kube.api.discovery import is_kind_served
from wattherd.kube.api.event_objects import ApiEvent, EventSeries
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Object, ObjectMeta, PodStatus, StatusCondition
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.api.transport import MERGE, STRATEGIC, ApiUnreachable, RefusedByApi, Transport
from wattherd.kube.facts.pod_groups import GROUP_APIS, GroupId, GroupKind
from wattherd.kube.facts.reason_throttle import (
    SCHEDULED,
    ReasonNotice,
    ReasonSubject,
    ReasonThrottle,
    SubjectKind,
)

# --- In which version an API server has groups as objects, and where one of them is told something.
#
# Kubernetes has given native groups a new version with each release and serves the old one no more:
# v1alpha2 in 1.36, v1alpha3 and v1beta1 in 1.37. What is read of them is the same in all of these;
# only the condition that says how a group fares has another name since v1alpha3.

PLURAL = "podgroups"
_FIRST_NATIVE = "scheduling.k8s.io/v1alpha2"


class GroupApis:
    """The version of each kind of groups on one cluster; none before `find`."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self._versions: dict[GroupKind, str] = {}

    def find(self, feed: ApiFeed) -> dict[GroupKind, str]:
        """Ask the API server; paths of the lists of those kinds that it serves."""
        for kind, versions in GROUP_APIS.items():
            served = next((one for one in versions if _is_served(feed, one)), None)
            if served is not None:
                self._versions[kind] = served
        return {kind: f"/apis/{one}/{PLURAL}" for kind, one in self._versions.items()}

    def selections(self, feed: ApiFeed) -> dict[GroupKind, Selection[PodGroup]]:
        """What to follow: the kinds that are served, and those of others that may be installed."""
        found: dict[GroupKind, Selection[PodGroup]] = {}
        paths = self.find(feed)
        for kind, versions in GROUP_APIS.items():
            if kind is not GroupKind.NATIVE:
                path, served = f"/apis/{versions[0]}/{PLURAL}", Served.WHILE_INSTALLED
                path = paths.get(kind, path)
                found[kind] = Selection(path, PodGroup, served=served, optional=True)
            elif kind in paths:
                found[kind] = Selection(paths[kind], PodGroup, optional=True)
        return found

    def noting(self, kind: GroupKind) -> Callable[[bool], None]:
        """Is to be called with whether a kind of `selections` is served."""

        def note(served: bool) -> None:  # noqa: FBT001
            if served:
                self._versions.setdefault(kind, GROUP_APIS[kind][0])

        return note

    def subject(self, group: GroupId, uid: str = "") -> ReasonSubject | None:
        """A group that something is told of, where its kind is served."""
        version = self._versions.get(group.kind)
        if version is None:
            return None
        path = f"/apis/{version}/namespaces/{group.namespace}/{PLURAL}/{group.name}"
        return ReasonSubject(SubjectKind.GROUP, version, group.namespace, group.name, path, uid)


def _is_served(feed: ApiFeed, version: str) -> bool:
    return is_kind_served(feed, f"/apis/{version}", PLURAL)


def condition_type(version: str) -> str:
    """The condition by which groups of a version say whether they have their places."""
    native = version.partition("/")[0] == GroupKind.NATIVE
    later = native and version != _FIRST_NATIVE
    return "PodGroupInitiallyScheduled" if later else "PodGroupScheduled"


_STATUS_OF_OTHERS = frozenset({"scheduling.volcano.sh/v1beta1"})
"""Phases and conditions there are a step of Volcano's own controllers: we say events only."""
_TICK_S = 0.2
_AT_ONCE = 16
_MOST_NOTE = 1024
_MOST_NAME = 230
_MOST_NAMED = 20_000
"""Events that are remembered so as to be counted on; with more, new ones are written."""
_WAITING, _ACTION = "FailedScheduling", "Scheduling"
"""As kube-scheduler's, so that what watches for these finds ours."""


class _PodStatus(Object, frozen=True):
    status: PodStatus


class _GroupStatus(Object, frozen=True):
    conditions: list[StatusCondition]
    phase: str = ""


class _Group(Object, frozen=True):
    status: _GroupStatus


class _Again(Object, frozen=True):
    series: EventSeries


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks: `name` is the scheduler's, `instance` this copy of it.

    `unplaced` is the reason in the condition of pods that wait; without one others write that.
    """

    name: str
    instance: str
    unplaced: str = "Unschedulable"


def pod_subject(key: str, uid: str = "") -> ReasonSubject:
    """A pod by namespace and name."""
    namespace, _, name = key.partition("/")
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    return ReasonSubject(SubjectKind.POD, "v1", namespace, name, path, uid)


class Voice:
    """Takes notices from any thread; `run` writes them in the transport's loop."""

    def __init__(
        self,
        transport: Transport,
        speaker: Speaker,
        may: Callable[[], bool],
        teller: ReasonThrottle,
        *,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing is said while `may` does not hold: others lead, and speak.

        While `busy` there is more urgent work for the API server than what became of pods.
        """
        self._transport = transport
        self._speaker = speaker
        self._may = may
        self._busy = busy
        self.groups = GroupApis()
        self._teller = teller
        self._heard: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._named: dict[str, str] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self.trouble = ""
        """The last thing that kept something from being written."""

    def tell(self, notice: ReasonNotice) -> None:
        """Why something waits."""
        self._heard.append((self._teller.tell, (notice, time.monotonic())))

    def say(self, notice: ReasonNotice) -> None:
        """What became of something."""
        self._heard.append((self._teller.say, (notice, time.monotonic())))

    def forget(self, subject: ReasonSubject) -> None:
        """It waits no more, or is no more."""
        self._heard.append((self._forget, (subject.path,)))

    def _forget(self, path: str) -> None:
        self._teller.forget(path)
        self._named.pop(path, None)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_TICK_S)
            while self._heard:
                hear, given = self._heard.popleft()
                hear(*given)
            if self._may():
                due = self._teller.due(time.monotonic(), busy=self._busy())
                await asyncio.gather(*map(self._write, due))

    async def _write(self, notice: ReasonNotice) -> None:
        async with self._places:
            try:
                if notice.times == 1 and self._speaker.unplaced:
                    await self._condition(notice)
                await self._event(notice)
            except RefusedByApi as refused:
                if refused.status != http.HTTPStatus.NOT_FOUND:
                    self._failed(notice, str(refused))
            except ApiUnreachable as error:
                self._failed(notice, str(error))

    def _failed(self, notice: ReasonNotice, why: str) -> None:
        self.trouble = why
        self._teller.failed(notice, time.monotonic())

    # Conditions -----------------------------------------------------------------------------------

    async def _condition(self, notice: ReasonNotice) -> None:
        subject = notice.subject
        if subject.about is SubjectKind.GROUP and subject.api_version in _STATUS_OF_OTHERS:
            return
        if subject.about is SubjectKind.GROUP:
            await self._patch(f"{subject.path}/status", _of_group(notice), MERGE)
        elif notice.waits:
            await self._patch(
                f"{subject.path}/status", _of_pod(notice, self._speaker.unplaced), STRATEGIC
            )

    async def _patch(self, path: str, body: Object, kind: str) -> None:
        await self._transport.request("PATCH", path, body=encode(body), kind=kind)

    # Events ---------------------------------------------------------------------------------------

    async def _event(self, notice: ReasonNotice) -> None:
        subject = notice.subject
        events = f"/apis/events.k8s.io/v1/namespaces/{subject.namespace}/events"
        known = self._named.get(subject.path)
        if notice.times > 1 and known is not None:
            series = EventSeries(count=notice.times, last_observed_time=wall())
            try:
                await self._patch(f"{events}/{known}", _Again(series=series), MERGE)
            except RefusedByApi as refused:
                if refused.status != http.HTTPStatus.NOT_FOUND:
                    raise
            else:
                return
        event = _event(notice, self._speaker)
        await self._transport.request("POST", events, body=encode(event))
        waits = notice.waits and self._teller.knows(subject.path)
        if waits and len(self._named) < _MOST_NAMED:
            self._named[subject.path] = event.metadata.name
        else:
            self._named.pop(subject.path, None)


def wall() -> str:
    """The time of day as the API writes it (`MicroTime`)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now() -> str:
    """To the second, as conditions have it (`Time`)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of_pod(notice: ReasonNotice, unplaced: str) -> Object:
    condition = StatusCondition(
        type="PodScheduled",
        status="False",
        reason=unplaced,
        message=notice.line(),
        last_transition_time=_now() if notice.first else None,
    )
    return _PodStatus(status=PodStatus(conditions=[condition]))


def _of_group(notice: ReasonNotice) -> Object:
    condition = StatusCondition(
        type=condition_type(notice.subject.api_version),
        status="False" if notice.waits else "True",
        reason="Unschedulable" if notice.waits else "Scheduled",
        message=notice.line(),
        last_transition_time=_now(),
    )
    older = not notice.subject.api_version.startswith("scheduling.k8s.io/")
    phase = ("Pending" if notice.waits else "Scheduled") if older else ""
    return _Group(status=_GroupStatus(conditions=[condition], phase=phase))


def _event(notice: ReasonNotice, speaker: Speaker) -> ApiEvent:
    subject = notice.subject
    good = notice.token == SCHEDULED
    return ApiEvent(
        metadata=ObjectMeta(
            name=f"{subject.name[:_MOST_NAME]}.{time.time_ns():x}", namespace=subject.namespace
        ),
        event_time=wall(),
        reporting_controller=speaker.name,
        reporting_instance=speaker.instance[:128],
        action="Binding" if good else _ACTION if notice.waits else "Evicting",
        reason=_WAITING if notice.waits else notice.token,
        regarding=ObjectReference(
            api_version=subject.api_version,
            kind=str(subject.about),
            namespace=subject.namespace,
            name=subject.name,
            uid=subject.uid,
        ),
        note=_short(notice.line() if notice.waits else notice.text),
        type="Normal" if good else "Warning",
    )


def _short(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= _MOST_NOTE else raw[: _MOST_NOTE - 3].decode(errors="ignore") + "..."
