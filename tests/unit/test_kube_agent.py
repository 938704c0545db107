"""What a node's agent decides: whose cap goes to which GPU, what is told, and how often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra `kube` is not installed")
from kube_builders import a_node, a_pod

from wattherd.errors import UserError
from wattherd.kube.api.api_objects import Lease, LeaseSpec
from wattherd.kube.api.objects import Node, Pod
from wattherd.kube.decide.agent_caps import (
    Assigned,
    GpuState,
    Lately,
    PodCapWish,
    applied_w,
    caps_of,
    limit_of,
    wishes_of,
)
from wattherd.kube.decide.agent_notes import NodeNotes, PodNotes, limits_labels, show
from wattherd.kube.live.agent import LeaderContact

ANNOTATED = {"wattherd.dev/gpu-shares": "annotation"}


def gpu(number: int, cap_w: float | None = 300.0, **more: Any) -> GpuState:
    return GpuState(uuid=f"GPU-{number}", number=number, cap_w=cap_w, **more)


def node(**labels: str) -> Node:
    return a_node({"metadata": {"name": "n", "uid": "n", "labels": labels}})


def pod(name: str, count: int = 1, /, **annotations: str) -> Pod:
    written = {f"wattherd.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    limits = {"nvidia.com/gpu": str(count)}
    about = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": written}
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    return a_pod({"metadata": about, "spec": {"containers": containers, "nodeName": "n"}})


def caps(pods: list[Pod], on: Node, assigned: Assigned | None = None) -> dict[str, float]:
    return caps_of(wishes_of(pods, on, [gpu(0), gpu(1)], assigned))


def test_a_pods_watts_are_split_over_its_gpus() -> None:
    asks = [pod("a", 2, cap_w="400", gpus="0,1")]
    assert caps(asks, node(**ANNOTATED)) == {"GPU-0": 200.0, "GPU-1": 200.0}


def test_the_lowest_part_holds_where_pods_share_a_gpu() -> None:
    asks = [pod("a", cap_w="180", gpus="0"), pod("b", cap_w="150W", gpus="0"), pod("c", gpus="1")]
    assert caps(asks, node(**ANNOTATED)) == {"GPU-0": 150.0}


def test_the_kubelet_knows_better_than_what_is_written() -> None:
    asks = [pod("a", cap_w="180", gpus="0")]
    assert caps(asks, node(**ANNOTATED), {"ns/a": ["GPU-1"]}) == {"GPU-1": 180.0}


def test_numbers_mean_nothing_where_the_plugin_does_not_obey_them() -> None:
    asks = [pod("a", cap_w="180", gpus="0")]
    [wish] = wishes_of(asks, node(), [gpu(0), gpu(1)], None)
    assert (wish.gpus, wish.problem) == (None, "it is not known which GPUs it has")
    assert caps(asks, node()) == {}
    assert caps([pod("all", 2, cap_w="300")], node()) == {"GPU-0": 150.0, "GPU-1": 150.0}


@pytest.mark.parametrize("given", [["GPU-7"], []], ids=["another machine's", "none"])
def test_gpus_that_are_not_there_are_not_guessed(given: list[str]) -> None:
    [wish] = wishes_of([pod("a", 2, cap_w="180")], node(), [gpu(0), gpu(1)], {"ns/a": given})
    assert wish.gpus is None


def test_nonsense_is_told_and_caps_nothing() -> None:
    [wish] = wishes_of([pod("a", cap_w="much", gpus="0")], node(**ANNOTATED), [gpu(0)], None)
    assert "no power" in wish.problem
    assert caps_of([wish]) == {}


def test_what_is_told_is_what_was_read_back() -> None:
    wish = PodCapWish(uid="u", key="ns/a", cap_w=100.0, gpus=("GPU-0", "GPU-1"))
    assert applied_w(wish, [gpu(0, 100.0), gpu(1, 100.04)]) == pytest.approx(200.04)
    assert show(200.04) == "200.1"
    assert applied_w(wish, [gpu(0, 100.0), gpu(1, None)]) is None
    assert applied_w(wish, [gpu(0, 100.0), gpu(1, float("inf"))]) is None


def test_what_becomes_unknown_is_told_after_a_while() -> None:
    notes = PodNotes()
    wish = PodCapWish(uid="u", key="ns/a", cap_w=100.0, gpus=("GPU-0",), told_w="100")
    assert notes.due([wish], [gpu(0, 100.0)], 0.0) == []
    assert notes.due([wish], [gpu(0, None)], 1.0) == []
    assert notes.due([wish], [gpu(0, None)], 10.9) == []
    [told] = notes.due([wish], [gpu(0, None)], 11.0)
    assert told.applied_w is None
    [told] = notes.due([wish], [gpu(0, 250.0)], 12.0)
    assert told.applied_w == 250.0


def test_a_node_writes_little() -> None:
    """Three hours of seconds at a steady draw, with one step in it."""
    notes, writes = NodeNotes(), []
    for now_s in range(10_800):
        draw_w = 1000.0 if now_s < 5000 else 1500.0
        if notes.due(draw_w, [gpu(0)], "", float(now_s), "now") is not None:
            writes.append(now_s)
    assert writes[0] == 0
    assert 5000 in writes
    assert len(writes) <= 10_800 / 300 + 2


def test_a_problem_that_comes_and_goes_is_no_flood() -> None:
    notes = NodeNotes()
    said = [notes.due(None, [gpu(0)], "lost" * (now % 2), float(now), "now") for now in range(100)]
    assert 2 < sum(one is not None for one in said) <= 11


def test_limits_are_those_that_every_gpu_takes() -> None:
    gpus = [gpu(0, lowest_w=99.5, highest_w=350.7), gpu(1, lowest_w=80.0, highest_w=400.0)]
    labels = limits_labels(gpus)
    assert labels["wattherd.dev/gpu-cap-min-w"] == "100"
    assert labels["wattherd.dev/gpu-cap-max-w"] == "350"
    assert limits_labels([gpu(0, lowest_w=99.5)]) == {"wattherd.dev/agent": "true"}


def heard(asks: list[tuple[float, str | None]]) -> Lately:
    """What one pod asked for, and when."""
    lately = Lately()
    for at_s, cap_w in asks:
        lately.hear(pod("a", gpus="0", **({} if cap_w is None else {"cap_w": cap_w})), at_s)
    return lately


@pytest.mark.parametrize(
    ("asks", "now_s", "holds_w"),
    [
        ([(0.0, "250")], 0.0, 250.0),
        ([(0.0, "250"), (10.0, "350")], 12.9, 250.0),
        ([(0.0, "250"), (10.0, "350")], 13.0, 350.0),
        ([(0.0, "250"), (10.0, None)], 12.9, 250.0),
        ([(0.0, "350"), (10.0, "250")], 10.0, 250.0),
        ([(0.0, "250"), (10.0, "as much as there is")], 99.0, 250.0),
        ([(0.05 * n, "350" if n % 2 else "250") for n in range(2000)], 100.0, 250.0),
        ([(0.001 * n, "350" if n % 97 else "250") for n in range(2000)], 2.0, 250.0),
    ],
    ids=["the first counts", "a raise waits", "a raise has stood", "none waits",
         "a fall counts at once", "nonsense is none", "in turns", "many raises, few falls"],
)  # fmt: skip
def test_whoever_rewrites_a_cap_gains_nothing_by_it(
    asks: list[tuple[float, str | None]], now_s: float, holds_w: float
) -> None:
    lately = heard(asks)
    assert lately.lowest_w(now_s) == {"uid-a": holds_w}
    assert sum(len(one) for one in lately._asks.values()) <= 66
    asked = pod("a", gpus="0", cap_w="700")
    [wish] = wishes_of([asked], node(**ANNOTATED), [gpu(0)], None, lately.lowest_w(now_s))
    assert wish.cap_w == holds_w
    lately.forget("uid-a")
    assert lately.lowest_w(now_s) == {}


def test_nodes_have_a_limit_as_the_api_says() -> None:
    assert limit_of(node()) > 1e9
    written = {"wattherd.dev/node-limit": "6kW"}
    about = {"name": "n", "uid": "n", "annotations": written}
    assert limit_of(a_node({"metadata": about})) == 6000.0
    written["wattherd.dev/node-limit"] = "plenty"
    with pytest.raises(UserError):
        limit_of(a_node({"metadata": about}))


def lease(renewed: str, holder: str | None = "one") -> Lease:
    return Lease(spec=LeaseSpec(renew_time=renewed, holder_identity=holder))


def test_who_decides_is_heard_of_while_it_renews_whatever_its_clock_says() -> None:
    contact = LeaderContact(60.0, 0.0)
    contact.saw(lease("1999"), 10.0)
    assert contact.left_s(10.0) == 60.0
    contact.saw(lease("1999"), 25.0)
    assert contact.left_s(40.0) == 30.0
    contact.saw(lease("1998"), 50.0)
    assert contact.left_s(50.0) == 60.0
    contact.saw(lease("1997", holder=None), 60.0)
    assert contact.left_s(120.0) == 0.0


# --- the kubelet, as a real gRPC server ---------------------------------------------------------


def message(number: int, value: bytes | str) -> bytes:
    """A field of bytes of a protobuf message."""
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def devices(resource: str, *ids: str) -> bytes:
    topology = message(3, message(1, b"\x08\x01"))
    return message(2, message(1, resource) + b"".join(message(2, one) for one in ids) + topology)


def a_resource(name: str, *given: bytes) -> bytes:
    container = message(1, "main") + b"".join(given) + message(3, b"\x01\x02")
    return message(1, message(1, name) + message(2, "ns") + message(3, container))


ANSWER = (
    a_resource("a", devices("nvidia.com/gpu", "GPU-1", "GPU-0"), devices("rdma/hca", "mlx0"))
    + a_resource("b", devices("nvidia.com/gpu.shared", "GPU-2::1", "GPU-2::3"))
    + a_resource("c", devices("example.com/fpga", "f" * 300))
)


def test_the_kubelet_is_asked_who_has_which_gpu(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc", reason="the extra `kube-agent` is not installed")
    from wattherd.kube.live.pod_resources import METHOD, NoPodResources, PodResources

    _, service, method = METHOD.split("/")
    answers = [ANSWER, b"\x0a\xff"]
    handler = grpc.unary_unary_rpc_method_handler(lambda *_: answers.pop(0))
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
        server.add_insecure_port(f"unix://{tmp_path}/kubelet.sock")
        server.start()
        kubelet = PodResources(tmp_path / "kubelet.sock")
        assert kubelet.gpus_by_pod() == {"ns/a": ["GPU-1", "GPU-0"], "ns/b": ["GPU-2"]}
        with pytest.raises(NoPodResources, match="cut off"):
            kubelet.gpus_by_pod()
        server.stop(None).wait()
        with pytest.raises(NoPodResources, match="does not tell"):
            kubelet.gpus_by_pod()
        kubelet.close()
