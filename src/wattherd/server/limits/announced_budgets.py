"""Says that an announced budget has come, when it has; the core keeps to it in any case."""

from __future__ import annotations

from concurrent.futures import TimeoutError as StillWaiting

from wattherd.engine.core.core import Core
from wattherd.errors import ClusterError
from wattherd.model.event import BudgetChanged
from wattherd.server.journal.contract import JournalTime
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.periodic import PeriodicThread

PERIOD_S = 0.25
PATIENCE_S = 5.0


class Notices(PeriodicThread):
    """Looks between turns for announced budgets that are due; what is due is in the journal."""

    def __init__(self, keeper: CoreLoop, clock: JournalTime) -> None:
        """Nothing is said before `begin`."""
        super().__init__("notices", PERIOD_S)
        self._keeper, self._clock = keeper, clock

    def look(self) -> None:
        """Tell of what is due."""
        try:
            due = self._keeper.ask(self._due).result(PATIENCE_S)
        except (StillWaiting, ClusterError):
            return
        for event in due:
            self._keeper.tell(event)

    def _due(self, core: Core) -> list[BudgetChanged]:
        """The last one of each source."""
        due = core.budgets.due(self._clock.now_s())
        come = {(one.domain, one.source): one for one in due}
        return [
            BudgetChanged(at_s=0.0, budget_w=one.budget_w, domain=one.domain, source=one.source)
            for one in come.values()
        ]
