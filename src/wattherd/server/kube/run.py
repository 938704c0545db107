"""`wattherd kube`, put together: a policy, budgets and a cluster become extender or scheduler."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.engine.placement.placer import Placer
from wattherd.errors import UserError
from wattherd.experiments.placement.policies import build_placer, live_policy, warm_up
from wattherd.kube.account.domains import Domains
from wattherd.kube.account.fleet import NodeFleet
from wattherd.kube.account.gates import ByGate
from wattherd.kube.account.watt_claims import ByClaim
from wattherd.kube.api.access import find_access
from wattherd.kube.api.health import Checkup
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.decide.extender import Extender
from wattherd.kube.decide.kueue_check import ByCheck, KueueCheck
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.domain_tree import SITE
from wattherd.kube.facts.power_plan import PowerPlan
from wattherd.kube.live.extender import LiveExtender
from wattherd.kube.live.extender_app import DEADLINE_S, ExtenderApp
from wattherd.kube.live.kueue import LiveKueueCheck
from wattherd.kube.live.scheduler import LiveScheduler
from wattherd.kube.live.watt_claims import LiveClaims
from wattherd.model.cluster import ClusterSpec
from wattherd.model.job import Request, TracePod
from wattherd.policy.place.registry import PlacePolicy
from wattherd.server.kube.budgets import open_timetable
from wattherd.server.kube.core_choice import POWER, core_choice
from wattherd.server.kube.shell_metrics import ShellMetrics
from wattherd.units import seconds, watts
from wattherd.workload.openb import read_pods


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOptions:
    """What a user may choose; `budgets` are `DOMAIN=40kW`, or `40kW` for the site.

    `history` is a pod list that tells what to expect; without one it is the pods on the cluster.
    `lease` is `NAMESPACE/NAME`, where several copies serve; so is `learned`, the ConfigMap in which
    what a scheduler learned of jobs outlives it; `name` is what pods call the scheduler;
    `patience` is how long a gang waits for room before it goes first. With a `scheduler` or `power`
    policy named the core leads; without any pods are placed one by one.
    """

    policy: str = "wattherd"
    scheduler: str = ""
    power: str = ""
    history: Path | None = None
    budgets: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    context: str | None = None
    lease: str = ""
    deadline_s: float = DEADLINE_S
    name: str = "wattherd"
    patience: str = "10min"
    learned: str = ""


def live_extender(options: KubeOptions) -> tuple[LiveExtender, ExtenderApp]:
    """An extender for the cluster, not begun yet, and the application to serve.

    Raises:
        UserError: a policy, budget, file or cluster that cannot be used.
    """
    access, identity = find_access(options.kubeconfig, options.context), an_identity()
    budgets = budgets_mw(options.budgets)
    extender = Extender(fleet_of(options), Domains(budgets), holder=identity)
    lease, power = _lease(options.lease), PowerPlan(open_timetable, budgets)
    live = LiveExtender(extender, access, _draws(), lease=lease, identity=identity, power=power)
    app = ExtenderApp(extender, live.feed.turns, live.bind, deadline_s=options.deadline_s)
    return live, app


def live_scheduler(options: KubeOptions) -> LiveScheduler:
    """A second scheduler for the cluster, not begun yet.

    Raises:
        UserError: a policy, budget, file or cluster that cannot be used.
    """
    access, identity = find_access(options.kubeconfig, options.context), an_identity()
    budgets = budgets_mw(options.budgets)
    patience_s = seconds(options.patience, field="--patience")
    choice = core_choice(options.scheduler, options.power or POWER, patience_s)
    scheduler = KubeScheduler(
        fleet_of(options),
        budgets,
        name=options.name,
        holder=identity,
        patience_s=patience_s,
        choice=choice,
    )
    lease, power = _lease(options.lease), PowerPlan(open_timetable, budgets)
    return LiveScheduler(
        scheduler,
        access,
        _draws(),
        lease=lease,
        identity=identity,
        power=power,
        learned=_named(options.learned, "ConfigMap", "--learned"),
    )


def live_admission(options: KubeOptions) -> LiveScheduler:
    """What releases gated pods to power domains, not begun yet.

    Raises:
        UserError: a policy, budget, file or cluster that cannot be used.
    """
    access, identity = find_access(options.kubeconfig, options.context), an_identity()
    budgets = budgets_mw(options.budgets)
    scheduler = KubeScheduler(fleet_of(options), budgets, holder=identity, way=ByGate())
    lease, power = _lease(options.lease), PowerPlan(open_timetable, budgets)
    return LiveScheduler(scheduler, access, _draws(), lease=lease, identity=identity, power=power)


def live_kueue_check(options: KubeOptions, retry_s: int) -> LiveKueueCheck:
    """What answers for our admission check of Kueue, not begun yet.

    Raises:
        UserError: a policy, budget, file or cluster that cannot be used.
    """
    access, identity = find_access(options.kubeconfig, options.context), an_identity()
    budgets = budgets_mw(options.budgets)
    check = KueueCheck(KubeScheduler(fleet_of(options), budgets, holder=identity, way=ByCheck()))
    lease, power = _lease(options.lease), PowerPlan(open_timetable, budgets)
    return LiveKueueCheck(
        check,
        access,
        _draws(),
        lease=lease,
        identity=identity,
        power=power,
        retry_s=retry_s,
    )


def live_claims(options: KubeOptions) -> LiveClaims:
    """What publishes watts as devices for the cluster, not begun yet.

    Raises:
        UserError: a policy, budget, file or cluster that cannot be used.
    """
    access, identity = find_access(options.kubeconfig, options.context), an_identity()
    budgets = budgets_mw(options.budgets)
    scheduler = KubeScheduler(fleet_of(options), budgets, holder=identity, way=ByClaim())
    lease, power = _lease(options.lease), PowerPlan(open_timetable, budgets)
    return LiveClaims(scheduler, access, _draws(), lease=lease, identity=identity, power=power)


def claims_checkup(live: LiveClaims) -> Checkup:
    """What kubelets and Prometheus may know of what publishes watts."""
    return scheduler_checkup(live)


def scheduler_checkup(live: LiveScheduler) -> Checkup:
    """What kubelets and Prometheus may know of a second scheduler."""
    shown = live.tally = ShellMetrics()
    return Checkup(live.feed, live.seat.leads, lambda: shown.text(live.series()))


def extender_checkup(live: LiveExtender, app: ExtenderApp) -> Checkup:
    """What kubelets and Prometheus may know of an extender."""
    shown = ShellMetrics()
    return Checkup(live.feed, live.seat.leads, lambda: app.tally.text() + shown.text(live.series()))


def an_identity() -> str:
    """Of this copy, among others."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _draws() -> np.random.Generator:
    """Spreads requests in time; no decision depends on it."""
    return np.random.default_rng()


def fleet_of(options: KubeOptions) -> NodeFleet:
    """An account of no nodes yet, with the policy to choose by.

    Raises:
        UserError: a policy or file that cannot be used.
    """
    return NodeFleet(_placers(options), learns=options.history is None)


def budgets_mw(texts: Iterable[str]) -> dict[str, int]:
    """Budgets by domain, in milliwatts; the site's name is empty.

    Raises:
        UserError: one is no budget, or a domain has two.
    """
    found: dict[str, int] = {}
    for text in texts:
        domain, _, amount = text.rpartition("=")
        budget = round(1000 * watts(amount, field="--budget"))
        if domain in found:
            raise UserError(f"two budgets for {domain or 'the site'}", field="--budget")
        found[domain or SITE] = budget
    return found


def _placers(options: KubeOptions) -> PlacerMaker:
    policy = live_policy(options.policy)
    warm_up(policy)
    history = read_pods(options.history, known=GPUS) if options.history else ()
    return PlacerMaker(policy, history)


@dataclass(frozen=True, slots=True)
class PlacerMaker:
    """Makes the policy's placer for a cluster; ties go to the first node, nothing is drawn."""

    policy: PlacePolicy
    history: tuple[TracePod, ...]

    def __call__(self, cluster: ClusterSpec, asked: list[Request]) -> Placer:
        """`asked` is the history where none was given."""
        seen = (TracePod(name=str(number), request=one) for number, one in enumerate(asked))
        return build_placer(
            cluster,
            self.history or tuple(seen),
            self.policy,
            draws=np.random.default_rng(0),
        )


def _lease(text: str) -> ObjectMeta | None:
    return _named(text, "lease", "--lease")


def _named(text: str, kind: str, field: str) -> ObjectMeta | None:
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        hint = "write NAMESPACE/NAME"
        raise UserError(f"{text!r} names no {kind}", field=field, hint=hint)
    return ObjectMeta(name=name, namespace=namespace)
