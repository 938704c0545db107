"""Accounts of jobs: none is another tenant's, and none has the rights of root in any group."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.errors import UserError
from wattherd.runtime.local.accounts import Accounts, TenantRule
from wattherd.service.live.access.accounts import check_accounts
from wattherd.service.live.config import ServeConfig

NUMBERS = {"ann": (2001, 2001), "bob": (2002, 2002), "bobby": (2002, 2902), "carl": (2003, 2003),
           "dora": (2004, 2004), "eve": (2005, 2003), "shared": (2006, 2006),
           "nobody": (65534, 65534)}  # fmt: skip
MORE_GROUPS = {"dora": [998]}
GROUPS = {998: "docker"}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with these accounts, and a service of root."""

    def account(name: str) -> pwd.struct_passwd:
        uid, gid = NUMBERS[name]
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    def group(number: int) -> grp.struct_group:
        return grp.struct_group((GROUPS.get(number, f"g{number}"), "x", number, []))

    def groups(name: str, gid: int) -> list[int]:
        return [gid, *MORE_GROUPS.get(name, [])]

    monkeypatch.setattr(pwd, "getpwnam", account)
    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(os, "getgrouplist", groups)
    monkeypatch.setattr(os, "geteuid", lambda: 0)


RULES = Accounts(
    tenants={
        "lab": TenantRule(own_accounts=True, users={"dora@example.org": "ann"}),
        "vision": TenantRule(account="carl", accounts=("bob",), users={"x": "gone"}),
    },
    default="shared",
    asks=lambda: True,
)


def test_a_user_has_the_account_of_the_same_name() -> None:
    assert RULES.account_of("lab", "ann") == "ann"
    assert RULES.account_of("lab", "dora@example.org") == "ann"


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        ("carl", "others"),  # the account of another tenant
        ("bob", "others"),  # one that its jobs may name
        ("bobby", "others"),  # another name of the same account
        ("eve", "others"),  # the primary group of another tenant's account
        ("shared", "others"),  # the account of everybody else
        ("dora", "rights of root"),  # in the group docker, beside its primary one
        ("nobody", "of the system"),
    ],
)
def test_no_user_gets_an_account_of_others_by_being_called_so(owner: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as error:
        RULES.account_of("lab", owner)
    assert "vision" not in str(error.value)


@pytest.mark.parametrize(
    ("tenants", "told"),
    [
        ({"a": {"account": "dora"}}, "rights of root"),
        ({"a": {"own_accounts": True}, "b": {"own_accounts": True}}, "one tenant"),
    ],
)
def test_a_service_does_not_start_with(tenants: dict[str, Any], told: str) -> None:
    config = ServeConfig(state=Path("/"), tenants=tenants)
    with pytest.raises(UserError, match=told) as error:
        check_accounts(config, asks=False)
    assert error.value.hint
