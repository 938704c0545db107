"""What jobs of capacity queues are told: why they wait, and for whom they were stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattherd.model.reason import Reason, ReasonCode, StopReason
from wattherd.policy.contract import JobView
from wattherd.policy.queue.gang import FreeRoom
from wattherd.policy.queue.reclaim import gpus_of
from wattherd.policy.queue.tree import quota_exceeded
from wattherd.units import counted


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that must go, why, and for whom."""

    job: JobView
    why: StopReason
    claimant: JobView
    above_limit: bool = False
    """Whether it goes since its user holds more than the user limit, the claimant's less."""


def no_room(gpus: int, room: FreeRoom, now_s: float) -> Reason:
    """Why a gang finds no room."""
    enough = gpus <= room.gpus
    return Reason(
        code=ReasonCode.FRAGMENTED if enough else ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=gpus,
        available=room.gpus,
        unit="GPUs",
        unblocks="they do not fit together on the nodes that have room" if enough else "",
    )


def waits_behind(first: str, queue: str, gpus: int, room: FreeRoom, now_s: float) -> Reason:
    """Why a job waits behind a gang that needs its whole queue to be empty."""
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=gpus,
        available=room.gpus,
        unit="GPUs",
        unblocks=f"job {first}, which came first, needs more than queue {queue!r} is promised",
    )


def wider_than_promised(
    queue: str, promised: float, gpus: int, room: FreeRoom, now_s: float, *, strong: bool
) -> Reason:
    """Why a gang waits that is wider than what its queue is promised."""
    why = f"queue {queue!r} is guaranteed {counted(promised, 'GPU')}; {gpus} are kept for it"
    if not strong:
        why = f"{why} once its other jobs have ended"
    return Reason(
        code=ReasonCode.WAITING_FOR_GPUS,
        since_s=now_s,
        asked=gpus,
        available=room.gpus,
        unit="GPUs",
        unblocks=f"{why} as they become free",
    )


def gave_way(
    victim: Victim, queues: tuple[str, str], gpus: int, used: float, due: float, now_s: float
) -> Reason:
    """Why a stopped job waits; `queues` are its own and the claimant's.

    `used` and `due` are what its queue holds without it, and should hold.
    """
    name, whose = queues
    if victim.why is StopReason.RECLAIMED:
        why = f"queue {name!r} gave back what it had borrowed"
        return quota_exceeded(gpus, used, due, why, now_s)
    first = victim.claimant.id
    why = f"job {first} comes first in queue {name!r}"
    if whose != name:
        why = f"job {first} of queue {whose!r} has a higher priority"
    elif victim.above_limit:
        user = victim.job.spec.user
        why = f"{user!r} is above the user limit of queue {name!r}, job {first} below"
    code = ReasonCode.LOWER_PRIORITY
    return Reason(code=code, since_s=now_s, asked=gpus, unit="GPUs", unblocks=why)


def waits_for_stops(
    gpus: int, chosen: Sequence[Victim], room: FreeRoom, now_s: float, at_s: float
) -> Reason:
    """Why a gang for which others must go, the first `at_s`, still waits."""
    going = [one.job for one in chosen]
    back = sum(map(gpus_of, going))
    names = ", ".join(one.id for one in going[:3]) + (", ..." if len(going) > 3 else "")
    lent = all(one.why is StopReason.RECLAIMED for one in chosen)
    gpus_back = f"{back} {'borrowed ' if lent else ''}GPU{'' if back == 1 else 's'}"
    return Reason(
        code=ReasonCode.WAITING_FOR_PREEMPTION,
        since_s=now_s,
        asked=gpus,
        available=room.gpus,
        unit="GPUs",
        unblocks=f"{names} must give back {gpus_back}, the first",
        due_s=at_s,
    )
