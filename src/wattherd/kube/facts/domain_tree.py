"""Which power domain feeds which, and which nodes each feeds itself: names and labels, no watts.

The site stands above all and has the empty name. A node belongs to the domain that selects it, of
several to the deepest (then the first by name), and to all domains above. A node that no domain
selects is of the domain that its label names, directly below the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattherd.kube.api import names
from wattherd.kube.api.objects import LabelSelector
from wattherd.kube.api.selectors import selector_matches

SITE = ""


@dataclass(frozen=True, slots=True)
class DomainBranch:
    """What feeds a domain; without a `selector` it feeds the nodes whose label is its name."""

    parent: str = SITE
    selector: LabelSelector | None = None


@dataclass(frozen=True, slots=True)
class DomainTree:
    """Branches by name; parents are names of others or the site, and there is no cycle."""

    branches: Mapping[str, DomainBranch] = field(default_factory=dict)

    def feeder(self, labels: Mapping[str, str]) -> str:
        """The domain that feeds a node with these labels."""
        named = labels.get(names.DOMAIN, SITE)
        found = [
            name
            for name, branch in self.branches.items()
            if (name == named if branch.selector is None
                else selector_matches(branch.selector, labels))
        ]  # fmt: skip
        return min(found, key=lambda name: (-len(self.path(name)), name), default=named)

    def path(self, domain: str) -> tuple[str, ...]:
        """The domain and all above it, the site last."""
        found = [domain]
        while found[-1] != SITE:
            branch = self.branches.get(found[-1])
            found.append(SITE if branch is None else branch.parent)
        return tuple(found)

    def below(self, domain: str, other: str) -> bool:
        """Whether `other` is `domain` or hangs below it."""
        return domain in self.path(other)
