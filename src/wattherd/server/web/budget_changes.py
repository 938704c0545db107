"""Changes of budgets as people are told of them: when, from what to what, by whom and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from wattherd.report.draw_picture import Mark
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.changeable_settings import CONFIGURATION
from wattherd.server.documents.documents import SiteView
from wattherd.server.journal.timeline import SYSTEM, BudgetChange
from wattherd.units import show_exact_watts, show_seconds

NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldChange:
    """One change in words; `decision` says whether its entry may be looked up by the caller."""

    seq: int
    at_s: float
    at: str | None
    before: str
    after: str
    who: str
    why: str
    decision: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """All of it in short lines."""
        return f"Budget {self.before} to {self.after}", f"by {self.who}: {self.why}."


def told_changes(
    look: SiteView, caller: Caller, changes: Iterable[BudgetChange]
) -> list[ToldChange]:
    """All of them in words, in their order."""
    return [_told(look, caller, one) for one in changes]


def _told(look: SiteView, caller: Caller, one: BudgetChange) -> ToldChange:
    return ToldChange(
        seq=one.seq,
        at_s=one.at_s,
        at=look.time(one.at_s),
        before=_watts(one.before_w) if one.known else "unknown",
        after=_watts(one.budget_w),
        who=_who(one, caller),
        why=_why(one),
        decision=caller.of_site,
    )


def _who(one: BudgetChange, caller: Caller) -> str:
    """Names of operators are for the site's own people; tenants are told the role."""
    if one.source:
        return f"signal {signal_name(one.cause)}" if one.cause else one.source
    if one.by == CONFIGURATION:
        return "the configuration"
    if one.by in (SYSTEM, ""):
        return "the service"
    return one.by if caller.of_site else "an operator"


def _why(one: BudgetChange) -> str:
    """What the change is in effect, and on what occasion."""
    where = f" for {one.domain}" if one.domain else ""
    if one.source:
        why = "the limit from outside ended" if one.budget_w is None else "a limit from outside"
    elif one.by == CONFIGURATION:
        why = "the configuration was edited"
    else:
        why = "set at work"
    if one.announced_s is not None:
        why += f", announced {show_seconds(one.at_s - one.announced_s)} before"
    return why + where


def signal_name(cause: str) -> str:
    """The kind and the last part of a signal's address: folders and secrets stay out of pages."""
    scheme, _, rest = cause.partition(":")
    if not rest:
        return cause
    path = unquote(urlsplit(cause).path or rest)
    host = urlsplit(cause).hostname or ""
    return " ".join(part for part in (scheme, host or path.rpartition("/")[2]) if part)


def marks(told: Iterable[ToldChange], begin_s: float, end_s: float, each_s: float) -> list[Mark]:
    """Where they are in a picture that counts back from `end_s` in units of `each_s`."""
    return [
        Mark(at=(one.at_s - end_s) / each_s, lines=one.lines, link=f"#b-{one.seq}")
        for one in told
        if begin_s <= one.at_s <= end_s
    ]


def _watts(value: float | None) -> str:
    return NO_LIMIT if value is None else show_exact_watts(value)
