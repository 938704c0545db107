"""Accounts of jobs: none is another tenant's, and none has the rights of root in any group."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.engine.core.executor import RunOrder
from wattherd.errors import UserError
from wattherd.local.accounts import OF_SITE, Accounts, TenantRule
from wattherd.model.command import StartJob
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.settings.config import ServeConfig
from wattherd.server.settings.tenant_accounts import check_accounts

NUMBERS = {"ann": (2001, 2001), "bob": (2002, 2002), "bobby": (2002, 2902), "carl": (2003, 2003),
           "dora": (2004, 2004), "eve": (2005, 2003), "shared": (2006, 2006),
           "nobody": (65534, 65534)}  # fmt: skip
NUMBERS |= {"fred": (2010, 2010), "gina": (2011, 2011), "hugo": (2012, 2012)}
MORE_GROUPS = {"dora": [998], "fred": [2003], "gina": [3000], "hugo": [3000]}
GROUPS = {998: "docker", 3000: "vision-data"}


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
        ("fred", "others"),  # a member of the primary group of another tenant's account
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
        ({"a": {"account": "carl"}, "b": {"account": "eve"}}, "same primary group"),
        ({"a": {"account": "carl"}, "b": {"account": "fred"}}, "in the primary group of"),
        ({"a": {"account": "fred"}, "b": {"account": "carl"}}, "that 'fred' is in"),
        ({"a": {"own_accounts": True}, "b": {"own_accounts": True}}, "one tenant"),
    ],
)
def test_a_service_does_not_start_with(tenants: dict[str, Any], told: str) -> None:
    config = ServeConfig(state=Path("/"), tenants=tenants)
    with pytest.raises(UserError, match=told) as error:
        check_accounts(config, asks=False)
    assert error.value.hint


def test_a_group_that_tenants_share_is_told() -> None:
    tenants = {"a": {"account": "gina"}, "b": {"account": "hugo"}, "c": {"account": "carl"}}
    notes = check_accounts(ServeConfig(state=Path("/"), tenants=tenants), asks=False)
    assert "accounts of a, b share the group vision-data:" in notes


@pytest.mark.parametrize(
    ("said", "tenant", "may"),
    [({OF_SITE: False}, "", False), ({OF_SITE: True}, "lab", True), ({}, "", True)],
)
def test_a_start_asks_who_handed_the_job_in(said: dict[str, bool], tenant: str, may: bool) -> None:
    """People of no tenant need not be operators; jobs of earlier versions do not say."""
    start = StartJob(job_id="j-1", attempt=1, allocations=())
    spec = JobSpec(id="j-1", submit_s=0.0, user="ann", tenant=tenant, roles=(TaskRole(count=1),))
    run = RunOrder(spec=spec, paper={"user": "bob", **said}, start=start, cap_w=None)
    if may:
        assert RULES.applied(run).paper["user"] == "bob"
    else:
        with pytest.raises(UserError, match="may not run jobs as 'bob'"):
            RULES.applied(run)
