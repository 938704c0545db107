"""Power domains and budgets of a cluster: heard, put in force, and told how they stand.

Objects are put in force in the very turn in which they are heard, so that nothing is decided on
without them; what schedules and signals say is asked twice a second. The copy that leads writes
status, each object at most every two seconds and only where something changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from wattherd.kube.account.chooser import Chooser
from wattherd.kube.api import names
from wattherd.kube.api.changes import ObjectChange
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.objects import Object
from wattherd.kube.api.reflector import Selection, Served
from wattherd.kube.api.transport import MERGE, ApiUnreachable, RefusedByApi
from wattherd.kube.decide.budget_status import (
    DomainFigures,
    budget_status,
    domain_status,
    figures_of,
)
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.power_kinds import API, PowerBudget, PowerDomain, Queue
from wattherd.kube.facts.power_plan import PowerPlan, PowerState

LOOK_S = 0.5
WRITE_S = 2.0
"""A status is written no more often: a burst of bindings is one change of its watts."""

T = TypeVar("T", PowerDomain, PowerBudget, Queue)


class Powered(Protocol):
    """Who decides within budgets."""

    @property
    def chooser(self) -> Chooser:
        """Nodes and watts."""
        ...

    def power_seen(self, tree: DomainTree, budgets_mw: Mapping[str, int]) -> None:
        """These are in force from now on."""
        ...


class StatusWriter:
    """Writes what changed of a status, as a merge patch: what is not so any more is taken out."""

    def __init__(self, feed: ApiFeed) -> None:
        """Nothing was written yet."""
        self._feed = feed
        self._written: dict[str, tuple[bytes, float]] = {}

    def write(self, path: str, status: Object, now_s: float) -> None:
        """Unless it is so already, or was written a moment ago (`now_s`: steady seconds)."""
        body = msgspec.json.encode({"status": patch_of(status)})
        before, at_s = self._written.get(path, (b"", -WRITE_S))
        if body == before or now_s - at_s < WRITE_S:
            return
        self._written[path] = body, now_s
        self._feed.loop.begin(self._patch(path, body))

    def forget(self, path: str) -> None:
        """The object was deleted."""
        self._written.pop(path, None)

    async def _patch(self, path: str, body: bytes) -> None:
        try:
            await self._feed.transport.request("PATCH", f"{path}/status", body=body, kind=MERGE)
        except (RefusedByApi, ApiUnreachable):
            self._written.pop(path, None)


def patch_of(status: Object) -> dict[str, Any]:
    """Every field, null where there is none."""
    found: dict[str, Any] = {}
    for one in msgspec.structs.fields(status):
        value = getattr(status, one.name)
        found[one.encode_name] = None if value is UNSET else msgspec.to_builtins(value)
    return found


class PowerWatch:
    """Keeps `powered` to what `plan` makes of the objects; `begin` it before its feed."""

    def __init__(
        self,
        feed: ApiFeed,
        plan: PowerPlan,
        powered: Powered,
        leads: Callable[[], bool],
        doing: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`leads` says whether status is ours to write.

        `doing` tells, by domain, what is done where too much is drawn.
        """
        self._feed, self._plan, self._powered, self._leads = feed, plan, powered, leads
        self._doing = doing
        self._served = False
        self._domains: dict[str, PowerDomain] = {}
        self._budgets: dict[str, PowerBudget] = {}
        self._writer = StatusWriter(feed)
        self.state = PowerState()

    def begin(self) -> None:
        """Follow the objects, as soon as the API server knows them."""
        once, follow = Served.ONCE_INSTALLED, self._feed.follow
        domains = Selection(f"{API}/powerdomains", PowerDomain, served=once)
        follow(domains, self._hear_domains, self._hear_served)
        budgets = Selection(f"{API}/powerbudgets", PowerBudget, served=once)
        follow(budgets, self._hear_budgets, self._hear_served)
        self._feed.also(self._work)

    def close(self) -> None:
        """Listen to no signal any more."""
        self._plan.close()

    def _hear_served(self, served: bool) -> None:  # noqa: FBT001
        self._served |= served

    def _hear_domains(self, batch: list[ObjectChange[PowerDomain]]) -> None:
        for name, item in newest(batch, self._domains):
            self._plan.domain_seen(name, item)
            self._forget("powerdomains", name, item)
        self._put_in_force()

    def _hear_budgets(self, batch: list[ObjectChange[PowerBudget]]) -> None:
        for name, item in newest(batch, self._budgets):
            self._plan.budget_seen(name, item)
            self._forget("powerbudgets", name, item)
        self._put_in_force()

    def _forget(self, plural: str, name: str, item: object) -> None:
        if item is None:
            self._writer.forget(f"{API}/{plural}/{name}")

    def _put_in_force(self) -> None:
        nodes = self._powered.chooser.fleet.nodes.values()
        self._plan.fed = frozenset(facts.labels.get(names.DOMAIN, "") for facts in nodes)
        fresh = self._plan.state(time.time())
        before, self.state = self.state, fresh
        if (before.tree, before.budgets_mw) != (fresh.tree, fresh.budgets_mw):
            self._powered.power_seen(fresh.tree, fresh.budgets_mw)

    def _work(self) -> None:
        while not self._feed.over.wait(LOOK_S):
            if not (self._served and self._feed.sees()):
                continue
            figures = self._feed.turn(self._look)
            if self._leads():
                self._tell(figures)

    def _look(self) -> Mapping[str, DomainFigures]:
        self._put_in_force()
        doing = self._doing()
        return {
            name: DomainFigures(one.nodes, one.bound_mw, doing.get(name, ""))
            for name, one in figures_of(self._powered.chooser).items()
        }

    def _tell(self, figures: Mapping[str, DomainFigures]) -> None:
        now_s, state = time.time(), self.state
        for name, domain in list(self._domains.items()):
            status = domain_status(domain, state, figures.get(name, DomainFigures()), now_s)
            self._write("powerdomains", name, status, domain.status)
        for name, budget in list(self._budgets.items()):
            said = budget_status(budget, state, now_s)
            self._write("powerbudgets", name, said, budget.status)

    def _write(self, plural: str, name: str, status: Object, seen: Object) -> None:
        if status != seen:
            self._writer.write(f"{API}/{plural}/{name}", status, time.monotonic())


def newest(batch: list[ObjectChange[T]], known: dict[str, T]) -> list[tuple[str, T | None]]:
    """What is so of each name: one that was made anew is there, whatever went before it."""
    found: list[tuple[str, T | None]] = []
    for change in batch:
        name, item = change.key.name, change.item
        if item is not None:
            known[name] = item
        elif name not in known or known[name].metadata.uid != change.key.uid:
            continue
        else:
            del known[name]
        found.append((name, item))
    return found
