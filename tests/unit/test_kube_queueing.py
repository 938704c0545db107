"""Who waits, and together with whom: told by changes, and the same as if looked at anew."""

from __future__ import annotations

import numpy as np
import pytest
from kube_builders import Json, a_pod, bound, pod_json

from wattherd.kube.account.binding_mode import ByBinding
from wattherd.kube.account.pending_pods import Queueing, Waiting
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.node_filter import Volumes
from wattherd.kube.facts.pod_groups import GroupId
from wattherd.testing.builders import exclusive

GROUPS = ("", "", "one", "two", "three")


class Counting(ByBinding):
    """Counts the pods that were looked at."""

    looks = 0

    def waits(self, pod: Pod) -> bool:
        self.looks += 1
        return super().waits(pod)


class Truth:
    """Pods as the API shows them, and a queueing that is told of every change."""

    def __init__(self) -> None:
        self.made: dict[str, Json] = {}
        self.pods: dict[str, Pod] = {}
        self.held: set[str] = set()
        self.leaving: set[str] = set()
        self.way = Counting("wattherd")
        self.queueing = self.fresh()

    def fresh(self) -> Queueing:
        """One that was told of the pods just now."""
        groups: dict[GroupId, object] = {}
        made = Queueing(self.way, self.pods, groups, Volumes())  # type: ignore[arg-type]
        for pod in self.pods.values():
            made.note(pod)
        return made

    def show(self, name: str, made: Json) -> None:
        uid = made["metadata"]["uid"]
        self.made[name], self.pods[uid] = made, a_pod(made)
        self.queueing.note(self.pods[uid])

    def create(self, name: str, group: str = "", size: int = 3) -> None:
        made = pod_json(name, exclusive(1_000, 1), schedulerName="wattherd")
        if group:
            made["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": group}
            total = {"kueue.x-k8s.io/pod-group-total-count": str(size)}
            made["metadata"]["annotations"].update(total)
        self.show(name, made)

    def remove(self, name: str) -> None:
        uid = self.made.pop(name)["metadata"]["uid"]
        del self.pods[uid]
        self.held.discard(uid)
        self.leaving.discard(uid)
        self.queueing.drop(uid)

    def toggle(self, name: str, among: set[str]) -> None:
        uid = self.made[name]["metadata"]["uid"]
        among.symmetric_difference_update({uid})
        self.queueing.stir(uid)

    def looked(self, queueing: Queueing) -> set[tuple[frozenset[str], tuple[str, str] | None]]:
        queueing.look(self.held, self.leaving)
        return {_plain(one) for one in queueing.waiting}


def _plain(one: Waiting) -> tuple[frozenset[str], tuple[str, str] | None]:
    return one.uids, one.refusal


def change(truth: Truth, draws: np.random.Generator, step: int) -> None:
    """Anything that may happen to pods."""
    names = sorted(truth.made)
    name = names[int(draws.integers(len(names)))] if names else ""
    match int(draws.integers(7)) if names else 0:
        case 0 | 1:
            truth.create(f"pod-{step}", GROUPS[int(draws.integers(len(GROUPS)))])
        case 2:
            truth.show(name, bound(truth.made[name], "n0"))
        case 3:
            truth.remove(name)
        case 4:
            truth.toggle(name, truth.held)
        case 5:
            truth.toggle(name, truth.leaving)
        case _:
            meta = truth.made[name]["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            truth.show(name, truth.made[name] | {"metadata": meta})


@pytest.mark.parametrize("seed", range(8))
def test_told_of_changes_it_finds_what_it_would_find_anew(seed: int) -> None:
    truth, draws = Truth(), np.random.default_rng(seed)
    for step in range(150):
        change(truth, draws, step)
        if draws.random() < 0.5:
            assert truth.looked(truth.queueing) == truth.looked(truth.fresh()), f"step {step}"


def test_a_look_costs_what_happened_and_not_what_there_is() -> None:
    truth = Truth()
    for row in range(300):
        truth.create(f"pod-{row}")
        truth.show(f"pod-{row}", bound(truth.made[f"pod-{row}"], "n0"))
    truth.looked(truth.queueing)
    truth.way.looks = 0
    truth.create("late")
    assert truth.looked(truth.queueing) == {(frozenset({"uid-late"}), None)}
    assert truth.way.looks == 1


def test_a_pod_that_changes_its_gang_is_missed_by_the_first_and_found_by_the_second() -> None:
    truth = Truth()
    for name in ("a", "b"):
        truth.create(name, "one", size=2)
    truth.create("c", "two", size=2)
    truth.looked(truth.queueing)
    truth.create("b", "two", size=2)
    assert truth.looked(truth.queueing) == truth.looked(truth.fresh())
    ready = {one.uids for one in truth.queueing.waiting if one.ready}
    assert ready == {frozenset({"uid-b", "uid-c"})}


def test_the_oldest_come_first_when_all_is_looked_at_anew() -> None:
    truth = Truth()
    for name, second in (("a", 3), ("b", 1), ("c", 2)):
        truth.create(name)
        created = {"creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        truth.show(name, truth.made[name] | {"metadata": truth.made[name]["metadata"] | created})
    truth.looked(truth.queueing)
    truth.queueing.stir_all()
    news = truth.queueing.look(truth.held, truth.leaving)
    assert [one.members[0].pod.metadata.name for one in news.waiting] == ["b", "c", "a"]
