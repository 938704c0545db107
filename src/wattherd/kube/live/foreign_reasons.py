"""Tells pods of other schedulers on the cluster why they wait, by events beside those of theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from wattherd.kube.account.cluster_news import kept
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.changes import Key
from wattherd.kube.api.feed import LOOK_S, ApiFeed
from wattherd.kube.api.objects import Pod
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi, Transport
from wattherd.kube.decide.foreign_reasons import ForeignReasons
from wattherd.kube.facts.orders import AskAgain, TellGroup, TellPod
from wattherd.kube.facts.pod_groups import GroupId, group_of
from wattherd.kube.facts.reason_throttle import ReasonNotice
from wattherd.kube.live.reason_events import (
    Voice,
    pod_subject,
    wall,
)


class ForeignReasonsWriter:
    """An onlooker at work on the cluster of `feed`; `work` in a thread of its own."""

    def __init__(
        self, feed: ApiFeed, onlooker: ForeignReasons, voice: Voice, leads: Callable[[], bool]
    ) -> None:
        """`voice` writes events alone: conditions are for who places the pods."""
        self._feed, self._onlooker, self._voice, self._leads = feed, onlooker, voice, leads

    def follow_groups(self, groups: dict[GroupId, PodGroup]) -> None:
        """Keep `groups` as the API shows them, of those kinds that it knows."""
        for kind, selection in self._voice.groups.selections(self._feed).items():
            named = lambda key, kind=kind: GroupId(kind, key.namespace, key.name)  # noqa: E731
            self._feed.follow(selection, kept(groups, named), self._voice.groups.noting(kind))

    def pod_seen(self, pod: Pod) -> None:
        """In turn: a pod is there, or changed."""
        self._onlooker.pod_seen(pod)
        if not self._onlooker.waits(pod):
            self._forget(pod.metadata.namespace, pod.metadata.name, group_of(pod))

    def pod_gone(self, key: Key) -> None:
        """In turn: a pod is gone."""
        group = self._onlooker.group_of(key.uid)
        self._onlooker.pod_gone(key.uid)
        self._forget(key.namespace, key.name, group)

    def _forget(self, namespace: str, name: str, group: GroupId | None) -> None:
        """Nothing is said of a pod any more, nor of a group of which none waits."""
        self._voice.forget(pod_subject(f"{namespace}/{name}"))
        if group is not None and self._onlooker.rests(group):
            subject = self._voice.groups.subject(group)
            if subject is not None:
                self._voice.forget(subject)

    def work(self) -> None:
        """Look now and then, one pod in a turn: who asks for a node is not held up for long."""
        while not self._feed.over.wait(LOOK_S):
            if not (self._feed.sees() and self._leads()):
                continue
            for uid in self._feed.turn(self._onlooker.some):
                self._feed.turn(self._tell_of, uid)

    def _tell_of(self, uid: str) -> None:
        """In turn: no word about a pod comes after the news that it is gone."""
        for order in self._onlooker.told(uid):
            self._tell(order)

    def _tell(self, order: TellPod | TellGroup | AskAgain) -> None:
        match order:
            case AskAgain():
                self._feed.loop.begin(_asked_again(self._feed.transport, order))
                return
            case TellPod():
                subject = pod_subject(order.key, order.uid)
            case TellGroup():
                found = self._voice.groups.subject(order.group, order.uid)
                if found is None:
                    return
                subject = found
        self._voice.tell(ReasonNotice(subject, order.reason, order.text))


async def _asked_again(transport: Transport, order: AskAgain) -> None:
    """Any change of a pod that an extender refused has kube-scheduler look at it, and at no other.

    Written with its status, like all our notes: that takes no right to change its spec. Where it
    cannot be written, the next news of pods or nodes does the same.
    """
    about = {"uid": order.uid, "annotations": {names.ASKED_AGAIN: wall()}}
    body = json.dumps({"metadata": about}).encode()
    with suppress(RefusedByApi, ApiUnreachable):
        path = f"{pod_subject(order.key).path}/status"
        await transport.request("PATCH", path, body=body, kind=MERGE)
