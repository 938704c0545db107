"""Who is stopped together, and what that leaves to power domains; works out, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from wattherd.errors import UserError
from wattherd.kube.account.capping import CappablePod
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.fleet import Holding
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import OwnerReference, Pod
from wattherd.kube.facts.orders import EvictPod, StopRun
from wattherd.kube.facts.pod_groups import GroupId, group_of, priority_of
from wattherd.model.reason import StopReason
from wattherd.units import plain, seconds

_NAMED_BY = {
    "jobsets": names.JOBSET_NAME,
    "trainjobs": names.JOBSET_NAME,  # a TrainJob calls its JobSet by its own name
    "appwrappers": names.APPWRAPPER_NAME,
    "mpijobs": names.MPIJOB_NAME,
    "rayjobs": names.RAY_CLUSTER,
}
"""By plural, the label by which pods name what is above their controller."""
_LABELS = tuple(dict.fromkeys(_NAMED_BY.values()))


@dataclass(frozen=True, slots=True)
class Suspended:
    """A job that was suspended by us: what it needs by domain, and how important it is."""

    path: str
    needs_mw: Mapping[str, int]
    priority: int = 0
    since: str = ""


def ids_of(suspended: Mapping[str, Suspended]) -> set[str]:
    """By which pods of these jobs are known: its uid, or its name where others are between."""
    named = set[str]()
    for job in suspended.values():
        namespace, _, rest = job.path.rpartition("/namespaces/")[2].partition("/")
        plural, _, name = rest.partition("/")
        if plural in _NAMED_BY:
            named.add(f"{_NAMED_BY[plural]} {namespace}/{name}")
    return suspended.keys() | named


def job_ids(pod: Pod) -> set[str]:
    """What `ids_of` calls the jobs that a pod may be of."""
    owner, about = owner_of(pod), pod.metadata
    ids = set() if owner is None else {owner.uid}
    for label in _LABELS:
        if name := about.label(label):
            ids.add(f"{label} {about.namespace}/{_job_named(label, name)}")
    return ids


def _job_named(label: str, name: str) -> str:
    """A RayJob's cluster has its name, and `-raycluster` (before KubeRay 1.4), and five letters."""
    if label != names.RAY_CLUSTER:
        return name
    return name.rpartition("-")[0].removesuffix("-raycluster")


MOST_NOTICE_S = 300.0
"""The longest time between the notice of a stop and the stop."""
_BY_CORE = frozenset(map(str, StopReason))


def stops_of(
    evictions: Sequence[EvictPod], pods: Mapping[str, Pod], told: Collection[str] = ()
) -> list[StopRun]:
    """Pods that are to go, by job; `pods` are all that are known, by uid.

    A job may be suspended for it if its turn is over as a whole: none of its pods that are on nodes
    stays, and those that were `told` to go before (uids) do not. So with a gang of which one pod
    could not be bound: for a Job each of the others would have failed. What Kueue admitted is
    Kueue's to suspend.
    """
    by_job: dict[str, list[EvictPod]] = {}
    for one in evictions:
        pod = pods.get(one.uid)
        by_job.setdefault(_job_of(pod) if pod is not None else one.uid, []).append(one)
    partly = set[str]()
    going = {one.uid for one in evictions}.union(told)
    for uid, pod in pods.items() if evictions else ():
        stays = pod.spec.node_name and pod.metadata.deletion_timestamp is None and uid not in going
        if stays and (job := _job_of(pod)) in by_job:
            partly.add(job)
    return [_stop_of(ones, pods, whole=job not in partly) for job, ones in by_job.items()]


def _job_of(pod: Pod) -> str:
    """One name for all pods of a job, as far as pods tell; its own uid of one that is of none."""
    ids = job_ids(pod)
    named = sorted(one for one in ids if " " in one)
    return (named or sorted(ids) or [pod.metadata.uid])[0]


def is_undone(why: str) -> bool:
    """Whether pods go as their gang could not start; other reasons begin with one word."""
    return " " in why.partition(":")[0]


def _stop_of(ones: Sequence[EvictPod], pods: Mapping[str, Pod], *, whole: bool) -> StopRun:
    known = [pods[one.uid] for one in ones if one.uid in pods]
    owner = owner_of(known[0]) if known else None
    theirs = any(pod.metadata.label(names.KUEUE_POD_SET) for pod in known)
    turns = all(one.why in _BY_CORE or is_undone(one.why) for one in ones)
    suspends = whole and not theirs and turns
    waits = all(one.why != StopReason.BUDGET_CUT for one in ones)
    return StopRun(
        evictions=tuple(ones),
        owner=owner if suspends else None,
        notice_s=max(map(_notice_s, known), default=0.0) if waits else 0.0,
    )


def _notice_s(pod: Pod) -> float:
    """As its user wants it, within bounds; none where that cannot be read."""
    text = pod.metadata.annotation(names.CHECKPOINT_NOTICE)
    try:
        return 0.0 if text is None else min(MOST_NOTICE_S, seconds(plain(text)))
    except UserError:
        return 0.0


@dataclass(slots=True)
class StopUnit:
    """Pods that are stopped together."""

    holdings: list[Holding]
    pods: list[Pod]
    priority: int = 0

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        """Who is stopped last comes first: of equals bare pods, which are lost for good."""
        newest = max(pod.metadata.creation_timestamp or "" for pod in self.pods)
        returns = all(owner_of(pod) is not None for pod in self.pods)
        return (-self.priority, returns, newest, self.holdings[0].key)


def units_of(
    pods: Iterable[tuple[Holding, Pod]], groups: Mapping[GroupId, PodGroup]
) -> list[StopUnit]:
    """By gang, else by owner, else alone."""
    found: dict[GroupId | str, StopUnit] = {}
    for holding, pod in pods:
        owner = owner_of(pod)
        # Owners are of the pod's namespace: who names another one's job is not of that job.
        space = pod.metadata.namespace
        key = group_of(pod) or (holding.uid if owner is None else f"{space}/{owner.uid}")
        unit = found.setdefault(key, StopUnit([], []))
        unit.holdings.append(holding)
        unit.pods.append(pod)
    for unit in found.values():
        unit.priority = priority_of(unit.pods, groups)
    return list(found.values())


def owner_of(pod: Pod) -> OwnerReference | None:
    """What controls a pod, if anything does."""
    return next((one for one in pod.metadata.owner_references or () if one.controller), None)


class EnforcementTally:
    """Watts by domain with everybody at his lowest cap, while works are taken away and put back."""

    def __init__(self, chooser: Chooser, subjects: Mapping[str, CappablePod]) -> None:
        """Everybody is there."""
        self._chooser, self._subjects = chooser, subjects
        fleet = chooser.fleet
        self._users = Counter(
            (seat.node, gpu)
            for uid in fleet.holdings
            for seat in fleet.seats(uid)
            for gpu in seat.gpus
        )
        self.gone_mw: Counter[str] = Counter()
        """What those taken away would leave, everybody uncapped."""
        self._spared: Counter[str] = Counter()
        for one in subjects.values():
            self._count(self._spared, one.domain, one.most_mw - one.floor_mw)

    def _count(self, where: Counter[str], domain: str, mw: int) -> None:
        for name in self._chooser.domains.tree.path(domain):
            where[name] += mw

    def take(self, uid: str, sign: int = 1) -> None:
        """A pod is to go (or, negative, to stay after all)."""
        fleet, columns = self._chooser.fleet, self._chooser.columns()
        for seat in fleet.seats(uid):
            domain = fleet.order[seat.node].domain
            for gpu in seat.gpus:
                self._users[seat.node, gpu] -= sign
                if self._users[seat.node, gpu] == (0 if sign > 0 else 1):
                    self._count(self.gone_mw, domain, sign * int(columns.rise_mw[seat.node]))
        self._take_unseated(uid, sign)
        if uid in self._subjects:
            one = self._subjects[uid]
            self._count(self._spared, one.domain, -sign * (one.most_mw - one.floor_mw))

    def _take_unseated(self, uid: str, sign: int) -> None:
        """What it counts on beside its seats is in the sum as well, where its node is too full."""
        chooser = self._chooser
        mw = chooser.unseated_mw(chooser.fleet.holdings[uid])
        if mw:
            facts = chooser.fleet.nodes[chooser.fleet.holdings[uid].node]
            self._count(self.gone_mw, facts.domain, sign * mw)

    def short_mw(self, over_mw: Mapping[str, int]) -> dict[str, int]:
        """By domain that lowest caps are not enough for, how much they leave too much."""
        left = {name: mw - self.gone_mw[name] - self._spared[name] for name, mw in over_mw.items()}
        return {name: mw for name, mw in left.items() if mw > 0}
