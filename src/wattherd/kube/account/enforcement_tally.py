"""Who is stopped together, and what that leaves to power domains; works out, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wattherd.kube.account.capping import CappablePod
from wattherd.kube.account.chooser import Chooser
from wattherd.kube.account.fleet import Holding
from wattherd.kube.api import names
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.objects import OwnerReference, Pod
from wattherd.kube.facts.pod_groups import GroupId, group_of, priority_of

_WITH_SETS = ("jobsets", "trainjobs")


@dataclass(frozen=True, slots=True)
class Suspended:
    """A job that was suspended by us: what it needs by domain, and how important it is."""

    path: str
    needs_mw: Mapping[str, int]
    priority: int = 0
    since: str = ""


def ids_of(suspended: Mapping[str, Suspended]) -> set[str]:
    """By which pods of these jobs are known: its uid, or where a JobSet is between, by its name.

    A TrainJob calls its JobSet by its own name.
    """
    sets = set[str]()
    for job in suspended.values():
        namespace, _, rest = job.path.rpartition("/namespaces/")[2].partition("/")
        plural, _, name = rest.partition("/")
        if plural in _WITH_SETS:
            sets.add(f"{namespace}/{name}")
    return suspended.keys() | sets


def job_ids(pod: Pod) -> set[str]:
    """What `ids_of` calls the jobs that a pod may be of."""
    owner, about = owner_of(pod), pod.metadata
    ids = set() if owner is None else {owner.uid}
    name = about.label(names.JOBSET_NAME)
    return ids | {f"{about.namespace}/{name}"} if name else ids


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
        if uid in self._subjects:
            one = self._subjects[uid]
            self._count(self._spared, one.domain, -sign * (one.most_mw - one.floor_mw))

    def short_mw(self, over_mw: Mapping[str, int]) -> dict[str, int]:
        """By domain that lowest caps are not enough for, how much they leave too much."""
        left = {name: mw - self.gone_mw[name] - self._spared[name] for name, mw in over_mw.items()}
        return {name: mw for name, mw in left.items() if mw > 0}
