"""The power tree: who feeds whom, and how many watts each branch may carry.

Site > feed > row > rack > node. A budget of None means that the branch itself sets no limit (its
ancestors still do). Watts of a domain are counted at its input: what is below it, and its losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from wattherd.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStep:
    """From `at_s` on a domain may carry `budget_w`; whether that is known beforehand."""

    at_s: float
    budget_w: float
    announced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDomain:
    """One branch of the tree; `loss` is the share of its input lost on the way down (0 to 1).

    `level` is what people call its kind (row, rack), `nodes` are the cluster's nodes that it feeds
    directly. `budget_w` holds from the beginning, `steps` change it later, in order of time.
    What it carries rises and falls by so many watts a second at most where a ramp is stated (see
    `engine.power.budgets`).
    """

    name: str
    parent: str | None = None
    budget_w: float | None = None
    loss: float = 0.0
    level: str = ""
    nodes: tuple[str, ...] = ()
    steps: tuple[BudgetStep, ...] = ()
    ramp_up_w_s: float | None = None
    ramp_down_w_s: float | None = None


@dataclass(frozen=True, slots=True)
class PowerTree:
    """Domains by name.

    Raises:
        UserError: no or several roots, an unknown parent, a cycle, a negative budget, steps that
            do not ascend, a loss outside [0, 1), or a node fed by two domains.
    """

    domains: tuple[TreeDomain, ...]
    _by_name: Mapping[str, TreeDomain] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the shape once, so that every walk upwards ends at the root."""
        by_name = {domain.name: domain for domain in self.domains}
        object.__setattr__(self, "_by_name", by_name)
        if len(by_name) != len(self.domains):
            names = [domain.name for domain in self.domains]
            twice = next(name for name in names if names.count(name) > 1)
            hint = "every domain needs a name of its own"
            raise UserError(f"two power domains are called {twice!r}", field="name", hint=hint)
        roots = [domain.name for domain in self.domains if domain.parent is None]
        if len(roots) != 1:
            raise UserError(f"a power tree has one root, this one has {len(roots)}: {roots}")
        for domain in self.domains:
            self._check(domain)
        self._check_nodes()

    def _check(self, domain: TreeDomain) -> None:
        for budget_w in (domain.budget_w, *(step.budget_w for step in domain.steps)):
            if budget_w is not None and not budget_w >= 0:
                raise UserError(f"negative budget {budget_w} W", where=domain.name)
        for ramp_w_s in (domain.ramp_up_w_s, domain.ramp_down_w_s):
            if ramp_w_s is not None and not ramp_w_s > 0:
                problem = "must be above zero, or the draw could never change"
                hint = "leave it out for no limit"
                raise UserError(problem, where=domain.name, field="ramp", hint=hint)
        if any(later.at_s <= sooner.at_s for sooner, later in pairwise(domain.steps)):
            raise UserError("times of the budget do not ascend", where=domain.name, field="budget")
        if not 0 <= domain.loss < 1:
            raise UserError(f"loss {domain.loss} is outside 0 to 1", where=domain.name)
        steps = 0
        for steps, _ in enumerate(self.path_to_root(domain.name)):
            if steps > len(self.domains):
                raise UserError("the domain is its own ancestor", where=domain.name)

    def _check_nodes(self) -> None:
        fed: dict[str, str] = {}
        for domain in self.domains:
            for node in domain.nodes:
                if node in fed:
                    problem = f"node {node!r} is fed by {fed[node]} as well"
                    raise UserError(problem, where=domain.name, field="nodes")
                fed[node] = domain.name

    @property
    def root(self) -> TreeDomain:
        """The site."""
        return next(one for one in self.domains if one.parent is None)

    def depth(self, name: str) -> int:
        """Domains above this one."""
        return sum(1 for _ in self.path_to_root(name)) - 1

    def path_to_root(self, name: str) -> Iterator[TreeDomain]:
        """The domain and its ancestors, the root last."""
        at: str | None = name
        while at is not None:
            if at not in self._by_name:
                raise UserError(f"unknown power domain {at!r}", where=name)
            domain = self._by_name[at]
            yield domain
            at = domain.parent
