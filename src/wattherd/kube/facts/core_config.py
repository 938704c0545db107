"""The core's view of a cluster: its nodes, its power domains as a tree, its GPUs' power curves.

A GPU can be capped only where an agent holds caps. Power curves go by GPU model, so that a model
counts as one that can be capped once every node that has it has an agent; before that it has a
curve of one point, its maximum, and there is nothing to trade.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core.core import CoreConfig
from wattherd.errors import UserError
from wattherd.estimate.job_rate import JobRates
from wattherd.estimate.power_curve import CurveOf, PowerCurve
from wattherd.kube.api import names
from wattherd.kube.facts.domain_tree import SITE, DomainTree
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.model.cluster import WHOLE_GPU_MILLI, ClusterSpec
from wattherd.model.job import JobSpec
from wattherd.model.power_tree import PowerTree, TreeDomain
from wattherd.policy.contract import Planner, Quota
from wattherd.policy.eligibility import Eligibility
from wattherd.policy.power.contract import PowerPolicy
from wattherd.policy.queue.capacity import FadingUse
from wattherd.policy.queue.tree import QueueTree
from wattherd.units import plain, watts

ONCE_PER_INSTANT = 0.0
_ROOT = "the site"


@dataclass(frozen=True, slots=True)
class Uncapped:
    """Every device at its maximum: nothing on the nodes would keep a lower cap.

    A gang counts the hungriest of the models it may be spread over on all of its devices.
    """

    models: tuple[str, ...]

    def __call__(self, spec: JobSpec, gpu_model: str) -> PowerCurve:
        """One point, so that there is nothing to trade."""
        single = len(spec.roles) == 1 and spec.roles[0].count == 1
        may = [gpu_model] if single else [
            model for model in self.models if not spec.gpu_models or model in spec.gpu_models
        ]  # fmt: skip
        most_w = max(GPUS[model].max_w for model in {*may, gpu_model})
        return PowerCurve((most_w,), (1.0,))


@dataclass(frozen=True, slots=True)
class CappedWhereHeld:
    """Curves of `known` where agents hold caps, from the lowest cap (W) of `floors_w` by model up.

    `is_ours` says of a job, by its id, whether its pods are ours to cap.
    """

    known: CurveOf
    floors_w: Mapping[str, float]
    is_ours: Callable[[str], bool]

    def __call__(self, spec: JobSpec, gpu_model: str) -> PowerCurve:
        """The job's curve on that model; one point where its pods are not capped."""
        floor_w = self.floors_w.get(gpu_model)
        if floor_w is None or _shares(spec) or not self.is_ours(spec.id):
            return PowerCurve((GPUS[gpu_model].max_w,), (1.0,))
        return _from(self.known(spec, gpu_model), floor_w, GPUS[gpu_model].idle_w)


def _shares(spec: JobSpec) -> bool:
    return any(role.gpu_count and role.gpu_milli != WHOLE_GPU_MILLI for role in spec.roles)


def _from(curve: PowerCurve, floor_w: float, idle_w: float) -> PowerCurve:
    """A curve from `floor_w` up.

    A device may take lower caps than its curve was measured at, or than its catalog entry says. A
    job's rate is then taken to fall to nothing at `idle_w`, in proportion.
    """
    if floor_w <= idle_w or floor_w == curve.floor_w:
        return curve
    if floor_w < curve.floor_w:
        rate = curve.rates[0] * (floor_w - idle_w) / (curve.floor_w - idle_w)
        return PowerCurve((floor_w, *curve.watts), (rate, *curve.rates))
    if floor_w >= curve.max_w:
        return PowerCurve((curve.max_w,), (curve.rates[-1],))
    above = [(w, r) for w, r in zip(curve.watts, curve.rates, strict=True) if w > floor_w]
    points = [(floor_w, curve.rate(floor_w)), *above]
    return PowerCurve(tuple(w for w, _ in points), tuple(r for _, r in points))


def cap_floors(nodes: Collection[NodeFacts]) -> dict[str, float]:
    """By GPU model of which every node has an agent: the lowest cap (W) that all of them take."""
    floors_w: dict[str, float] = {}
    without: set[str] = set()
    for facts in nodes:
        model = facts.spec.gpu_model
        if not facts.spec.gpu_count:
            continue
        if names.AGENT not in facts.labels:
            without.add(model)
            continue
        floors_w[model] = max(floors_w.get(model, 0.0), _lowest_cap_w(facts))
    return {model: floor_w for model, floor_w in floors_w.items() if model not in without}


def _lowest_cap_w(facts: NodeFacts) -> float:
    """What the agent found, else 0: then the curve says where it begins."""
    try:
        return watts(plain(facts.labels[names.GPU_CAP_MIN_W]))
    except (KeyError, UserError):
        return 0.0


def planned_caps_w(floors_w: Mapping[str, float], curve_of: CurveOf) -> dict[str, float]:
    """By GPU model that can be capped: the watts to which a plan may bring each of its GPUs."""
    any_job = JobSpec(id="any", submit_s=0.0)
    return {
        model: _from(curve_of(any_job, model), floor_w, GPUS[model].idle_w).floor_w
        for model, floor_w in floors_w.items()
    }


def common_domains(nodes: Sequence[NodeFacts], tree: DomainTree) -> frozenset[str]:
    """Domains that feed every node with GPUs, the site left out.

    To the core each of them is the site, which has the least of their budgets. Below one budget all
    places are alike to a planner; a domain of its own would have it take places by watts, otherwise
    than in a simulation with that budget.
    """
    paths = [frozenset(tree.path(facts.domain)) for facts in nodes if facts.spec.gpu_count]
    return frozenset.intersection(*paths) - {SITE} if paths else frozenset()


def budgets_of_core(budgets_mw: Mapping[str, int], common: Collection[str]) -> dict[str, int]:
    """Budgets by domain as the core knows them; those of `common` domains are the site's."""
    found: dict[str, int] = {}
    for name, budget_mw in budgets_mw.items():
        known = SITE if name in common else name
        found[known] = min(budget_mw, found.get(known, budget_mw))
    return found


def power_tree(
    nodes: Sequence[NodeFacts], tree: DomainTree, common: Collection[str] = ()
) -> PowerTree | None:
    """The power domains above `nodes`, without budgets; None where there are none but the site.

    Domains that are `common` to all nodes are the site.
    """

    def known(name: str) -> str:
        return next(one for one in tree.path(name) if one not in common)

    fed: dict[str, list[str]] = {}
    for facts in nodes:
        fed.setdefault(known(facts.domain), []).append(facts.name)
    domains = {name for one in (*tree.branches, *fed) for name in tree.path(one)}
    domains -= {SITE, *common}
    if not domains:
        return None
    root = _ROOT
    while root in domains:
        root += "'"
    made = [TreeDomain(name=root, nodes=tuple(fed.get(SITE, ())))]
    for name in sorted(domains):
        parent = known(tree.path(name)[1])
        made.append(
            TreeDomain(
                name=name,
                parent=root if parent == SITE else parent,
                nodes=tuple(fed.get(name, ())),
            )
        )
    return PowerTree(tuple(made))


BuiltPlanner = tuple[Planner, Quota | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreChoice:
    """A scheduler and a power policy of the core, ready to be built; `name` is for people.

    Without `build` gangs are planned by priority and placed by the placement policy. Else it makes
    the planner of a cluster with these queues (None: no Queue objects), which held so much lately,
    and the quota that the guard keeps. `curve_of` are power curves by kind of job. One that
    `keeps_books` of who has which device is not begun anew beside what runs. One that `improves`
    stops jobs for others that are no more important, which what nothing makes anew must not suffer.
    """

    name: str
    build: Callable[[ClusterSpec, QueueTree | None, FadingUse], BuiltPlanner] | None
    power: Callable[[], PowerPolicy]
    curve_of: CurveOf
    keeps_books: bool = False
    improves: bool = False
    computers: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """By kind of question that the planner asks: who works it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreWorld:
    """What a core is made for; when it is another, a new core takes over."""

    cluster: ClusterSpec
    tree: PowerTree | None
    floors_w: Mapping[str, float] = field(default_factory=dict)
    queues: QueueTree | None = None
    common: frozenset[str] = frozenset()
    """Domains that are the site to the core."""


def core_world(
    nodes: Sequence[NodeFacts], tree: DomainTree, queues: QueueTree | None = None
) -> CoreWorld:
    """Of nodes in the engine's order."""
    common = common_domains(nodes, tree)
    return CoreWorld(
        cluster=ClusterSpec(tuple(facts.spec for facts in nodes)),
        tree=power_tree(nodes, tree, common),
        common=common,
        floors_w=cap_floors(nodes),
        queues=queues,
    )


def chosen_core(
    world: CoreWorld,
    choice: CoreChoice,
    planner: Planner,
    quota: Quota | None,
    eligible: Eligibility,
    is_ours: Callable[[str], bool],
    returns: Callable[[str], bool],
    came_s: Callable[[str], float],
    is_there: Callable[[str], bool],
) -> CoreConfig:
    """A core that leads: it knows the budgets, and shares the watts by the chosen policy.

    Pods of a job that `returns` are made anew after a stop. It came at `came_s` by the cluster's
    clock: the core may hear of an older one later, or of the same one again. One that `is_there`
    was found on its nodes.
    """
    return CoreConfig(
        cluster=world.cluster,
        planner=planner,
        quota=quota,
        round_s=ONCE_PER_INSTANT,
        power=choice.power(),
        curve_of=CappedWhereHeld(choice.curve_of, world.floors_w, is_ours),
        job_rates=JobRates(models=world.cluster.gpu_models, unknown_equal=True),
        learns=True,
        tree=world.tree,
        eligible=eligible,
        returns=returns,
        came_s=came_s,
        is_there=is_there,
    )


def core_config(
    nodes: Sequence[NodeFacts], planner: Planner, eligible: Eligibility | None = None
) -> CoreConfig:
    """Nodes in the engine's order, without any budget: watts are weighed by who chooses.

    A guard of the core's own would count by what the core was told, which is of another moment than
    the account: it once ended those who had nothing to do with a cut.
    """
    cluster = ClusterSpec(tuple(facts.spec for facts in nodes))
    return CoreConfig(
        cluster=cluster,
        planner=planner,
        round_s=ONCE_PER_INSTANT,
        curve_of=Uncapped(cluster.gpu_models),
        eligible=eligible,
        sets_aside=False,  # without budgets nobody waits for watts that never come
    )
