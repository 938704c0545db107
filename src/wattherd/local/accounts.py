"""Which system account a job runs as, and which secrets of this machine it may have.

The operator's configuration decides, never the job file: a tenant, or a user of it, has an account;
a job may name another one by `user:` only where the configuration lists it. Nobody's job runs as
root because it says so. The same rules are applied when a job is handed in, so that its user hears
of it, and again when a run starts, since the configuration may have changed meanwhile.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattherd.engine.core.executor import RunOrder
from wattherd.errors import UserError

LEAST_OWN_UID = 1000
"""`own_accounts` gives people's accounts only: those below belong to the system (login.defs(5))."""
NOBODY_UID = 65534
"""The system's too: services and mounts of others share it."""
ROOT_BY_ANOTHER_NAME = frozenset(
    {"root", "shadow", "disk", "kmem", "docker", "lxd", "sudo", "wheel"}
)
"""Groups whose members can become root, or read what only root should."""
MOST_PROCESSES = 4096
MOST_FILES = 1 << 20
PID_MAX = Path("/proc/sys/kernel/pid_max")
FAIR_MEMORY = "fair_memory"
"""Marks a job that may have the memory that goes with its devices, and no more unless it asks."""
OF_SITE = "of_site"
"""Whether an operator handed a job in: people of no tenant need not be operators."""
GUIDE = "see docs/guides/security.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPlaces:
    """Where secrets of jobs may come from.

    `folders` and `variables` are all there is, unless `anywhere`: then whatever can be read counts.
    """

    folders: tuple[Path, ...] = ()
    variables: frozenset[str] = frozenset()
    anywhere: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRule:
    """What the operator says of one tenant."""

    account: str | None = None
    accounts: tuple[str, ...] = ()
    """Others that its jobs may name by `user:`."""
    users: Mapping[str, str] = field(default_factory=dict)
    """Accounts of single users."""
    own_accounts: bool = False
    """Each user's jobs run as the system account of that name."""
    secret_dirs: tuple[Path, ...] = ()
    secret_env: tuple[str, ...] = ()
    containers: bool = False

    def account_for(self, owner: str) -> str | None:
        """The account of a user's jobs, None where the rule names none."""
        if owner in self.users:
            return self.users[owner]
        return owner if self.own_accounts and owner else self.account

    def named(self) -> Iterator[str]:
        """All accounts that the rule names."""
        yield from (one for one in (self.account, *self.accounts) if one)
        yield from self.users.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The operator's rules; `asks` tells whether callers must show a token.

    Without any rule, on a service that asks for no token, jobs run as the service does.
    """

    tenants: Mapping[str, TenantRule] = field(default_factory=dict)
    default: str | None = None
    require: bool = False
    allow_root_jobs: bool = False
    secret_dirs: tuple[Path, ...] = ()
    secret_env: tuple[str, ...] = ()
    asks: Callable[[], bool] = lambda: False

    @property
    def mapped(self) -> bool:
        """Whether any account is named."""
        return self.default is not None or any(
            rule.own_accounts or any(rule.named()) for rule in self.tenants.values()
        )

    def account_of(
        self, tenant: str, owner: str, asked: str | None = None, *, of_site: bool = False
    ) -> str | None:
        """The account of a job; None is the service's own.

        `asked` is the job's `user:`; who belongs to the site may name any account of the rules.

        Raises:
            UserError: the job may not run as `asked`, or its tenant has no account and needs one.
        """
        given = self._given(tenant, owner)
        if asked is not None and asked != given:
            self._check_asked(tenant, owner, asked, of_site=of_site)
            return asked
        if given is None and self._needs_one():
            hint = f"an operator sets `tenants.{tenant or 'NAME'}.account` or `default_account`"
            raise UserError(
                f"tenant {tenant!r} has no system account for its jobs",
                field="user",
                hint=f"{hint}; {GUIDE}",
            )
        return given

    def _given(self, tenant: str, owner: str) -> str | None:
        rule = self.tenants.get(tenant)
        found = None if rule is None else rule.account_for(owner)
        if found is None:
            return self.default
        if rule is not None and rule.own_accounts and owner not in rule.users:
            self._check_own(tenant, found)
        return found

    def _check_own(self, tenant: str, name: str) -> None:
        """An account that a job has because its user is called so, which the user may have chosen.

        Raises:
            UserError: it is the system's, has the rights of root, or is one of others' jobs.
        """
        entry = _entry(name)
        if entry.pw_uid < LEAST_OWN_UID or entry.pw_uid == NOBODY_UID:
            raise UserError(f"{name!r} is an account of the system, not a person's", field="user")
        if os.geteuid() == 0 and (groups := root_groups(entry)):
            problem = f"{name!r} has the rights of root (group {groups[0]})"
            raise UserError(problem, field="user", hint=f"an operator takes it out; {GUIDE}")
        for other in self._of_others(tenant):
            if entry.pw_uid == other.pw_uid or lets_in(entry, other) or lets_in(other, entry):
                hint = f"an operator sets `tenants.{tenant}.users`; {GUIDE}"
                raise UserError(
                    f"{name!r} has the account or primary group of others' jobs",
                    field="user",
                    hint=hint,
                )

    def _of_others(self, tenant: str) -> Iterator[pwd.struct_passwd]:
        """Accounts that the rules name for other tenants or for everybody else."""
        names = {one for at, rule in self.tenants.items() if at != tenant for one in rule.named()}
        for name in sorted({*names, *filter(None, [self.default])}):
            try:
                yield pwd.getpwnam(name)
            except KeyError:  # no job runs as an account that is gone
                continue

    def _needs_one(self) -> bool:
        if self.require:
            return True
        return os.geteuid() == 0 and (self.asks() or self.mapped) and not self.allow_root_jobs

    def _check_asked(self, tenant: str, owner: str, asked: str, *, of_site: bool) -> None:
        apart = self.mapped or self.asks()
        if apart and os.geteuid() == 0 and _uid(asked) == 0:
            raise UserError("no job may choose to run as root", field="user", hint="leave it out")
        if not self.mapped:
            if of_site or asked == owner:
                return
            hint = f"leave it out, or write {owner}"
            raise UserError("jobs of others' are the operators' to run", field="user", hint=hint)
        if asked not in self._may_name(tenant, of_site=of_site):
            hint = "leave it out; an operator lists others in `tenants.TENANT.accounts`"
            raise UserError(f"its tenant may not run jobs as {asked!r}", field="user", hint=hint)

    def _may_name(self, tenant: str, *, of_site: bool) -> set[str]:
        if of_site:
            return {name for rule in self.tenants.values() for name in rule.named()}
        rule = self.tenants.get(tenant)
        return set() if rule is None else {name for name in (*rule.accounts, rule.account) if name}

    def secrets_for(self, tenant: str) -> SecretPlaces:
        """Where secrets of the tenant's jobs may come from."""
        rule = self.tenants.get(tenant, TenantRule())
        folders = (*self.secret_dirs, *rule.secret_dirs)
        variables = frozenset((*self.secret_env, *rule.secret_env))
        free = not self.asks() and not (folders or variables or self.mapped)
        return SecretPlaces(folders=folders, variables=variables, anywhere=free)

    def applied(self, run: RunOrder) -> RunOrder:
        """The same run as the account that the rules give its job now.

        Raises:
            UserError: it may not run as it asks to, or in a container.
        """
        tenant, owner, paper = run.spec.tenant, run.spec.user, dict(run.paper)
        of_site = paper.get(OF_SITE, not tenant)  # jobs of earlier versions do not say
        paper["user"] = self.account_of(tenant, owner, paper.get("user"), of_site=of_site)
        self.check(tenant, paper)
        if paper.get("container") and self.keeps_apart:
            paper["workdir"] = None  # a link in its path would have the engine mount what root may
        if self.keeps_apart:
            paper[FAIR_MEMORY] = True
        return replace(run, paper=paper)

    @property
    def keeps_apart(self) -> bool:
        """Whether jobs have other accounts than the service, which works as root."""
        return self.mapped and os.geteuid() == 0

    def check(self, tenant: str, paper: Mapping[str, Any]) -> None:
        """What a job wants of the machine beside its account.

        Raises:
            UserError: a container engine that its tenant may not use, or more processes or open
                files than one job may have.
        """
        if not self.keeps_apart:
            return
        if (paper.get("processes") or 0) > most_processes():
            problem = f"a job may have {most_processes():,} processes at most"
            raise UserError(problem, field="processes", hint="lower it")
        nofile = paper.get("ulimits", {}).get("nofile", 0)
        if nofile < 0 or nofile > MOST_FILES:
            problem = f"a process may have {MOST_FILES:,} files open at most"
            raise UserError(problem, field="ulimits.nofile", hint="lower it")
        container = paper.get("container")
        if container is None:
            return
        if tenant not in self.tenants or not self.tenants[tenant].containers:
            hint = f"an operator sets `tenants.{tenant or 'NAME'}.containers`; {GUIDE}"
            problem = f"tenant {tenant!r} may not use a container engine, which works as root"
            raise UserError(problem, field="container", hint=hint)
        if paper.get("checkpoint_dir"):
            hint = "leave it out: $WATTHERD_CHECKPOINT_DIR is kept from run to run"
            problem = "a container sees its job's own folders only"
            raise UserError(problem, field="checkpoint.dir", hint=hint)
        if container.get("credentials"):
            hint = "log the engine in as root, or use an image that needs no login"
            problem = "the engine works as root, and would use this file as root"
            raise UserError(problem, field="container.credentials", hint=hint)


def most_processes() -> int:
    """Of one job: a quarter of what the machine can number, so that others go on."""
    try:
        return max(MOST_PROCESSES, int(PID_MAX.read_text(encoding="ascii")) // 4)
    except (OSError, ValueError):
        return MOST_PROCESSES


def root_groups(entry: pwd.struct_passwd) -> list[str]:
    """The groups of an account by which it could become root.

    All of them count, not only the primary one: a job begins without the others, but `newgrp(1)`
    gives them back.
    """
    names = map(group_name, os.getgrouplist(entry.pw_name, entry.pw_gid))
    return [name for name in names if name in ROOT_BY_ANOTHER_NAME]


def lets_in(entry: pwd.struct_passwd, other: pwd.struct_passwd) -> bool:
    """Whether an account gets into folders of another's jobs: those let in its primary group.

    A job begins without the other groups of its account, but `newgrp(1)` gives them back.
    """
    return other.pw_gid in {entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)}


def group_name(number: int) -> str:
    """What a group is called; its number where it has no name."""
    if number == 0:
        return "root"
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _entry(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise UserError(f"no user {name!r} on this machine", field="user") from None


def _uid(name: str) -> int:
    """The number of an account.

    Raises:
        UserError: there is none of that name.
    """
    return _entry(name).pw_uid
