"""A published figure beside ours, and whether the difference is within what was promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureCheck:
    """`tolerance` None means that the row informs and cannot fail; the same unit throughout.

    `by_bin` holds ours minus published per percent of arrived load, the seed with the largest
    difference in each bin, where the check compares curves.
    """

    trace: str
    policy: str
    quantity: str
    published: float
    ours: float
    tolerance: float | None
    by_bin: tuple[float, ...] = ()

    @property
    def difference(self) -> float:
        """Ours minus published."""
        return self.ours - self.published

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance (a hair is left for the last digit)."""
        return self.tolerance is None or abs(self.difference) <= self.tolerance * (1 + 1e-9) + 1e-12
