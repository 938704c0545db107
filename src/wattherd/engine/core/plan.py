"""When a plan is made, what it gives every job, and what of that is still to be carried out.

An event notes in the `Reaction` whether the plan could be another one now; `PlanTimer` says whether
it is made at once, at the end of the instant or in the next round.

Devices are booked on `planned`, least watts with the power account; planners change both through
a draft (`engine.core.draft`). Here is what happens to a plan without any planner. A job that is
cancelled, held or ended loses its part at once, so that the next plan can give it away. And jobs
give up their devices when the budget no longer carries the least watts of what is planned (`shed`).

Caps go down first, at no cost to who runs where (`JobCaps`); shedding is for what is
left. What has not begun gives way before what runs; of either, classes of priority from the lowest
up. Within a class elastic jobs first become narrower, where that is allowed, and only then are jobs
stopped: those that can go on later before those that a stop ends for good, then the newest, which
has the least work to lose. The order does not depend on what a planner thinks of them. As few are
stopped as will do: whoever was in turn, but is not needed once a larger one has gone, stays, and so
the most important one that is stopped matters as little as can be. Journals of the time before
these rules are replayed without them (`RULES` in `core.config`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from wattherd.engine.core.capacity import Book
from wattherd.engine.core.config import CoreConfig
from wattherd.engine.core.draft import GuardedDraft
from wattherd.engine.core.view import PlannedUse, Roster
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord, StoryLine, may_run
from wattherd.engine.power.account import PowerAccount
from wattherd.model.allocation import Allocation
from wattherd.model.command import ROUND, WAKE, Command, wake_at
from wattherd.model.event import Event, Woke
from wattherd.model.reason import Reason, StopReason
from wattherd.policy.contract import Share

# --- When the core plans, and what one event has led to so far ------------------------------------


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


# --- What a plan holds, and how it is carried out ------------------------------------------------


# After every event somebody may start, and nearly always nobody can: a thousand jobs wait for
# devices of others, and one other has ended. So who was found to lack a device is looked at again
# when something comes free on that node, and not before.
class StartingJobs:
    """Jobs with a plan that wait for their devices to be given back, oldest plan first."""

    def __init__(self) -> None:
        """Nobody waits."""
        self.places: dict[str, int] = {}
        """By job, its place in the line; to be read."""
        self._next = 0
        self._due: dict[str, None] = {}
        """Those that may be able to start."""
        self._lacking: dict[int, dict[str, None]] = {}
        """The others, by the node that they lack something of."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self.places)

    def __iter__(self) -> Iterator[str]:
        """All of them."""
        return iter(self.places)

    # A job that is planned anew keeps its place in the line: else a job whose plan changes with
    # every event would never be first for devices that come free.
    def put(self, job_id: str) -> None:
        """A job has a plan, or another one than it had."""
        if job_id not in self.places:
            self.places[job_id] = self._next
            self._next += 1
        self._due[job_id] = None

    def drop(self, job_id: str) -> None:
        """A job waits no longer."""
        self.places.pop(job_id, None)
        self._due.pop(job_id, None)

    def lacks(self, job: JobRecord, held: Book) -> bool:
        """Whether not all that a job is to have is free; then it is looked past for now."""
        for allocation in job.wanted:
            if not held.fits(allocation):
                self.look_past(job.id, allocation.node)
                return True
        return False

    def look_past(self, job_id: str, node: int) -> None:
        """A job lacks something of a node: it cannot start before something comes free there."""
        self._due.pop(job_id, None)
        self._lacking.setdefault(node, {})[job_id] = None

    def freed(self, node: int) -> None:
        """Something came free on a node."""
        # Who has left the line meanwhile, or was given another plan, is still named here.
        for job_id in self._lacking.pop(node, ()):
            if job_id in self.places:
                self._due[job_id] = None

    def due(self) -> list[str]:
        """Those that may be able to start, oldest plan first."""
        return sorted(self._due, key=self.places.__getitem__)

    def looked_past(self) -> Iterator[str]:
        """Those that are not looked at before something comes free."""
        return (job_id for job_id in self.places if job_id not in self._due)


# What stands between a planner's wish and the world. The books say what the plan gives; this says
# what is still to be done about it: runs to be stopped, jobs to be started once devices are free,
# stops that a ramp holds up. Nothing here asks whether a plan is good.
class Plan:
    """The plan in force: bookings, the jobs that planners may use, and jobs with orders to come."""

    def __init__(self, planned: Book, watts: PowerAccount) -> None:
        """Nothing is planned."""
        self.planned, self._watts = planned, watts
        self.roster, self.use = Roster(), PlannedUse()
        self._touched: dict[str, None] = {}
        """Jobs that changed since the last plan was carried out."""
        # Kept apart from the draft's stops, which live for one plan: a ramp may hold a stop up for
        # many.
        self._late_stops: dict[str, StopReason] = {}
        """Jobs that a plan stops, and that wait for a ramp: why."""
        self.starting = StartingJobs()

    def changed(self, job: JobRecord) -> None:
        """Remember that a job's orders, and whether planners may use it, are to be seen to."""
        self._touched[job.id] = None
        # Follows from the record alone, so that asking at each of its steps keeps the roster whole
        # without ever looking at all jobs.
        eligible = may_run(job)
        if eligible is not job.listed:
            self.roster.put(job, eligible=eligible)

    # Who takes a plan away outside of a planner's turn says so here: `roster.unplanned` is what
    # planners hear of it.
    def forget(self, job: JobRecord) -> None:
        """Take a job out of the plan."""
        if not job.wanted:
            return
        for allocation in job.wanted:
            self.planned.release(allocation)
        self.use.add(job, job.wanted, -1)
        job.wanted = ()
        self._watts.plan(job)
        self.starting.drop(job.id)
        self._touched[job.id] = None
        self.roster.unplanned(job)

    def hide(self, job: JobRecord) -> None:
        """Take a waiting job from the plan and from planners, until `changed` shows it again."""
        self.forget(job)
        self.roster.put(job, eligible=False)

    def carry_out(
        self, draft: GuardedDraft, jobs: Mapping[str, JobRecord]
    ) -> Iterator[tuple[JobRecord, StopReason]]:
        """Note what a plan says of the jobs that it touched; runs that are to stop, and why.

        In order of submission, so that orders do not depend on how the planner came to them. Each
        is stopped, or put off, before the next is asked for: a ramp counts those before it.
        """
        for job_id, text in draft.told.items():
            jobs[job_id].story.append(StoryLine(draft.now_s, text))
        # Only jobs that something happened to are looked at. Those that wait on, often nearly all,
        # ask for no orders.
        touched, self._touched = self._touched, {}
        # Sorted after the planner is done: two planners that make the same plan in different orders
        # give the same commands.
        beyond = sorted(
            self._beyond_waiting(touched | draft.touched, draft, jobs), key=attrgetter("number")
        )
        for job in beyond:
            yield from self._carry_out(job, draft)

    def carry_out_late(
        self, draft: GuardedDraft, jobs: Mapping[str, JobRecord]
    ) -> Iterator[tuple[JobRecord, StopReason]]:
        """The same for the runs whose stops were put off."""
        late, self._late_stops = self._late_stops, {}
        for job_id, why in late.items():
            job = jobs.get(job_id)
            if job is not None and job.state in (State.STARTING, State.RUNNING):
                # Put back first: `_carry_out` finds the reason of the stop there, and drops it if
                # no stop is due any more.
                self._late_stops[job_id] = why
                yield from self._carry_out(job, draft)

    def put_off(self, job: JobRecord, why: StopReason) -> None:
        """A run is not stopped now: it is to be seen to again."""
        self._late_stops[job.id] = why
        self._touched[job.id] = None

    def _beyond_waiting(
        self, touched: Iterable[str], draft: GuardedDraft, jobs: Mapping[str, JobRecord]
    ) -> list[JobRecord]:
        """Live jobs for which there may be orders; the others, often all, only wait on."""
        beyond = []
        places, reasons = self.starting.places, draft.reasons
        for job_id in touched:  # thousands, at every plan
            job = jobs.get(job_id)
            if job is None:
                continue
            if job.wanted or job.active:
                beyond.append(job)
                continue
            job.reason = job.aside or reasons.get(job_id, job.reason)
            if job_id in places:
                self.starting.drop(job_id)
        return beyond

    def _carry_out(
        self, job: JobRecord, draft: GuardedDraft
    ) -> Iterator[tuple[JobRecord, StopReason]]:
        """What the difference between a job's plan and what it holds asks for."""
        wanted = job.wanted
        job.reason = None if wanted else job.aside or draft.reasons.get(job.id, job.reason)
        runs = job.state is State.RUNNING or job.state is State.STARTING
        # Compared by value: the same devices given again are the same plan, though a new proposal.
        stays = runs and wanted == job.allocations
        if wanted and not stays:
            self.starting.put(job.id)
        else:
            self.starting.drop(job.id)
        if runs and not stays:
            # A run cannot change its devices: to move or to resize it is to stop and start it.
            late = self._late_stops.pop(job.id, StopReason.PREEMPTED_FOR_PRIORITY)
            yield job, draft.stops.get(job.id, late)
        else:
            self._late_stops.pop(job.id, None)


# Before the planner and not by it: a planner may be slow, may be asked only once a round, or may
# think well of a job that must go. What a budget demands is no matter of taste.
def shed(
    draft: GuardedDraft,
    jobs: Iterable[JobRecord],
    watts: PowerAccount,
    now_s: float,
    config: CoreConfig,
) -> list[JobRecord]:
    """Narrow, then stop the least important of `jobs`, until the plan is within every budget.

    `config` says who may become narrower, who can go on after a stop, and whether those stay that
    need not go. Returns the jobs that were stopped.
    """
    # The plan at everybody's least watts is judged, not the draw: what lower caps can mend must not
    # cost anybody its devices. Caps follow in the same event (`JobCaps.share_out`).
    if not watts.overloaded():
        return []
    planned = [job for job in jobs if job.wanted]
    order = watts.plan_order(one for job in planned for one in job.wanted)
    # By submission number at last, which never ties.
    planned.sort(
        key=lambda job: (
            _stays_longer(job, config),
            job.spec.priority,
            _is_final(job, config),
            -_came_s(job, config),
            -job.number,
        )
    )
    stopped: list[tuple[JobRecord, tuple[Allocation, ...], Reason]] = []
    for _, alike in groupby(
        planned, key=lambda job: (_stays_longer(job, config), job.spec.priority)
    ):
        group = list(alike)
        for job in group if config.narrow else ():
            _narrow(job, draft, watts)
        for job in group:
            wanted = job.wanted
            why = _stopped(job, draft, watts, now_s)
            if why is not None:
                stopped.append((job, wanted, why))
    if config.spares:
        # The most important first: what is left of the watts is theirs before it is anybody's.
        stopped = [one for one in reversed(stopped) if not draft.keep(one[0], one[1])][::-1]
        watts.restore_plan_order(order)  # who stays was never gone
    for job, _, why in stopped:
        draft.wait(job, why)
    return [job for job, _, _ in stopped]


# A plan is taken back at no cost, so that nobody who runs is stopped for one who is still to start.
# Whether that one is important enough to stop others for it is the planner's to say, right after.
def _stays_longer(job: JobRecord, config: CoreConfig) -> bool:
    runs = job.state in (State.RUNNING, State.STARTING)
    return runs or config.is_there(job.id) or not config.plans_first


def _is_final(job: JobRecord, config: CoreConfig) -> bool:
    return config.returns is not None and not config.returns(job.id)


def _came_s(job: JobRecord, config: CoreConfig) -> float:
    return config.came_s(job.id) if config.came_s is not None else 0.0


# Until the plan fits or nothing narrower is left: each width is asked of the guard, as a planner's
# would be.
def _narrow(job: JobRecord, draft: GuardedDraft, watts: PowerAccount) -> None:
    """Take as many tasks from an elastic job as it takes for the plan to fit, if that does."""
    for shares in _narrower(job):
        if not watts.overloaded() or draft.start(job, shares) is None:
            return


def _stopped(
    job: JobRecord, draft: GuardedDraft, watts: PowerAccount, now_s: float
) -> Reason | None:
    """Stop a job if the plan still needs too much; why, if it was stopped."""
    # Asked of the domains above this job: to stop a job in another branch would help nobody. So a
    # branch that is over stops its own jobs, one after the other, until it fits.
    if not watts.overloaded(job):
        return None
    wanted = job.wanted
    draft.stop(job, StopReason.BUDGET_CUT)
    return watts.cut(job, wanted, now_s)


# Devices that stay are named one by one: a narrower job must keep its own, so that nothing has to
# move to make it smaller. Widest first, since the guard is asked for each until one fits.
def _narrower(job: JobRecord) -> Iterator[list[Share]]:
    """Shares of the plan's devices at every smaller width that the job can use, widest first.

    Only the first role is elastic; its last tasks go first, the other roles keep what they have.
    Jobs that share devices, or whose sizes a scheduler chose, have none.
    """
    first = [one for one in job.wanted if one.role == 0]
    others = [one for one in job.wanted if one.role != 0]
    gpus_each, width = job.spec.roles[0].gpu_count, sum(one.tasks for one in first)
    if not gpus_each or any(len(one.gpus) != one.tasks * gpus_each for one in first):
        return
    if any(one.request.gpu_milli != job.spec.roles[0].gpu_milli for one in first):
        return
    for tasks in range(width - 1, job.spec.least_width - 1, -1):
        yield [*_cut(first, tasks, gpus_each), *map(_whole, others)]


# From the front: tasks keep their ranks as far as there are any left.
def _cut(allocations: list[Allocation], tasks: int, gpus_each: int) -> Iterator[Share]:
    for one in allocations:
        kept = min(tasks, one.tasks)
        tasks -= kept
        if kept:
            yield Share(node=one.node, tasks=kept, gpus=one.gpus[: kept * gpus_each])


def _whole(one: Allocation) -> Share:
    return Share(node=one.node, tasks=one.tasks, role=one.role, gpus=one.gpus)
