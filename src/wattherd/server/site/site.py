"""Puts a live site together: machine, core, journal, executor, meter."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from wattherd.devices.signals.contract import SignalSite as Limited
from wattherd.devices.wire.http_client import origin_of
from wattherd.devices.wire.threads import begun_pool
from wattherd.engine.core.core import Core
from wattherd.errors import ClusterError, UserError
from wattherd.local.accounts import Accounts
from wattherd.local.descriptors import raise_limit
from wattherd.local.devices import Machine
from wattherd.local.executor import LocalExecutor
from wattherd.local.ownership import make_passage
from wattherd.local.run_plan import StatusServer
from wattherd.model.command import Command
from wattherd.model.event import NodeLost
from wattherd.plugin_watch import not_returning
from wattherd.server.documents.changeable_settings import CONFIGURATION, Configured
from wattherd.server.documents.documents import SiteView
from wattherd.server.documents.event_stream import EventStream
from wattherd.server.documents.submission_quota import SubmissionQuota
from wattherd.server.hardware.discovery import FoundHardware, found
from wattherd.server.hardware.draw import DrawMeter, DrawSample, sample_row
from wattherd.server.hardware.instruments import SiteInstruments
from wattherd.server.journal.contract import JournalClock
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.journal.job_history import JobHistory
from wattherd.server.journal.run_origins import RUNS, Origins, check_journal_file
from wattherd.server.journal.timeline import SiteTimeline
from wattherd.server.limits.announced_budgets import Notices
from wattherd.server.limits.headroom import Headroom
from wattherd.server.limits.signal_watch import SignalWatch
from wattherd.server.limits.site_hold import SiteHold
from wattherd.server.limits.site_limits import SiteLevel, SiteWatch, forget_site
from wattherd.server.notify.channels import Channels
from wattherd.server.notify.notifier import Notifier
from wattherd.server.periodic import PeriodicThread
from wattherd.server.recovery.projector import Projector
from wattherd.server.recovery.recovery import recover
from wattherd.server.recovery.snapshot_process import SnapshotProcess
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.server.settings.energy_rates import RatesWatch
from wattherd.server.settings.tenant_accounts import accounts_of
from wattherd.server.site.deferral import DeferWatch
from wattherd.server.site.draw_reports import DrawReports
from wattherd.server.site.fault_watch import FaultWatch
from wattherd.server.site.full_draws import FullDraws
from wattherd.server.site.idle_apps import IdleWatch
from wattherd.server.site.metrics_tally import MetricsTally
from wattherd.server.site.power_tree import TreeBook
from wattherd.server.site.slow_ranks import RankWatch
from wattherd.server.site.stragglers import PaceWatch
from wattherd.server.structured_log import log_turns
from wattherd.store.database import JOURNAL_FILE, in_folder
from wattherd.store.entry import JournalEntry
from wattherd.store.lock import FileLock, InUse
from wattherd.store.store import ClusterStore
from wattherd.units import watts

if TYPE_CHECKING:
    from wattherd.server.site.open_telemetry import OpenTelemetry

Answer = TypeVar("Answer")
CLOSE_S = 15.0
"""How long the end of the service waits for the turn at hand: less than whoever ends it does."""
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveSite:
    """Everything of one service, running."""

    config: ServeConfig
    keeper: CoreLoop
    executor: LocalExecutor
    store: ClusterStore
    history: JobHistory
    chronicle: SiteTimeline
    meter: DrawMeter
    notices: Notices
    signals: SignalWatch
    machine: Machine
    instruments: SiteInstruments
    clock: JournalClock
    scribe: Projector
    snapshots: SnapshotProcess
    tally: MetricsTally
    faults: FaultWatch
    idle: IdleWatch
    accounts: Accounts
    notes: tuple[str, ...]
    """What was noticed when the store was opened."""
    feed: EventStream
    notifier: Notifier
    ending: ExitStack
    """What is to be done when it ends, the last thing that was begun first."""
    limits: SiteHold | SiteWatch | None = None
    """Limits of this machine and above it, where it has knobs or any are configured."""
    rates: RatesWatch | None = None
    """What energy costs and emits, where that is configured."""
    room: SubmissionQuota = field(default_factory=SubmissionQuota)
    """What users' jobs take, of those that this service was handed in."""
    tree: TreeBook = field(default_factory=TreeBook)
    """What is remembered of them, and of devices that are silent."""
    telemetry: OpenTelemetry | None = None

    def look(self, of: Callable[[SiteView], Answer], patience_s: float = 30.0) -> Answer:
        """Something of the state between two turns.

        Raises:
            ClusterError: the core thinks for too long, or has stopped.
        """
        try:
            return self.asking(of).result(patience_s)
        except TimeoutError:
            raise ClusterError(f"the core has not answered within {patience_s:.0f} s") from None

    def asking(self, of: Callable[[SiteView], Answer]) -> Future[Answer]:
        """The same, without waiting for it."""
        return self.keeper.ask(lambda core: of(self.look_at(core)))

    def look_at(self, core: Core) -> SiteView:
        """What documents are made of, for use between two turns."""
        return SiteView(
            core, self.history, self.meter.book, self.machine, self.clock.epoch,
            self.executor.troubles, self.executor.support, self.notifier.problems,
            self.executor.unkept, self.rates,
        )  # fmt: skip

    def levels(self) -> tuple[SiteLevel, ...]:
        """Levels above this machine as they were last seen."""
        return () if self.limits is None else self.limits.levels()

    def failing(self) -> str:
        """What a thread of the service fails at, or waits for; empty if none does."""
        rounds = (self.meter, self.notices, self.signals, self.faults, self.idle, self.notifier,
                  self.rates, self.limits)  # fmt: skip
        found = (one.failure for one in rounds if isinstance(one, PeriodicThread))
        failure = self.executor.failure or next(filter(None, found), "")
        return failure or not_returning(aside=True)

    def not_returning(self) -> str:
        """What of other packages does not return, and holds decisions up; empty if nothing does."""
        return not_returning()

    def catch_up(self) -> None:
        """Wait until the projections know of everything that was acknowledged up to now."""
        self.look(lambda _: None)
        self.scribe.caught_up()

    def close(self) -> None:
        """Leave everything as it is; runs go on.

        A core that does not come back from its turn is left behind, for a successor decides again.
        """
        if self.keeper.at_work:
            try:
                self.look(lambda _: None, CLOSE_S)
            except ClusterError as error:
                self.keeper.abandon(error)
                _LOG.error("left behind: %s", self.not_returning() or error)
        self.ending.close()


def open_site(
    config: ServeConfig, status: StatusServer | None = None, *, accept_store: bool = False
) -> LiveSite:
    """Recover what was, and begin; jobs are told of `status`, where they may report.

    With `accept_store` a store counts although the state folder knows of more than it does. Where
    the start fails, nothing of it is left: no thread, no lock, no descriptor.

    Raises:
        UserError: something in the configuration, or the state folder cannot be used.
        StoreFailure: the store can be neither read nor written, where a start has to.
    """
    with ExitStack() as ending:
        try:
            return _opened(config, status, ending, accept_store=accept_store)
        except OSError as error:
            where = str(error.filename or config.state)
            raise UserError(f"cannot be used: {error.strerror}", where=where) from None


def _opened(
    config: ServeConfig, status: StatusServer | None, ending: ExitStack, *, accept_store: bool
) -> LiveSite:
    try:
        make_passage(config.state)
    except OSError as error:
        hint = "choose another with --state"
        raise UserError(
            f"cannot be made: {error.strerror}", where=str(config.state), hint=hint
        ) from None
    raise_limit()
    if config.store is None and not accept_store:
        check_journal_file(config.state / JOURNAL_FILE, config.state)
    here = found(config)
    ending.callback(here.instruments.close)
    store = ClusterStore.open(_url(config), state=config.state)
    ending.callback(store.close)
    try:
        ending.callback(FileLock(config.state / "serve").release)
    except InUse as who:
        hint = "two services cannot share a state folder, whatever stores they have"
        raise UserError(f"in use by {who}", where=str(config.state), hint=hint) from None
    origins = Origins(store, config.state, accept=accept_store)
    return _begin(config, here, store, status, origins, ending)


def _url(config: ServeConfig) -> str:
    return config.store or in_folder(config.state)


def _begin(
    config: ServeConfig,
    here: FoundHardware,
    store: ClusterStore,
    status: StatusServer | None,
    origins: Origins,
    ending: ExitStack,
) -> LiveSite:
    machine, instruments = here.machine, here.instruments
    snapshots = SnapshotProcess(_url(config), config.snapshot_every)
    ending.callback(snapshots.end)
    epoch = float(store.journal.fact("epoch", repr(time.time())))
    recovered = recover(store, Blueprint.of(config, machine))
    replay, scribe = recovered.replay, recovered.scribe
    ending.callback(scribe.end)
    history, core = replay.history, replay.state.core
    origins.sort_out(core, history)
    tally = MetricsTally(
        config.policy,
        recovered.book.joules,
        core.jobs.values(),
        [one.name for one in machine.nodes],
    )

    def lags(job_id: str) -> None:
        tally.straggler(history.jobs[job_id].spec.queue if job_id in history.jobs else "")

    pace = PaceWatch(lags)
    telemetry = _telemetry(config, machine, epoch, ending)
    # Until recovery is over: what was decided earlier has been told.
    traced: Callable[[Sequence[tuple[JournalEntry, Sequence[Command]]]], None] = _untraced
    feed = EventStream(core, history, replay.state.standing.seq, store.journal.digest)

    def on_turn(told: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
        touched = [past for turn in told for past in history.note(*turn)]
        tally.told(told, core.jobs)  # before joules of jobs that are over leave for the store
        for turn in told:
            recovered.chronicle.note(*turn)
        scribe.told(told, touched)
        pace.told(told)
        log_turns(told)
        traced(told)
        if any(isinstance(entry.event, NodeLost) for entry, _ in told):
            executor.abandon()
        feed.told(told)
        snapshots.grown(len(told))

    clock = JournalClock(epoch, store.journal.last_s())
    pool = begun_pool(1, "computing")
    ending.callback(pool.shutdown, wait=False, cancel_futures=True)
    keeper = CoreLoop(
        core,
        store.journal,
        clock,
        computers=replay.scheduler.computers,
        pool=pool,
        on_turn=on_turn,
        on_cycle=tally.cycle,
        standing=replay.state.standing,
    )
    hold = None
    if instruments.caps is not None:
        hold = SiteHold(machine, instruments.caps, config.state.absolute(), config.site)
        ending.callback(hold.end)
    accounts = accounts_of(config)
    executor = LocalExecutor(
        config.state / RUNS,
        machine,
        keeper.tell,
        status,
        instruments.caps,
        lambda spec: origins.of(spec, keeper.standing.seq),
        accounts,
        require_limits=config.require_limits,
    )
    ending.callback(executor.close)
    ending.callback(keeper.end)

    headroom = Headroom(keeper, machine)
    steering = DrawReports(executor.steered, keeper.tell)
    full_draws = FullDraws(machine, executor.throttled, executor.draws_in_full)
    tree = TreeBook.of(config.site)
    rates = None if config.rates is None else RatesWatch(config.rates)
    if rates is not None:
        ending.callback(rates.end)
        recovered.book.of_one_watt = lambda from_s, until_s: rates.of_one_watt(
            epoch + from_s, epoch + until_s
        )
        rates.begin()
    ranks = RankWatch(executor.paces, keeper.tell, time.time)

    def keep(sample: DrawSample, span_s: float) -> None:
        scribe.sampled(sample.at_s, sample_row(sample, span_s))
        pace.look(sample.at_s)
        feed.sampled(sample)
        tree.sampled(sample)
        if limits is not None:
            tree.look(limits.levels(), sample.at_s, epoch)
        ranks.look()
        if sample.read:
            headroom.look(sample.read)
        steering.sampled(sample.at_s, sample.by_job)
        full_draws.look(sample)
        instruments.limit.hold(sample.budget_w)

    meter = DrawMeter(
        keeper,
        machine,
        clock,
        executor.usage,
        book=recovered.book,
        keep=keep,
        instruments=instruments,
    )
    limits = hold or _watch(config, keeper, machine, lambda: _drawn(meter, clock), ending)
    if hold is not None:
        hold.stop_at_once = executor.abandon
        hold.begin(keeper, core)
    said = Configured.of(config, store)
    uris, signal_note = said.signals(config)
    signals = SignalWatch(keeper, clock, _limited(config, machine), config.state, uris)
    ending.callback(signals.end)
    keeper.recover(executor)
    traced = _untraced if telemetry is None else telemetry.decisions.told
    snapshots.grown(recovered.entries)
    faults = FaultWatch(config.kernel_log, machine, keeper.tell, tally.fault)
    ending.callback(faults.end)
    notices, idle = Notices(keeper, clock), IdleWatch(keeper)
    own_ports = {config.port} if status is None else {origin_of(status.url).port, config.port}
    notifier = Notifier(store, history, Channels(config.notify, own_ports), epoch)
    for part in (idle, notifier, notices, meter, feed):
        ending.callback(part.end)
    ending.callback(_flush, telemetry)  # while there is somebody to ask
    keeper.begin()
    scribe.begin()
    meter.begin()
    faults.begin()
    notices.begin()
    idle.begin()
    notifier.begin()
    problems = [one for one in (signal_note, faults.problem, signals.problem) if one]
    site = LiveSite(
        config, keeper, executor, store, history, recovered.chronicle, meter, notices, signals,
        machine, instruments, clock, scribe, snapshots, tally, faults, idle,
        accounts, (*origins.notes, *recovered.notes, *problems, *notifier.notes), feed, notifier,
        ExitStack(),
    )  # fmt: skip
    site.limits, site.tree, site.rates, site.telemetry = limits, tree, rates, telemetry
    _defer(site, ending)
    _begin_limits(config, limits, keeper)
    _set_budget(site, said)
    said.keep(config)
    signals.begin()
    site.notes = (*site.notes, *here.notes)
    site.ending = ending.pop_all()
    return site


def _untraced(told: Sequence[tuple[JournalEntry, Sequence[Command]]]) -> None:
    del told


def _telemetry(
    config: ServeConfig, machine: Machine, epoch_s: float, ending: ExitStack
) -> OpenTelemetry | None:
    """Where a collector is configured.

    Raises:
        UserError: the extra is not installed, or the address is none.
    """
    if config.otlp is None:
        return None
    try:
        from wattherd.server.site.open_telemetry import OpenTelemetry
    except ImportError as missing:
        hint = 'pip install "wattherd[otel]"'
        raise UserError(f"needs {missing.name}", field="otlp", hint=hint) from None
    names = [one.name for one in machine.nodes]
    telemetry = OpenTelemetry(config.otlp, f"{names[0]}:{config.port}", epoch_s, names)
    ending.callback(telemetry.end)
    return telemetry


def _flush(telemetry: OpenTelemetry | None) -> None:
    if telemetry is not None:
        telemetry.flush()


def _defer(site: LiveSite, ending: ExitStack) -> None:
    """Jobs may wait for cheap energy where rates are configured."""
    if site.rates is not None:
        defer = DeferWatch(site.keeper, site.history, site.rates, site.clock.epoch)
        ending.callback(defer.end)
        defer.begin()


def _watch(
    config: ServeConfig, keeper: CoreLoop, machine: Machine,
    drawn: Callable[[], tuple[float, float]], ending: ExitStack,
) -> SiteWatch | None:  # fmt: skip
    """Limits above a machine that has no knobs."""
    if config.site is None:
        return None
    watch = SiteWatch(keeper, machine, config.site, drawn)
    ending.callback(watch.end)
    return watch


def _begin_limits(
    config: ServeConfig, limits: SiteHold | SiteWatch | None, keeper: CoreLoop
) -> None:
    """What earlier limits left of the budget is lifted where none are configured now."""
    if isinstance(limits, SiteWatch):
        limits.begin()
    if config.site is None:
        forget_site(keeper)


def _drawn(meter: DrawMeter, clock: JournalClock) -> tuple[float, float]:
    """The machine's last watts, and how old they are."""
    if not meter.book.samples:
        return math.nan, 0.0
    last = meter.book.samples[-1]
    return last.draw_w, max(clock.now_s() - last.at_s, 0.0)


def _limited(config: ServeConfig, machine: Machine) -> Limited:
    """What shares of signals are of, and the least the machine draws: all jobs paused."""
    node, gpu = machine.node, machine.gpu
    most_w = node.idle_w + node.gpu_count * gpu.max_w
    base_w = most_w if config.budget is None else watts(config.budget, field="budget")
    return Limited(base_w=base_w, least_w=node.idle_w + node.gpu_count * gpu.idle_w)


def _set_budget(site: LiveSite, said: Configured) -> None:
    """The configured budget, where it is another than the journal's and was edited."""
    known = site.look(lambda look: look.core.budgets.by_source.get("", {}).get(""))
    event, note = said.budget(known, site.clock.epoch)
    if event is not None:
        site.keeper.post(event, by=CONFIGURATION).result()
    if note:
        site.notes = (*site.notes, note)
