"""Kinds that are installed and removed while wattherd runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from control_plane import ControlPlane
from foreign_kinds import served
from kube_api import a_node, a_pod
from kube_parts import a_transport
from kube_server import wait_until
from test_second_scheduler import T4, a_scheduler, bound, nodes_of, why

from wattherd.kube.api.access import find_access
from wattherd.kube.api.api_objects import PodGroup
from wattherd.kube.api.changes import Changes
from wattherd.kube.api.feed import ApiFeed
from wattherd.kube.api.reflector import Reflector, Selection, Served

OLDER = ("scheduling.x-k8s.io", "v1alpha1")
KIND = {"podgroups": (*OLDER, "PodGroup")}
API = "/apis/" + "/".join(OLDER)
SETS = {"jobsets": ("jobset.x-k8s.io", "v1alpha2", "JobSet")}
SOON_S = (0.1, 0.3)


def groups_of(served: Served) -> Selection[PodGroup]:
    return Selection(f"{API}/podgroups", PodGroup, served=served)


def put_group(plane: ControlPlane, namespace: str, name: str) -> None:
    about = {"apiVersion": "/".join(OLDER), "kind": "PodGroup", "metadata": {"name": name}}
    plane.api.create(f"{API}/namespaces/{namespace}/podgroups", {**about, "spec": {"minMember": 2}})


@contextmanager
def reflecting(plane: ControlPlane, kept: Served) -> Iterator[tuple[Reflector[Any], set[str]]]:
    """A reflector that looks often for a kind, and the names that `look` finds there."""
    with a_transport(plane.kubeconfig) as (loop, transport):
        changes, draws = Changes[Any](), np.random.default_rng(1)
        one = Reflector(transport, groups_of(kept), changes, draws, absent_s=SOON_S)
        work = loop.begin(one.run())
        try:
            yield one, set()
        finally:
            work.cancel()


def look(reflector: Reflector[Any], names: set[str]) -> set[str]:
    for change in reflector.changes.take(0):
        (names.discard if change.item is None else names.add)(change.key.name)
    return names


@pytest.mark.parametrize(
    "kept", [Served.WHILE_INSTALLED, Served.ONCE_INSTALLED], ids=lambda one: one.name
)
def test_a_kind_is_found_once_it_is_installed(
    plane: ControlPlane, namespace: str, kept: Served
) -> None:
    """What is gone with its kind is gone; where that must not be, it is trouble."""
    with reflecting(plane, kept) as (one, names):
        wait_until(lambda: one.changes.absent, "that there is no such kind is known")
        assert (one.trouble, one.tally.lists) == (None, 0)
        with served(plane.api, KIND):
            put_group(plane, namespace, "first")
            wait_until(lambda: look(one, names) == {"first"}, lambda: f"{names}, {one.trouble}")
            assert not one.changes.absent
        if kept is Served.ONCE_INSTALLED:
            wait_until(lambda: one.trouble, "it is missed")
            assert not one.changes.absent
            return
        wait_until(lambda: one.changes.absent, lambda: str(one.trouble))
        assert (look(one, names), one.trouble) == (set(), None)
        with served(plane.api, KIND):
            put_group(plane, namespace, "second")
            wait_until(lambda: look(one, names) == {"second"}, lambda: f"{names}, {one.trouble}")


def test_a_feed_sees_all_there_is_with_and_without_a_kind(
    plane: ControlPlane, namespace: str
) -> None:
    """Whoever follows it is told whether it is served; what is new keeps nobody from deciding."""
    feed = ApiFeed(find_access(plane.kubeconfig), np.random.default_rng(1), absent_s=SOON_S)
    told, heard, blind = list[bool](), list[str](), list[bool]()
    feed.follow(Selection("/api/v1/namespaces", PodGroup), lambda _: None)
    feed.follow(
        groups_of(Served.WHILE_INSTALLED),
        lambda batch: heard.extend(change.key.name for change in batch),
        told.append,
    )
    feed.open()
    feed.begin()

    def seeing(true: bool) -> bool:
        if not feed.sees():
            blind.append(True)
        return true

    try:
        wait_until(feed.sees, "all there is was seen")
        assert told == [False]
        with served(plane.api, KIND):
            put_group(plane, namespace, "late")
            wait_until(lambda: seeing(bool(heard)), lambda: f"{feed.troubles}")
            wait_until(lambda: seeing(told == [False, True]), "it is told")
        wait_until(lambda: seeing(told == [False, True, False]), lambda: f"{feed.troubles}")
        assert heard == ["late", "late"]
        assert not blind
        assert feed.sees(0)
        assert feed.alive()
    finally:
        feed.close()


def test_a_scheduler_learns_of_sets_that_are_installed_after_it_began(
    plane: ControlPlane, namespace: str
) -> None:
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
    part = {"name": "n", "replicas": 2, "template": {"spec": {"parallelism": 1}}}
    about = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}

    def create(name: str, job_set: str, **spec: Any) -> None:
        labels = {"jobset.sigs.k8s.io/jobset-name": job_set}
        api.create(pods, a_pod(name, gpus=1, scheduler="wattherd-late", labels=labels, spec=spec))

    def says(pod: str, text: str) -> None:
        wait_until(lambda: text in why(api, namespace, pod), lambda: why(api, namespace, pod))

    with (
        nodes_of(api, [a_node("late", gpus=4, labels=T4)]),
        a_scheduler(plane, "wattherd-late"),
    ):
        create("alone", "unknown")
        wait_until(lambda: "alone" in bound(api, namespace), "nobody says that there are more")
        with served(api, SETS):
            for name in ("nowhere", "ring"):
                made = {**about, "metadata": {"name": name}, "spec": {"replicatedJobs": [part]}}
                api.create(path, made)
            create("nowhere-0", "nowhere", nodeSelector={"no": "such"})
            says("nowhere-0", "1 of 2 pods of nowhere are there")  # the kind was noticed
            create("ring-0", "ring")
            says("ring-0", "1 of 2 pods of ring are there")
            create("ring-1", "ring")
            both = {"ring-0", "ring-1"}
            wait_until(lambda: both <= bound(api, namespace).keys(), "it is complete")
