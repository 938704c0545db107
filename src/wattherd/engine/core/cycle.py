"""When the core plans, and what one event has led to so far."""

from __future__ import annotations

from wattherd.model.command import Command, wake_at
from wattherd.model.event import Event, Woke

# Two kinds of wake-ups make plans, and they are told apart because rounds go on by themselves while
# a planner's own wish is for once.
WAKE = "plan"
"""Key of the wake-ups that planners ask for."""
ROUND = "round"
"""Key of the wake-ups at which rounds begin."""


# Why one object that all parts share. Before, every method that could lead to a command took a list
# to fill: an out-parameter threaded through thirty methods. Now a part cannot be called without its
# reaction.
class Reaction:
    """What the event at hand leads to; the parts of a core share one and add to it.

    It lives as long as its core and begins anew with every event, so that no part has to be handed
    a list to fill. Between events it is empty.
    """

    __slots__ = ("commands", "due", "freed", "now_s", "replan", "woke")

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.now_s = 0.0
        """Time of the event."""
        self.commands: list[Command] = []
        self.begin(0.0)

    def begin(self, now_s: float) -> None:
        """An event came."""
        self.now_s = now_s
        # `replan` says that another plan could be made, `due` that one must be made now. They
        # differ where plans come in rounds: an event then marks the state as changed, and the round
        # plans. `freed` is for the third case: a job that was released by the plan itself, after
        # the planner had looked.
        self.replan = False
        """Whether the plan could be another one now."""
        self.due = False
        """Whether a plan is due at once, whatever the rhythm of plans."""
        self.woke = False
        """Whether this is the wake-up that the planner asked for."""
        self.freed = False
        """Whether a job may be planned now for which no plan was due by itself."""

    def taken(self) -> list[Command]:
        """The commands, which are the caller's from now on."""
        commands, self.commands = self.commands, []
        return commands


class PlanTimer:
    """The rhythm of plans: after every event (None), once per instant (0), or in rounds (s)."""

    def __init__(self, round_s: float | None, reaction: Reaction) -> None:
        """No wake-up has been asked for."""
        self._round_s, self._reaction = round_s, reaction
        self._round_set = False
        # Below any time, so that an instant at zero counts as new.
        self._instant_s = -1.0
        """For when a plan at the end of an instant has been asked for."""

    def after(self, event: Event, *, any_jobs: bool) -> bool:
        """Ask for the plan that an event calls for; whether it is due now instead."""
        reaction = self._reaction
        # In rounds (Gavel, Pollux, Gandiva plan so) events change nothing by themselves; an event
        # asks for the next round only while there are jobs. A simulation without jobs would
        # otherwise never end.
        if self._round_s:
            if any_jobs and not self._round_set:
                self._ask_for_round(event, self._round_s)
        # Once per instant: a trace submits a hundred jobs at one second, and a hundred plans would
        # differ from the last one in nothing but time spent. The published simulators (Tiresias,
        # Muri) do so too.
        elif reaction.replan and self._round_s is not None:
            self.ask_for_instant()
        return reaction.due or (reaction.replan and self._round_s is None)

    def _ask_for_round(self, event: Event, round_s: float) -> None:
        """Rounds fall on whole multiples of `round_s` and are asked for while there are jobs.

        An event that comes exactly on such a multiple is still planned for in the round of that
        instant. A wake-up is not: the round of its instant may be the one that it was for.
        """
        now_s = self._reaction.now_s
        # Multiples of the period are computed, never added up: a sum of periods drifts, and rounds
        # of two runs of the same trace would fall on different floats.
        count = int(now_s // round_s)
        on_time = count * round_s == now_s and not isinstance(event, Woke) and count > 0
        at_s = now_s if on_time else (count + 1) * round_s
        self._reaction.commands.append(wake_at(at_s=at_s, key=ROUND))
        self._round_set = True

    def ask_for_instant(self) -> None:
        """Plan once all that happens at this time has happened."""
        now_s = self._reaction.now_s
        if self._instant_s != now_s:
            self._reaction.commands.append(wake_at(at_s=now_s, key=WAKE))
            self._instant_s = now_s

    def round_came(self) -> None:
        """The next event asks for the round after this one."""
        self._round_set = False

    def instant_came(self) -> None:
        """What follows at this very time asks for another plan."""
        self._instant_s = -1.0
