"""What parts of your own must do, as checks: schedulers, scorers, power policies and the rest.

A test calls them:

    from wattherd.testing.conformance import check_scheduler

    def test_it_conforms():
        check_scheduler(make)

Each check raises `Nonconforming`, an AssertionError that says what was asked and what happened.
They are fixed samples of small worlds, so that a failure can be looked at; ours pass them as well
(`tests/unit/test_conformance.py`).
"""

from __future__ import annotations

import copy
import json
import math
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from wattherd.devices.knobs.contract import KnobDriver
from wattherd.devices.meters.contract import MeterSample
from wattherd.devices.meters.registry import Maker
from wattherd.devices.signals.contract import LimitSignal, SignalSite, ToldLimits
from wattherd.devices.wire.clock import SYSTEM
from wattherd.devices.wire.uri import Uri, parse
from wattherd.engine.placement.placer import Placer
from wattherd.engine.placement.reference import feasible_rows
from wattherd.engine.placement.state import ClusterState
from wattherd.engine.power.limit_timeline import LimitPeriod
from wattherd.errors import UserError
from wattherd.estimate.power_curve import PowerCurve, concave_hull
from wattherd.experiments.placement.plugin_scorers import wrong_answer
from wattherd.experiments.placement.policies import build_placer
from wattherd.experiments.schedule.scheduler_context import BuiltScheduler, SchedulerContext
from wattherd.experiments.schedule.workloads import ReadJobs
from wattherd.library.placement import pack
from wattherd.library.simulation import run_schedulers
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.command import Command, FinishJob
from wattherd.model.event import BudgetChanged, Event, NodeLost, NodeReturned
from wattherd.model.job import JobSpec, Request, TracePod
from wattherd.policy.contract import Planner
from wattherd.policy.place.contract import Ints, ScoredWorld, Scorer
from wattherd.policy.place.registry import PlacePolicy, ScorerPart, parse_policy
from wattherd.policy.power.contract import PowerAsk, PowerPolicy
from wattherd.report.plugin_reports import (
    MakeReport,
    ReportedRun,
    ReportFile,
    ReportSection,
    ShownSection,
    shown_sections,
)
from wattherd.report.runs import load_runs
from wattherd.report.schedule_runs import load_sim
from wattherd.report.site_past import SiteJob, SitePast, StateSample
from wattherd.store.event_log import digest
from wattherd.testing.timed_world import Story, t4_nodes, timed

SEEDS = tuple(range(6))
END_S = 30_000.0
"""Simulated; one after the other all jobs would take a fifth of it."""
MOST_ORDERS = 2_000
"""Of a whole story; ours need some hundred."""
SLACK_W = 1e-6


class Nonconforming(AssertionError):
    """Something that its shells rely on does not hold."""


def _require(holds: object, problem: str) -> None:
    if not holds:
        raise Nonconforming(problem)


# Schedulers ---------------------------------------------------------------------------------------


def check_scheduler(
    make: Callable[[SchedulerContext], Planner | BuiltScheduler],
    *,
    seeds: Iterable[int] = SEEDS,
    restarts: int = 50,
) -> None:
    """Plan small workloads with a fall of the budget and a node that is lost for a while.

    Args:
        make: what the entry point `wattherd.schedule` names.
        seeds: of the workloads.
        restarts: how often one job may be stopped and started before that counts as no progress.

    Raises:
        Nonconforming: a job that could run never ended, the same events were answered by other
            commands, or jobs were ordered to and fro without end. Whatever the core's invariants
            forbid (more GPUs or watts than there are) raises `wattherd.errors.Bug`.
    """
    for seed in seeds:
        first = _story(make, seed)
        left = [job.id for job in first.core.jobs.values() if job.finish_s is None]
        why = {job_id: first.why(job_id) for job_id in left}
        _require(not left, f"seed {seed}: never ended, though nothing keeps them: {why}")
        ended = [one for _, one in first.commands if isinstance(one, FinishJob)]
        _require(ended, f"seed {seed}: nothing ran")
        again = _story(make, seed)
        same = digest(one for _, one in first.commands) == digest(one for _, one in again.commands)
        _require(same, f"seed {seed}: the same events were answered by other commands")
        for number in range(_JOBS):
            starts = len(first.starts(f"j{number}"))
            problem = f"seed {seed}: j{number} was started {starts} times"
            _require(starts <= restarts, problem)


_JOBS = 14


def _story(make: Callable[[SchedulerContext], Planner | BuiltScheduler], seed: int) -> Story:
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    cluster = t4_nodes(*draw.choice([(4, 4), (2, 8, 4), (8,), (1, 2, 4)]))
    widest = max(node.gpu_count for node in cluster.nodes)
    jobs = _jobs(draw, widest)
    made = make(SchedulerContext(jobs=ReadJobs(specs=tuple(jobs)), cluster=cluster, seed=seed))
    built = made if isinstance(made, BuiltScheduler) else BuiltScheduler(planner=made)
    whole_w = sum(70.0 * node.gpu_count for node in cluster.nodes)
    events: list[Event] = [
        BudgetChanged(at_s=0.0, budget_w=whole_w),
        BudgetChanged(at_s=300.0, budget_w=0.8 * whole_w),
        NodeLost(at_s=500.0, node="n0"),
        NodeReturned(at_s=900.0, node="n0"),
        BudgetChanged(at_s=1500.0, budget_w=None),
    ]
    return _Bounded(built.planner, cluster, jobs, quota=built.quota, events=events, until_s=END_S)


class _Bounded(Story):
    """Stops and starts at one instant would go on for ever."""

    def after(self, event: Event, commands: Sequence[Command]) -> None:
        super().after(event, commands)
        problem = f"{len(self.commands)} orders by second {event.at_s:g}, and no end"
        _require(len(self.commands) <= MOST_ORDERS, problem)


def _jobs(draw: random.Random, widest: int) -> list[JobSpec]:
    """Narrow and wide gangs of several users, in bursts."""
    jobs, at_s = [], 0.0
    for number in range(_JOBS):
        at_s += draw.choice([0.0, 0.0, 20.0, 120.0])
        width = draw.choice([1, 1, 2, widest])
        lasts_s = float(draw.randrange(20, 400))
        user, priority = draw.choice(["ann", "bob"]), draw.choice([0, 0, 5])
        more: dict[str, Any] = {"at_s": at_s, "lasts_s": lasts_s, "user": user}
        jobs.append(timed(f"j{number}", min(width, widest), priority=priority, **more))
    return jobs


# Placement scorers --------------------------------------------------------------------------------


def check_scorer(scorer: Scorer, *, seeds: Iterable[int] = SEEDS, most_s: float = 1.0) -> None:
    """Place pods on small clusters of mixed nodes, and take some of them off again.

    Args:
        scorer: what the entry point `wattherd.place` names; each of its tokens is tried, too.
        seeds: of the clusters and their pods.
        most_s: how long the keys of a thousand nodes may take for one request.

    Raises:
        Nonconforming: the scorer raises; keys that are no integers, not one for each node, or too
            large for a blend; a GPU without room; something changed in place; another answer to
            the same question; a key that depends on other nodes, on memory, or on what happened
            before; or keys that take too long.
    """
    _require(isinstance(scorer, Scorer), f"{type(scorer).__name__} is no Scorer")
    for token, values in scorer.tokens.items():
        unknown = sorted(set(values) - set(scorer.options))
        _require(not unknown, f"token {token!r} sets {unknown}, which are no options")
    for spelling in ("scorer", *(f"scorer@{token}" for token in scorer.tokens)):
        policy = parse_policy(spelling, {"scorer": scorer})
        for seed in seeds:
            _check_placed(policy, seed, f"{spelling}, seed {seed}")
    _check_pace(parse_policy("scorer", {"scorer": scorer}), most_s)


_PODS = 40
_MANY_NODES = 1_000
_MOST_KEY = 2**53
"""A blend multiplies keys by up to 1000; that must fit into 64 bits."""


def _check_placed(policy: PlacePolicy, seed: int, where: str) -> None:
    """Pods come and go; each answer is looked at before the pod is placed by it."""
    draw = random.Random(seed)  # noqa: S311 - a sample, no secret
    cluster = _mixed_nodes(draw, draw.randrange(2, 9))
    pods = tuple(TracePod(name=f"p{at}", request=_request(draw)) for at in range(_PODS))
    placer = _scored_placer(cluster, pods, policy)
    held: list[Allocation] = []
    for pod in pods:
        at = f"{where}, {pod.name}"
        if policy.looks_ahead:
            _chosen(placer, pod.request, at)  # tells the world how loaded it is
        _check_keys(policy.parts[0], placer.state, pod.request, at)
        chosen = _chosen(placer, pod.request, at)
        if not policy.random_ties and not policy.random_gpu:
            anew = Placer(placer.state, policy, draws=np.random.default_rng(0), compiled=False)
            problem = "keys that were kept choose another node than keys of this moment"
            _require(_chosen(anew, pod.request, at) == chosen, f"{at}: {problem}")
        if chosen is not None:
            placer.state.place(chosen)
            held.append(chosen)
        if held and draw.random() < 0.3:
            placer.release(held.pop(draw.randrange(len(held))))


def _chosen(placer: Placer, request: Request, at: str) -> Allocation | None:
    try:
        return placer.choose(request)
    except Exception as error:
        raise Nonconforming(f"{at}: it raised {type(error).__name__}: {error}") from error


def _scored_placer(cluster: ClusterSpec, pods: tuple[TracePod, ...], policy: PlacePolicy) -> Placer:
    return build_placer(cluster, pods, policy, draws=np.random.default_rng(0), compiled=False)


def _check_keys(part: ScorerPart, state: ClusterState, request: Request, at: str) -> None:
    """One request on all nodes with room: its keys, and what they depend on."""
    shape, world = state.intern(request), state.world
    rows = feasible_rows(world, shape, np.arange(len(state.cluster.nodes)))
    if not len(rows):
        return
    before, asked = copy.deepcopy(world), rows.copy()
    keys, gpus = _keys_of(part, world, shape, rows, at)
    _require(_same(world, before), f"{at}: it changed the world that it was asked about")
    _require(np.array_equal(rows, asked), f"{at}: it changed `rows`")
    low, high = int(keys.min()), int(keys.max())
    if part.scorer.blendable:
        small = low >= -_MOST_KEY and high <= _MOST_KEY
        _require(small, f"{at}: keys of {low} to {high} are too large for a blend")

    def unchanged(other: ScoredWorld, some: Ints, problem: str) -> None:
        again = _keys_of(part, other, shape, rows[some], at)
        same = np.array_equal(again[0], keys[some])
        same = same and (not request.is_sharing or np.array_equal(again[1], gpus[some]))
        _require(same, f"{at}: {problem}")

    everyone = np.arange(len(rows))
    unchanged(world, everyone, "another answer next time")
    unchanged(world, everyone[::-1], "keys depend on the order of nodes")
    for half in (everyone[::2], everyone[1::2]):
        unchanged(world, half, "a key depends on which other nodes are asked about")
    more = world.nodes._replace(memory_free=world.nodes.memory_free + 1024)
    unchanged(world._replace(nodes=more), everyone, "keys depend on free memory")


def _keys_of(
    part: ScorerPart, world: ScoredWorld, shape: int, rows: Ints, at: str
) -> tuple[Ints, Ints]:
    options = part.options.copy()
    try:
        answer = part.scorer.rows(world, shape, rows, options)
    except Exception as error:
        raise Nonconforming(f"{at}: it raised {type(error).__name__}: {error}") from error
    problem = wrong_answer(answer, world, shape, rows)
    _require(not problem, f"{at}: {problem}")
    _require(np.array_equal(options, part.options), f"{at}: it changed `options`")
    return answer


def _same(one: Any, other: Any) -> bool:
    """Whether two trees of named tuples hold equal arrays."""
    if isinstance(one, tuple):
        return all(map(_same, one, other))
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f"))


def _check_pace(policy: PlacePolicy, most_s: float) -> None:
    """The second request of its kind, as the first one may compile or load something."""
    draw = random.Random(0)  # noqa: S311 - a sample, no secret
    cluster = _mixed_nodes(draw, _MANY_NODES)
    pods = tuple(TracePod(name=f"p{at}", request=_request(draw)) for at in range(_PODS))
    placer = _scored_placer(cluster, pods, policy)
    request = Request(cpu_milli=1_000, memory_mib=512, gpu_count=1, gpu_milli=500)
    placer.choose(request)
    state = placer.state
    shape = state.intern(request)
    rows = feasible_rows(state.world, shape, np.arange(_MANY_NODES))
    began_s = time.monotonic()
    _keys_of(policy.parts[0], state.world, shape, rows, "many nodes")
    took_s = time.monotonic() - began_s
    problem = f"keys of {len(rows)} nodes took {took_s:.2f} s; use arrays instead of loops"
    _require(took_s <= most_s, problem)


def _mixed_nodes(draw: random.Random, count: int) -> ClusterSpec:
    """Of several sizes and models, some without GPUs."""
    found = []
    for number in range(count):
        gpus = draw.choice([0, 1, 2, 4, 8])
        cpu_milli, memory_mib = draw.choice([(16_000, 65_536), (96_000, 393_216)])
        found.append(
            NodeSpec(
                name=f"n{number}", cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_count=gpus,
                gpu_model=draw.choice(["T4", "V100M32", "A10"]) if gpus else "",
            )
        )  # fmt: skip
    # No cluster without a GPU: hardly any request would fit.
    found[0] = replace(found[0], gpu_count=4, gpu_model="T4")
    return ClusterSpec(tuple(found))


def _request(draw: random.Random) -> Request:
    """For no GPU, a part of one, or some; now and then for one model only."""
    count, milli = draw.choice([(0, 0), (1, 250), (1, 500), (1, 810), (1, 1000), (2, 1000)])
    models = draw.choice([(), (), (), ("T4",)]) if count else ()
    cpu_milli, memory_mib = draw.choice([500, 4_000, 11_300]), draw.choice([0, 4_096])
    return Request(cpu_milli=cpu_milli, memory_mib=memory_mib, gpu_count=count, gpu_milli=milli,
                   models=models)  # fmt: skip


# Power policies -----------------------------------------------------------------------------------


def check_power_policy(make: Callable[[], PowerPolicy], *, seeds: Iterable[int] = SEEDS) -> None:
    """Share watts between the sum of all floors and more than all can take.

    Raises:
        Nonconforming: a cap outside of a job's curve, more watts than there were, watts left over
            that somebody could use (unless jobs run at full power or not at all), or another
            answer to the same question.
    """
    for seed in seeds:
        asks = _asks(random.Random(seed))  # noqa: S311 - a sample, no secret
        floors_w = math.fsum(one.devices * one.curve.floor_w for one in asks)
        tops_w = math.fsum(one.devices * one.curve.max_w for one in asks)
        for part in (0.0, 0.3, 0.7, 1.0, 1.5):
            policy = make()
            whole = getattr(policy, "all_or_nothing", False)
            watts = tops_w if whole else floors_w + part * (tops_w - floors_w)
            caps = list(policy.share(asks, watts))
            where = f"seed {seed}, {watts:.3f} W for floors of {floors_w:.3f} W"
            _check_caps(caps, asks, watts, where)
            _require(caps == list(make().share(asks, watts)), f"{where}: another answer next time")
            if part >= 1.0:
                full = all(
                    abs(cap - one.curve.max_w) <= 1e-3 for cap, one in zip(caps, asks, strict=True)
                )
                _require(full, f"{where}: watts are left over that somebody could use")


def _check_caps(caps: Sequence[float], asks: Sequence[PowerAsk], watts: float, where: str) -> None:
    _require(len(caps) == len(asks), f"{where}: {len(caps)} caps for {len(asks)} jobs")
    for cap, one in zip(caps, asks, strict=True):
        low_w, high_w = one.curve.floor_w, one.curve.max_w
        within = low_w - SLACK_W <= cap <= high_w + SLACK_W
        _require(within, f"{where}: {cap} W for a job that takes {low_w:g} to {high_w:g} W")
    total_w = math.fsum(cap * one.devices for cap, one in zip(caps, asks, strict=True))
    _require(total_w <= watts + SLACK_W * max(watts, 1.0), f"{where}: {total_w:.3f} W were shared")


def _asks(draw: random.Random) -> list[PowerAsk]:
    return [
        PowerAsk(
            job_id=f"j{number}", devices=draw.choice([1, 2, 8]), curve=_curve(draw),
            priority=draw.choice([0, 1]), weight=draw.choice([0.5, 1.0, 3.0]),
        )
        for number in range(draw.randrange(1, 7))
    ]  # fmt: skip


def _curve(draw: random.Random) -> PowerCurve:
    watts, rate = float(draw.randrange(50, 200)), 50.0
    points = [(watts, rate)]
    for _ in range(draw.randrange(1, 5)):
        watts, rate = watts + draw.randrange(5, 100), rate + draw.randrange(1, 50)
        points.append((watts, rate))
    return concave_hull(points)


# Meters -------------------------------------------------------------------------------------------


def check_meter(
    module: ModuleType, address: str, *, readings: int = 5, most_s: float = 5.0
) -> None:
    """Read a meter that answers at an address.

    Args:
        module: what the entry point `wattherd.meters` names.
        address: of a meter that answers now.
        readings: how often it is read.
        most_s: how long one reading may take.

    Raises:
        Nonconforming: an option that it does not name, a reading that is no finite number, one
            from the future, one that takes too long, or a driver that cannot be closed twice.
    """
    uri = _allowed(module, address)
    make: Maker = module.driver
    driver = make(uri, SYSTEM)
    for _ in range(readings):
        began_s = time.monotonic()
        sample = driver.sample()
        took_s = time.monotonic() - began_s
        _require(isinstance(sample, MeterSample), f"{type(sample).__name__} is no MeterSample")
        _require(math.isfinite(sample.value), f"{sample.value} is no reading")
        _require(took_s <= most_s, f"a reading took {took_s:.1f} s")
        ahead_s = (sample.at_s or 0.0) - SYSTEM.unix_s()
        _require(ahead_s <= 1.0, f"a reading is {ahead_s:.1f} s ahead of its time")
    driver.close()
    driver.close()


# Knobs --------------------------------------------------------------------------------------------


def check_knob(module: ModuleType, address: str, *, most_s: float = 5.0) -> None:
    """Set a knob that may be set, and put it back as it was found.

    Args:
        module: what the entry point `wattherd.knobs` names.
        address: of a knob that is free to be set now.
        most_s: how long one order may take.

    Raises:
        Nonconforming: limits that are none, an order within them that is not read back (to within
            `step`), a state that JSON cannot hold or that does not bring the old setting back, an
            order that takes too long, or a driver that cannot be closed twice.
    """
    driver: KnobDriver = module.driver(_allowed(module, address))
    limits, before = driver.limits(), driver.read()
    ends = [one for one in (limits.lowest, limits.highest) if one is not None]
    _require(ends == sorted(ends), f"the lowest limit {ends[0]} is above the highest {ends[-1]}")
    _require(limits.unit == driver.unit, f"limits in {limits.unit}, orders in {driver.unit}")
    # The last order is the one farthest from what was found, or putting back would show nothing.
    orders = sorted(ends, key=lambda value: abs(value - before.value))
    kept = json.dumps(dict(before.state))
    try:
        for value in orders:
            _ordered(partial(driver.write, value), f"{value:g}", most_s)
            found = driver.read().value
            problem = f"{value:g} was ordered, {found:g} is read back"
            _require(abs(found - value) <= driver.step, problem)
    finally:
        _ordered(partial(driver.put_back, json.loads(kept)), "the state before", most_s)
    again = driver.read().value
    same = again == before.value or abs(again - before.value) <= driver.step
    _require(same, f"{before.value:g} was found, and {again:g} put back")
    driver.close()
    driver.close()


def _ordered(order: Callable[[], None], what: str, most_s: float) -> None:
    began_s = time.monotonic()
    order()
    took_s = time.monotonic() - began_s
    _require(took_s <= most_s, f"an order of {what} took {took_s:.1f} s")


def _allowed(module: ModuleType, address: str) -> Uri:
    uri = parse(address)
    options: Any = getattr(module, "OPTIONS", None)
    _require(options is not None, "the module names no `OPTIONS`")
    uri.allow(options)
    return uri


# Signals ------------------------------------------------------------------------------------------


def check_signal(
    module: ModuleType, address: str, *, base_w: float = 10_000.0, most_s: float = 0.1
) -> None:
    """Ask a source of limits what it says: at once, and without end of questions.

    Args:
        module: what the entry point `wattherd.signals` names.
        address: of a source; it need not answer.
        base_w: what the site may draw at most.
        most_s: how long one answer may take: a signal listens in a thread of its own.

    Raises:
        Nonconforming: an answer that waits or raises, is no `ToldLimits`, or has spans that are no
            `LimitPeriod`. A signal is closed twice, which must not raise.
    """
    signal: LimitSignal = module.signal(
        _allowed(module, address), SignalSite(base_w=base_w), SYSTEM
    )
    for _ in range(3):
        began_s = time.monotonic()
        try:
            told = signal.told()
        except Exception as error:
            raise Nonconforming(f"an answer raised {type(error).__name__}: {error}") from error
        took_s = time.monotonic() - began_s
        _require(isinstance(told, ToldLimits), f"{type(told).__name__} is no ToldLimits")
        _require(took_s <= most_s, f"an answer took {took_s:.1f} s")
        for span in told.spans:
            _require(isinstance(span, LimitPeriod), f"{span} is no LimitPeriod")
    signal.close()
    signal.close()


# File formats -------------------------------------------------------------------------------------


def check_format(read: Callable[[Path], Iterable[JobSpec]], good: Path, bad: Path) -> None:
    """Read a file of jobs twice, and one that is broken.

    Args:
        read: what the entry point `wattherd.workloads` names.
        good: a file with jobs.
        bad: a file that cannot be read as one.

    Raises:
        Nonconforming: no jobs, two jobs of one id, times that are no numbers, other jobs next
            time, or a broken file whose error is no `UserError` that names the file.
    """
    jobs = list(read(good))
    _require(jobs, f"{good} gave no jobs")
    strange = [one for one in jobs if not isinstance(one, JobSpec)]
    _require(not strange, f"{strange[:1]} is no JobSpec")
    twice = [name for name, count in Counter(one.id for one in jobs).items() if count > 1]
    _require(not twice, f"several jobs are called {twice[:1]}")
    for one in jobs:
        times = [one.submit_s, one.duration_s or 0.0]
        _require(all(map(math.isfinite, times)), f"{one.id}: its times are {times}")
    _require(jobs == list(read(good)), "the same file gave other jobs next time")
    try:
        list(read(bad))
    except UserError as error:
        _require(str(bad) in error.line(), f"the error does not name the file: {error.line()}")
    except Exception as error:
        problem = f"a broken file raised {type(error).__name__}, which users do not understand"
        raise Nonconforming(problem) from error
    else:
        raise Nonconforming("a broken file was read as if it were none")


# Reports ------------------------------------------------------------------------------------------


def check_report(make: MakeReport, *, most_s: float = 5.0) -> None:
    """Tell of small runs: training jobs, jobs that never ended, placed pods, a service's past.

    Args:
        make: what the entry point `wattherd.reports` names.
        most_s: how long it may take to tell of one run.

    Raises:
        Nonconforming: nothing to tell of any of them, an answer that is neither a section nor a
            file, a section that no page can show or that loads something from elsewhere, a file
            without text or bytes, an answer that takes too long, or another one next time.
    """
    told = [kind for kind, run in _sample_runs().items() if _check_told(make, run, kind, most_s)]
    _require(told, "it has nothing to tell of any run")


def _sample_runs() -> dict[str, ReportedRun]:
    """Read back from run directories, as `wattherd report` reads them."""
    jobs = [
        {"id": f"j{number}", "submit_s": 60.0 * number, "gpus": 1 + number % 3, "duration_s": 600.0}
        for number in range(8)
    ]
    nodes = [{"sn": f"n{at}", "cpu_milli": 32_000, "memory_mib": 65_536, "gpu": 4, "model": "T4"}
             for at in range(2)]  # fmt: skip
    pods = [
        {"name": f"p{at}", "cpu_milli": 4_000, "memory_mib": 8_192, "num_gpu": 1, "gpu_milli": 500}
        for at in range(12)
    ]
    with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
        out, asked = Path(folder), ("1x4:T4", ["fifo", "srtf"])
        run_schedulers(jobs, *asked, budget="0:280W,20m:210W").save(out / "jobs", log=False)
        run_schedulers(jobs, *asked, until=60.0).save(out / "unfinished", log=False)
        pack(nodes, pods, "fgd").save(out / "pods")
        return {
            "jobs": load_sim(out / "jobs"),
            "jobs that never ended": load_sim(out / "unfinished"),
            "pods": load_runs(out / "pods"),
            "a service": _sample_past(),
        }


def _sample_past() -> SitePast:
    """A job that ended, one that runs and one that waits, and watts without a budget at first."""
    ended = SiteJob(id="j-1", name="first", user="ann", state="Succeeded", submit_s=0.0,
                    finish_s=50.0, runs=((1.0, 20.0), (30.0, 50.0)), progress=100.0, loss=0.5,
                    energy_j=4_000.0)  # fmt: skip
    runs = replace(ended, id="j-2", name="", state="Running", finish_s=None, runs=((10.0, 60.0),))
    waits = replace(runs, id="j-3", state="Queued", runs=(), progress=0.0, loss=None, energy_j=0.0)
    samples = [
        StateSample(at_s=at_s, draw_w=90.0, budget_w=budget_w, by_job={"j-2": 60.0})
        for at_s, budget_w in ((20.0, math.inf), (40.0, 100.0), (60.0, 100.0))
    ]
    return SitePast(
        jobs=[ended, runs, waits], samples=samples, began="2026-01-01 00:00:00 UTC",
        estimated=True, over_s=0.0, over_j=0.0, source="state",
    )  # fmt: skip


def _check_told(make: MakeReport, run: ReportedRun, kind: str, most_s: float) -> bool:
    """Whether it has something to tell of a run."""
    began_s = time.monotonic()
    try:
        told = make(run)
    except Exception as error:
        raise Nonconforming(f"{kind}: it raised {type(error).__name__}: {error}") from error
    took_s = time.monotonic() - began_s
    _require(took_s <= most_s, f"{kind}: it took {took_s:.1f} s")
    if told is None:
        return False
    if isinstance(told, ReportFile):
        _require(isinstance(told.content, str | bytes), f"{kind}: no text and no bytes")
        named = re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", told.ending)
        _require(named, f"{kind}: {told.ending!r} is no ending of a file name")
        _require(make(run) == told, f"{kind}: another file next time")
        return True
    _require(isinstance(told, ReportSection), f"{kind}: {type(told).__name__} is no ReportSection")
    shown, again = _shown_on_page(make, run), _shown_on_page(make, run)
    _require(not shown.failure, f"{kind}: {shown.failure}")
    drawn = "".join(f"{one.wide}{one.narrow}" for one in shown.figures)
    loads = re.search(r"""(?:href|src)="(?!#)|url\((?!#)|<script""", drawn)
    _require(loads is None, f"{kind}: a chart loads something: {loads and loads.group()}")
    _require(shown == again, f"{kind}: another section next time")
    return True


def _shown_on_page(make: MakeReport, run: ReportedRun) -> ShownSection:
    (shown,) = shown_sections({"section": make}, run)
    return shown
