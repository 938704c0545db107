"""`wattherd kube pools`, put together: switches, budgets and rules become pools at work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattherd.experiments.placement.policies import live_policy
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.api.access import find_access
from wattherd.kube.api.health import Checkup
from wattherd.kube.decide.pools import Pools
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.live.pool_growth import Growth
from wattherd.kube.live.pools import LivePools
from wattherd.policy.rebalance.pool import PoolRules
from wattherd.policy.rebalance.sleep import AfterIdle
from wattherd.server.kube.budgets import open_timetable
from wattherd.server.kube.compose import object_named
from wattherd.server.kube.run import PlacerMaker, an_identity, budgets_mw
from wattherd.server.kube.switchboard import Switchboard, read_switches


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """What a user may choose: times in seconds, watts, parts of the pool's GPUs in 0..1."""

    switches: Path | None = None
    budgets: tuple[str, ...] = ()
    policy: str = "best-fit"
    idle_s: float = 600.0
    spare: int = 0
    busy: float = 1.0
    slack: float = 0.2
    hold_s: float = 300.0
    wake_w: float = 0.0
    wake_most_s: float = 900.0
    kubeconfig: Path | None = None
    context: str | None = None
    lease: str | None = None
    grow: bool = False
    gpu_w: float = 700.0


def live_pools(options: PoolOptions, say: Callable[[str], None]) -> LivePools:
    """Pools of the cluster, not begun yet.

    Raises:
        UserError: a file, rule, budget or cluster that cannot be used.
    """
    board = read_switches(options.switches) if options.switches else Switchboard({})
    rules = PoolRules(
        sleep=AfterIdle(after_s=options.idle_s, spare=options.spare),
        busy=options.busy,
        slack=options.slack,
        hold_s=options.hold_s,
    )
    budgets = budgets_mw(options.budgets)
    pools = Pools(
        NodeFleet(PlacerMaker(live_policy(options.policy), ())),
        Domains(budgets),
        rules,
        board.switches.keys(),
        options.wake_w,
        options.wake_most_s,
    )
    live = LivePools(
        pools,
        board,
        find_access(options.kubeconfig, options.context),
        np.random.default_rng(),
        power=PowerPlan(open_timetable, budgets),
        lease=object_named(options.lease, "--lease"),
        identity=an_identity(),
        say=say,
    )
    if options.grow:
        Growth(live, gpu_w=options.gpu_w)
    return live


def pools_checkup(live: LivePools) -> Checkup:
    """What kubelets and Prometheus may know of pools."""
    return Checkup(live.feed, live.seat.leads)
