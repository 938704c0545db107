"""The plan in the making, guarded: no proposal can over-commit a device or split a gang.

The draft books on the *planned* state: what every job will hold once all orders are carried out.
What devices are held at this moment is the core's business; see `engine.core.core`.

A planner tries things out on the real books: `mark` says where it stands, `undo` goes back there.
From the first mark on every change writes down how it is taken back, newest last. Bookings are sums
of integers, so that what is undone is as if it had never been: there is no copy that could differ.

The site may limit how many GPUs jobs of one tenant hold together, whatever queues they are in and
beside the planner's quota: the guard asks `TenantUse` before it books. Jobs that hold more when a
limit is lowered keep what they have; nothing is added until they are below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattherd.engine.core.capacity import Book
from wattherd.engine.core.view import PlannedUse, Questions
from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PlanOrder, PowerAccount
from wattherd.errors import PlannerBug
from wattherd.model.allocation import Allocation, allocate
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.model.command import WAKE, Compute, GiveNotice, WakeAt
from wattherd.model.job import JobSpec, Request, TaskRole, make_request
from wattherd.model.reason import Reason, ReasonCode, StopReason, make_reason
from wattherd.policy.contract import JobView, PlanUse, Quota, Share
from wattherd.policy.eligibility import Eligibility
from wattherd.units import counted

_AS_ASKED = Share(node=0, tasks=0)[2:]
"""What a share says of tasks of the first role that get what they ask for, on any devices.

A `Share` is a tuple. Beyond node and tasks, its first two fields, all others have their defaults in
nearly every proposal: one comparison of the rest tells that, for less than a look at each field.
"""


# Rules of the guard, and what each is for.
#
# G1. All tasks of a gang or none (`_gang`): a synchronous job without one of its ranks computes
# nothing, and holds devices while it does.
#
# G2. No device twice (`_fit`, `Book.place`), none that is lost, drained, of a model or on a node
# that the job may not use. The planned book is asked, so that devices of a job that is being
# stopped can be given on at once.
#
# G3. No user, queue or tenant above its quota (`_allowed`), whatever a planner thinks of fairness.
#
# G4. Every budget must hold the plan with everybody at the least watts (`PowerAccount.refused`).
# The least, because caps can be lowered to it: what fits at the least can be made to fit. More
# would refuse plans that are possible, less would need a stop to keep a budget.
#
# G5. No job beyond its joules (`EnergyPrices.refuse`).
#
# The order is by cost: gangs are counted, devices looked up, watts and joules worked out. A
# proposal that fails is as if it had not been made, but for its reason and its strike.
class GuardedDraft:
    """Implements `policy.contract.Draft` on the planned cluster state."""

    def __init__(
        self,
        planned: Book,
        jobs: Mapping[str, JobRecord],
        lost: set[int],
        watts: PowerAccount,
        questions: Questions,
        now_s: float,
        quota: Quota | None = None,
        stopped: Mapping[str, float] | None = None,
        strikes: Counter[str] | None = None,
        limits: Mapping[str, int] | None = None,
        eligible: Eligibility | None = None,
        is_there: Callable[[str], bool] = frozenset[str]().__contains__,
        use: PlannedUse | None = None,
    ) -> None:
        """`lost` are the indices of nodes that must not be used, `stopped` queues likewise.

        `strikes` counts refused proposals by reason code; `limits` are the most GPUs of tenants.
        `eligible` says which nodes jobs may use, None: all. What of a job `is_there` already is
        booked whatever it draws. `use` is what the plan gives to whom; None: it is added up.
        """
        self._planned = planned
        self._jobs = jobs
        self._watts = watts
        self._questions = questions
        self._lost = lost
        self.now_s = now_s
        self._quota = quota
        self._eligible = eligible
        self._is_there = is_there
        self._stopped = stopped or {}
        self._strikes = Counter[str]() if strikes is None else strikes
        self._use = PlannedUse(jobs.values()) if use is None else use
        self._tenants = UNLIMITED
        if limits:
            given = ((job.spec, _gpus(job.wanted)) for job in jobs.values() if job.wanted)
            self._tenants = TenantUse.of(limits, given)
        # What a plan says of jobs is kept here until it is carried out, and never written to them
        # while planning: so `undo` can take it back.
        self.touched: dict[str, None] = {}
        self.stops: dict[str, StopReason] = {}
        self.ended: dict[str, StopReason] = {}
        self.reasons: dict[str, Reason] = {}
        self.told: dict[str, str] = {}
        self.orders: list[WakeAt | Compute | GiveNotice] = []
        self._undo: list[Callable[[], object]] | None = None
        """How each change since the first mark is taken back; None: nothing was marked."""

    # Nothing is written down before the first mark: most planners never try anything, and theirs
    # are the plans that come by the thousand. Decision 008 says why trials are made on the real
    # books.
    def mark(self) -> int:
        """Where the plan stands now; marks may be set within marks."""
        if self._undo is None:
            self._undo = []
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back all that was proposed since `mark`, the newest first.

        Only the count of refused proposals stays: they were made, and refused.

        Raises:
            PlannerBug: no such mark, or what it marked has been taken back already.
        """
        if self._undo is None or not 0 <= mark <= len(self._undo):
            raise PlannerBug(f"the plan has no mark {mark}")
        # Newest first, since a change is taken back in the state that it left: what came after it
        # must be gone.
        while len(self._undo) > mark:
            self._undo.pop()()

    # One door for all notes, because a note that is written past it would survive `undo`. Partials
    # and not closures over loop variables: they keep the value of the moment.
    def _note(self, notes: MutableMapping[str, Any], key: str, value: object) -> None:
        """Set one of the plan's notes, in a way that can be taken back."""
        if self._undo is not None:
            if key in notes:
                self._undo.append(partial(notes.__setitem__, key, notes[key]))
            else:
                self._undo.append(partial(notes.pop, key, None))
        notes[key] = value

    def _order(self, order: WakeAt | Compute | GiveNotice) -> None:
        if self._undo is not None:
            self._undo.append(self.orders.pop)
        self.orders.append(order)

    def _replan(self, record: JobRecord, wanted: tuple[Allocation, ...]) -> None:
        """The plan gives a job something else, of which the devices are booked already."""
        if self._undo is not None:
            # Sums are restored by the inverse; who comes first among equals is not, and decides
            # who owns a shared device and whom the last watts go to.
            before = record.wanted
            order = self._watts.plan_order((*before, *wanted))
            self._undo.append(partial(self._put_back, record, before, order))
        record.wanted = wanted
        self._watts.plan(record)

    def _put_back(
        self,
        record: JobRecord,
        before: tuple[Allocation, ...],
        order: PlanOrder,
    ) -> None:
        """The plan gives a job again what it gave it `before`."""
        # Release before placing: both may name the same devices.
        for allocation in record.wanted:
            self._planned.release(allocation)
        self._spend(record, record.wanted, -1)
        for allocation in before:
            self._planned.place(allocation)
        self._spend(record, before, 1)
        record.wanted = before
        self._watts.plan(record)
        self._watts.restore_plan_order(order)

    def free_gpus(self, least: int = 1) -> NDArray[np.int64]:
        """Wholly free GPUs of each usable node that can be powered; all if these are too few."""
        return self._watts.powered(self._usable(self._planned.whole.copy()), least)

    def free_gpu_total(self) -> int:
        """GPUs of `free_gpus` on all nodes together."""
        plain = not self._lost and not self._watts.by_domain
        # Below one budget with all nodes up it is one number that the book keeps.
        return self._planned.whole_gpus if plain else int(self.free_gpus().sum())

    def free_cpu_milli(self) -> NDArray[np.int64]:
        """Free milli-vCPU of each usable node."""
        return self._usable(self._planned.cpu_free.copy())

    def free_memory_mib(self) -> NDArray[np.int64]:
        """Free MiB of each usable node."""
        return self._usable(self._planned.memory_free.copy())

    # What is shown here is a promise only in one direction: where it says none there is none. Where
    # it says some the guard may still refuse, for quotas, for another role, for watts of several
    # places together.
    def room(self, job: JobView, role: int = 0) -> NDArray[np.int64]:
        """Tasks of a role that each usable node could still take."""
        needs = job.spec.roles[role]
        spec = job.spec
        room = self._planned.room(needs, spec.gpu_models)
        if self._lost:
            self._usable(room)
        if self._eligible is not None:
            mask = self._eligible.nodes(spec, role)
            if mask is not None:
                room[~mask] = 0
        # The same answers as the guard's, given before: a planner that is shown room where it will
        # be refused tries in vain, plan after plan.
        if spec.energy_budget_j is not None:
            room[self._watts.prices.too_dear(job.spec)] = 0
        whole = needs.gpu_count and needs.gpu_milli == WHOLE_GPU_MILLI
        if not (self._watts.by_domain and whole):
            return room
        # Watts are counted by device: tasks are turned into those, and back.
        each = needs.gpu_count
        least = job.spec.counts(role).start * each
        return self._watts.powered(room * each, least, together=each) // each

    def _usable(self, column: NDArray[np.int64]) -> NDArray[np.int64]:
        """`column` with nothing on lost nodes."""
        if self._lost:
            column[list(self._lost)] = 0
        return column

    def start(self, job: JobView, shares: Sequence[Share]) -> Reason | None:
        """All shares or none; what the job held in the plan before is given back first."""
        record = self._jobs[job.id]
        # A trial that was ended in this plan must not come back in it: its end is an order already.
        if record.id in self.ended:
            return self._ended(record)
        self._note(self.touched, record.id, None)
        before = job.wanted
        # Its own devices are free for the proposal: a job may grow in place, or move to a node on
        # which it holds some.
        for allocation in before:
            self._planned.release(allocation)
        if before:
            self._spend(record, before, -1)
        # From here on either all changes or nothing does: also where shares are such nonsense that
        # to look at them fails.
        try:
            booked = self._book(record, shares)
        except BaseException:
            self._hold_again(record, before)
            raise
        if isinstance(booked, Reason):
            self._hold_again(record, before)
            self._note(self.reasons, job.id, booked)
            self._strikes[str(booked.code)] += 1
            return booked
        # Watts change here and only here, after everything else was granted: `refused` has asked
        # about a job that still has its old booking, which it leaves out by itself.
        self._replan(record, booked)
        self._spend(record, booked, 1)
        # A stop in this plan has its reason already, say PREEMPTED; a later start of the same job
        # does not turn that into a move.
        if before and before != booked and job.id not in self.stops:
            self._note(self.stops, job.id, _why_moved(before, booked))
        return None

    def _hold_again(self, record: JobRecord, before: tuple[Allocation, ...]) -> None:
        """What it had is its own again: else the next job would be given what this one keeps."""
        for allocation in before:
            self._planned.place(allocation)
        # Its watts were never taken from it, as the account changes with `plan` alone.
        if before:
            self._spend(record, before, 1)

    def _spend(self, record: JobRecord, allocations: tuple[Allocation, ...], sign: int) -> None:
        """Take (sign 1) or return a job's part of its quota and of its tenant's limit."""
        if allocations:
            self._use.add(record, allocations, sign)
        if self._tenants.limits:
            self._tenants.spend(record.spec, sign * _gpus(allocations))

    def _allowed(self, record: JobRecord, allocations: tuple[Allocation, ...]) -> Reason | None:
        if self._tenants.limits:
            refusal = self._tenants.refuses(record.spec, _gpus(allocations), self.now_s)
            if refusal is not None:
                return refusal
        if self._quota is None:
            return None
        total = self._planned.usable_gpu_total(self._lost)
        use = PlanUse(
            now_s=self.now_s, total_gpus=total, gpus=self._use.gpus, stopped=self._stopped
        )
        return self._quota.admits(record.spec, _gpus(allocations), use)

    def _book(self, record: JobRecord, shares: Sequence[Share]) -> tuple[Allocation, ...] | Reason:
        """Every rule on a start, in order: gang, devices, quota, watts, joules; books or refuses.

        A refusal gives back what was booked on the way to it, whichever rule it comes from.
        """
        booked: list[Allocation] = []
        granted = False
        try:
            refusal = self._refused(record, shares, booked)
            granted = refusal is None
        finally:
            for allocation in () if granted else booked:
                self._planned.release(allocation)
        return tuple(booked) if refusal is None else refusal

    def _refused(
        self, record: JobRecord, shares: Sequence[Share], booked: list[Allocation]
    ) -> Reason | None:
        """Which rule refuses a start; what was booked until then is in `booked`."""
        spec = record.spec
        refusal = self._gang(spec, shares)
        for share in () if refusal else shares:
            allocation = self._fit(spec, share)
            if isinstance(allocation, Reason):
                refusal = allocation
                break
            self._planned.place(allocation)
            booked.append(allocation)
        given = tuple(booked)
        # A budget that refused what draws already would not be kept by it: it would be counted as
        # nothing, and others be started on its watts.
        if refusal is None and self._is_there(record.id):
            return None
        refusal = refusal or self._allowed(record, given)
        refusal = refusal or self._watts.refused(record, given, self.now_s)
        if refusal is None and spec.energy_budget_j is not None:
            refusal = self._watts.prices.refuse(record, booked, self.now_s)
        return refusal

    def _gang(self, spec: JobSpec, shares: Sequence[Share]) -> Reason | None:
        """All tasks of every role, counts and sizes within what the job can use.

        Most proposals are plain and seen to be whole at a glance: what is below never hears of
        them. A rule on where tasks may be belongs in `_fit`, one on the whole gang in `_book`.
        """
        if _plainly_whole(spec, shares):
            return None
        placed = [0] * len(spec.roles)
        for share in shares:
            if not 0 <= share.role < len(spec.roles):
                unit = f"roles, and a share is of number {share.role}"
                return self._refuse(ReasonCode.INVALID_SPEC, 1, len(spec.roles), unit)
            placed[share.role] += share.tasks
            role = spec.roles[share.role]
            for asked, able, unit in (
                (share.cpu_milli, role.cpus, "milli-vCPU per task"),
                (share.gpu_count, role.gpu_counts, "GPUs per task"),
            ):
                if asked is not None and asked not in able:
                    return self._refuse(ReasonCode.INVALID_SPEC, asked, able.stop - 1, unit)
            # A scheduler may give a smaller part of a device, never a larger one than its job asked
            # for.
            if share.gpu_milli is not None and not 1 <= share.gpu_milli <= role.gpu_milli:
                unit = "milli-GPU per GPU"
                return self._refuse(ReasonCode.INVALID_SPEC, share.gpu_milli, role.gpu_milli, unit)
        for number, role in enumerate(spec.roles):
            able = spec.counts(number)
            if placed[number] not in able:
                unit = f"{role.name} tasks"
                return self._refuse(ReasonCode.WAITING_FOR_GANG, able.start, placed[number], unit)
        return None

    def _fit(self, spec: JobSpec, share: Share) -> Allocation | Reason:
        book, node = self._planned, share.node
        # A number below nothing would count from the end, and tasks below nothing give back.
        if not 0 <= node < len(book.cluster.nodes) or share.tasks < 1:
            unit = f"tasks on node number {node}"
            return self._refuse(ReasonCode.INVALID_SPEC, share.tasks, 0, unit)
        request = share_request(spec.roles[share.role], share, spec.gpu_models)
        gpus = book.choose(request, node, share.gpus)
        model = book.cluster.nodes[node].gpu_model
        if self._eligible is not None:
            mask = self._eligible.nodes(spec, share.role)
            if mask is not None and not mask[node]:
                return self._ineligible(spec, share, int(mask.sum()))
        if node in self._lost or not request.allows(model):
            return self._refuse(ReasonCode.WAITING_FOR_GPUS, request.gpu_count, 0, "GPUs")
        if len(gpus) < request.gpu_count:
            return self._refuse(ReasonCode.WAITING_FOR_GPUS, request.gpu_count, len(gpus), "GPUs")
        if share.gpu_milli is not None and request.gpu_count:
            # Parts of a device are parts of its memory: 500 of 1000 milli have half of it.
            part_mib = self._watts.gpus[model].memory_mib * share.gpu_milli // WHOLE_GPU_MILLI
            need_mib = spec.roles[share.role].gpu_memory_mib
            if need_mib is None or need_mib > part_mib:
                need_mib = self._watts.gpus[model].memory_mib if need_mib is None else need_mib
                return self._refuse(ReasonCode.WAITING_FOR_GPUS, need_mib, part_mib, "MiB of GPU")
        for asked, free, unit in (
            (request.cpu_milli, book.cpu_free, "milli-vCPU"),
            (request.memory_mib, book.memory_free, "MiB"),
        ):
            if asked and asked > free[node]:
                return self._refuse(ReasonCode.FRAGMENTED, asked, int(free[node]), unit)
        return allocate(request, node, gpus, share.role, share.tasks)

    def _ineligible(self, spec: JobSpec, share: Share, able: int) -> Reason:
        """A role was to run where the shell does not let it."""
        nodes = self._planned.cluster.nodes
        role = spec.roles[share.role].name
        return make_reason(
            code=ReasonCode.WAITING_FOR_GPUS,
            since_s=self.now_s,
            asked=share.tasks,
            available=0,
            unit=f"{role} tasks on node {nodes[share.node].name}",
            unblocks=f"it may use {able} of {len(nodes)} nodes, and this is none of them",
        )

    def _refuse(self, code: ReasonCode, asked: int, available: int, unit: str) -> Reason:
        return make_reason(
            code=code, since_s=self.now_s, asked=asked, available=available, unit=unit
        )

    # Nobody asks whether a stop is allowed: devices that are given back break no rule of the guard.
    # What a ramp thinks of it is seen to when it is carried out (`PowerControl.must_stay`).
    def stop(self, job: JobView, why: StopReason) -> None:
        """Take everything from a job."""
        if not job.wanted:
            return
        record = self._jobs[job.id]
        self._note(self.touched, record.id, None)
        for allocation in job.wanted:
            self._planned.release(allocation)
        self._note(self.stops, record.id, why)
        self._spend(record, job.wanted, -1)
        self._replan(record, ())

    def keep(self, job: JobRecord, wanted: tuple[Allocation, ...]) -> bool:
        """Take back the stop of a job that had `wanted`, if the budgets carry it; whether they do.

        Only before anybody else was given anything: its devices and its quota are as it left them.
        """
        for allocation in wanted:
            self._planned.place(allocation)
        self._replan(job, wanted)
        if self._watts.overloaded(job):
            for allocation in wanted:
                self._planned.release(allocation)
            self._replan(job, ())
            return False
        self._spend(job, wanted, 1)
        # Not noted for `undo`: this is before the planner's turn, when nothing has been marked.
        del self.stops[job.id]
        return True

    def end(self, job: JobView, why: StopReason) -> Reason | None:
        """Call a trial off; what is no trial is its user's alone to end."""
        if not job.spec.group:
            return Reason(
                code=ReasonCode.INVALID_SPEC,
                since_s=self.now_s,
                unblocks="only trials of a search group are ended by a scheduler",
            )
        self.stop(job, why)
        self._note(self.touched, job.id, None)
        self._note(self.ended, job.id, why)
        return None

    def _ended(self, job: JobRecord) -> Reason:
        why = f"the plan has just ended it: {self.ended[job.id]}"
        return Reason(code=ReasonCode.INVALID_SPEC, since_s=self.now_s, unblocks=why)

    def wait(self, job: JobView, reason: Reason) -> None:
        """Note why a job gets nothing."""
        if job.wanted:
            told = f"is said to wait for {reason.code} while the plan runs it"
            raise PlannerBug(f"job {job.id} {told}")
        self._note(self.reasons, job.id, reason)
        self._note(self.touched, job.id, None)

    def wait_alike(self, jobs: Sequence[JobView], reason: Reason) -> None:
        """Note why jobs get nothing; thousands wait for the same."""
        names = [job.id for job in jobs if not job.wanted]
        if len(names) < len(jobs):
            for job in jobs:
                self.wait(job, reason)
            return
        if self._undo is not None:
            told = {name: self.reasons[name] for name in names if name in self.reasons}
            new = [name for name in names if name not in self.touched]
            self._undo.append(partial(self._take_back, names, told, new))
        self.reasons.update(dict.fromkeys(names, reason))
        self.touched.update(dict.fromkeys(names))

    def _take_back(
        self, names: Sequence[str], told: Mapping[str, Reason], new: Iterable[str]
    ) -> None:
        """Reasons are again those that were `told` before; those that are `new` are untouched."""
        for name in names:
            del self.reasons[name]
        self.reasons.update(told)
        for name in new:
            del self.touched[name]

    def tell(self, job: JobView, text: str) -> None:
        """Add a line to a job's story, of this plan."""
        self._note(self.told, job.id, text)

    # Only a run can be told: a job that is still waiting has nothing to save.
    def give_notice(self, job: JobView, why: StopReason, at_s: float) -> None:
        """Tell a running job that its stop is near; one that has not begun needs no notice."""
        record = self._jobs[job.id]
        if record.state in (State.STARTING, State.RUNNING):
            attempt = record.attempt
            self._order(GiveNotice(job_id=job.id, attempt=attempt, reason=why, at_s=at_s))

    def wake_at(self, at_s: float) -> None:
        """Ask for a cycle at that time."""
        self._order(WakeAt(at_s=max(at_s, self.now_s), key=WAKE))

    # Asking is an order like a start: it leaves the core as a command, once the plan stands. A
    # planner that called a solver itself would hold up every event behind it.
    def compute(self, kind: str, payload: Any) -> str:
        """Have slow work done outside; returns the question's key."""
        if self._undo is not None:
            self._undo.append(partial(self._questions.restore, self._questions.saved()))
        order = self._questions.ask(kind, payload)
        self._order(order)
        return order.key


# What hardly any share has (sizes of its own, parts, devices by name) is passed over by one look at
# each.
def _plainly_whole(spec: JobSpec, shares: Sequence[Share]) -> bool:
    """The common case, told quickly: all tasks of the only role, none of them elastic."""
    role, tasks = spec.roles[0], 0
    for share in shares:
        if share[2:] != _AS_ASKED:
            return False
        tasks += share.tasks
    return (
        tasks == role.count
        and len(spec.roles) == 1
        and spec.min_width is spec.max_width is role.min_count is role.max_count is None
    )


def share_request(role: TaskRole, share: Share, models: tuple[str, ...]) -> Request:
    """What the tasks of a share are given together."""
    tasks = share.tasks
    gpus = (role.gpu_count if share.gpu_count is None else share.gpu_count) * tasks
    milli = role.gpu_milli if share.gpu_milli is None else share.gpu_milli
    cpu_milli = role.cpu_milli if share.cpu_milli is None else share.cpu_milli
    return make_request(
        cpu_milli=cpu_milli * tasks,
        memory_mib=role.memory_mib * tasks,
        gpu_count=gpus,
        gpu_milli=milli if gpus else 0,
        models=models if gpus else (),
    )


def _gpus(allocations: tuple[Allocation, ...]) -> int:
    return sum(len(allocation.gpus) for allocation in allocations)


def _why_moved(before: tuple[Allocation, ...], after: tuple[Allocation, ...]) -> StopReason:
    same_size = sum(len(a.gpus) for a in before) == sum(len(a.gpus) for a in after)
    return StopReason.MIGRATED if same_size else StopReason.RESIZED


# --- What tenants may hold --------------------------------------------------------------------


# Counted for the plan at hand and thrown away with it: limits are few and change seldom, and a
# counter that lives as long as the core would have to be kept right by everything that ends a job.
@dataclass(slots=True)
class TenantUse:
    """`limits` in GPUs by tenant; what the plan at hand gives to each of those is counted."""

    limits: Mapping[str, int]
    _held: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, limits: Mapping[str, int], held: Iterable[tuple[JobSpec, int]]) -> TenantUse:
        """Begin with what jobs hold in the plan."""
        use = cls(limits)
        for spec, gpus in held:
            use.spend(spec, gpus)
        return use

    def spend(self, spec: JobSpec, gpus: int) -> None:
        """A job is given so many more, or fewer if negative."""
        if spec.tenant in self.limits:
            self._held[spec.tenant] += gpus

    # A limit that was lowered below what a tenant holds stops nobody; it gets nothing more until it
    # is below.
    def refuses(self, spec: JobSpec, gpus: int, now_s: float) -> Reason | None:
        """Why the job may not hold `gpus` beside what its tenant's others hold, or None."""
        most = self.limits.get(spec.tenant)
        held = self._held[spec.tenant]
        if most is None or held + gpus <= most:
            return None
        return Reason(
            code=ReasonCode.QUOTA_EXCEEDED,
            since_s=now_s,
            asked=gpus,
            in_use=held,
            available=max(most - held, 0),
            unit="GPUs",
            unblocks=f"tenant {spec.tenant!r} may hold {counted(most, 'GPU')} at most; "
            "raise its limit",
        )


# One for everybody: without limits it counts nothing, and so never changes.
UNLIMITED = TenantUse({})
"""No tenant is limited."""
