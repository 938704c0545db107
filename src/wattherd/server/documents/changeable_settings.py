"""Settings that stand in the configuration and can be changed at work, too: which of them holds.

There is one rule. What was done at work holds, also after a restart, until the configuration is
edited: then the configuration holds. What the configuration said at the last start is kept in the
store, so that an edit is told from a configuration that merely stayed as it was. Whatever comes of
it is told at the start, with both values.

Queues follow the same rule; what they were is kept in the store anyway (`blueprint`, `replay`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattherd.model.event import BudgetChanged
from wattherd.server.documents.documents import time_of
from wattherd.server.limits.signal_watch import configured, forget_kept, kept
from wattherd.server.settings.config import ServeConfig
from wattherd.store.store import ClusterStore
from wattherd.units import watts

FACT = "configured"
CONFIGURATION = "configuration"
"""Who changed something, where it was the configuration."""


@dataclass(frozen=True, slots=True)
class Configured:
    """What the configuration says now, and what it said at the last start; None: it never did."""

    now: Mapping[str, Any]
    before: Mapping[str, Any] | None
    store: ClusterStore

    @classmethod
    def of(cls, config: ServeConfig, store: ClusterStore) -> Configured:
        """Read what was kept; nothing is changed yet.

        Raises:
            UserError: the budget is none.
            StoreFailure: the store cannot be read.
        """
        budget_w = None if config.budget is None else watts(config.budget, field="budget")
        now = {
            "budget_w": budget_w,
            "signals": list(configured(config.signals, config.schedule)),
            "schedule": _fingerprint(config),
        }
        known = store.journal.known_fact(FACT)
        return cls(now, None if known is None else json.loads(known), store)

    def keep(self, config: ServeConfig) -> None:
        """From now on this is what the configuration said last; to be called once it has worked.

        Raises:
            OSError: signals that were set at work cannot be forgotten.
            StoreFailure: it is not kept.
        """
        if self.now["signals"] and not self._same_signals:
            forget_kept(config.state)
        if self.now != self.before:  # a start that changes nothing needs no room on the disk
            self.store.journal.set_fact(FACT, json.dumps(self.now, sort_keys=True))

    def budget(self, known_w: float | None, epoch: float) -> tuple[BudgetChanged | None, str]:
        """The budget to state, if it is to be another than the journal's; and a note, or none."""
        asked_w, before_w = self.now["budget_w"], self._budget_before_w()
        if asked_w == known_w:
            return None, ""
        if asked_w is None:
            if before_w is None:
                return None, ""
            note = f"budget: {_watts(known_w)} stays, although it is configured no longer"
            return None, f"{note} (`wattherd power set none` ends it)"
        if asked_w == before_w:
            return None, (
                f"budget: {_watts(known_w)} holds, as {self._who(epoch)}; the configuration still"
                f" says {_watts(asked_w)}: it holds again once it is edited"
                f" (or `wattherd power set {asked_w:g}W`)"
            )
        event = BudgetChanged(at_s=0.0, budget_w=asked_w)
        if before_w is None and known_w is None:
            return event, ""
        return event, (
            f"budget: {_watts(asked_w)} from the configuration takes the place of"
            f" {_watts(known_w)}: it was edited since the last start"
        )

    def _budget_before_w(self) -> float | None:
        """Stores of earlier versions kept no note: there the journal's last word of it counts."""
        if self.before is not None:
            found: float | None = self.before["budget_w"]
            return found
        rows = self.store.projection.audit(what="BudgetChanged", by=CONFIGURATION, limit=1)
        return json.loads(rows[0]["detail"])["budget_w"] if rows else None

    def _who(self, epoch: float) -> str:
        """The last operator who set it, and when."""
        for row in self.store.projection.audit(what="BudgetChanged", limit=100):
            if not json.loads(row["detail"]).get("source"):
                at = time_of(epoch, row["at_s"])[:16]
                return f"{row['by_whom'] or 'somebody'} set it on {at}"
        return "it was set at work"

    @property
    def _same_signals(self) -> bool:
        before = self.before
        return before is not None and all(
            before.get(name) == self.now[name] for name in ("signals", "schedule")
        )

    def signals(self, config: ServeConfig) -> tuple[tuple[str, ...], str]:
        """The configured signals to listen to, none where those set at work hold; and a note."""
        asked = configured(config.signals, config.schedule)
        at_work = kept(config.state)
        if not asked or at_work is None:
            return asked, ""
        shown = ", ".join([*at_work[0], *([at_work[1]] if at_work[1] else [])]) or "none"
        if self._same_signals:
            note = f"signals: those set at work hold ({shown}); the configuration still says"
            return (), f"{note} {', '.join(asked)}: it holds again once it is edited"
        note = f"signals: those of the configuration ({', '.join(asked)}) take the place of"
        return asked, f"{note} those set at work ({shown})"


def _fingerprint(config: ServeConfig) -> str | None:
    """Of a schedule's contents: an edited file is an edited configuration."""
    try:
        text = None if config.schedule is None else config.schedule.read_bytes()
    except OSError:
        return None  # whoever reads it for use says so
    return None if text is None else hashlib.sha256(text).hexdigest()


def _watts(value: float | None) -> str:
    return "no limit" if value is None else f"{value:g} W"
