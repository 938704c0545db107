"""A decision as sentences: what happened and on whose word, what was ordered and why, what is next.

Made from the documents of the entry and of its orders, so that older journals are told as well; the
story of a job that is live from the lines that the core keeps of it, as older snapshots hold them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattherd.engine.jobs.lifecycle import ACTIVE, State, Trigger
from wattherd.engine.jobs.record import StoryLine
from wattherd.model.reason import StopReason
from wattherd.server.journal.succession import BEGINS_ANEW, TAKEN_OVER
from wattherd.server.journal.timeline import SYSTEM, DecisionEntry
from wattherd.units import counted, show_ahead, show_exact_watts, show_seconds

Document = Mapping[str, Any]
NAMED = 4
"""Jobs whose new caps are told one by one; of more the number is told."""
REASONS = {
    StopReason.PREEMPTED_FOR_PRIORITY: "jobs that come before it need its devices",
    StopReason.PREEMPTED_FOR_POWER: "jobs that come before it need its watts",
    StopReason.RECLAIMED: "a queue takes back what it had lent",
    StopReason.RESIZED: "it goes on with another number of GPUs",
    StopReason.MIGRATED: "it goes on elsewhere",
    StopReason.NODE_LOST: "its node does not answer",
    StopReason.DEVICE_DRAINED: "its device is taken out of use",
    StopReason.USER_REQUEST: "it was asked for",
    StopReason.TIME_LIMIT: "its time limit has passed",
    StopReason.BUDGET_CUT: "the budget does not carry it any more",
    StopReason.ENERGY_BUDGET: "its energy budget is spent",
    StopReason.TIME_SLICE: "its turn is over",
    StopReason.TRIAL_ENDED: "its search group ends this trial",
    StopReason.TRIAL_PAUSED: "its search group pauses this trial",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldDecision:
    """`happened` is one sentence; `orders` are one each, `next` says what they lead to."""

    happened: str
    orders: tuple[str, ...]
    next: str

    def mentions(self, text: str) -> bool:
        """Whether every word of `text` occurs in what it says, in whatever case."""
        said = " ".join((self.happened, *self.orders)).casefold()
        return all(word in said for word in text.casefold().split())


def told(one: DecisionEntry, names: Sequence[str]) -> ToldDecision:
    """The sentences of a decision; `names` are the nodes', by number."""
    named = _naming(names)
    parts = list(one.detail)
    # The entry itself may be left out of what a tenant is shown.
    event = parts.pop(0) if parts and parts[0].get("type") not in _ORDERS else {}
    commands = [part for part in parts if part.get("type") != "WakeAt"]
    caps = [part for part in commands if part.get("type") == "SetCap"]
    orders = [
        _order(part, named, one.at_s)
        for part in commands
        if part.get("type") != "SetCap" or len(caps) <= NAMED
    ]
    if len(caps) > NAMED:
        orders.append(_caps(caps))
    return ToldDecision(
        happened=_happened(event, one),
        orders=tuple(orders),
        next=_next(event, commands),
    )


_OF_THE_SITE = frozenset({
    "Woke", "BudgetChanged", "BudgetAnnounced", "DeviceDrained", "DeviceReturned",
    "NodeLost", "NodeReturned", "NodeAsleep", "NodeAwake",
})  # fmt: skip
"""Events that name no job, user or tenant."""


def _naming(names: Sequence[str]) -> Callable[[int], str]:
    return lambda number: names[number] if 0 <= number < len(names) else f"node {number}"


def story_of(one: DecisionEntry, names: Sequence[str], job_id: str) -> Iterator[tuple[str, str]]:
    """What a decision meant for one job, and what brought it about: a line for each order.

    Its user may see no other job, of which nothing but that it changed is told.
    """
    named = _naming(names)
    parts = list(one.detail)
    event = parts.pop(0) if parts and parts[0].get("type") not in _ORDERS else {}
    own = one.about == job_id
    open_to_all = own or event.get("type") in _OF_THE_SITE
    happened = _happened(event, one) if open_to_all else "Something else changed."
    orders = [part for part in parts if part.get("job_id") == job_id]
    for order in orders:
        yield _order(order, named, one.at_s), happened
    if own and not orders:
        yield happened, ""


# The story of a job that is live ----------------------------------------------------------------

_STEP = re.compile(r"(\S+) -> \S+ \((.+)\)")
_STEPS: dict[str, str] = {
    Trigger.UNBLOCK: "Nothing keeps it back any more.",
    Trigger.BLOCK: "It is kept back for now.",
    Trigger.HOLD: "It is paused.",
    Trigger.RELEASE: "It was resumed.",
    Trigger.START: "It was started.",
    Trigger.STARTED: "It began to work.",
    Trigger.STOP: "It is to save its state and stop.",
    Trigger.REQUEUE: "Its run ended; it waits for the next one.",
    Trigger.SUCCEED: "It ended and succeeded.",
    Trigger.RETRY: "Its run failed; it is tried again after a pause.",
    Trigger.BACKOFF_OVER: "The pause after a failed run is over.",
    Trigger.FAIL: "It failed.",
    Trigger.CANCEL: "It was cancelled.",
    Trigger.TIME_OUT: "It ended: its time limit has passed.",
}
SUBMITTED = "It was submitted."
_OTHER_CORE = "The service has other devices or other rules now"
_LINES = {
    "submitted": SUBMITTED,
    "edit refused": "An edit was refused.",
    "lags": "One of its ranks lags behind the others.",
    "was given input": "It was given input.",
    TAKEN_OVER: f"{_OTHER_CORE}.",
    BEGINS_ANEW: f"{_OTHER_CORE}; its run begins anew.",
}
_RAN = "ran in it: "


def chapter_of(line: StoryLine) -> tuple[str, str]:
    """What happened to a job, as a sentence, and what brought that about, where that says more."""
    step = _STEP.fullmatch(line.what)
    if step is None:
        return _noted(line.what), line.cause
    before, trigger = step.groups()
    told = _STEPS.get(trigger, f"{_spaced(trigger)}.")
    cause = next((text for code, text in REASONS.items() if code == line.cause), line.cause)
    if trigger == Trigger.START and cause.startswith("attempt "):
        return f"Run {cause.removeprefix('attempt ')} of it was started.", ""
    if trigger == Trigger.SUCCEED:
        return told, ""
    if trigger in (Trigger.REQUEUE, Trigger.HOLD) and before == State.STOPPING:
        then = "is paused" if trigger == Trigger.HOLD else "waits for its next run"
        told = f"It has stopped and {then}."
    elif trigger == Trigger.FAIL and before not in ACTIVE:
        told = "It failed and did not run."
    return told, cause


def _noted(what: str) -> str:
    if what.startswith("edited: "):
        return f"It was {what}."
    if what.startswith(_RAN):
        return f"A command was run in it: {what.removeprefix(_RAN)}"
    return _LINES.get(what, what)


# What happened ----------------------------------------------------------------------------------


def _happened(event: Document, one: DecisionEntry) -> str:
    who = "" if one.by in (SYSTEM, "") else one.by
    say = _EVENTS.get(str(event.get("type")))
    text = say(event, who) if say is not None else _unnamed(one)
    cause = str(event.get("cause") or "")
    if cause and cause not in text:
        text += f" ({cause})"
    return f"{text}."


def _unnamed(one: DecisionEntry) -> str:
    """What has no sentence of its own, such as a time that has come."""
    text = _spaced(one.event)
    about = "" if one.about in text else f" {one.about}"
    return f"{text[:1].upper()}{text[1:]}{about}"


def _submitted(event: Document, who: str) -> str:
    job = event["job"]
    count = int(job.get("gpus", 0))
    asks = f"{counted(count, 'GPU')} in queue {job.get('queue', 'default')}"
    return f"{who or job.get('user') or 'Somebody'} submitted {job['id']}, which asks for {asks}"


def _by(verb: str) -> Callable[[Document, str], str]:
    return lambda event, who: f"{who or 'The service'} {verb} {event['job_id']}"


def _progressed(event: Document, _: str) -> str:
    total, rate = event.get("total"), event.get("rate_per_s")
    of = f" of {total:,.6g}" if total else ""
    speed = f" at {rate:,.3g} a second" if rate else ""
    return f"{event['job_id']} reported step {event['progress']:,.6g}{of}{speed}"


def _exited(event: Document, _: str) -> str:
    code = event.get("exit_code", 0)
    how = f"with exit code {code}" if code else "and succeeded"
    return f"Run {event['attempt']} of {event['job_id']} ended {how}"


def _budget(event: Document, who: str) -> str:
    where = event.get("domain") or "the site"
    by = who or (f"{event['source']}" if event.get("source") else "The service")
    if event["budget_w"] is None:
        return f"{by} lifted the budget of {where}"
    return f"{by} set the budget of {where} to {show_exact_watts(event['budget_w'])}"


def _announced(event: Document, who: str) -> str:
    where = event.get("domain") or "the site"
    by = who or (f"{event['source']}" if event.get("source") else "The service")
    when = show_ahead(event["begins_s"] - event["at_s"])
    if event["budget_w"] is None:
        return f"{by} took back what was announced for {where} {when}"
    return f"{by} announced {show_exact_watts(event['budget_w'])} for {where} {when}"


def _limited(event: Document, who: str) -> str:
    most = event.get("most_gpus")
    limit = "as many GPUs as it likes" if most is None else f"{counted(most, 'GPU')} at most"
    return f"{who or 'The service'} let tenant {event['tenant'] or 'without a name'} hold {limit}"


def _capped(event: Document, _: str) -> str:
    return f"The cap of {event['job_id']} is now in force: {_cap(event.get('cap_w'))}"


def _edited(event: Document, who: str) -> str:
    said = {
        "priority": event.get("priority"),
        "queue": event.get("queue"),
        "time limit": _if_any(event.get("time_limit_s"), show_seconds),
        "devices": _if_any(event.get("gpus"), lambda one: "..".join(map(str, sorted(set(one))))),
        "begin": _if_any(event.get("begin_at_s"), lambda one: show_ahead(one - event["at_s"])),
    }
    wanted = ", ".join(f"{name} {value}" for name, value in said.items() if value is not None)
    return f"{who or 'The service'} edited {event['job_id']}: {wanted or 'nothing'}"


def _if_any(value: Any, show: Callable[[Any], str]) -> str | None:
    return None if value is None else show(value)


_EVENTS: dict[str, Callable[[Document, str], str]] = {
    "JobSubmitted": _submitted,
    "JobCancelled": _by("cancelled"),
    "JobEdited": _edited,
    "ArrayLimited": lambda e, w: (
        f"{w or 'The service'} let {'all' if e.get('most') is None else e['most']} tasks of"
        f" {e['array']} run at a time"
    ),
    "JobEntered": lambda e, w: f"{w or 'Somebody'} went into run {e['attempt']} of {e['job_id']}",
    "JobHeld": _by("paused"),
    "JobReleased": _by("resumed"),
    "JobProgressed": _progressed,
    "JobExited": _exited,
    "JobStarted": lambda e, _: f"Run {e['attempt']} of {e['job_id']} began to work",
    "JobStopped": lambda e, _: f"Run {e['attempt']} of {e['job_id']} stopped as it was asked to",
    "JobMeasured": lambda e, _: f"{e['job_id']} reported how fast it trains",
    "JobDrew": lambda e, _: (
        f"Each device of {e['job_id']} drew {show_exact_watts(e['watts'])} of late"
    ),
    "CapApplied": _capped,
    "BatchApplied": lambda e, _: f"{e['job_id']} now computes {e['micro_batch']} samples at once",
    "DemandMeasured": lambda e, _: (
        f"Meters saw that each device of {e['job_id']} has use for {_cap(e.get('most_w'))}"
    ),
    "RankLagged": lambda e, _: (
        f"Rank {e['rank']} of {e['job_id']} needs {e['slowdown']:.2f} times as long as the others"
    ),
    "DeviceDrained": lambda e, w: (
        f"{w or 'The service'} took GPU {e['gpu']} of {e['node']} out of use"
    ),
    "DeviceReturned": lambda e, w: f"{w or 'The service'} returned GPU {e['gpu']} of {e['node']}",
    "NodeLost": lambda e, _: f"Node {e['node']} does not answer any more",
    "NodeReturned": lambda e, _: f"Node {e['node']} is back, empty",
    "NodeAsleep": lambda e, _: f"Node {e['node']} sleeps",
    "NodeAwake": lambda e, _: f"Node {e['node']} is awake",
    "QueueStopped": lambda e, w: f"{w or 'The service'} stopped queue {e['queue']}",
    "QueueStarted": lambda e, w: f"{w or 'The service'} started queue {e['queue']}",
    "QueuesChanged": lambda _, w: f"{w or 'The service'} changed the queues",
    "TenantLimited": _limited,
    "BudgetChanged": _budget,
    "BudgetAnnounced": _announced,
    "Computed": lambda e, _: f"The answer to a question of the plan came ({_spaced(e['kind'])})",
}


def _spaced(name: str) -> str:
    """`SomethingNew` as words; what is a phrase already stays."""
    if " " in name or not name[:1].isupper():
        return name
    return "".join(f" {one.lower()}" if one.isupper() else one for one in name).strip()


# What was ordered -------------------------------------------------------------------------------


def _order(order: Document, node_name: Callable[[int], str], now_s: float) -> str:
    say = _ORDERS.get(str(order.get("type")))
    if say is None:
        return f"{_spaced(str(order.get('type', 'an order')))}."
    return say(order, node_name, now_s)


def _start(order: Document, node_name: Callable[[int], str], _: float) -> str:
    where = " and ".join(
        f"{node_name(one['node'])} [{','.join(map(str, one['gpus']))}]" if one.get("gpus")
        else node_name(one["node"])
        for one in order["allocations"]
    )  # fmt: skip
    cap = order.get("cap_w")
    limit = "without a cap" if cap is None else f"capped at {show_exact_watts(cap)} per GPU"
    return f"Run {order['attempt']} of {order['job_id']} starts on {where}, {limit}."


def _stop(order: Document, _: Callable[[int], str], __: float) -> str:
    grace = show_seconds(order["grace_s"])
    return f"{order['job_id']} is to save its state and stop within {grace}: {_why(order)}."


def _notice(order: Document, _: Callable[[int], str], now_s: float) -> str:
    when = show_ahead(order["at_s"] - now_s)
    return f"{order['job_id']} is told that it may have to stop {when}: {_why(order)}."


def _why(order: Document) -> str:
    reason = str(order.get("reason", ""))
    return next((text for code, text in REASONS.items() if code == reason), _spaced(reason))


def _reject(order: Document, _: Callable[[int], str], __: float) -> str:
    return f"{order['job_id']} is rejected: {order.get('detail') or 'it can never run here'}."


def _finish(order: Document, _: Callable[[int], str], __: float) -> str:
    return f"{order['job_id']} is over: {order['state']}."


def _set_cap(order: Document, _: Callable[[int], str], __: float) -> str:
    cap = order.get("cap_w")
    if cap is None:
        return f"{order['job_id']} may draw as much as it can."
    return f"{order['job_id']} may draw {_cap(cap)} at most."


def _cap(cap_w: float | None) -> str:
    return "as much as it can" if cap_w is None else f"{show_exact_watts(cap_w)} per GPU"


def _caps(orders: Sequence[Document]) -> str:
    capped = [one["cap_w"] for one in orders if one.get("cap_w") is not None]
    if not capped:
        return f"{len(orders)} jobs may draw as much as they can."
    least, most = show_exact_watts(min(capped)), show_exact_watts(max(capped))
    return f"{len(orders)} jobs get other caps, {least} to {most} per GPU."


_ORDERS: dict[str, Callable[[Document, Callable[[int], str], float], str]] = {
    "StartJob": _start,
    "StopJob": _stop,
    "GiveNotice": _notice,
    "RejectJob": _reject,
    "FinishJob": _finish,
    "SetCap": _set_cap,
    "AmendJob": lambda o, _, __: f"{o['job_id']} is ordered as edited from now on.",
    "SetBatch": lambda o, _, __: f"{o['job_id']} is to compute {o['micro_batch']} samples at once.",
    "SleepNode": lambda o, _, __: f"Node {o['node']} is switched off: nothing runs there.",
    "WakeNode": lambda o, _, __: f"Node {o['node']} is switched on.",
    "Compute": lambda o, _, __: f"A question of the plan is worked out ({_spaced(o['kind'])}).",
}


# What is next -----------------------------------------------------------------------------------

_FOLLOWS = (
    ("StopJob", "Its devices and watts are given to others when it has stopped."),
    ("StartJob", "It counts as running when all its tasks run."),
    ("GiveNotice", "It goes on, should the budget still carry it then."),
    ("WakeNode", "Jobs planned there start when it is awake."),
    ("SetCap", "Lower caps make room for others when devices have read them back."),
    ("Compute", "The plan follows when the answer is there."),
)
"""What an order leads to; of several the first tells."""


def _next(event: Document, commands: Sequence[Document]) -> str:
    kinds = {str(one.get("type")) for one in commands}
    follows = next((text for kind, text in _FOLLOWS if kind in kinds), "")
    if follows or kinds:
        return follows
    if event.get("type") == "JobSubmitted":
        return "It waits for the next plan."
    if event.get("type") == "BudgetAnnounced":
        return "The guard keeps to it when it comes."
    return "Nothing had to be ordered."
