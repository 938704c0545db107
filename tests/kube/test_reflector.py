"""Reflectors on a real API server: killed, frozen, forgetful, impatient."""

from __future__ import annotations

import base64
import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from control_plane import ControlPlane
from kube_api import KubeApi, a_node, a_pod
from kube_cluster import Cluster
from kube_parts import Picture, a_transport
from kube_server import wait_until

from wattherd.kube.api import reflector as reflectors
from wattherd.kube.api.feed import LoopThread
from wattherd.kube.api.objects import Node, Object, ObjectMeta, Pod
from wattherd.kube.api.reflector import Reflector, Selection
from wattherd.kube.api.transport import ApiAnswer, Transport

MOST_REQUESTS = 100
"""Of a reflector in trouble for a while; one that does not pause makes a thousand a second."""


class ConfigMap(Object):
    """An object that is cheap to make and as large as one likes."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class Numbers(Object):
    """Config maps as somebody sees them who expects numbers."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, int] | None = None


@pytest.fixture
def client(cluster: Cluster) -> Iterator[tuple[LoopThread, Transport]]:
    with a_transport(cluster.kubeconfig) as made:
        yield made


def maps_of(namespace: str, kind: Any = ConfigMap) -> Selection[Any]:
    return Selection(f"/api/v1/namespaces/{namespace}/configmaps", kind, labels="test=yes")


def pods_of(namespace: str, fields: str = "") -> Selection[Pod]:
    return Selection(f"/api/v1/namespaces/{namespace}/pods", Pod, fields=fields)


def a_map(name: str, text: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"test": "yes"}}, "data": {"text": text}}


def put_map(api: KubeApi, namespace: str, name: str, text: str = "") -> None:
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", a_map(name, text))


def drop_map(api: KubeApi, namespace: str, name: str) -> None:
    api.delete(f"/api/v1/namespaces/{namespace}/configmaps/{name}")


Client = tuple[LoopThread, Transport]


def test_what_is_there_is_listed_and_what_comes_is_followed(
    cluster: Cluster, namespace: str, client: Client
) -> None:
    api, pods = cluster.api, f"/api/v1/namespaces/{namespace}/pods"
    api.create(pods, a_pod("first", gpus=2, scheduler="nobody"))
    picture: Picture[Pod] = Picture(*client, pods_of(namespace))
    picture.wait_for("first")
    api.create(pods, a_pod("second", scheduler="nobody"))
    picture.wait_for("first", "second")
    assert picture.named("first").spec.containers[0].resources.limits["nvidia.com/gpu"] == "2"
    api.merge(f"{pods}/second", {"metadata": {"labels": {"mood": "good"}}})
    wait_until(lambda: picture.named("second").metadata.label("mood") == "good", "the label")
    api.delete(f"{pods}/first", gracePeriodSeconds=0)
    picture.wait_for("second")


def test_what_no_longer_matches_a_selector_is_gone(
    cluster: Cluster, namespace: str, client: Client
) -> None:
    api, pods = cluster.api, f"/api/v1/namespaces/{namespace}/pods"
    node = f"{namespace}-node"
    api.create("/api/v1/nodes", a_node(node))
    waiting: Picture[Pod] = Picture(
        *client, pods_of(namespace, "spec.nodeName=,spec.schedulerName=mine")
    )
    api.create(pods, a_pod("mine", scheduler="mine"))
    api.create(pods, a_pod("other", scheduler="nobody"))
    waiting.wait_for("mine")
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    api.create(f"{pods}/mine/binding", {"metadata": {"name": "mine"}, "target": target})
    waiting.wait_for()
    api.remove_nodes([node])


def test_a_pod_made_anew_under_its_name_is_another(
    cluster: Cluster, namespace: str, client: Client
) -> None:
    api, pods = cluster.api, f"/api/v1/namespaces/{namespace}/pods"
    picture: Picture[Pod] = Picture(*client, pods_of(namespace))
    api.create(pods, a_pod("same", scheduler="nobody"))
    picture.wait_for("same")
    old = set(picture.items)
    api.delete(f"{pods}/same", gracePeriodSeconds=0)
    made = api.create(pods, a_pod("same", scheduler="nobody"))
    uid = made["metadata"]["uid"]
    wait_until(lambda: picture.names() and old.isdisjoint(picture.items), "the old one is gone")
    assert {key.uid for key in picture.items} == {uid}


def test_pages_are_put_together(
    cluster: Cluster, namespace: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflectors, "PAGE", 2)
    names = [f"map-{index}" for index in range(5)]
    for name in names:
        put_map(cluster.api, namespace, name)
    Picture(*client, maps_of(namespace)).wait_for(*names)


def test_a_killed_api_server_costs_a_pause_and_no_change(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    put_map(plane.api, namespace, "stays")
    put_map(plane.api, namespace, "goes")
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace))
    picture.wait_for("stays", "goes")
    plane.apiserver.kill()
    wait_until(lambda: picture.reflector.trouble, "the reflector has noticed")
    assert picture.names() == {"stays", "goes"}, "nothing is gone because nobody answers"
    plane.apiserver.start()
    drop_map(plane.api, namespace, "goes")
    put_map(plane.api, namespace, "comes")
    picture.wait_for("stays", "comes")
    tally = picture.reflector.tally
    assert tally.breaks >= 1
    assert tally.watches + tally.lists < MOST_REQUESTS
    assert picture.reflector.trouble is None


def test_a_version_that_is_gone_is_told_within_a_watch_and_answered_by_a_list(
    plane: ControlPlane, namespace: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.apiserver.kill()
    plane.apiserver.start()  # it remembers no event of before
    monkeypatch.setattr(reflectors, "WATCH_S", (1, 2))
    watch = Reflector._watch
    watches = itertools.count()

    async def aged(self: Reflector[Any]) -> None:
        if next(watches) == 1:
            self._version = "1"  # as if it had been away for long
        await watch(self)

    monkeypatch.setattr(Reflector, "_watch", aged)
    put_map(plane.api, namespace, "before")
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace))
    picture.wait_for("before")
    wait_until(lambda: picture.reflector.tally.expired, "the version has expired")
    put_map(plane.api, namespace, "after")
    picture.wait_for("before", "after")
    tally = picture.reflector.tally
    assert tally.expired == 1
    assert tally.watches + tally.lists < MOST_REQUESTS


def test_a_list_whose_next_page_is_gone_is_begun_again(
    plane: ControlPlane, namespace: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets between two pages: its word for where to go on names an old version.

    What the first page showed and is deleted meanwhile is not taken for there.
    """
    monkeypatch.setattr(reflectors, "PAGE", 2)
    names = [f"map-{index}" for index in range(3)]
    for name in names:
        put_map(plane.api, namespace, name)
    plane.apiserver.kill()
    plane.apiserver.start()  # without the old pictures that it keeps in memory
    compact(plane)
    loop, transport = client
    aged = itertools.count()
    asked = Transport.request

    async def ask(self: Transport, method: str, path: str, **more: Any) -> ApiAnswer:
        query = more.get("query") or {}
        if "continue" in query and next(aged) == 0:
            drop_map(plane.api, namespace, names[0])
            more["query"] = {**query, "continue": of_version_2(query["continue"])}
        return await asked(self, method, path, **more)

    monkeypatch.setattr(Transport, "request", ask)
    picture: Picture[ConfigMap] = Picture(loop, transport, maps_of(namespace))
    picture.wait_for(*names[1:])
    assert picture.reflector.tally.expired == 1
    assert picture.reflector.tally.lists == 1


def compact(plane: ControlPlane) -> None:
    """Let etcd forget all versions before this one."""
    found = etcd(plane, "kv/range", {"key": base64.b64encode(b"/").decode(), "limit": "1"})
    etcd(plane, "kv/compaction", {"revision": found["header"]["revision"], "physical": True})


def etcd(plane: ControlPlane, path: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    with urllib.request.urlopen(f"{plane.etcd_url}/v3/{path}", data, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def of_version_2(token: str) -> str:
    text = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    changed = json.dumps({**text, "rv": 2}, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(changed).rstrip(b"=").decode()


def test_a_watch_from_a_version_to_come_says_nothing_and_is_given_up(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    """As after a store was restored from an old copy: our version is ahead of the server's."""
    put_map(plane.api, namespace, "before")
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace), silence_s=2.0)
    picture.wait_for("before")
    plane.apiserver.kill()
    picture.reflector._version = str(2**50)
    plane.apiserver.start()
    put_map(plane.api, namespace, "after")
    picture.wait_for("before", "after")
    tally = picture.reflector.tally
    assert tally.lists >= 2
    assert tally.watches + tally.lists < MOST_REQUESTS


def test_a_reader_that_was_cut_off_for_slowness_misses_nothing(
    cluster: Cluster, namespace: str, client: Client
) -> None:
    loop, transport = client
    put_map(cluster.api, namespace, "large")
    picture: Picture[ConfigMap] = Picture(loop, transport, maps_of(namespace))
    picture.wait_for("large")
    free = threading.Event()
    loop._loop.call_soon_threadsafe(free.wait)  # the reader reads no more
    cut_before = cut_off(cluster.api)
    path = f"/api/v1/namespaces/{namespace}/configmaps/large"
    try:
        for number in range(400):
            cluster.api.merge(path, {"data": {"text": f"{number} " + "x" * 400_000}})
            if number % 20 == 19 and cut_off(cluster.api) > cut_before:
                break
        assert cut_off(cluster.api) > cut_before
        put_map(cluster.api, namespace, "unseen")
    finally:
        free.set()
    picture.wait_for("large", "unseen")
    last = cluster.api.get(path)["data"]["text"]
    wait_until(lambda: picture.named("large").data["text"] == last, "the newest text")


def cut_off(api: KubeApi) -> int:
    """How many watchers of config maps the API server has ended for being slow."""
    _, metrics = api.call("GET", "/metrics")
    return sum(
        int(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("apiserver_terminated_watchers_total") and "configmaps" in line
    )


def test_a_killed_store_is_waited_for(plane: ControlPlane, namespace: str, client: Client) -> None:
    put_map(plane.api, namespace, "before")
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace), silence_s=1.0)
    picture.wait_for("before")
    plane.etcd.kill()
    wait_until(lambda: picture.reflector.trouble, "a list has failed")
    assert picture.names() == {"before"}, "what was true last is kept"
    assert picture.reflector.silent_s() > 1
    plane.etcd.start()
    wait_until(plane.api.ready, "the API server is back")
    put_map(plane.api, namespace, "after")
    picture.wait_for("before", "after")
    assert picture.reflector.tally.watches + picture.reflector.tally.lists < MOST_REQUESTS


def test_a_frozen_api_server_is_found_by_its_silence(
    plane: ControlPlane, namespace: str, client: Client
) -> None:
    put_map(plane.api, namespace, "before")
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace), silence_s=1.0)
    picture.wait_for("before")
    plane.apiserver.pause()
    try:
        wait_until(lambda: picture.reflector.trouble, "the reflector says so")
        wait_until(lambda: picture.reflector.silent_s() > 2, "the clock of silence goes on")
    finally:
        plane.apiserver.resume()
    put_map(plane.api, namespace, "after")
    picture.wait_for("before", "after")
    wait_until(lambda: picture.reflector.trouble is None, "the trouble is over")


def test_objects_that_cannot_be_read_hide_no_others(
    cluster: Cluster, namespace: str, client: Client
) -> None:
    for name, text in (("one", "1"), ("odd", "many"), ("two", "2")):
        put_map(cluster.api, namespace, name, text)
    picture: Picture[Numbers] = Picture(*client, maps_of(namespace, Numbers))
    picture.wait_for("one", "two")
    assert picture.reflector.tally.unreadable == 1
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    cluster.api.merge(f"{path}/two", {"data": {"text": "several"}})
    put_map(cluster.api, namespace, "three", "3")
    picture.wait_for("one", "two", "three")
    assert picture.named("two").data == {"text": 2}, "as it was when it could be read last"


def test_bookmarks_and_events_told_twice_change_nothing(
    cluster: Cluster, namespace: str, client: Client
) -> None:
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace))
    put_map(cluster.api, namespace, "one")
    picture.wait_for("one")
    reflector, seen = picture.reflector, len(picture.history)
    item = cluster.api.get(f"/api/v1/namespaces/{namespace}/configmaps/one")
    nearly_empty = {"metadata": {"resourceVersion": reflector._version, "creationTimestamp": None}}
    for kind, about in (("ADDED", item), ("DELETED", item), ("BOOKMARK", nearly_empty)):
        reflector._take(msgspec.json.encode({"type": kind, "object": about}))
    assert picture.names() == {"one"}
    assert len(picture.history) == seen
    assert (reflector.tally.late, reflector.tally.bookmarks) == (2, 1)


def test_a_watch_that_says_nothing_but_bookmarks_keeps_up(
    cluster: Cluster, namespace: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours changes while others do: the version goes on, and nothing is listed anew."""
    monkeypatch.setattr(reflectors, "WATCH_S", (9, 10))  # the server's last word comes 2 s before
    put_map(cluster.api, namespace, "ours")
    picture: Picture[ConfigMap] = Picture(*client, maps_of(namespace))
    picture.wait_for("ours")
    others = a_map("not-ours") | {"metadata": {"name": "not-ours"}}
    made = cluster.api.create(f"/api/v1/namespaces/{namespace}/configmaps", others)
    later, reflector = int(made["metadata"]["resourceVersion"]), picture.reflector
    wait_until(lambda: int(reflector._version) >= later, lambda: f"{reflector.tally}, {later}")
    tally = reflector.tally
    assert tally.bookmarks >= 1
    assert (tally.lists, tally.events) == (1, 0)


def test_nodes_are_followed_while_they_become_ready(cluster: Cluster, client: Client) -> None:
    picture: Picture[Node] = Picture(*client, Selection("/api/v1/nodes", Node, labels="of=this"))
    names = cluster.api.fleet(a_node(f"seen-{n}", labels={"of": "this"}) for n in range(4))
    picture.wait_for(*names)

    def ready(node: Node) -> bool:
        return any(
            each.type == "Ready" and each.status == "True" for each in node.status.conditions or ()
        )

    wait_until(lambda: picture.names() and all(map(ready, picture.items.values())), "all Ready")
    cluster.api.remove_nodes(names)
    picture.wait_for()
