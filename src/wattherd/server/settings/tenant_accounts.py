"""System accounts of jobs, as the configuration says, and whether a service may start with them.

Jobs of tenants who show tokens are kept apart by accounts of the machine, and by nothing else.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from wattherd.errors import UserError
from wattherd.local.accounts import (
    GUIDE,
    Accounts,
    TenantRule,
    group_name,
    lets_in,
    root_groups,
)
from wattherd.server.auth.tokens import FILE, TokenFile
from wattherd.server.settings.config import ServeConfig

RESERVE_BYTES = 256 << 20
"""Room for the journal and the ends of runs when accounts have filled a disk (ext4 keeps 5 %)."""


def accounts_of(config: ServeConfig) -> Accounts:
    """The rules of a configuration; whether tokens are asked for is looked at each time."""
    tokens = TokenFile(config.state / FILE)
    return Accounts(
        tenants={name: _rule(config, name) for name in config.tenants},
        default=config.default_account,
        require=config.require_account,
        allow_root_jobs=config.allow_root_jobs,
        secret_dirs=tuple(map(Path.absolute, config.secret_dirs)),
        secret_env=config.secret_env,
        asks=lambda: config.oidc is not None or tokens.asked_for,
    )


def _rule(config: ServeConfig, name: str) -> TenantRule:
    spec = config.tenants[name]
    return TenantRule(
        account=spec.account,
        accounts=spec.accounts,
        users=spec.users,
        own_accounts=spec.own_accounts,
        secret_dirs=tuple(map(Path.absolute, spec.secret_dirs)),
        secret_env=spec.secret_env,
        containers=spec.containers,
    )


def check_accounts(config: ServeConfig, *, asks: bool) -> list[str]:
    """Whether jobs can run as the configuration says; what the operator should hear besides.

    Raises:
        UserError: an account is missing, is root's, or serves two tenants; root's service has
            tokens and no account; or others could put another folder in place of its own.
    """
    accounts, root = accounts_of(config), os.geteuid() == 0
    if config.require_account and config.default_account is not None:
        hint = "with `require_account` each tenant has its own"
        raise UserError("does not go with `require_account`", field="default_account", hint=hint)
    used = dict(_used(config))
    for field, account in used.items():
        _check_account(field, account, root=root)
    _check_apart(config)
    if root and asks and not accounts.mapped and not config.allow_root_jobs:
        raise UserError(
            "a service of root with tokens needs system accounts for its jobs",
            field="tenants",
            hint="set tenants.NAME.account or default_account in its configuration;"
            f" --allow-root-jobs runs all jobs as root, whoever submits them; {GUIDE}",
        )
    if root and (asks or accounts.mapped):
        _check_above(config.state.absolute())
    return list(_notes(config, accounts, asks=asks, root=root))


def _used(config: ServeConfig) -> Iterator[tuple[str, str]]:
    """Accounts, by the fields that name them."""
    if config.default_account is not None:
        yield "default_account", config.default_account
    for tenant, spec in config.tenants.items():
        if spec.account is not None:
            yield f"tenants.{tenant}.account", spec.account
        for number, account in enumerate(spec.accounts):
            yield f"tenants.{tenant}.accounts.{number}", account
        for user, account in spec.users.items():
            yield f"tenants.{tenant}.users.{user}", account


def _check_account(field: str, account: str, *, root: bool) -> None:
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        hint = f"make it: useradd --system --user-group {account}"
        raise UserError(f"no user {account!r} on this machine", field=field, hint=hint) from None
    if not root:
        if entry.pw_uid == os.geteuid():
            return
        hint = "only root may run jobs as somebody else"
        raise UserError(f"cannot run as {account!r}", field=field, hint=hint)
    groups = root_groups(entry)
    if entry.pw_uid == 0 or groups:
        why = f"group {groups[0]}" if groups else "user 0"
        raise UserError(
            f"{account!r} has the rights of root ({why})",
            field=field,
            hint="choose an account without them",
        )


def _check_apart(config: ServeConfig) -> None:
    """No tenant has another's account, or is in its primary group: that lets jobs into folders.

    Accounts of `own_accounts` are known only when their users come, and are looked at then.
    """
    own = [name for name, spec in config.tenants.items() if spec.own_accounts]
    if len(own) > 1:
        problem = f"only one tenant may have them, and {own[0]!r} has"
        hint = "users of two tenants may be called alike, and would share an account"
        raise UserError(problem, field=f"tenants.{own[1]}.own_accounts", hint=hint)
    known = [(field, _tenant_of(field), pwd.getpwnam(account)) for field, account in _used(config)]
    hint = "tenants are kept apart by accounts and groups of their own"
    for number, (field, tenant, entry) in enumerate(known):
        for _, other, before in known[:number]:
            if other == tenant:
                continue
            shared = ""
            if entry.pw_uid == before.pw_uid:
                shared = "has the same account as"
            elif entry.pw_gid == before.pw_gid:
                shared = "has the same primary group as"
            elif lets_in(entry, before):
                shared = "is in the primary group of"
            elif lets_in(before, entry):
                shared = f"has a primary group that {before.pw_name!r} is in, an account of"
            if shared:
                problem = f"{entry.pw_name!r} {shared} jobs of {other!r}"
                raise UserError(problem, field=field, hint=hint)


def _tenant_of(field: str) -> str:
    return field if field == "default_account" else field.split(".")[1]


def _shared_groups(config: ServeConfig) -> Iterator[str]:
    """Groups by which accounts of several tenants reach the same files."""
    members: dict[int, set[str]] = {}
    for field, account in _used(config):
        entry = pwd.getpwnam(account)
        for number in os.getgrouplist(account, entry.pw_gid):
            members.setdefault(number, set()).add(_tenant_of(field))
    for number, tenants in sorted(members.items()):
        if len(tenants) > 1:
            named = ", ".join(sorted(tenants))
            yield f"accounts of {named} share the group {group_name(number)}:"
            yield "what is open to that group is open to jobs of all of them"


def _check_above(state: Path) -> None:
    """Who may rename a folder above ours may put another in its place, tokens included.

    Raises:
        UserError: that is somebody else than root.
    """
    for folder in (state, *state.parents):
        if not folder.exists():
            continue
        found = folder.stat()
        loose = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or loose or (folder == state and found.st_mode & stat.S_IWOTH):
            raise UserError(
                "others than root can put another folder in its place",
                where=str(folder),
                field="state",
                hint="choose a folder of root's, such as /var/lib/wattherd",
            )


def _reserved_bytes(folder: Path) -> int:
    """What the file system keeps for root there; nothing where that cannot be told."""
    known = next((one for one in (folder, *folder.absolute().parents) if one.exists()), folder)
    try:
        found = os.statvfs(known)
    except OSError:
        return 0
    return (found.f_bfree - found.f_bavail) * found.f_frsize


def _notes(config: ServeConfig, accounts: Accounts, *, asks: bool, root: bool) -> Iterator[str]:
    if root and config.allow_root_jobs and not config.require_account:
        yield "WARNING: jobs without an account run as ROOT (--allow-root-jobs): whoever may submit"
        yield "WARNING: a job can read every file of this machine and make an admin's token"
    elif root and not asks and not accounts.mapped:
        yield "jobs run as root, and whoever is on this machine may submit them"
    elif not root and asks:
        name = pwd.getpwuid(os.geteuid()).pw_name
        yield f"jobs of all tenants run as {name}, as this service does: they are not kept apart,"
        yield "and can read and change its tokens and journal (docs/guides/security.md)"
    yield from _shared_groups(config)
    if root and (asks or accounts.mapped) and _reserved_bytes(config.state) < RESERVE_BYTES:
        yield f"jobs can fill the disk of {config.state}, and the service then takes nothing more:"
        yield f"no room is kept for root there; set quotas by account, or use ext4; {GUIDE}"
    if asks and config.default_account is not None:
        yield f"tenants without an account run as {config.default_account}: not kept apart"
