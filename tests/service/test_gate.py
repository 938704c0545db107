"""The gate of a real service: open to this machine only, cookies, limits, encryption."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.guarded import Guarded
from service.serving import Serving
from wattherd.server.auth.caller import Role

JOBS = "/api/v1/jobs"
CERTS = pytest.importorskip("trustme", reason="makes certificates")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path / "state", rate_per_s=1.0, rate_burst=20)
    yield guarded
    guarded.close()


def test_without_tokens_this_machine_is_admin_and_no_other_page(guarded: Guarded) -> None:
    me = guarded.ask("GET", "/api/v1/whoami?user=ann").json
    assert (me["user"], me["role"]) == ("ann", "admin")
    for foreign in (
        {"host": "rebound.example:8700"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "127.0.0.1.evil.example"},
    ):
        assert guarded.ask("GET", JOBS, **foreign).status == 403
        assert guarded.ask("POST", f"{JOBS}/j-1/cancel", **foreign).status == 403
    for own in ({"host": "localhost:1"}, {"host": "[::1]:1"}, {"origin": guarded.url}):
        assert guarded.ask("GET", JOBS, **own).status == 200


def test_the_first_token_closes_the_gate(guarded: Guarded) -> None:
    guarded.let_in("ann", Role.USER)
    assert guarded.ask("GET", JOBS).status == 401
    assert guarded.ask("GET", JOBS, "ann").status == 200
    assert guarded.ask("GET", JOBS, authorization="Basic YTpi").status == 401
    assert guarded.ask("GET", "/api/v1/nothing").status == 401
    reply = guarded.ask("DELETE", JOBS, "ann")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, POST")


@pytest.mark.long
def test_a_cookie_looks_and_does_not_act(guarded: Guarded) -> None:
    guarded.let_in("ann", Role.ADMIN)
    cookie = f"wattherd_token={guarded.tokens['ann']}"
    assert guarded.ask("GET", JOBS, cookie=cookie).status == 200
    assert guarded.ask("POST", JOBS, "", {"run": "true"}, cookie=cookie).status == 401
    assert guarded.ask("GET", JOBS, cookie='wattherd_token="').status == 401


def test_who_asks_too_often_waits(guarded: Guarded) -> None:
    guarded.let_in("ann", Role.USER)
    guarded.let_in("bob", Role.USER)
    replies = [guarded.ask("GET", "/api/v1/whoami", "ann") for _ in range(60)]
    late = [one for one in replies if one.status == 429]
    assert late
    assert int(late[0].headers["retry-after"]) >= 1
    assert guarded.ask("GET", "/api/v1/whoami", "bob").status == 200


def test_guessing_tokens_is_slow(guarded: Guarded) -> None:
    guarded.let_in("ann", Role.USER)
    guarded.tokens["guess"] = guarded.tokens["ann"][:-1] + "?"
    told = {guarded.ask("GET", JOBS, "guess").status for _ in range(60)}
    assert told == {401, 429}


def test_wrong_tokens_keep_no_right_one_out_behind_the_same_address(guarded: Guarded) -> None:
    """A class behind one router is one address."""
    guarded.let_in("ann", Role.USER)
    guarded.tokens["guess"] = guarded.tokens["ann"][:-1] + "?"
    for _ in range(10):
        wrong = {guarded.ask("GET", JOBS, "guess").status for _ in range(6)}
        assert guarded.ask("GET", JOBS, "ann").status == 200
    assert wrong == {429}
    assert guarded.ask("GET", JOBS).status == 401  # who shows none is told what is missing


def test_a_body_without_end_is_cut(guarded: Guarded) -> None:
    for megabytes in (1, 1, 6, 6):  # its sender is told, however long it goes on sending
        long = b'{"run": "' + b"x" * (megabytes << 20) + b'"}'
        reply = guarded.ask("POST", JOBS, "", long)
        assert (reply.status, "bytes" in reply.json["error"]) == (413, True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ([], ["without tokens", "token create"]),
        (["--tls-cert", "none.pem"], ["without tokens"]),
    ],
)
def test_other_machines_are_not_let_in_unasked(
    tmp_path: Path, options: list[str], parts: list[str]
) -> None:
    serving = Serving(tmp_path / "state")
    told = serving.call(
        "serve", "--state", str(tmp_path / "state"), "--host", "0.0.0.0", *options
    )  # fmt: skip
    assert told.returncode == 2
    for part in parts:
        assert part in told.stderr


@pytest.mark.long
def test_tokens_do_not_travel_in_the_clear(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "state")
    made = serving.call("token", "create", "--state", str(tmp_path / "state"), "--role", "admin")
    assert re.fullmatch(r"wh_[0-9a-f]{8}_\S{43}\n", made.stdout)
    told = serving.call("serve", "--state", str(tmp_path / "state"), "--host", "0.0.0.0")
    assert (told.returncode, "--tls-cert" in told.stderr) == (2, True)


@pytest.mark.long
def test_a_service_under_tls_and_its_command_line(tmp_path: Path) -> None:
    authority = CERTS.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(files["key"])
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    serving = Serving(tmp_path / "state", "--tls-cert", str(files["cert"]), "--tls-key",
                      str(files["key"]), "--allow-root-jobs")  # fmt: skip
    token = serving.call("token", "create", "--state", str(serving.state), "--role", "admin").stdout
    (tmp_path / "token").write_text(token)
    serving.begin()
    try:
        trust = ssl.create_default_context(cafile=str(files["ca"]))
        health = f"https://127.0.0.1:{serving.port}/api/v1/health"

        def answers() -> bool:
            try:
                with urllib.request.urlopen(health, context=trust, timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        from service.serving import until

        until(answers)

        def call(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
            server = {"WATTHERD_SERVER": f"https://127.0.0.1:{serving.port}"}
            return subprocess.run(
                [sys.executable, "-m", "wattherd.cli.main", *arguments],
                env={**os.environ, **server, **more},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        known = {"WATTHERD_CA": str(files["ca"])}
        shown = {**known, "WATTHERD_TOKEN_FILE": str(tmp_path / "token")}
        assert call("queue", **shown).returncode == 0
        assert "needs a token" in call("queue", **known).stderr
        assert call("queue", **known).returncode == 5
        assert call("queue").returncode == 4
        made = call("token", "create", "--user", "ann", "-o", "json", **shown).stdout
        listed = call("token", "list", **shown).stdout
        assert "ann" in listed
        token_id = re.findall(r"wh_([0-9a-f]{8})_", made)[0]
        assert call("token", "revoke", token_id, **shown).stdout == f"{token_id} revoked\n"
        assert "ann" not in call("token", "list", **shown).stdout
    finally:
        serving.end()
