"""What a core is made of: the cluster, who plans, who shares power, and the rules both keep to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattherd.catalog.gpus import GPUS, GpuModel
from wattherd.engine.power.budgets import OFF, CapRules
from wattherd.estimate.job_rate import ALIKE, JobRates
from wattherd.estimate.power_curve import CurveOf, prior
from wattherd.model.cluster import ClusterSpec
from wattherd.model.power_tree import PowerTree
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.eligibility import Eligibility
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.power.water_filling import WaterFilling
from wattherd.policy.rebalance.sleep import SleepPolicy

# Numbered, since a journal outlives the code: decisions of old entries are replayed by the rules
# under which they were made (`server/journal`), or the replayed core would not be the one that ran.
RULES = 3
"""The rules by which decisions are made today. Stores and logs keep the number of theirs and are
replayed by it; 0 stands for those that have none. From 1 on, jobs that no budget lets run are set
aside; from 2 on, a budget that is cut stops as few jobs as will do, and a device of a job across
GPU models counts at no more than its own model draws; from 3 on, `hived` gives stated queues
the cells that they are promised, a cap of which two orders were read back once is asked for again,
and plans that have not begun give way before jobs that run."""
Requeue = Callable[[Any], tuple[Planner, Quota | None]]
"""Planner and quota for a tree of queues, which comes as plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """`round_s` None plans after every event that could change the plan, else every `round_s`.

    0 plans once per instant in which such events happen, after all of them; that a job stopped
    because a plan wanted it is no such event. Without a `sleep` policy nodes stay on. `gpus` knows
    the devices of the cluster by their model names. `requeue` builds planner and quota anew when
    the queues of the site change; None where the policy has no queues. With `narrow`, a budget that
    is cut below the least needs of what runs takes tasks from elastic jobs before it stops any; not
    for planners that keep a book of their own of who has which device. With `spares` it stops none
    that need not go; without, all whose turn came before the rest fitted. With `plans_first` it
    takes back plans that have not begun before it stops anybody who runs. With `sets_aside`,
    planners do not see jobs that no budget in sight lets run; without, they wait for them as those
    did whose decisions were written down before there was such a rule. With `own_tops` a device of
    a job across GPU models counts at no more than its model draws; without, at the job's cap.
    With `asks_again` a cap is ordered once more where its read-back may be the answer to an order
    before a higher one; without, the next plan does so.
    `job_rates` say how fast jobs are on which devices; with `learns`, what jobs report is learned
    and goes with them. `eligible` says on which nodes jobs may run,
    beyond what the core knows itself; None: on all.
    `returns` says of a job, by its id, whether it can go on after a stop; None: all can. `came_s`
    says when it came by the clock of the world it came to, where the order in which the core heard
    of jobs is not that of their coming; None: it is. `is_there` says of a job that was not started
    here whether it was found at work: what it has and draws is a fact, which no budget or quota
    can refuse. It is started as found, and then stopped like any other where that is too much.
    """

    cluster: ClusterSpec
    planner: Planner
    quota: Quota | None = None
    round_s: float | None = None
    power: PowerPolicy = field(default_factory=WaterFilling)
    curve_of: CurveOf = prior
    job_rates: JobRates = ALIKE
    learns: bool = False
    gpus: Mapping[str, GpuModel] = field(default_factory=lambda: GPUS)
    sleep: SleepPolicy | None = None
    tree: PowerTree | None = None
    rules: CapRules = OFF
    narrow: bool = False
    requeue: Requeue | None = None
    # These five are rules of `RULES`: a store of an older number is replayed with some of them off.
    sets_aside: bool = True
    spares: bool = True
    plans_first: bool = True
    own_tops: bool = True
    asks_again: bool = True
    eligible: Eligibility | None = None
    returns: Callable[[str], bool] | None = None
    came_s: Callable[[str], float] | None = None
    # Of nobody, if left out: where all runs were started by this core nothing is found at work.
    is_there: Callable[[str], bool] = frozenset[str]().__contains__
