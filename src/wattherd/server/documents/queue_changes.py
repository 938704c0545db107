"""Queues changed while the site is at work: another tree, or one queue of it.

Each change gives a whole tree, which is checked as that of a configuration is, and beside it that
no job that lives is left without a queue. What comes of it is one event in the journal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from wattherd.errors import UserError
from wattherd.experiments.schedule.setup import queue_of, queue_spec
from wattherd.model.event import QueuesChanged
from wattherd.policy.queue.tree import QueueTree
from wattherd.server.documents.documents import SiteView
from wattherd.spelling import hint_for
from wattherd.units import seconds
from wattherd.workload.scenario import QueueField, Time

NAME = re.compile(r"[\w-]{1,80}", re.ASCII)
PLACES = 6
"""Decimals of percentages that are reckoned."""
Percent = Field(default=None, ge=0, le=100, allow_inf_nan=False)


class QueueChange(BaseModel):
    """What is to be different of one queue; a queue that is not there is made below `parent`."""

    model_config = ConfigDict(extra="forbid")

    parent: str | None = Field(default=None, description="where a new queue goes")
    guaranteed_pct: float | None = Percent
    maximum_pct: float | None = Percent
    user_limit_pct: float | None = Percent
    user_limit_factor: float | None = Field(default=None, ge=-1, allow_inf_nan=False)
    order: str | None = None
    preempts: str | None = None
    reclaims: str | None = None
    reclaimable: bool | None = None
    half_life: Time | None = None
    priority: int | None = None
    preempts_to_borrow: str | None = None
    preempts_to_borrow_up_to: int | None = None
    preempts_above_user_limit: bool | None = None
    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    fair_sharing: list[str] | None = None
    scale_others: bool = Field(
        default=False, description="its siblings' guarantees make up for it, in proportion"
    )

    def fields(self) -> dict[str, Any]:
        """Those of the queue that are given; times in seconds.

        Raises:
            UserError: what is no time.
        """
        given = self.model_dump(exclude={"parent", "scale_others"}, exclude_none=True)
        if self.half_life is not None:
            given["half_life"] = seconds(self.half_life, field="half_life")
        return given


def present(look: SiteView) -> QueueField:
    """The queues in force.

    Raises:
        UserError: the policy keeps none.
    """
    quota = look.core.config.quota
    if not isinstance(quota, QueueTree):
        hint = "start `serve` with --policy capacity"
        raise UserError("this site's policy has no queues to change", field="policy", hint=hint)
    return queue_spec(quota.root)


def changed(root: QueueField, name: str, change: QueueChange) -> QueueField:
    """The tree with one queue changed, or a new one.

    Raises:
        UserError: a new queue without a parent, or a parent that is none.
    """
    root = root.model_copy(deep=True)
    known = _find(root, name)
    parent = _new_parent(root, name, change) if known is None else _parent(root, name)
    found = known or QueueField(name=name)
    if known is None and parent is not None:
        parent.children.append(found)
    elif change.parent is not None and (parent is None or change.parent != parent.name):
        hint = "make a new one there, and remove this one once it is empty"
        raise UserError("a queue stays where it is", where=name, field="parent", hint=hint)
    for field, value in change.fields().items():
        setattr(found, field, value)
    if change.scale_others and parent is not None:
        _scale([one for one in parent.children if one is not found], 100 - found.guaranteed_pct)
    return root


def _new_parent(root: QueueField, name: str, change: QueueChange) -> QueueField:
    """Where a new queue goes."""
    if change.parent is None:
        near = hint_for(name, root.names())
        raise UserError(f"no queue {name!r}", field="parent", hint=f"{near}; a new one needs it")
    parent = _find(root, change.parent)
    if parent is None:
        hint = hint_for(change.parent, root.names())
        raise UserError(f"no queue {change.parent!r}", where=name, field="parent", hint=hint)
    if change.guaranteed_pct is None:
        hint = "a percentage of its parent: 20"
        raise UserError("a new queue needs one", where=name, field="guaranteed_pct", hint=hint)
    return parent


def removed(root: QueueField, name: str, *, scale_others: bool) -> QueueField:
    """The tree without one queue and those below it.

    Raises:
        UserError: there is none, or it is the root.
    """
    root = root.model_copy(deep=True)
    parent = _parent(root, name)
    if parent is None:
        if name == root.name:
            raise UserError("the root stays", where=name, hint="put another tree in its place")
        raise UserError(f"no queue {name!r}", hint=hint_for(name, root.names()))
    parent.children = [one for one in parent.children if one.name != name]
    if scale_others:
        _scale(parent.children, 100.0)
    return root


def _scale(queues: list[QueueField], to: float) -> None:
    """Guarantees in proportion, `to` percent in all; equal ones where nothing was promised."""
    if not queues:
        return
    total = sum(one.guaranteed_pct for one in queues)
    for one in queues:
        part = one.guaranteed_pct / total if total else 1 / len(queues)
        one.guaranteed_pct = round(to * part, PLACES)
        one.maximum_pct = max(one.maximum_pct, one.guaranteed_pct)
    rest = to - sum(one.guaranteed_pct for one in queues[1:])
    queues[0].guaranteed_pct = round(rest, PLACES)


def _find(root: QueueField, name: str) -> QueueField | None:
    if root.name == name:
        return root
    return next((found for child in root.children if (found := _find(child, name))), None)


def _parent(root: QueueField, name: str) -> QueueField | None:
    if any(child.name == name for child in root.children):
        return root
    return next((found for child in root.children if (found := _parent(child, name))), None)


def event_of(
    look: SiteView, change: Callable[[QueueField], QueueField], what: str
) -> QueuesChanged:
    """What is to happen so that the queues in force are changed; `what` is said in a few words.

    Raises:
        UserError: the policy keeps no queues, the new tree promises nothing sensible, or a job that
            lives would be left without a queue.
    """
    root = change(present(look))
    for name in root.names():
        if not NAME.fullmatch(name):
            hint = "letters, digits, _ and -"
            raise UserError(f"{name!r} is no queue name", field="name", hint=hint)
    tree = QueueTree(queue_of(root))
    homeless: Counter[str] = Counter()
    for record in look.core.jobs.values():
        if tree.leaf(record.spec.queue) is None:
            homeless[record.spec.queue] += 1
    if homeless:
        name, jobs = homeless.most_common(1)[0]
        hint = f"`wattherd queues stop {name}`, then wait for them or cancel them"
        problem = f"{jobs} live job{'s' * (jobs > 1)} would be left without a queue"
        raise UserError(problem, where=f"queue {name}", hint=hint)
    return QueuesChanged(at_s=0.0, queues=root.model_dump(mode="json"), cause=what)
