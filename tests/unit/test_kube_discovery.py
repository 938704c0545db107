"""What an API server has: asked until it says yes or no, and in which version groups are there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event
from typing import Any, cast

import pytest

pytest.importorskip("msgspec", reason="needs the extra kube")

from wattherd.kube.api import discovery
from wattherd.kube.api.api_objects import PodGroup, decoder
from wattherd.kube.api.discovery import is_kind_served
from wattherd.kube.api.feed import ApiFeed, LoopThread
from wattherd.kube.api.transport import ApiAnswer, ApiUnreachable, RefusedByApi
from wattherd.kube.facts.pod_groups import GroupId, GroupKind, least_members
from wattherd.kube.live.reason_events import GroupApis, condition_type

BEGINNING = "scheduling.k8s.io"
RING = GroupId(GroupKind.NATIVE, "default", "ring")


class Server:
    """Has these kinds by group and version; `before` is what it says first, once each."""

    def __init__(self, kinds: dict[str, tuple[str, ...]], *before: Exception) -> None:
        self.kinds = kinds
        self.before = list(before)
        self.asked = 0

    async def request(self, method: str, path: str) -> ApiAnswer:
        assert method == "GET"
        self.asked += 1
        if self.before:
            raise self.before.pop(0)
        version = path.removeprefix("/apis/")
        if version not in self.kinds:
            raise RefusedByApi(404, "NotFound", f"no {path}")
        named = [{"name": name, "verbs": ["list"]} for name in self.kinds[version]]
        return ApiAnswer(200, json.dumps({"kind": "APIResourceList", "resources": named}).encode())


class SomeFeed:
    """As much of a feed as asks questions."""

    def __init__(self, server: Server) -> None:
        self.transport = server
        self.loop = LoopThread("test")
        self.unwanted = Event()
        self.noted: list[str] = []

    def note(self, what: str, problem: str = "") -> None:
        del what
        self.noted.append(problem)


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(discovery, "AGAIN_S", 0.001)
    made: list[SomeFeed] = []

    def feed_of(server: Server) -> ApiFeed:
        made.append(SomeFeed(server))
        return cast("ApiFeed", made[-1])

    yield feed_of
    for one in made:
        one.loop.close()


# --- asked until it is known ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(ApiUnreachable("refused"), id="nobody-there"),
        pytest.param(RefusedByApi(503, "ServiceUnavailable", "not ready"), id="not-ready"),
        pytest.param(RefusedByApi(401, "Unauthorized", "no"), id="token-not-known-yet"),
        pytest.param(RefusedByApi(403, "Forbidden", "no"), id="no-rights-yet"),
    ],
)
def test_no_answer_is_no_no(feeds: Any, problem: Exception) -> None:
    server = Server({"wattherd.dev/v1alpha1": ("queues",)}, problem, problem)
    feed = feeds(server)
    assert is_kind_served(feed, "/apis/wattherd.dev/v1alpha1", "queues")
    assert server.asked == 3
    assert [bool(problem) for problem in feed.noted] == [True, True, False]


def test_what_is_not_there_is_asked_for_once(feeds: Any) -> None:
    server = Server({})
    assert not is_kind_served(feeds(server), "/apis/wattherd.dev/v1alpha1", "queues")
    assert server.asked == 1


def test_who_is_not_wanted_any_more_asks_no_more(feeds: Any) -> None:
    feed = feeds(Server({}, ApiUnreachable("refused")))
    feed.unwanted.set()
    assert not is_kind_served(feed, "/apis/wattherd.dev/v1alpha1", "queues")
    assert feed.transport.asked == 0


def test_a_version_may_be_there_for_other_kinds(feeds: Any) -> None:
    feed = feeds(Server({f"{BEGINNING}/v1": ("priorityclasses",)}))
    assert is_kind_served(feed, f"/apis/{BEGINNING}/v1", "priorityclasses")
    assert not is_kind_served(feed, f"/apis/{BEGINNING}/v1", "podgroups")


# --- versions of native groups --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("served", "used"),
    [
        pytest.param(("v1alpha2",), "v1alpha2", id="1.36"),
        pytest.param(("v1alpha3", "v1beta1"), "v1beta1", id="1.37"),
        pytest.param(("v1alpha3",), "v1alpha3", id="1.37-alpha-only"),
    ],
)
def test_native_groups_are_read_in_the_version_that_is_served(
    feeds: Any, served: tuple[str, ...], used: str
) -> None:
    kinds = {f"{BEGINNING}/{version}": ("podgroups", "workloads") for version in served}
    groups = GroupApis()
    assert groups.subject(RING) is None
    paths = groups.find(feeds(Server(kinds)))
    assert paths == {GroupKind.NATIVE: f"/apis/{BEGINNING}/{used}/podgroups"}
    subject = groups.subject(RING, "uid")
    assert subject is not None
    assert subject.path == f"/apis/{BEGINNING}/{used}/namespaces/default/podgroups/ring"
    assert subject.api_version == f"{BEGINNING}/{used}"


def test_where_no_groups_are_served_nobody_is_told_of_any(feeds: Any) -> None:
    groups = GroupApis()
    assert groups.find(feeds(Server({f"{BEGINNING}/v1": ("priorityclasses",)}))) == {}
    assert groups.subject(RING) is None


def test_the_condition_has_another_name_in_later_versions() -> None:
    assert condition_type("scheduling.k8s.io/v1alpha2") == "PodGroupScheduled"
    assert condition_type("scheduling.k8s.io/v1beta1") == "PodGroupInitiallyScheduled"
    assert condition_type("scheduling.x-k8s.io/v1alpha1") == "PodGroupScheduled"


@pytest.mark.parametrize("mode", ["PodGroup", {"all": {}}], ids=["1.36", "1.37"])
def test_groups_of_every_version_can_be_read(mode: object) -> None:
    spec = {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": mode,
        "workloadRef": {"name": "train"},
    }
    group = decoder(PodGroup).decode(json.dumps({"spec": spec}).encode())
    assert least_members(group) == 3
    constraints = group.spec.scheduling_constraints
    assert constraints is not None
    assert [one.key for one in constraints.topology or ()] == ["rack"]
