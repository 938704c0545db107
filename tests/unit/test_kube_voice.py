"""What is written on the cluster of who waits: one series of events a reason, then forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from wattherd.kube.api.transport import ApiAnswer, RefusedByApi
from wattherd.kube.facts import reason_throttle as told
from wattherd.kube.facts.reason_throttle import (
    ReasonNotice,
    ReasonSubject,
    ReasonThrottle,
    SubjectKind,
)
from wattherd.kube.live.reason_events import Speaker, Voice, pod_subject
from wattherd.testing.table_sizes import remembered

WHY = ("WaitingForGpus", "needs 1 GPU")


class Server:
    """Takes all requests; `refuse` has it say no to those whose path has that in it."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, Any]] = []
        self.refuse = "nothing"
        self.hold = asyncio.Event()
        self.hold.set()

    async def request(self, method: str, path: str, *, body: bytes, kind: str = "") -> ApiAnswer:
        del kind
        await self.hold.wait()
        if self.refuse in path:
            raise RefusedByApi(404, "NotFound", f"no {path}")
        self.taken.append((method, path, json.loads(body)))
        return ApiAnswer(200, b"{}")

    def events(self) -> list[tuple[str, int]]:
        """How events were written (new ones, or in a series), and their counts."""
        return [
            (method, body.get("series", {}).get("count", 1))
            for method, path, body in self.taken
            if "/events" in path
        ]


class Room:
    """A voice at work, and whoever listens to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server()
        self.teller = ReasonThrottle()
        speaker = Speaker("wattherd", "test")
        made: Any = self.server
        self.voice = Voice(made, speaker, lambda: True, self.teller)
        monkeypatch.setattr("wattherd.kube.live.reason_events._TICK_S", 0.001)
        monkeypatch.setattr(told, "REPEAT_S", 0.0)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.001)

    def tells(self, name: str) -> ReasonNotice:
        return ReasonNotice(pod_subject(f"default/{name}", f"uid-{name}"), *WHY)


def at_work(monkeypatch: pytest.MonkeyPatch, story: Callable[[Room], Any]) -> Room:
    async def both() -> Room:
        room = Room(monkeypatch)
        work = asyncio.create_task(room.voice.run())
        try:
            await story(room)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        return room

    return asyncio.run(both())


def test_what_still_holds_is_counted_in_one_event_until_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(room: Room) -> None:
        room.voice.tell(room.tells("mortal"))
        await room.until(lambda: len(room.server.events()) >= 3)
        assert room.server.events()[:3] == [("POST", 1), ("PATCH", 2), ("PATCH", 3)]
        room.voice.forget(pod_subject("default/mortal"))
        await room.until(lambda: not remembered(room.voice, "mortal"))
        count = len(room.server.events())
        room.voice.tell(room.tells("other"))
        await room.until(lambda: len(room.server.events()) > count)

    room = at_work(monkeypatch, story)
    assert remembered(room.voice, "mortal") == {}


def test_a_pod_that_goes_while_its_event_is_being_written_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(room: Room) -> None:
        room.server.hold.clear()
        room.voice.tell(room.tells("mortal"))
        await room.until(lambda: bool(remembered(room.teller, "mortal")))
        room.voice.forget(pod_subject("default/mortal"))
        room.server.hold.set()
        await room.until(lambda: bool(room.server.events()))
        await room.until(lambda: not remembered(room.voice, "mortal"))

    at_work(monkeypatch, story)


def test_a_group_is_forgotten_like_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    version = "scheduling.k8s.io/v1beta1"
    path = f"/apis/{version}/namespaces/default/podgroups/mortal"
    subject = ReasonSubject(SubjectKind.GROUP, version, "default", "mortal", path, "uid")

    async def story(room: Room) -> None:
        room.voice.tell(ReasonNotice(subject, *WHY))
        await room.until(lambda: len(room.server.events()) >= 2)
        room.voice.forget(subject)
        await room.until(lambda: not remembered(room.voice, "mortal"))

    at_work(monkeypatch, story)
