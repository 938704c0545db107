"""What a simulated run costs and emits: its draw from event to event, at the rates of that time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wattherd.estimate.rates import Bill, EnergyRates
from wattherd.model.command import Command, WakeNode
from wattherd.model.event import Event
from wattherd.sim.meter import EnergyMeter


@dataclass(slots=True)
class BillMeter:
    """Watches beside the meter that knows the watts, which must watch before it.

    `start_s` is the Unix time of the run's beginning.
    """

    meter: EnergyMeter
    rates: EnergyRates
    start_s: float = 0.0
    bill: Bill = field(default_factory=Bill)
    _at_s: float = 0.0

    def until(self, now_s: float) -> None:
        """Add what was drawn up to then."""
        if now_s > self._at_s:
            from_s, until_s = self.start_s + self._at_s, self.start_s + now_s
            self.bill = self.bill.plus(self.rates.bill(self.meter.draw_w, from_s, until_s))
        self._at_s = now_s

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        """Booting a node takes its joules at once, in this account as in the meter's."""
        del event
        wakes = sum(type(one) is WakeNode for one in commands)
        if wakes and self.meter.boot_j:
            now_s = self.start_s + self._at_s
            watts = wakes * self.meter.boot_j
            self.bill = self.bill.plus(self.rates.bill(watts, now_s, now_s + 1.0))

    def row(self) -> dict[str, object]:
        """What it adds to the figures of a run (docs/reference/sim-json.md)."""
        bill = self.bill
        return {
            "cost": bill.cost,
            "currency": self.rates.currency,
            "co2e_kg": bill.co2e_kg,
            "unpriced_j": bill.unpriced_j,
            "unrated_j": bill.unrated_j,
        }
