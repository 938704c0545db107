"""Caps of pods: who may be capped and how low, what counts as capped, how a cut is shared out.

A pod may be capped if it holds whole GPUs on a node with an agent (`names.AGENT`), down to the
lowest cap that the node's devices take. What counts is never less than any cap that may be in
force: the highest of what was read back and of all that was asked for since. Integer milliwatts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.estimate.power_curve import prior_of
from wattherd.kube.account.fleet import Holding, NodeFleet
from wattherd.kube.api import names
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.domain_tree import DomainTree
from wattherd.kube.facts.node_facts import NodeFacts
from wattherd.model.cluster import WHOLE_GPU_MILLI
from wattherd.units import plain, watts

WATT_MW = 1000


@dataclass(frozen=True, slots=True)
class CappablePod:
    """A pod that may be capped between `floor_mw` and `most_mw`, all its GPUs together.

    `asked_mw` and `applied_mw` are None while nothing is asked for, or was read back.
    """

    uid: str
    key: str
    node: str
    domain: str
    floor_mw: int
    most_mw: int
    asked_mw: int | None = None
    applied_mw: int | None = None

    @property
    def is_capped(self) -> bool:
        """Whether anything is asked of it, or in force."""
        return self.asked_mw is not None or self.applied_mw is not None

    def counts_mw(self, under_way_mw: int | None = None) -> int:
        """What it may draw at most: a cap counts once it was read back, a raise once it is asked.

        `under_way_mw` was ordered and not seen to be written yet.
        """
        if self.asked_mw is None or self.applied_mw is None:
            return self.most_mw
        known = (self.asked_mw, self.applied_mw, under_way_mw or 0)
        return min(self.most_mw, max(known))


def subject_of(fleet: NodeFleet, holding: Holding, pod: Pod) -> CappablePod | None:
    """How a pod may be capped, or None if it may not be."""
    facts = fleet.nodes.get(holding.node)
    seats = fleet.seats(holding.uid)
    if facts is None or names.AGENT not in facts.labels or pod.spec.node_name != holding.node:
        return None
    whole = all(seat.request.gpu_milli == WHOLE_GPU_MILLI for seat in seats if seat.gpus)
    count = sum(len(seat.gpus) for seat in seats)
    floor_w = _least_w(facts)
    if not count or not whole or floor_w is None:
        return None
    most_w = GPUS[facts.spec.gpu_model].max_w
    return CappablePod(
        holding.uid,
        holding.key,
        holding.node,
        facts.domain,
        floor_mw=round(count * WATT_MW * min(floor_w, most_w)),
        most_mw=round(count * WATT_MW * most_w),
        asked_mw=_mw(pod, names.CAP_ASKED_W),
        applied_mw=_mw(pod, names.CAP_APPLIED_W),
    )


def _least_w(facts: NodeFacts) -> float | None:
    """By what the agent found, else by the catalog, else as the core's prior curve has it.

    Who could not be capped here and is by the core would count at its maximum here alone: a budget
    that caps keep would then stop pods.
    """
    if facts.spec.gpu_model not in GPUS:
        return None
    try:
        return watts(plain(facts.labels[names.GPU_CAP_MIN_W]))
    except (KeyError, UserError):
        return prior_of(facts.spec.gpu_model).floor_w


def _mw(pod: Pod, name: str) -> int | None:
    text = pod.metadata.annotation(name)
    try:
        return None if text is None else round(WATT_MW * watts(plain(text)))
    except UserError:
        return None


def lowered(
    subjects: Iterable[CappablePod], over_mw: Mapping[str, int], tree: DomainTree
) -> dict[str, int]:
    """What each may draw so that no domain draws too much, by uid; the floors, where that fails.

    `over_mw` is by domain what it draws beyond its budget with nobody capped (less than nothing
    where there is room). Domains are gone through from the deepest up; in each all give up the same
    share of what they are above their floors, in whole watts.
    """
    pods = sorted(subjects, key=lambda one: one.uid)
    given = {one.uid: one.most_mw for one in pods}
    for name in sorted(over_mw, key=lambda name: (-len(tree.path(name)), name)):
        below = [one for one in pods if tree.below(name, one.domain)]
        left = over_mw[name] - sum(one.most_mw - given[one.uid] for one in below)
        slack = sum(given[one.uid] - one.floor_mw for one in below)
        if left <= 0 or not slack:
            continue
        for one in below:
            can = given[one.uid] - one.floor_mw
            wanted = -(-can * min(left, slack) // slack)
            given[one.uid] -= min(can, -(-wanted // WATT_MW) * WATT_MW)
    return given
