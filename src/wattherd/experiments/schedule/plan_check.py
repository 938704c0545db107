"""What is wrong with a plan of somebody else's that no rule of the guard is about.

The guard sees to devices, quotas and watts. Words, times and questions go into stories, clocks and
pools as they are, and would fail there, long after whoever said them has returned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from wattherd.model.command import Compute, GiveNotice, WakeAt
from wattherd.model.reason import Reason, StopReason


def nonsense(draft: Any, now_s: float, computers: Collection[str]) -> str:
    """The first thing that is wrong with what a planner put into `draft`; empty if nothing is.

    Args:
        draft: a `GuardedDraft`; what other drafts do not keep is not looked at.
        now_s: when it was planned.
        computers: kinds of questions that somebody answers.
    """
    return next(_faults(draft, now_s, computers), "")


def _faults(draft: Any, now_s: float, computers: Collection[str]) -> Iterator[str]:
    for notes, kind, call in (
        ("reasons", Reason, "wait"),
        ("stops", StopReason, "stop"),
        ("ended", StopReason, "end"),
        ("told", str, "tell"),
    ):
        for job_id, found in getattr(draft, notes, {}).items():
            if not isinstance(found, kind):
                yield f"`{call}` of {job_id} with {found!r}, which is no {kind.__name__}"
    for order in getattr(draft, "orders", ()):
        yield from _of_order(order, now_s, computers)


def _of_order(order: object, now_s: float, computers: Collection[str]) -> Iterator[str]:
    # A time that has passed would be planned at again and again, and never be over.
    if isinstance(order, WakeAt) and not _is_later(order.at_s, now_s):
        yield f"`wake_at` of {'a time that has passed' if _is_time(order.at_s) else order.at_s}"
    elif isinstance(order, GiveNotice):
        reason: object = order.reason
        if not isinstance(reason, StopReason):
            yield f"`give_notice` with {reason!r}, which is no StopReason"
        elif not _is_time(order.at_s):
            yield f"`give_notice` at {order.at_s!r}"
    elif isinstance(order, Compute) and order.kind not in computers:
        yield f"`compute` of {order.kind!r}, which none of its computers answers"


def _is_time(found: object) -> bool:
    return isinstance(found, int | float) and math.isfinite(found)


def _is_later(found: object, now_s: float) -> bool:
    return isinstance(found, int | float) and now_s < found < math.inf
