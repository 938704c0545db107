"""Server-sent events: what happens, to whom it may be told, and nothing twice or never."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from click.testing import CliRunner

from service.guarded import MOST_S, Guarded
from wattherd.cli.main import cli
from wattherd.cli.watch import parsed
from wattherd.server.documents import event_stream as feeds
from wattherd.server.documents.event_stream import EventStream, Happening, HappeningKind

EVENTS = "/api/v1/events"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state").let_people_in()
    yield guarded
    guarded.close()


@contextlib.contextmanager
def listening(guarded: Guarded, who: str, query: str = "", **headers: str) -> Iterator[Any]:
    """Events as they come, to whoever shows that token."""
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=MOST_S)
    headers["authorization"] = f"Bearer {guarded.tokens[who]}"
    with contextlib.closing(connection):
        connection.request("GET", EVENTS + query, headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        assert answer.readline() == b"retry: 2000\n"  # it has begun to listen
        yield parsed(iter(lambda: answer.read1(65_536), b""))


def past(guarded: Guarded, who: str, query: str = "") -> list[dict[str, Any]]:
    with listening(guarded, who, f"?follow=false&after=0{query}") as events:
        return list(events)


def until_state(events: Iterator[dict[str, Any]], job: str, state: str) -> list[dict[str, Any]]:
    found = []
    for event in events:
        found.append(event)
        if event["event"] == "job" and (event["id"], event["state"]) == (job, state):
            return found
    raise AssertionError(f"ended before {job} was {state}")


@pytest.mark.long
def test_a_job_is_told_from_beginning_to_end_and_watts_beside_it(guarded: Guarded) -> None:
    with listening(guarded, "user") as events:
        job = guarded.submit("user", "sleep 1.5")
        found = until_state(events, job, "Succeeded")
    states = [one["state"] for one in found if one["event"] == "job" and one["id"] == job]
    assert states[-3:] == ["Starting", "Running", "Succeeded"]
    last = found[-1]
    assert (last["from"], last["exit_code"], last["attempt"]) == ("Running", 0, 1)
    watts = [one for one in found if one["event"] == "power"]
    assert watts
    assert all(one["draw_w"] > 0 and one["stated"] == "model" for one in watts)
    assert not any(one["event"] == "decision" for one in found)


def test_who_was_cut_off_goes_on_where_he_was(guarded: Guarded) -> None:
    job = guarded.submit("user", "true")
    guarded.until(
        lambda: guarded.ask("GET", f"/api/v1/jobs/{job}", "user").json["state"] == "Succeeded"
    )
    of_it = f"&kind=job&job={job}"  # another test's job may be ending still
    whole = past(guarded, "user", of_it)
    assert len({one["event_id"] for one in whole}) == len(whole) >= 3
    for at, one in enumerate(whole):
        headers = {"Last-Event-ID": one["event_id"]}
        with listening(guarded, "user", f"?follow=false{of_it}", **headers) as events:
            assert list(events) == whole[at + 1 :]


def test_nobody_hears_of_other_tenants(guarded: Guarded) -> None:
    with listening(guarded, "stranger") as events:
        job = guarded.submit("user", "sleep 60", name="private-name")
        watts = next(one for one in events if one["event"] == "power" and one["by_job"])
        assert list(watts["by_job"]) == ["others"]
    guarded.ask("POST", f"/api/v1/jobs/{job}/cancel", "user")
    told = json.dumps(past(guarded, "stranger"))
    assert job not in told
    assert "private" not in told
    assert any(one.get("id") == job for one in past(guarded, "colleague"))
    asked = {who: guarded.ask("GET", f"{EVENTS}?job={job}&follow=false", who) for who in PEOPLE}
    assert {who: reply.status for who, reply in asked.items()} == PEOPLE


PEOPLE = {"stranger": 404, "nobody": 404, "colleague": 200, "operator": 200}


def test_decisions_are_the_operators_and_budgets_everybodys(guarded: Guarded) -> None:
    with listening(guarded, "operator", "?kind=decision&kind=budget") as events:
        job = guarded.submit("user", "true")
        decision = next(one for one in events if any(job in order for order in one["orders"]))
        assert any(one.startswith(f"StartJob {job}") for one in decision["orders"])
        guarded.ask("PUT", "/api/v1/power", "operator", {"budget": "2kW"})
        budget = next(one for one in events if one["event"] == "budget")
    assert (budget["budget_w"], budget["source"]) == (2000.0, "operators")
    kinds = {one["event"] for one in past(guarded, "stranger")}
    assert "budget" in kinds
    assert "decision" not in kinds
    assert guarded.ask("GET", f"{EVENTS}?kind=decision", "user").status == 403


@pytest.mark.parametrize("text", ["x", "-1", "1.", "1.2.3", "9" * 30])
def test_an_id_that_is_none_is_refused(guarded: Guarded, text: str) -> None:
    reply = guarded.ask("GET", f"{EVENTS}?after={text}&follow=false", "user")
    assert reply.status == 400
    assert reply.json["field"] == "after"


def test_what_is_no_longer_kept_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = a_feed(monkeypatch, kept=3)
    feed._publish([a_budget(n) for n in range(6)])
    loop = asyncio.new_event_loop()
    for seq, whole, missed in ((0, False, 3), (1, False, 3), (2, True, 3), (4, True, 1)):
        found = feed.listen((seq, 0), loop)
        assert found is not None
        assert (found[2], len(found[1])) == (whole, missed)
    loop.close()


def test_an_id_ahead_of_the_journal_is_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = a_feed(monkeypatch, kept=30)
    feed._publish([a_budget(n) for n in range(6)])
    loop = asyncio.new_event_loop()
    for after, whole in (
        ((5, 0), True),
        ((5, 1 << 40), True),
        ((6, 0), False),
        ((1 << 50, 0), False),
    ):
        found = feed.listen(after, loop)
        assert found is not None
        assert (found[2], found[1]) == (whole, [])
    loop.close()


def test_an_id_of_a_replaced_store_gives_a_gap(guarded: Guarded) -> None:
    """Its number exists here, too: the digest of the entry tells the two apart."""
    guarded.submit("user", "true")
    ours = past(guarded, "user", "&kind=job")[0]["event_id"]
    seq, count, mark = ours.split(".")
    assert mark == guarded.site.store.journal.digest(int(seq))[:8]
    other = f"{seq}.{count}.{'0' * 8 if mark != '0' * 8 else '1' * 8}"
    ahead = "999999.0"
    for last, gap in ((ours, False), (f"{seq}.{count}", False), (other, True), (ahead, True)):
        headers = {"Last-Event-ID": last}
        with listening(guarded, "user", "?follow=false&kind=job", **headers) as events:
            kinds = [one["event"] for one in events]
        assert (kinds[:1] == ["gap"]) is gap, last
        assert not gap or kinds == ["gap"]


@pytest.mark.long
def test_a_stream_on_which_nothing_happens_says_that_it_goes_on(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watts are sampled all the time, but who has not asked for them hears nothing of them."""
    from wattherd.server.api.routes import events as route

    monkeypatch.setattr(route, "HEARTBEAT_S", 0.5)
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=10)
    headers = {"authorization": f"Bearer {guarded.tokens['user']}"}
    with contextlib.closing(connection):
        connection.request("GET", f"{EVENTS}?kind=budget", headers=headers)
        answer = connection.getresponse()
        lines = [answer.readline() for _ in range(6)]
    assert lines.count(b": still here\n") == 2


def test_who_does_not_keep_up_is_let_go_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = a_feed(monkeypatch, kept=1000)

    async def slow() -> tuple[bool, bool, list[Happening]]:
        begun = feed.listen(None, asyncio.get_running_loop())
        assert begun is not None
        listener = begun[0]
        feed._publish([a_budget(0)])
        assert len(await listener.next(5.0)) == 1
        feed._publish([a_budget(n) for n in range(1, feeds.MOST_WAITING + 2)])
        return listener.slow, listener.over, await listener.next(5.0)

    assert asyncio.run(slow()) == (True, True, [])
    assert feed._listeners == []


def test_there_is_an_end_to_how_many_may_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = a_feed(monkeypatch, kept=3)
    loop = asyncio.new_event_loop()
    listeners = [feed.listen(None, loop) for _ in range(feeds.MOST_LISTENERS)]
    assert feed.listen(None, loop) is None
    assert listeners[0] is not None
    feed.leave(listeners[0][0])
    assert feed.listen(None, loop) is not None
    feed.end()
    loop.close()


def a_feed(monkeypatch: pytest.MonkeyPatch, kept: int) -> EventStream:
    from unit.test_keeper import a_core
    from wattherd.server.journal.job_history import JobHistory

    monkeypatch.setattr(feeds, "KEPT", kept)
    return EventStream(a_core(), JobHistory(), 0)


def a_budget(seq: int) -> Happening:
    return Happening(kind=HappeningKind.BUDGET, told={"at_s": float(seq)}, place=(seq, 0))


def test_the_command_line_watches(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTHERD_SERVER", guarded.url)
    monkeypatch.setenv("WATTHERD_TOKEN", guarded.tokens["user"])
    job = guarded.submit("user", "exit 3")
    guarded.until(
        lambda: guarded.ask("GET", f"/api/v1/jobs/{job}", "user").json["state"] == "Failed"
    )
    said = CliRunner().invoke(cli, ["watch", job, "--past", "--kind", "job"])
    assert said.exit_code == 0
    last = said.output.splitlines()[-1]
    assert f" {job} " in last
    assert last.endswith("-> Failed, exit code 3")  # it may be over before it is seen to run
    as_json = CliRunner().invoke(cli, ["watch", job, "--past", "--kind", "job", "-o", "json"])
    assert [json.loads(one)["state"] for one in as_json.output.splitlines()][-1] == "Failed"
