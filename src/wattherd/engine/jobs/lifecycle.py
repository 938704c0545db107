"""The life of a job as a table: state and trigger give the next state, nothing else does.

The states, and where a job in each of them is kept:

- BLOCKED: waits for other jobs or its time.      - STARTING: told to start, not yet running.
- HELD: its user or an operator holds it.         - RUNNING: all its tasks run.
- BACKING_OFF: failed, will be tried again.       - STOPPING: told to checkpoint and stop.
- QUEUED: waits for its turn.                     - SUCCEEDED, FAILED, CANCELLED, TIMED_OUT: final.

A job holds devices in STARTING, RUNNING and STOPPING only. What a stopped job becomes depends on
why it was stopped; the core remembers that as the trigger to apply when the stop is confirmed.
"""

from __future__ import annotations

from enum import StrEnum

from wattherd.errors import Bug


class State(StrEnum):
    """Where a job stands."""

    BLOCKED = "Blocked"
    HELD = "Held"
    BACKING_OFF = "BackingOff"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    TIMED_OUT = "TimedOut"


class Trigger(StrEnum):
    """What moves a job on."""

    UNBLOCK = "unblock"
    BLOCK = "block"
    HOLD = "hold"
    RELEASE = "release"
    START = "start"
    STARTED = "started"
    STOP = "stop"
    REQUEUE = "requeue"
    SUCCEED = "succeed"
    RETRY = "retry"
    BACKOFF_OVER = "backoff over"
    FAIL = "fail"
    CANCEL = "cancel"
    TIME_OUT = "time out"


ACTIVE = frozenset({State.STARTING, State.RUNNING, State.STOPPING})
"""States in which a job holds devices."""
WAITING = frozenset({State.BLOCKED, State.HELD, State.BACKING_OFF, State.QUEUED})
FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.TIMED_OUT})

_S, _T = State, Trigger

# Data and not code, so that it can be read at a glance, drawn (`diagram`,
# docs/reference/lifecycle.md) and checked: a step that is not in it is a `Bug` with the job's
# story, never a quiet assignment.
#
# No way leads from STOPPING back to RUNNING: an order to stop that is on its way cannot be called
# back, and the run may be half gone.
TABLE: dict[tuple[State, Trigger], State] = {
    (_S.BLOCKED, _T.UNBLOCK): _S.QUEUED,
    (_S.BLOCKED, _T.HOLD): _S.HELD,
    (_S.BLOCKED, _T.CANCEL): _S.CANCELLED,
    (_S.BLOCKED, _T.FAIL): _S.FAILED,
    # To QUEUED also where something still keeps it: from there it is blocked by the same rule as a
    # new job (`JobTable.release`).
    (_S.HELD, _T.RELEASE): _S.QUEUED,
    (_S.HELD, _T.CANCEL): _S.CANCELLED,
    (_S.BACKING_OFF, _T.BACKOFF_OVER): _S.QUEUED,
    (_S.BACKING_OFF, _T.HOLD): _S.HELD,
    (_S.BACKING_OFF, _T.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _T.BLOCK): _S.BLOCKED,
    (_S.QUEUED, _T.HOLD): _S.HELD,
    (_S.QUEUED, _T.START): _S.STARTING,
    (_S.QUEUED, _T.CANCEL): _S.CANCELLED,
    # Without ever running: what is left of its joules would not do (`Core._watch_energy`).
    (_S.QUEUED, _T.FAIL): _S.FAILED,
    **{
        (state, trigger): target
        for state in (_S.STARTING, _S.RUNNING)
        for trigger, target in (
            # No CANCEL and no TIME_OUT here: a run is stopped first, and what becomes of the job is
            # applied once its devices are back.
            (_T.STOP, _S.STOPPING),
            (_T.REQUEUE, _S.QUEUED),
            (_T.SUCCEED, _S.SUCCEEDED),
            (_T.RETRY, _S.BACKING_OFF),
            (_T.FAIL, _S.FAILED),
        )
    },
    (_S.STARTING, _T.STARTED): _S.RUNNING,
    (_S.STOPPING, _T.REQUEUE): _S.QUEUED,
    (_S.STOPPING, _T.HOLD): _S.HELD,
    # A run may end by itself while it is asked to stop; the end counts.
    (_S.STOPPING, _T.SUCCEED): _S.SUCCEEDED,
    (_S.STOPPING, _T.RETRY): _S.BACKING_OFF,
    (_S.STOPPING, _T.FAIL): _S.FAILED,
    (_S.STOPPING, _T.CANCEL): _S.CANCELLED,
    (_S.STOPPING, _T.TIME_OUT): _S.TIMED_OUT,
}


# Text and membership worked out once per step of the table, not once per step of a job.
_STEPS = {
    (before, trigger): (after, f"{before} -> {after} ({trigger})", after in ACTIVE, after in FINAL)
    for (before, trigger), after in TABLE.items()
}


# One look-up for four facts: a step is taken for every event of every run.
def step(state: State, trigger: Trigger) -> tuple[State, str, bool, bool]:
    """The state after `trigger`, the step in words, and whether that state is active, or final.

    Raises:
        Bug: the table has no such transition.
    """
    try:
        return _STEPS[state, trigger]
    except KeyError:
        raise Bug(f"no transition from {state} by {trigger!r}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> Queued"]
    lines.extend(f"    {old} --> {new}: {trigger}" for (old, trigger), new in TABLE.items())
    lines.extend(f"    {state} --> [*]" for state in State if state in FINAL)
    return "\n".join(lines) + "\n"
