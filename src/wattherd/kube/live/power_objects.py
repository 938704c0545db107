"""Power domains and budgets of a cluster: heard, put in force, and told how they stand.

Objects are put in force in the very turn in which they are heard, so that nothing is decided on
without them; what schedules and signals say is asked twice a second. One that is deleted counts
until it is known that its kind did not go with it. The copy that leads writes
status, each object at most every two seconds and only where something changed.
"""

from __future__ import annotations

import http
import json
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
GONE_S = 2.0
"""After this long it is asked whether a kind goes of which an object was deleted."""
_KINDS = {"powerdomains": "PowerDomain", "powerbudgets": "PowerBudget"}
_NOT_SERVED = "{} is not served"
_LOST = "what its objects said last holds, until it is served again"
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
        self._has_budgets = True
        self._gone_s: dict[tuple[str, str], float] = {}
        """By plural and name: when objects were seen to be deleted, which are in force as yet."""
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
        follow(budgets, self._hear_budgets, self._hear_budgets_served)
        self._feed.also(self._work)

    def close(self) -> None:
        """Listen to no signal any more."""
        self._plan.close()

    def _hear_served(self, served: bool) -> None:  # noqa: FBT001
        self._served |= served

    def _hear_budgets_served(self, served: bool) -> None:  # noqa: FBT001
        self._hear_served(served)
        self._has_budgets = served
        if served:
            self._feed.note(_NOT_SERVED.format("PowerBudget"))
        self._put_in_force()  # before anything is planned by domains that were heard without it

    def _hear_domains(self, batch: list[ObjectChange[PowerDomain]]) -> None:
        for name, item in newest(batch, self._domains):
            if not self._is_withheld("powerdomains", name, item):
                self._plan.domain_seen(name, item)
            self._forget("powerdomains", name, item)
        self._put_in_force()

    def _hear_budgets(self, batch: list[ObjectChange[PowerBudget]]) -> None:
        for name, item in newest(batch, self._budgets):
            if not self._is_withheld("powerbudgets", name, item):
                self._plan.budget_seen(name, item)
            self._forget("powerbudgets", name, item)
        self._put_in_force()

    def _forget(self, plural: str, name: str, item: object) -> None:
        if item is None:
            self._writer.forget(f"{API}/{plural}/{name}")

    def _is_withheld(self, plural: str, name: str, item: object) -> bool:
        """Whether that it is deleted does not count yet."""
        if item is None:
            self._gone_s[plural, name] = time.monotonic()
        else:
            self._gone_s.pop((plural, name), None)
        return item is None

    def _let_go(self) -> None:
        """Objects that operators deleted count no more; those that went with their kind do.

        Who deletes a kind deletes all objects of it, and has said nothing of what may be drawn. A
        kind that goes takes no new objects before the first of them is deleted.
        """
        now_s = time.monotonic()
        due = [one for one, at_s in self._gone_s.items() if now_s - at_s >= GONE_S]
        if not due:
            return
        taken = self._feed.loop.run(self._takes_new())
        if taken is None:
            return
        for plural, kind in _KINDS.items():
            lost = [name for each, name in due if each == plural]
            served = plural in taken
            self._feed.note(_NOT_SERVED.format(kind), "" if served or not lost else _LOST)
            if lost and served:
                self._feed.turn(self._forget_all, plural, lost)

    def _told_last(self) -> dict[str, float]:
        """What domains might draw by their status, where nobody changed them since.

        Of a process that begins when the kind of budgets is gone already.
        """
        found = {
            name: one.status.budget_watts
            for name, one in self._domains.items()
            if one.status.budget_watts is not UNSET
            and one.status.observed_generation == one.metadata.generation
        }
        self._feed.note(_NOT_SERVED.format("PowerBudget"), _LOST if found else "")
        return found

    def _forget_all(self, plural: str, names_of: list[str]) -> None:
        for name in names_of:
            if self._gone_s.pop((plural, name), None) is None:
                continue  # it is there again
            if plural == "powerdomains":
                self._plan.domain_seen(name, None)
            else:
                self._plan.budget_seen(name, None)
        self._put_in_force()

    async def _takes_new(self) -> set[str] | None:
        """Plurals of ours that new objects can be made of; None where nobody knows."""
        try:
            answer = await self._feed.transport.request("GET", API)
        except RefusedByApi as refused:
            return set() if refused.status == http.HTTPStatus.NOT_FOUND else None
        except ApiUnreachable:
            return None
        resources = json.loads(answer.body).get("resources", ())
        return {one["name"] for one in resources if "create" in one.get("verbs", ())}

    def _put_in_force(self) -> None:
        nodes = self._powered.chooser.fleet.nodes.values()
        self._plan.last_w = {} if self._has_budgets else self._told_last()
        self._plan.fed = frozenset(facts.labels.get(names.DOMAIN, "") for facts in nodes)
        fresh = self._plan.state(time.time())
        before, self.state = self.state, fresh
        if (before.tree, before.budgets_mw) != (fresh.tree, fresh.budgets_mw):
            self._powered.power_seen(fresh.tree, fresh.budgets_mw)

    def _work(self) -> None:
        while not self._feed.over.wait(LOOK_S):
            self._let_go()
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
