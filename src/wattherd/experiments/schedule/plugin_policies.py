"""Schedulers and power policies of other packages: what they do wrong is a reason, not a crash.

The guard checks what they propose as it checks ours. Beyond that, a planner that raises has its
plan taken back, and everybody who waits is told why; where a power policy raises, or answers with
caps that are none, equal shares stand in for it. Both are logged once for each
kind of failure, with the traceback where debugging is on. One that does not return holds all up,
and says so (`plugin_watch`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from wattherd.errors import Bug, ClusterError, PlannerBug, UserError
from wattherd.experiments.schedule.plan_check import nonsense
from wattherd.experiments.schedule.scheduler_context import (
    BuiltScheduler,
    SchedulerContext,
    SchedulerOf,
)
from wattherd.model.reason import Reason, ReasonCode
from wattherd.plugin_watch import PluginWatch
from wattherd.plugins import GUIDE, announced, loaded, told_of
from wattherd.policy.contract import Draft, Planner, View
from wattherd.policy.power.allocation import DomainRoom
from wattherd.policy.power.contract import PowerAsk, PowerPolicy
from wattherd.policy.power.in_tree import SharesInTree
from wattherd.policy.power.simple import Uniform

MOST_WORDS = 200
SLACK_W = 1e-6
"""Sums of floats may be above what was to be shared by so much."""
_log = logging.getLogger(__name__)


def schedulers() -> Mapping[str, SchedulerOf]:
    """Of installed packages, by name; each is loaded when it is built."""
    return {name: _scheduler_of(name) for name in announced("schedule")}


def _scheduler_of(name: str) -> SchedulerOf:
    return scheduler_from(name, lambda: loaded("schedule", name))


def scheduler_from(name: str, find: Callable[[], object]) -> SchedulerOf:
    """A scheduler that is not ours, guarded as one; `find` gives what makes its planner."""

    def build(given: SchedulerContext) -> BuiltScheduler:
        make = find()
        if not callable(make):
            raise _wrong("schedule", name, "makes no planner: it cannot be called")
        made = _made("schedule", name, lambda: make(given))
        built = made if isinstance(made, BuiltScheduler) else BuiltScheduler(planner=made)
        if not callable(getattr(built.planner, "plan", None)):
            raise _wrong("schedule", name, "made no planner: it has no `plan`")
        return BuiltScheduler(
            planner=PluggedPlanner(name, built.planner, built.computers), quota=built.quota,
            computers={kind: PluggedComputer(name, one) for kind, one in built.computers.items()},
            rigid=built.rigid, adapts_batch=built.adapts_batch,
        )  # fmt: skip

    return build


def power_policies() -> Mapping[str, Callable[[], PowerPolicy]]:
    """Of installed packages, by name; each is loaded when it is made."""
    return {name: _power_of(name) for name in announced("power")}


def _power_of(name: str) -> Callable[[], PowerPolicy]:
    def build() -> PowerPolicy:
        make = loaded("power", name)
        made = _made("power", name, make) if callable(make) else make
        if not callable(getattr(made, "share", None)):
            raise _wrong("power", name, "shares nothing: it has no `share`")
        kind = PluggedTreePower if isinstance(made, SharesInTree) else PluggedPower
        plugged: PowerPolicy = _made("power", name, lambda: kind(name, made))
        return plugged  # it has been asked about itself, which may fail

    return build


def notes(seam: str) -> dict[str, str]:
    """What each package says of its own; of one that cannot be loaded, why."""
    return {name: told_of(seam, name) for name in announced(seam)}


def _place(seam: str, name: str) -> str:
    """Where a package announces it; a caller's own function is announced nowhere."""
    entry = announced(seam).get(name)
    return "" if entry is None else entry.value


def _wrong(seam: str, name: str, problem: str) -> UserError:
    return UserError(problem, where=_place(seam, name), field=name, hint=GUIDE)


def _made(seam: str, name: str, make: Callable[[], Any]) -> Any:
    """What a package's function makes.

    Raises:
        UserError: what it says is wrong with what it was given, or that it failed.
    """
    try:
        with PluginWatch(f"entry point {name!r}"):
            return make()
    except (UserError, Bug):
        raise
    except (Exception, SystemExit) as error:
        raise _wrong(seam, name, f"failed: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_WORDS]


class _Complaints:
    """Says once what is said again and again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: set[str] = set()

    def words(self, error: BaseException) -> str:
        """In one line, and logged if it is new."""
        text = _one_line(error)
        if text not in self._said and len(self._said) < MOST_WORDS:
            self._said.add(text)
            _log.error("%s failed: %s", self._name, text)
            _log.debug("%s failed", self._name, exc_info=error)
        return text


class PluggedPlanner:
    """A planner of somebody else's."""

    def __init__(self, name: str, planner: Planner, computers: Collection[str] = ()) -> None:
        """`name` is what users call it; `computers` are kinds of questions that it may ask."""
        self.planner = planner
        self._name, self._computers = name, frozenset(computers)
        self._complaints = _Complaints(f"scheduler {name!r}")
        self.watch = PluginWatch(f"scheduler {name!r}")

    def plan(self, view: View, draft: Draft) -> None:
        """As it proposes; nothing of its plan where it fails midway."""
        mark = draft.mark()
        try:
            with self.watch:
                self.planner.plan(view, draft)
            self._check(view, draft)
        except Bug as error:
            if not isinstance(error, PlannerBug):
                raise  # ours, whoever called
            self._mended(view, draft, mark, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code may raise anything
            self._mended(view, draft, mark, error)

    def _check(self, view: View, draft: Draft) -> None:
        problem = nonsense(draft, view.now_s, self._computers)
        if problem:
            raise ValueError(problem)

    def _mended(self, view: View, draft: Draft, mark: int, error: BaseException) -> None:
        draft.undo(mark)
        told = f"its scheduler {self._name!r} to be mended: {self._complaints.words(error)}"
        for job in view.live():
            if not job.wanted:
                code = ReasonCode.WAITING_FOR_TURN
                draft.wait(job, Reason(code=code, since_s=view.now_s, unblocks=told))


class PluggedComputer:
    """What somebody else's scheduler has worked out beside the core, in time that costs nobody."""

    def __init__(self, name: str, compute: Callable[[Any], Any]) -> None:
        """`name` is what users call the scheduler."""
        self.compute = compute
        self._complaints = _Complaints(f"what scheduler {name!r} computes")
        self.watch = PluginWatch(f"what scheduler {name!r} computes", aside=True)

    def __call__(self, payload: Any) -> Any:
        """The answer.

        Raises:
            ClusterError: there is none, which the scheduler is told.
        """
        try:
            with self.watch:
                return self.compute(payload)
        except ClusterError:
            raise
        except (Exception, SystemExit) as error:
            raise ClusterError(self._complaints.words(error)) from error


class PluggedPower:
    """A power policy of somebody else's."""

    def __init__(self, name: str, policy: PowerPolicy) -> None:
        """`name` is what users call it."""
        self.policy = policy
        self._complaints = _Complaints(f"power policy {name!r}")
        self.watch = PluginWatch(f"power policy {name!r}")
        self._equal = Uniform()
        self._all_or_nothing = bool(getattr(policy, "all_or_nothing", False))

    @property
    def all_or_nothing(self) -> bool:
        """As the policy says; a job may be capped where it says nothing."""
        return self._all_or_nothing

    def share(self, asks: Sequence[PowerAsk], watts: float) -> list[float]:
        """Its caps, or equal ones where it fails or answers with none."""
        try:
            with self.watch:
                caps_w = list(islice(self.policy.share(asks, watts), len(asks) + 1))
            return _checked(caps_w, asks, watts)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code may raise anything
            self._complaints.words(error)
            return self._equal.share(asks, watts)


class PluggedTreePower(PluggedPower):
    """One that shares the watts of every domain of a tree."""

    policy: Any

    def share_in(self, asks: Sequence[PowerAsk], limits: DomainRoom) -> list[float]:
        """As `share`; the guard holds what is above a domain's budget to that budget."""
        try:
            with self.watch:
                caps_w = list(islice(self.policy.share_in(asks, limits), len(asks) + 1))
            return _checked(caps_w, asks, math.inf)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code may raise anything
            self._complaints.words(error)
            return self._equal.share_in(asks, limits)


def _checked(caps_w: Any, asks: Sequence[PowerAsk], watts: float) -> list[float]:
    found = [float(one) for one in caps_w]
    if len(found) != len(asks):
        raise ValueError(f"{len(found)} caps for {len(asks)} jobs")
    for cap_w, ask in zip(found, asks, strict=True):
        low_w, high_w = ask.curve.floor_w, ask.curve.max_w
        if not low_w - SLACK_W <= cap_w <= high_w + SLACK_W:
            raise ValueError(f"{cap_w} W for {ask.job_id}, which takes {low_w:g} to {high_w:g} W")
    total_w = math.fsum(cap * ask.devices for cap, ask in zip(found, asks, strict=True))
    if total_w > watts + SLACK_W * max(watts, 1.0):
        raise ValueError(f"{total_w:.3f} W shared of {watts:.3f} W")
    return found
