"""A power tree as a simulation takes it: hung with a cluster's nodes, its budgets as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from wattherd.engine.power.budgets import CapRules
from wattherd.engine.power.feeds import Feeds
from wattherd.errors import UserError
from wattherd.model.cluster import ClusterSpec
from wattherd.model.event import BudgetAnnounced, BudgetChanged, Event
from wattherd.model.power_tree import PowerTree
from wattherd.spelling import hint_for
from wattherd.units import seconds, watts, watts_per_second
from wattherd.workload.budget_text import Steps
from wattherd.workload.scenario import CapsSpec
from wattherd.workload.tree_file import read_tree
from wattherd.workload.tree_spec import DomainSpec, tree_of

BETWEEN = ".."


def power_tree(given: str | DomainSpec | None, cluster: ClusterSpec) -> PowerTree | None:
    """The tree of a file, or as written, with every node of the cluster in its place.

    A domain that is called like a node feeds it.

    Raises:
        UserError: a bad tree, or a node that hangs on none or two of its domains.
    """
    if given is None:
        return None
    where = given if isinstance(given, str) else "power_tree"
    tree = read_tree(Path(given)) if isinstance(given, str) else tree_of(given, where)
    try:
        hung = PowerTree(
            tuple(replace(one, nodes=_fed(one.name, one.nodes, cluster)) for one in tree.domains)
        )
        Feeds(hung, cluster)
    except UserError as error:
        place = ": ".join(part for part in (where, error.where) if part)
        raise UserError(error.problem, where=place, field=error.field, hint=error.hint) from None
    return hung


def _fed(domain: str, patterns: Sequence[str], cluster: ClusterSpec) -> tuple[str, ...]:
    """Names of the nodes that a domain feeds itself, in the order of the cluster."""
    names = [node.name for node in cluster.nodes]
    found = {name for one in patterns for name in _matching(one, names, domain)}
    if domain in names:
        found.add(domain)
    return tuple(name for name in names if name in found)


def _matching(pattern: str, names: Sequence[str], domain: str) -> Sequence[str]:
    if BETWEEN in pattern:
        first, _, last = (part.strip() for part in pattern.partition(BETWEEN))
        for end in (first, last):
            _check_known([end] if end in names else [], end, names, domain)
        return names[names.index(first) : names.index(last) + 1]
    found = [name for name in names if fnmatchcase(name, pattern)]
    _check_known(found, pattern, names, domain)
    return found


def _check_known(found: Sequence[str], said: str, names: Sequence[str], domain: str) -> None:
    if not found:
        hint = hint_for(said, names) if len(names) <= 8 else f"{names[0]} to {names[-1]}"
        raise UserError(f"no node is called {said!r}", where=domain, field="nodes", hint=hint)


def _cuts_first(changes: Sequence[BudgetChanged]) -> list[BudgetChanged]:
    """In the order of time; `changes` of one domain are in that order already."""
    before_w: dict[str, float | None] = {}
    found = list[tuple[float, bool, BudgetChanged]]()
    for one in changes:
        was_w, now_w = before_w.get(one.domain), one.budget_w
        rises = now_w is None or (was_w is not None and now_w > was_w)
        found.append((one.at_s, rises, one))
        before_w[one.domain] = now_w
    return [one for _, _, one in sorted(found, key=lambda at: at[:2])]


def budget_events(site: Steps, tree: PowerTree | None, rules: CapRules) -> Iterator[Event]:
    """Budgets of the site and of the tree as they change, announced where that matters.

    Of those that change in one instant the cuts come first: nobody starts on what one budget gives
    and another takes away with it.
    """
    of_site = [BudgetChanged(at_s=at_s, budget_w=budget_w) for at_s, budget_w in site]
    of_domains = [
        BudgetChanged(at_s=step.at_s, budget_w=step.budget_w, domain=domain.name)
        for domain in (tree.domains if tree else ())
        for step in domain.steps
    ]
    yield from _cuts_first([*of_site, *of_domains])
    if not rules.looks_ahead:
        return
    for at_s, budget_w in site:
        if at_s > 0:
            yield BudgetAnnounced(at_s=0.0, begins_s=at_s, budget_w=budget_w)
    for domain in tree.domains if tree else ():
        for step in domain.steps:
            if step.announced:
                yield BudgetAnnounced(
                    at_s=0.0, begins_s=step.at_s, budget_w=step.budget_w, domain=domain.name
                )


def cap_rules(spec: CapsSpec) -> CapRules:
    """The rules of a scenario, in seconds and watts.

    Raises:
        UserError: a time or power of another form or out of range.
    """
    delay_s = seconds(spec.delay, field="caps.delay")
    try:
        return CapRules(
            ahead_s=delay_s if spec.ahead is None else seconds(spec.ahead, field="ahead"),
            refuse_s=seconds(spec.refuse, field="refuse"),
            ramp_up_w_s=watts_per_second(spec.ramp_up, "ramp_up"),
            ramp_down_w_s=watts_per_second(spec.ramp_down, "ramp_down"),
            ramp_window_s=seconds(spec.ramp_window, field="ramp_window"),
            change_w=watts(spec.change, field="change"),
            hold_s=seconds(spec.hold, field="hold"),
        )
    except UserError as error:
        name = error.field.removesuffix("_w_s").removesuffix("_s")
        raise UserError(error.problem, field=f"caps.{name}", hint=error.hint) from None
