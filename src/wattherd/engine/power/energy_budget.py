"""Energy budgets of jobs: what each has spent, how much work is left, and what that allows.

Spent is what the caps in force allow, so that the truth is no more. Work is known where the job
says its duration; it is done at the speed of the job's curve. A run that would overrun its budget
is stopped in time for its grace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.engine.power.account import PowerAccount
from wattherd.model.job import JobSpec
from wattherd.model.reason import Reason, ReasonCode

MARGIN = 0.999
"""Part of what is left that plans may use: a job is through before the budget stops it."""
SAME_S = 1e-3
"""Moments that are one."""


# Joules are spent at the cap in force, not as measured: the same rule as for watts, so that an
# account can be overdrawn by no behaviour of the job. What it did not draw is lost to it, a price
# of the promise.
@dataclass(slots=True)
class EnergyAccount:
    """`work_s` is seconds of one device at full draw, None if nobody knows; `asked_s` a wake-up."""

    budget_j: float
    work_s: float | None
    spent_j: float = 0.0
    asked_s: float | None = None

    @property
    def left_j(self) -> float:
        """What may still be spent."""
        return self.budget_j - self.spent_j

    @property
    def price_j(self) -> float | None:
        """The most that a second's work may cost from now on."""
        return MARGIN * max(self.left_j, 0.0) / self.work_s if self.work_s else None


class EnergyBudgets:
    """Accounts of the live jobs that have an energy budget."""

    def __init__(self, watts: PowerAccount) -> None:
        """No job has one."""
        self._watts = watts
        self._accounts: dict[str, EnergyAccount] = {}

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._accounts)

    def jobs(self, live: Mapping[str, JobRecord]) -> list[tuple[JobRecord, EnergyAccount]]:
        """The live jobs with a budget; others are forgotten."""
        for gone in [one for one in self._accounts if one not in live]:
            del self._accounts[gone]
            self._watts.prices.forget(gone)
        return [(live[one], account) for one, account in self._accounts.items()]

    def refuses(self, spec: JobSpec, now_s: float) -> Reason | None:
        """Why a job that is handed in could never be done within its joules, or None."""
        account = _account(spec)
        return None if account is None else self._short(spec, account, now_s)

    def open(self, job: JobRecord) -> None:
        """Keep account of a job, if it has a budget."""
        account = _account(job.spec)
        if account is not None:
            self._accounts[job.id] = account
            self._watts.prices.set(job.id, account.price_j)

    def settle(self, seconds: float, live: Mapping[str, JobRecord]) -> None:
        """Time has passed at the caps in force."""
        for job, account in self.jobs(live):
            if job.active:
                # What STARTING and STOPPING runs draw is theirs as well: nobody else could be
                # charged for it.
                account.spent_j += self._watts.held_w(job.id) * seconds
                # A run that was told to stop draws while it saves its work, and does no more of it.
                if account.work_s is not None and job.state is not State.STOPPING:
                    done_s = self._watts.speed(job) * job.gpus * seconds
                    # Never down to nothing: a job that takes longer than it said would then have no
                    # price, like one whose work nobody knows.
                    account.work_s = max(account.work_s - done_s, SAME_S)

    def short(self, job: JobRecord, account: EnergyAccount, now_s: float) -> Reason | None:
        """Why a waiting job can no longer be done within its joules; else it is priced anew."""
        reason = self._short(job.spec, account, now_s)
        if reason is None:
            self._watts.prices.set(job.id, account.price_j)
        return reason

    def _short(self, spec: JobSpec, account: EnergyAccount, now_s: float) -> Reason | None:
        least_j = self._watts.prices.least_j(spec)
        # Where nobody knows its work, or no GPU can do it, a job is refused only once nothing is
        # left.
        if account.price_j is None or least_j is None:
            return energy_reason(0.0, 0.0, now_s) if account.left_j <= 0 else None
        if account.price_j >= least_j:
            return None
        work_s = account.work_s or 0.0
        # With the margin in it: a budget that is raised to the number told is enough.
        return energy_reason(least_j * work_s / MARGIN, account.left_j, now_s)

    # The run is asked to stop a grace before its joules are gone: it draws while it writes its
    # checkpoint, and that is paid from the same account.
    def end_s(self, job: JobRecord, account: EnergyAccount, now_s: float) -> float | None:
        """When a run must be asked to stop, its grace included; None if it draws nothing."""
        drawn_w = self._watts.held_w(job.id)
        if not drawn_w:
            return None
        return now_s + account.left_j / drawn_w - job.spec.grace_s


def _account(spec: JobSpec) -> EnergyAccount | None:
    if spec.energy_budget_j is None:
        return None
    work_s = None if spec.duration_s is None else spec.duration_s * spec.gpus
    return EnergyAccount(spec.energy_budget_j, work_s or None)


def moved(account: EnergyAccount, at_s: float) -> bool:
    """Whether a wake-up for then is another than the one asked for; remembers it."""
    # The same moment, reckoned again from other sums, differs in the last digits. Told each time, a
    # shell would be sent a wake-up with every event.
    if account.asked_s is not None and abs(at_s - account.asked_s) < SAME_S:
        return False
    account.asked_s = at_s
    return True


def energy_reason(need_j: float, left_j: float, now_s: float) -> Reason:
    """Too few joules even at the thriftiest cap."""
    return Reason(
        code=ReasonCode.ENERGY_BUDGET,
        since_s=now_s,
        asked=need_j,
        available=left_j,
        unit="J",
        unblocks="a larger energy_budget_j, or a thriftier GPU",
    )
