"""The nodes of a power domain in words that other schedulers understand: requirements of labels.

A domain's own selector, or the label that names it, does where exactly its nodes match; domains may
select nodes that a deeper one feeds, and then the nodes are named one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from wattherd.kube.account.domains import Domains
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api import names
from wattherd.kube.api.objects import (
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
)
from wattherd.kube.api.selectors import node_matches
from wattherd.kube.facts.domain_tree import SITE

Needs = tuple[Requirement, ...]
HOSTNAME = "kubernetes.io/hostname"


class DomainNodes:
    """Of `fleet`, as `domains` divide it."""

    def __init__(self, fleet: NodeFleet, domains: Domains) -> None:
        """Both are looked at anew when they changed."""
        self._fleet = fleet
        self._domains = domains
        self._known: dict[tuple[str, ...], Needs] = {}
        self._known_of: tuple[int, int] = (-1, -1)

    def needs(self, *fed: str) -> Needs:
        """What nodes that any of the domains `fed` feeds itself have, and no others."""
        now = (self._fleet.version, id(self._domains.tree))
        if self._known_of != now:
            self._known_of, self._known = now, {}
        if fed not in self._known:
            self._known[fed] = self._found(fed)
        return self._known[fed]

    @property
    def undivided(self) -> bool:
        """Whether the site feeds all of them itself."""
        return not any(facts.domain for facts in self._fleet.nodes.values())

    def _found(self, fed: Sequence[str]) -> Needs:
        nodes = self._fleet.nodes.values()
        inside = {facts.name for facts in nodes if facts.domain in fed}
        for needs in self._wordings(fed):
            selector = NodeSelector(
                node_selector_terms=[NodeSelectorTerm(match_expressions=list(needs))]
            )
            if inside == {
                one.name for one in nodes if node_matches(selector, one.name, one.labels)
            }:
                return needs
        hosts = sorted(self._fleet.nodes[name].labels.get(HOSTNAME, name) for name in inside)
        return (Requirement(key=HOSTNAME, operator="In", values=hosts),)

    def _wordings(self, fed: Sequence[str]) -> list[Needs]:
        named = [name for name in fed if name != SITE]
        labelled = (
            Requirement(key=names.DOMAIN, operator="In", values=named)
            if named
            else Requirement(key=names.DOMAIN, operator="DoesNotExist")
        )
        branch = self._domains.tree.branches.get(fed[0]) if len(fed) == 1 else None
        if branch is None or branch.selector is None:
            return [(labelled,)]
        return [_requirements(branch.selector), (labelled,)]


def _requirements(selector: LabelSelector) -> Needs:
    equal = [
        Requirement(key=key, operator="In", values=[value])
        for key, value in (selector.match_labels or {}).items()
    ]
    return (*equal, *(selector.match_expressions or ()))
