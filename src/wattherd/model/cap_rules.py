"""How calmly caps and budgets change: ahead of time, no steeper than allowed, not to and fro."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from wattherd.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRules:
    """All off by default.

    A fall of a budget that is known beforehand is met `ahead_s` before it comes: that is what caps
    need to be ordered, set and read back; jobs that must stop for it are asked their grace earlier.
    Within `refuse_s` before such a fall no job is started whose floor would not fit after it.

    The site's counted draw is raised by at most `ramp_up_w_s` (W/s), averaged over `ramp_window_s`;
    a known fall of its budget is approached by `ramp_down_w_s`, and stops that a plan chooses are
    spread by it. Budgets go before ramps, and jobs that end leave at once.

    A cap is raised by `change_w` at least (or to its top), and `hold_s` after its last change at
    the earliest; a lowering that is smaller or sooner waits until somebody needs the watts.

    Raises:
        UserError: a number that is negative or none, naming the field.
    """

    ahead_s: float = 0.0
    refuse_s: float = 0.0
    ramp_up_w_s: float | None = None
    ramp_down_w_s: float | None = None
    ramp_window_s: float = 10.0
    change_w: float = 0.0
    hold_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what could not be kept."""
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UserError(f"{value} is out of range", field=one.name, hint="zero or more")
        for name in ("ramp_up_w_s", "ramp_down_w_s", "ramp_window_s"):
            if getattr(self, name) == 0:
                hint = "leave it out for no limit"
                raise UserError(
                    "must be above zero, or the draw could never change", field=name, hint=hint
                )

    @property
    def looks_ahead(self) -> bool:
        """Whether known falls matter before they come."""
        return bool(self.ahead_s or self.refuse_s or self.ramp_down_w_s)

    @property
    def steady(self) -> bool:
        """Whether small or frequent changes are held back."""
        return bool(self.change_w or self.hold_s)


OFF = CapRules()
