"""Single sign-on as configured: which rules fit, what is refused, when a login ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="the extra `oidc` is not installed")

from wattherd.errors import UserError
from wattherd.server.auth.caller import Caller, Role
from wattherd.server.auth.oidc.settings import OidcSettings
from wattherd.server.auth.oidc.sign_in import BrowserSessions, NoRoleMapped, caller_of
from wattherd.server.settings.config import read_config

RULES = [
    {"claim": "groups", "value": "admins", "role": "admin"},
    {"claim": "groups", "value": "vision", "role": "user", "tenant": "vision"},
    {"claim": "realm.roles", "value": "watch", "role": "viewer", "tenant_claim": "team"},
]


def test_sessions_end_by_themselves() -> None:
    now_s = [0.0]
    sessions = BrowserSessions(60.0, lambda: now_s[0])
    ann = Caller(user="ann", role=Role.USER)
    shown = sessions.begin(ann)
    assert sessions.caller(shown) == ann
    assert sessions.caller(shown + "x") is None
    now_s[0] = 61.0
    assert sessions.caller(shown) is None


def test_rules_fit_values_of_any_kind() -> None:
    def found(claims: dict[str, Any], **rule: str) -> Role | None:
        settings = OidcSettings.model_validate(
            {"issuer": "https://i.example", "client_id": "c", "user_claim": "sub",
             "rules": [{"role": "viewer", **rule}]}
        )  # fmt: skip
        try:
            return caller_of({"sub": "ann", **claims}, settings).role
        except NoRoleMapped:
            return None

    assert found({"https://x.example/roles": ["a"]}, claim="https://x.example/roles", value="a")
    assert found({"email_verified": True}, claim="email_verified", value="true")
    assert found({"level": 3}, claim="level", value="3")
    assert found({"a": {"b": {"c": "d"}}}, claim="a.b.c", value="d")
    assert found({"team": "x"}, claim="team", value="*")
    assert not found({"team": []}, claim="team", value="*")
    assert not found({}, claim="team", value="*")
    assert not found({"groups": "administrators"}, claim="groups", value="admin")
    assert not found({"groups": ["b"]}, claim="groups", value="a")
    assert not found({"t": "a/b"}, claim="t", value="*", tenant_claim="t")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"issuer": "http://i.example"}, "is not https"),
        ({"rules": []}, "has 0 entries, 1 are the least"),
        ({"algorithms": ["HS256"]}, "is 'HS256', where 'RS256'"),
        ({"algorithms": ["none"]}, "is 'none', where 'RS256'"),
        ({"session": "1s"}, "out of range"),
        ({"rules": [{"claim": "a", "value": "b", "role": "admin", "tenant": "x"}]}, "whole site"),
        ({"client": "c"}, "unknown field"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_a_configuration_that_makes_no_sense_is_refused(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    oidc = {"issuer": "https://i.example", "client_id": "c", "rules": RULES}
    (tmp_path / "serve.yaml").write_text(json.dumps({"oidc": {**oidc, **change}}))
    with pytest.raises(UserError, match=why) as refused:
        read_config(tmp_path / "serve.yaml", {})
    assert refused.value.field.startswith("oidc")
