"""Our own kinds of API objects: power domains, their budgets, and queues.

They are the one source of what clusters are told of them: `kube.facts.crd` makes the custom
resource definitions of these classes, descriptions, bounds and rules included. All three are of
the cluster, not of a namespace: who may change a budget is not who may run pods.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from wattherd.kube.api import names
from wattherd.kube.api.objects import Object, ObjectMeta, StatusCondition

GROUP = names.OURS.rstrip("/")
VERSION = "v1alpha1"
API = f"/apis/{GROUP}/{VERSION}"

_WATTS = r"^[0-9]+(\.[0-9]+)? ?(k|M)?W$"
_LEVEL = r"^([0-9]+(\.[0-9]+)? ?(k|M)?W|[0-9]+(\.[0-9]+)?%)$"
_DAY = r"([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2})"
_SOME_LABEL = (
    "has(self.matchLabels) && size(self.matchLabels) > 0 || "
    "has(self.matchExpressions) && size(self.matchExpressions) > 0"
)


def _rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules with what is said where they do not hold."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": said} for rule, said in pairs]}


def _meta(description: str, *pairs: tuple[str, str], **bounds: Any) -> Meta:
    more = _rules(*pairs) if pairs else None
    return Meta(description=description, extra_json_schema=more, **bounds)


Name = Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
Watts = Annotated[str, Meta(max_length=24, pattern=_WATTS)]
Level = Annotated[str, Meta(max_length=24, pattern=_LEVEL)]
Moment = Annotated[str, Meta(max_length=40, pattern=f"^({_DAY}|{_DATE})$")]
Percent = Annotated[float, Meta(ge=0, le=100)]
Duration = Annotated[str, Meta(max_length=24, pattern=r"^([0-9]+(\.[0-9]+)?(min|[smhd]))+$")]

# Power domains ----------------------------------------------------------------------------------


class NodeRequirement(Object, frozen=True):
    """One requirement of a node's labels."""

    key: Annotated[str, Meta(min_length=1, max_length=317)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[Annotated[str, Meta(max_length=63)]] | UnsetType = UNSET


class NodeLabels(Object, frozen=True):
    """Nodes by label; all of it holds."""

    match_labels: dict[str, Annotated[str, Meta(max_length=63)]] | UnsetType = UNSET
    match_expressions: Annotated[list[NodeRequirement], Meta(max_length=32)] | UnsetType = UNSET


class PowerDomainSpec(Object, frozen=True):
    """Where the domain hangs, which nodes it feeds, and what it can carry."""

    parent: (
        Annotated[Name, Meta(description="The domain that feeds this one; none: the site.")]
        | UnsetType
    ) = UNSET
    node_selector: (
        Annotated[
            NodeLabels,
            _meta(
                "Nodes that it feeds itself; by default those labelled "
                f"{names.DOMAIN}: NAME OF THE DOMAIN.",
                (
                    _SOME_LABEL,
                    "names no label: leave nodeSelector out, or say which nodes",
                ),
            ),
        ]
        | UnsetType
    ) = UNSET
    limit: (
        Annotated[
            Watts,
            Meta(description="What it can ever carry, as in 40kW; PowerBudgets only lower it."),
        ]
        | UnsetType
    ) = UNSET


class Step(Object, frozen=True):
    """A change of a budget that is known beforehand."""

    at: Annotated[str, Meta(description="When.", extra_json_schema={"format": "date-time"})] = ""
    watts: (
        Annotated[float, Meta(description="The budget from then on; absent: none.")] | UnsetType
    ) = UNSET


class PowerDomainStatus(Object, frozen=True):
    """How the domain stands."""

    observed_generation: Annotated[
        int, Meta(description="The generation of the spec that this status is about.")
    ] = 0
    nodes: Annotated[int, Meta(description="Nodes that it feeds, with domains below it.")] = 0
    bound_watts: Annotated[
        float, Meta(description="What its nodes may draw at most with what is on them now.")
    ] = 0.0
    budget_watts: (
        Annotated[float, Meta(description="What they may draw now; absent: no limit.")] | UnsetType
    ) = UNSET
    next_step: Annotated[Step, Meta(description="The next change of the budget.")] | UnsetType = (
        UNSET
    )
    conditions: (
        Annotated[list[StatusCondition], Meta(description="Ready, WithinBudget.")] | UnsetType
    ) = UNSET


class PowerDomain(Object, frozen=True):
    """A branch of the power tree: the nodes behind one feed, and what it can carry."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PowerDomainSpec = PowerDomainSpec()
    status: PowerDomainStatus = PowerDomainStatus()


# Budgets ----------------------------------------------------------------------------------------


class ScheduleRow(Object, frozen=True):
    """From `at` on a limit counts, until `until` or the next row."""

    at: Annotated[Moment, Meta(description="18:00, or 2026-11-21T18:00:00+01:00.")]
    limit: (
        Annotated[Level, Meta(description="9kW, or 75% of the domain's limit; none: no limit.")]
        | UnsetType
    ) = UNSET
    until: Annotated[Moment, Meta(description="When it ends.")] | UnsetType = UNSET


class ScheduleBudget(Object, frozen=True):
    """Rows that come again every day, or rows with dates."""

    rows: Annotated[
        list[ScheduleRow],
        _meta(
            "In order of time.",
            (
                "self.all(row, row.at.contains('T')) || self.all(row, !row.at.contains('T'))",
                "write times of day in every row, or dates in every row",
            ),
            min_length=1,
            max_length=400,
        ),
    ]
    time_zone: Annotated[
        str, Meta(description="Whose times of day, as in Europe/Berlin.", max_length=64)
    ] = "UTC"


class SignalBudget(Object, frozen=True):
    """Limits from outside, asked for or listened to by the scheduler."""

    address: Annotated[
        str,
        _meta(
            "Where, as in https://HOST/limits?safe=60% or openadr3+https://VTN?program=ID.",
            (
                r"self.matches('^(https?|openadr(3)?[+]https?)://[^ ]+$')",
                "no address of a signal: http(s)://, openadr+http(s):// or openadr3+http(s)://",
            ),
            min_length=1,
            max_length=1024,
        ),
    ]


class PowerBudgetSpec(Object, frozen=True):
    """What a domain may draw; of several budgets of one domain the lowest counts."""

    domain: Annotated[Name, Meta(description="The PowerDomain that it limits.")]
    constant: Annotated[Level, Meta(description="40kW, or 75% of the limit.")] | UnsetType = UNSET
    schedule: ScheduleBudget | UnsetType = UNSET
    signal: SignalBudget | UnsetType = UNSET


class PowerBudgetStatus(Object, frozen=True):
    """What the budget says."""

    observed_generation: int = 0
    watts: (
        Annotated[float, Meta(description="What it allows now; absent: no limit.")] | UnsetType
    ) = UNSET
    next_step: Annotated[Step, Meta(description="What it says next.")] | UnsetType = UNSET
    conditions: Annotated[list[StatusCondition], Meta(description="Ready.")] | UnsetType = UNSET


class PowerBudget(Object, frozen=True):
    """What a power domain may draw: always, by a schedule, or by a signal from outside."""

    spec: PowerBudgetSpec
    metadata: ObjectMeta = ObjectMeta()
    status: PowerBudgetStatus = PowerBudgetStatus()


# Queues -----------------------------------------------------------------------------------------


class QueuePreemption(Object, frozen=True):
    """Who may be stopped for whom."""

    within_queue: Annotated[
        Literal["Never", "LowerPriority"],
        Meta(
            description="Whether a pod for which no quota is left may have less important ones "
            "of its queue stopped; for room it always may, under gangs by priority."
        ),
    ] = "Never"
    above_user_limit: Annotated[
        bool,
        Meta(
            description="Whether a pod of a namespace below the user limit may have pods of "
            "namespaces above it stopped, whatever their priorities; under the scheduler capacity."
        ),
    ] = False


class QueueFairSharing(Object, frozen=True):
    """How what is lent is shared by weights, and taken back for that."""

    weight: Annotated[
        float,
        Meta(
            description="Its part of what is lent among the queues of its parent; 0 comes last.",
            ge=0,
            le=1e6,
        ),
    ] = 1.0
    strategies: (
        Annotated[
            list[Literal["FinalShare", "InitialShare"]],
            Meta(
                description="Of a queue at the top, for all queues of the cluster: what is lent is "
                "shared by weights, and pods of who borrows more are stopped so far; both, in this "
                "order, or one of them; under the scheduler capacity.",
                min_length=1,
                max_length=2,
            ),
        ]
        | UnsetType
    ) = UNSET


class QueueSpec(Object, frozen=True):
    """What a queue is promised and how much it may borrow, as shares of its parent."""

    parent: (
        Annotated[Name, Meta(description="The queue above it; none: the whole cluster.")]
        | UnsetType
    ) = UNSET
    guaranteed_percent: (
        Annotated[Percent, Meta(description="Promised; absent: by weight, of what is left.")]
        | UnsetType
    ) = UNSET
    maximum_percent: Annotated[
        Percent, Meta(description="The most it may hold while others leave it idle.")
    ] = 100.0
    weight: (
        Annotated[
            float,
            Meta(
                description="Its part of what siblings with a guarantee leave; by default 1.",
                gt=0,
                le=1e6,
            ),
        ]
        | UnsetType
    ) = UNSET
    user_limit_percent: Annotated[
        Percent, Meta(description="What each of many namespaces can still count on.")
    ] = 100.0
    user_limit_factor: (
        Annotated[
            float,
            Meta(description="The most one namespace may hold, in guarantees.", gt=0, le=1e6),
        ]
        | UnsetType
    ) = UNSET
    half_life: (
        Annotated[
            Duration,
            _meta(
                "What is lent among the queues right below it goes first to who had least "
                "lately, by GPU time that fades by half in so long.",
                ("self.matches('[1-9]')", "a half-life is above 0s"),
            ),
        ]
        | UnsetType
    ) = UNSET
    priority: Annotated[
        int,
        Meta(
            description="Among the queues of its parent: the highest has what it is promised, and "
            "what is lent, before the others.",
            ge=-1_000_000,
            le=1_000_000,
        ),
    ] = 0
    domain: (
        Annotated[Name, Meta(description="Its pods run on nodes of this PowerDomain only.")]
        | UnsetType
    ) = UNSET
    preemption: (
        Annotated[QueuePreemption, Meta(description="Who is stopped for quota.")] | UnsetType
    ) = UNSET
    fair_sharing: (
        Annotated[QueueFairSharing, Meta(description="What is lent, by weights.")] | UnsetType
    ) = UNSET


class QueueStatus(Object, frozen=True):
    """Who waits, and what runs."""

    observed_generation: int = 0
    pending: Annotated[int, Meta(description="Pods that wait.")] = 0
    admitted: Annotated[int, Meta(description="Pods that run, or are bound.")] = 0
    guaranteed_gpus: Annotated[float, Meta(description="Promised.")] = 0.0
    used_gpus: Annotated[int, Meta(description="Held.")] = 0
    borrowed_gpus: Annotated[float, Meta(description="Held beyond what is promised.")] = 0.0
    recent_gpus: (
        Annotated[float, Meta(description="Held lately, by the half-life of its parent.")]
        | UnsetType
    ) = UNSET
    conditions: Annotated[list[StatusCondition], Meta(description="Ready.")] | UnsetType = UNSET


class Queue(Object, frozen=True):
    """A queue of pods: what it is promised of the GPUs, and how much it may borrow."""

    metadata: ObjectMeta = ObjectMeta()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


# What the definitions say beside ----------------------------------------------------------------

_NOT_ITSELF = (
    "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
    "it cannot be its own parent",
)
_SHORT_NAME = ("size(self.metadata.name) <= 63", "the name is longer than 63 characters")
_NO_DOT = ("!self.metadata.name.contains('.')", "a queue's name has no dots")
_WAYS = "[has(self.spec.constant), has(self.spec.schedule), has(self.spec.signal)]"
_ONE_WAY = (
    f"{_WAYS}.filter(given, given).size() == 1",
    "give exactly one of constant, schedule and signal",
)
_NOT_BOTH = "!has(self.spec.guaranteedPercent) || !has(self.spec.maximumPercent)"
_ABOVE = (
    f"{_NOT_BOTH} || self.spec.maximumPercent >= self.spec.guaranteedPercent",
    "maximumPercent is below guaranteedPercent",
)
_EITHER = (
    "!has(self.spec.weight) || !has(self.spec.guaranteedPercent)",
    "a guarantee stands for itself: give guaranteedPercent or weight, not both",
)
_STRATEGIES = "has(self.spec.fairSharing) && has(self.spec.fairSharing.strategies)"
_AT_THE_TOP = (
    f"!({_STRATEGIES}) || !has(self.spec.parent)",
    "strategies are for all queues: give them of a queue without parent",
)
_OF_THEM = "self.spec.fairSharing.strategies"
_IN_ORDER = (
    f"!({_STRATEGIES}) || {_OF_THEM}.size() == 1 || {_OF_THEM} == ['FinalShare', 'InitialShare']",
    "strategies are FinalShare, InitialShare, or both in this order",
)


class KubectlColumn(Object, frozen=True):
    """One column of `kubectl get`."""

    name: str
    type: str
    json_path: str = field(name="jsonPath")
    description: str = ""


class Definition(Object, frozen=True):
    """What a custom resource definition says that its class does not."""

    kind: type[PowerDomain | PowerBudget | Queue]
    plural: str
    short: str
    rules: tuple[tuple[str, str], ...]
    columns: tuple[KubectlColumn, ...]


_READY = KubectlColumn("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
_WHY = KubectlColumn("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason')
_AGE = KubectlColumn("Age", "date", ".metadata.creationTimestamp")

DEFINITIONS = (
    Definition(
        kind=PowerDomain,
        plural="powerdomains",
        short="pdom",
        rules=(_NOT_ITSELF, _SHORT_NAME),
        columns=(
            KubectlColumn("Parent", "string", ".spec.parent"),
            KubectlColumn("Nodes", "integer", ".status.nodes"),
            KubectlColumn("Bound W", "number", ".status.boundWatts"),
            KubectlColumn("Budget W", "number", ".status.budgetWatts"),
            KubectlColumn("Next", "string", ".status.nextStep.at"),
            _READY,
            _WHY,
            _AGE,
        ),
    ),
    Definition(
        kind=PowerBudget,
        plural="powerbudgets",
        short="pbud",
        rules=(_ONE_WAY,),
        columns=(
            KubectlColumn("Domain", "string", ".spec.domain"),
            KubectlColumn("Now W", "number", ".status.watts"),
            KubectlColumn("Next W", "number", ".status.nextStep.watts"),
            KubectlColumn("Next", "string", ".status.nextStep.at"),
            _READY,
            _WHY,
            _AGE,
        ),
    ),
    Definition(
        kind=Queue,
        plural="queues",
        short="wq",
        rules=(_NOT_ITSELF, _SHORT_NAME, _NO_DOT, _ABOVE, _EITHER, _AT_THE_TOP, _IN_ORDER),
        columns=(
            KubectlColumn("Parent", "string", ".spec.parent"),
            KubectlColumn("Pending", "integer", ".status.pending"),
            KubectlColumn("Admitted", "integer", ".status.admitted"),
            KubectlColumn("Used", "integer", ".status.usedGpus"),
            KubectlColumn("Borrowed", "number", ".status.borrowedGpus"),
            _READY,
            _WHY,
            _AGE,
        ),
    ),
)
