"""Puts a live site together: machine, core, journal, executor, meter."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from wattherd.engine.core import Core, CoreConfig
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, prior_curve
from wattherd.model.cluster import ClusterSpec
from wattherd.model.command import Command
from wattherd.model.event import BudgetChanged
from wattherd.model.job import JobSpec
from wattherd.policy.queue.tree import QueueTree
from wattherd.runtime.local.devices import Machine, slots
from wattherd.runtime.local.executor import LocalExecutor
from wattherd.runtime.local.orders import StatusServer
from wattherd.service.given import Cells, Given, Scheduler
from wattherd.service.live.clock import JournalClock
from wattherd.service.live.config import ServeConfig
from wattherd.service.live.documents import Look
from wattherd.service.live.draw import DrawMeter
from wattherd.service.live.history import History
from wattherd.service.live.keeper import Keeper
from wattherd.service.presets import preset
from wattherd.service.schedule import power_policy
from wattherd.service.setting import queue_of
from wattherd.service.workloads import Jobs
from wattherd.store.entry import Entry
from wattherd.store.journal import Journal, in_folder
from wattherd.units import watts

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Site:
    """Everything of one service, running."""

    config: ServeConfig
    keeper: Keeper
    executor: LocalExecutor
    journal: Journal
    history: History
    meter: DrawMeter
    machine: Machine
    clock: JournalClock

    def look(self, of: Callable[[Look], Answer], patience_s: float = 30.0) -> Answer:
        """Something of the state between two turns."""
        history, book = self.history.jobs, self.meter.book

        def ask(core: Core) -> Answer:
            return of(Look(core, history, book, self.machine, self.clock.epoch))

        return self.keeper.ask(ask).result(patience_s)

    def close(self) -> None:
        """Leave everything as it is; runs go on."""
        self.meter.end()
        self.keeper.end()
        self.journal.close()


def open_site(config: ServeConfig, status: StatusServer | None = None) -> Site:
    """Recover what was, and begin; jobs are told of `status`, where they may report.

    Raises:
        UserError: something in the configuration, or the state folder cannot be used.
    """
    try:
        config.state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "choose another with --state"
        raise UserError(
            f"cannot be made: {error.strerror}", where=str(config.state), hint=hint
        ) from None
    machine = slots(socket.gethostname(), config.slots)
    journal = Journal(config.store or in_folder(config.state))
    epoch = float(journal.fact("epoch", repr(time.time())))
    scheduler = _scheduler(config, machine)
    history = History()

    def on_turn(told: Sequence[tuple[Entry, Sequence[Command]]]) -> None:
        for entry, commands in told:
            history.note(entry, commands)

    clock = JournalClock(epoch, journal.last_s())
    keeper = Keeper(
        Core(_core_config(config, machine, scheduler)),
        journal,
        clock,
        computers=scheduler.computers,
        pool=ThreadPoolExecutor(1),
        on_turn=on_turn,
    )
    executor = LocalExecutor(config.state / "jobs", machine, keeper.tell, status)
    meter = DrawMeter(keeper, machine, clock, executor.usage)
    keeper.recover(executor)
    keeper.begin()
    meter.begin()
    site = Site(config, keeper, executor, journal, history, meter, machine, clock)
    _set_budget(site)
    return site


def _set_budget(site: Site) -> None:
    """The configured budget, where it is another than the journal's."""
    asked = site.config.budget
    budget_w = None if asked is None else watts(asked, field="budget")
    known = site.look(lambda look: look.core.watts.budget_w)
    if budget_w is not None and budget_w != known:
        site.keeper.post(BudgetChanged(at_s=0.0, budget_w=budget_w), by="configuration").result()


def _scheduler(config: ServeConfig, machine: Machine) -> Scheduler:
    cells = Cells(
        within={gpus: tuple(fanout) for gpus, fanout in config.cells.within.items()},
        per_rack=config.cells.per_rack,
        shares=config.cells.shares,
    )
    given = Given(
        jobs=Jobs(specs=()),
        cluster=ClusterSpec((machine.node,)),
        queues=QueueTree(queue_of(config.queues)) if config.queues else None,
        cells=cells,
    )
    return preset("none").scheduler(config.policy, given)


def _core_config(config: ServeConfig, machine: Machine, scheduler: Scheduler) -> CoreConfig:
    gpus: Mapping[str, Any] = {machine.gpu.name: machine.gpu}
    curve = prior_curve(machine.gpu)

    def curve_of(spec: JobSpec, model: str) -> PowerCurve:
        del spec, model
        return curve

    return CoreConfig(
        cluster=ClusterSpec((machine.node,)),
        planner=scheduler.planner,
        quota=scheduler.quota,
        round_s=0.0,
        power=power_policy(config.power),
        curve_of=curve_of,
        gpus=gpus,
    )
