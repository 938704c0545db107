"""Tokens at rest, token buckets, the record of requests, rules of addresses."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.errors import ClusterError, UserError
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.auth.audit import Audit
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.auth.gate import AccessDesk
from wattherd.server.auth.rates import RequestRates, retry_after
from wattherd.server.auth.rules import OpenAddresses, RuleBook
from wattherd.server.auth.tokens import TokenFile


def test_a_token_opens_until_it_is_revoked(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    assert not tokens.asked_for
    made, text = tokens.create(user="ann", role=Role.USER, tenant="lab")
    assert tokens.asked_for
    expected = Caller(user="ann", role=Role.USER, tenant="lab", token=made.id)
    assert tokens.caller(text) == expected
    elsewhere = TokenFile(tmp_path / "tokens.json")
    elsewhere.revoke(made.id)
    assert tokens.caller(text) is None
    assert tokens.asked_for


def test_the_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, text = tokens.create(user="ann", role=Role.ADMIN)
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    assert text.split("_", 2)[2] not in tokens.path.read_text()


@pytest.mark.parametrize("shown", ["", "wh", "wh_", "wh__", "xx_{id}_s", "wh_{id}_", "wh_{id}_é"])
def test_what_is_no_token_opens_nothing(tmp_path: Path, shown: str) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    made, _ = tokens.create(user="ann", role=Role.ADMIN)
    assert tokens.caller(shown.replace("{id}", made.id)) is None


def test_a_token_that_has_expired_opens_nothing(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, text = tokens.create(user="ann", role=Role.ADMIN, ttl_s=-1.0)
    assert tokens.caller(text) is None


def test_a_lost_or_broken_file_locks_out_not_in(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    _, text = tokens.create(user="ann", role=Role.ADMIN)
    tokens.path.write_text("{")
    with pytest.raises(ClusterError, match="cannot be read"):
        tokens.caller(text)
    tokens.path.unlink()
    assert tokens.caller(text) is None
    assert tokens.asked_for


def test_tokens_made_at_once_are_all_kept(tmp_path: Path) -> None:
    def make() -> None:
        TokenFile(tmp_path / "tokens.json").create(user="ann", role=Role.USER)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(TokenFile(tmp_path / "tokens.json").all()) == 8


def test_operators_belong_to_no_tenant(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="whole site"):
        TokenFile(tmp_path / "t.json").create(user="ann", role=Role.OPERATOR, tenant="lab")


def test_a_caller_sees_the_tenant_and_touches_its_own() -> None:
    def job(user: str, tenant: str) -> JobSpec:
        return JobSpec(id="j-1", submit_s=0.0, roles=(TaskRole(count=1),), user=user, tenant=tenant)

    ann = Caller(user="ann", role=Role.USER, tenant="lab")
    table = {("ann", "lab"): (True, True), ("bob", "lab"): (True, False)}
    for (user, tenant), (sees, touches) in {**table, ("ann", ""): (False, False)}.items():
        assert (ann.sees(job(user, tenant)), ann.touches(job(user, tenant))) == (sees, touches)
    viewer = Caller(user="ann", role=Role.VIEWER, tenant="lab")
    assert not viewer.touches(job("ann", "lab"))
    assert Caller(user="op", role=Role.OPERATOR).touches(job("ann", "lab"))


def test_a_bucket_fills_at_its_rate() -> None:
    rates = RequestRates(rate_per_s=2.0, burst=3.0)
    assert [rates.wait_s("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.wait_s("b", 0.0) == 0.0
    assert rates.wait_s("a", 0.5) == 0.0
    assert rates.wait_s("a", 0.5) == 0.5
    assert [rates.wait_s("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert [retry_after(wait_s) for wait_s in (0.5, 1.0, 1.2)] == ["1", "1", "2"]


def test_no_thread_waits_for_an_issuer_of_whom_nothing_is_asked(tmp_path: Path) -> None:
    class Nobody:
        def caller(self, shown: str) -> Caller | None:
            return None

    before = set(threading.enumerate())

    def asking(desk: AccessDesk) -> int:
        """Threads that wait for an issuer, but those that other tests left."""
        assert asyncio.run(desk.known("wt_unknown")) is None
        return sum(one.name.startswith("issuer") for one in set(threading.enumerate()) - before)

    desk = AccessDesk(
        TokenFile(tmp_path / "tokens.json"), Audit(tmp_path), RequestRates(9.0, 9), issuer=None
    )
    assert (asking(desk), set(threading.enumerate()) - before) == (0, set())
    desk.issuer = Nobody()  # type: ignore[assignment]  # asked for callers alone
    assert asking(desk) == 1
    desk.asking.shutdown()


def test_the_record_is_read_backwards_over_its_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("wattherd.server.auth.audit.MOST_BYTES", 60)
    audit = Audit(tmp_path)
    for number in range(10):
        audit.add({"by": "ann" if number % 2 else "bob", "number": number})
    assert (tmp_path / "audit.jsonl.3").exists()
    assert [one["number"] for one in audit.lines(3)] == [9, 8, 7]
    assert [one["number"] for one in audit.lines(2, by="bob", result=None)] == [8, 6]
    with audit.path.open("a") as stream:
        stream.write('{"by": "cut')
    assert [one["number"] for one in audit.lines(1)] == [9]


def test_no_line_of_the_record_is_ever_lost_to_newer_ones(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("wattherd.server.auth.audit.MOST_BYTES", 60)
    audit = Audit(tmp_path)
    for number in range(60):
        audit.add({"by": "ann", "number": number})
    assert len(list(tmp_path.glob("audit.jsonl.*"))) > 10
    assert [one["number"] for one in audit.lines(100)] == [*range(59, -1, -1)]
    (tmp_path / "audit.jsonl.5").unlink()  # an operator may take some away
    audit.add({"by": "ann", "number": 60})
    assert audit.lines(100)[-1]["number"] == 0


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "missing")
    audit.add({"by": "ann"})
    assert "audit.jsonl" in audit.problem


def test_rules_are_found_by_method_and_address() -> None:
    book = RuleBook(
        {
            ("GET", "/a"): Role.VIEWER,
            ("POST", "/a/{x}"): OpenAddresses.OWN,
            ("GET", "/a/{x}"): Role.ADMIN,
        }
    )
    assert book.rule("GET", "/a") is book.rule("HEAD", "/a") is Role.VIEWER
    assert book.rule("POST", "/a/1") is OpenAddresses.OWN
    for nothing in (("GET", "/a/1/2"), ("GET", "/a/"), ("POST", "/a"), ("GET", "/b")):
        assert book.rule(*nothing) is None
    assert book.methods("/a/1") == ["GET", "POST"]


def test_the_file_of_tokens_is_json_with_a_schema(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json")
    made, _ = tokens.create(user="ann", role=Role.USER, name="ci", ttl_s=60.0)
    document = json.loads(tokens.path.read_text())
    assert document["schema"] == "wattherd.tokens/1"
    assert document["tokens"][0]["expires_s"] == made.created_s + 60.0
    assert set(made.row()) == {"id", "name", "user", "role", "tenant", "created", "expires"}
