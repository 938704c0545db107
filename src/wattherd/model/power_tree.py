"""The power tree: who feeds whom, and how many watts each branch may carry.

Site > feed > row > rack > node > device. A budget of None means that the branch itself sets no
limit (its ancestors still do).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wattherd.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDomain:
    """One branch of the tree; `loss` is the share of its input lost on the way down (0 to 1)."""

    name: str
    parent: str | None = None
    budget_w: float | None = None
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class PowerTree:
    """Domains by name.

    Raises:
        UserError: no or several roots, an unknown parent, a cycle, a negative budget, or a loss
            outside [0, 1).
    """

    domains: tuple[PowerDomain, ...]
    _by_name: Mapping[str, PowerDomain] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the shape once, so that every walk upwards ends at the root."""
        by_name = {domain.name: domain for domain in self.domains}
        object.__setattr__(self, "_by_name", by_name)
        if len(by_name) != len(self.domains):
            raise UserError("two power domains carry the same name")
        roots = [domain.name for domain in self.domains if domain.parent is None]
        if len(roots) != 1:
            raise UserError(f"a power tree has one root, this one has {len(roots)}: {roots}")
        for domain in self.domains:
            self._check(domain)

    def _check(self, domain: PowerDomain) -> None:
        if domain.budget_w is not None and not domain.budget_w >= 0:
            raise UserError(f"negative budget {domain.budget_w} W", where=domain.name)
        if not 0 <= domain.loss < 1:
            raise UserError(f"loss {domain.loss} is outside 0 to 1", where=domain.name)
        steps = 0
        for steps, _ in enumerate(self.path_to_root(domain.name)):
            if steps > len(self.domains):
                raise UserError("the domain is its own ancestor", where=domain.name)

    def path_to_root(self, name: str) -> Iterator[PowerDomain]:
        """The domain and its ancestors, the root last."""
        at: str | None = name
        while at is not None:
            if at not in self._by_name:
                raise UserError(f"unknown power domain {at!r}", where=name)
            domain = self._by_name[at]
            yield domain
            at = domain.parent
