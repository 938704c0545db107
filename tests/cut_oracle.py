"""Who has to stop when a budget is cut, by trying out every choice: knows nothing of the code.

What `docs/guides/kubernetes-power.md` promises: works are stopped whole, as few as keep every
budget (or come as near to it as can be), the least important first; of equals those that somebody
makes anew before bare pods, then the newest. So of all choices that keep the budgets as well as any
does, the one counts whose most important victim matters least, then the second, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product


@dataclass(frozen=True)
class Work:
    """Pods that stop together; `gives_w` is by domain, and all above, what that gives back."""

    name: str
    priority: int
    newest: str
    bare: bool
    gives_w: Mapping[str, float] = field(default_factory=dict)
    begun: bool = False
    """Whether it was told to go before, and did not yet: it goes before any other."""
    runs: bool = True
    """Else it is planned to start, when what others hold is free."""

    @property
    def matters(self) -> tuple[bool, bool, int, bool, tuple[int, ...], tuple[int, ...]]:
        """The larger, the more: who runs, priority, bare pods, then age, then the earlier name."""
        young = tuple(-ord(char) for char in self.newest)
        name = tuple(-ord(char) for char in self.name)
        return not self.begun, self.runs, self.priority, self.bare, young, name


def who_must_stop(over_w: Mapping[str, float], works: Sequence[Work]) -> set[str]:
    """Names of works; `over_w` is by domain what is drawn beyond its budget, if anything.

    What is on its way down already must have been taken off.
    """
    if all(watts <= 0 for watts in over_w.values()):
        return set()
    able = [work for work in works if any(over_w.get(one, 0) > 0 for one in work.gives_w)]
    ranked = sorted(able, key=lambda work: work.matters, reverse=True)
    best: tuple[tuple[float, ...], tuple[bool, ...]] | None = None
    for choice in product((False, True), repeat=len(ranked)):
        left = dict(over_w)
        for stops, work in zip(choice, ranked, strict=True):
            for name, watts in work.gives_w.items() if stops else ():
                if name in left:
                    left[name] -= watts
        beyond = tuple(max(0.0, round(left[name], 3)) for name in sorted(left))
        found = beyond, choice
        if best is None or found < best:
            best = found
    assert best is not None
    return {work.name for stops, work in zip(best[1], ranked, strict=True) if stops}
