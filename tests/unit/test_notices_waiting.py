"""One user's silent receivers hold up no other user's notifications, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.model.event import JobStarted
from wattherd.server.notify import notifier as module
from wattherd.server.notify.channels import NotSent
from wattherd.server.notify.notifier import Notifier
from wattherd.store.entry import JournalEntry, StoreFailure


class Journal:
    """Each job starts by the entry of its number."""

    def __init__(self, users: list[str]) -> None:
        self.users, self.facts = users, dict[str, str]()
        self.last_seq = self.calls = 0
        self.fails = False  # every second time, in the midst

    def fact(self, name: str, default: str) -> str:
        return self.facts.get(name, default)

    def set_fact(self, name: str, value: str) -> None:
        self.facts[name] = value

    def base(self) -> Any:
        return SimpleNamespace(seq=1)

    def identity(self) -> str:
        return "journal0"

    def entries(self, after: int) -> Iterator[JournalEntry]:
        self.calls += 1
        for seq in range(after + 1, len(self.users) + 1):
            if self.fails and self.calls % 2 and seq > after + 12:
                raise StoreFailure("busy")
            started = JobStarted(at_s=0.0, job_id=f"j-{seq}", attempt=1)
            yield JournalEntry(seq=seq, event=started, by="system")


class Channel:
    """Sends at once, or tells that nobody answers, or waits."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(url="", give_up_s=3600.0)
        self.sent: list[str] = []
        self.silent, self.waits = True, threading.Event()

    def send(self, kind: str, target: str, document: Mapping[str, Any]) -> None:
        if document["job"]["user"] == "mallory" and self.silent:
            assert self.waits.wait(20)
            raise NotSent("no answer")
        self.sent.append(document["job"]["id"])


def notifier_of(users: list[str], ports: bool = False) -> tuple[Notifier, Journal, Channel]:
    journal, channel = Journal(users), Channel()

    def past(job_id: str) -> Any:
        number = int(job_id[2:])
        user = users[number - 1]
        host = f"{user}.example:{number}" if ports else f"{user}{number}.example"
        wish = {"on": ["started"], "webhook": f"http://{host}/"}
        spec = SimpleNamespace(id=job_id, user=user, tenant="lab", queue="q")
        return SimpleNamespace(spec=spec, paper={"notify": wish})

    projection = SimpleNamespace(projected=lambda: len(users), answers=lambda _after, _until: {})
    store: Any = SimpleNamespace(journal=journal, projection=projection)
    history: Any = SimpleNamespace(get=past, jobs={}, notified=True)
    made = Notifier(store, history, channel, 0.0)  # type: ignore[arg-type]
    return made, journal, channel


def look(notifier: Notifier, times: int = 1) -> None:
    for _ in range(times):
        notifier.look()
        for thread in threading.enumerate():
            if thread.name == "notify":
                thread.join(0.02)


def test_a_user_with_many_silent_hosts_leaves_room_for_others() -> None:
    notifier, _, channel = notifier_of([*["mallory"] * 30, "ann"])
    look(notifier, 2)
    assert channel.sent == ["j-31"]
    channel.waits.set()


def test_many_ports_of_one_host_are_one_place() -> None:
    notifier, _, channel = notifier_of(["mallory"] * 30, ports=True)
    look(notifier)
    assert len(notifier._busy) == 1
    channel.waits.set()


def test_a_user_of_whom_enough_waits_stops_nobody_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_OF_ONE", 10)
    monkeypatch.setattr(module, "MOST_WAITING", 30)
    monkeypatch.setattr(module, "ENTRIES", 50)
    users = [*["mallory"] * 60, "ann", *["mallory"] * 5, "bob"]
    notifier, journal, channel = notifier_of(users)
    journal.fails = True
    look(notifier, 6)
    assert channel.sent == ["j-61", "j-67"]
    assert len(notifier._waiting) == 10
    assert int(journal.facts.get(module.POSITION, "0")) == 0
    channel.silent = False
    monkeypatch.setattr(module, "PAUSES_S", (0.0,))
    channel.waits.set()
    for _ in range(200):
        look(notifier)
        if len(set(channel.sent)) == len(users):
            break
    look(notifier, 2)
    assert sorted(channel.sent) == sorted(f"j-{number}" for number in range(1, 68))
    assert int(journal.facts[module.POSITION]) == len(users)


def test_entries_are_not_read_while_no_job_asks_for_notifications() -> None:
    notifier, journal, channel = notifier_of(["ann"] * 3)
    notifier._history.notified = False
    look(notifier, 3)
    assert (journal.calls, channel.sent) == (0, [])
    journal.users.append("ann")
    notifier._store.projection.projected = lambda: 4
    notifier._history.notified = True  # with the fourth job
    look(notifier, 3)
    assert channel.sent == ["j-4"]
