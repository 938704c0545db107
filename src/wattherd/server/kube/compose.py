"""`wattherd kube agent` and `wattherd kube cap-helper`, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattherd.errors import UserError
from wattherd.kube.api.access import find_access
from wattherd.kube.api.health import Checkup
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.decide.agent_metrics import power_metrics
from wattherd.kube.decide.node_loop import NO_LIMIT_W, NodeSurroundings
from wattherd.kube.live.agent import AgentOptions, LiveAgent
from wattherd.server.kube.agent_devices import AsksKubelet, Bench, open_bench
from wattherd.server.kube.cap_helper import CapHelper, RemoteBench
from wattherd.server.kube.node_around import LevelMeter, NodeAround
from wattherd.server.settings.config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How devices are found and limited: `safe_w` per GPU (None: the lowest it takes).

    `meter` and `rack_meter` are addresses, in which `{node}` stands for the node's name.
    """

    state: Path
    lease_s: float
    safe_w: float | None = None
    zeusd: Path | None = None
    powercap: Path | None = None
    pod_resources: Path | None = None
    node: str = ""
    limit_w: float = NO_LIMIT_W
    meter: str | None = None
    base_w: float = 0.0
    rack_limit_w: float = NO_LIMIT_W
    rack_meter: str | None = None


def bench_of(options: BenchOptions) -> Bench:
    """This machine's devices.

    Raises:
        UserError: an option cannot be used.
    """
    config = ServeConfig(zeusd=options.zeusd, powercap=options.powercap)
    return open_bench(
        config,
        options.state,
        lease_s=options.lease_s,
        safe_w=options.safe_w,
        kubelet=_kubelet(options.pod_resources),
        around=around_of(options),
    )


def around_of(options: BenchOptions) -> NodeAround:
    """The limits and meters of node and rack.

    Raises:
        UserError: an address cannot be used, or needs the node's name, which is not known.
    """
    stated = NodeSurroundings(
        limit_w=options.limit_w,
        base_w=options.base_w,
        metered=options.meter is not None,
        rack_limit_w=options.rack_limit_w,
        rack_metered=options.rack_meter is not None,
    )
    return NodeAround(
        stated,
        _level_meter(options.meter, options.node, "--meter"),
        _level_meter(options.rack_meter, options.node, "--rack-meter"),
    )


def _level_meter(uri: str | None, node: str, field: str) -> LevelMeter | None:
    if not uri:
        return None
    if "{node}" in uri and not node:
        raise UserError("needs the node's name", where=uri, field=field,
                        hint="give --node, or set NODE_NAME")  # fmt: skip
    return LevelMeter(uri.replace("{node}", node))


def _kubelet(path: Path | None) -> AsksKubelet | None:
    if path is None:
        return None
    try:
        from wattherd.kube.live.pod_resources import PodResources
    except ImportError as missing:
        hint = 'pip install "wattherd[kube-agent]"'
        raise UserError(f"--pod-resources needs {missing.name}", hint=hint) from None
    return PodResources(path)


def cap_helper(options: BenchOptions, path: Path) -> CapHelper:
    """A helper that listens on `path`, not begun yet.

    Raises:
        UserError: an option cannot be used, or there can be no socket.
    """
    return CapHelper(lambda: bench_of(options), path)


def live_agent(
    options: AgentOptions,
    *,
    helper: Path | None,
    bench: BenchOptions,
    kubeconfig: Path | None = None,
    context: str | None = None,
    say: Callable[[str], None],
) -> LiveAgent:
    """An agent, not begun yet; its devices are those behind the helper's socket, or its own.

    Raises:
        UserError: an option or cluster cannot be used.
    """
    access = find_access(kubeconfig, context)
    caps = bench_of(bench) if helper is None else RemoteBench(helper)
    return LiveAgent(caps, access, np.random.default_rng(), options, say=say)


def agent_checkup(live: LiveAgent) -> Checkup:
    """What kubelets and Prometheus may know of an agent."""
    return Checkup(live.feed, more=lambda: power_metrics(live.power()))


def object_named(text: str | None, field: str) -> ObjectMeta | None:
    """`NAMESPACE/NAME`.

    Raises:
        UserError: it is none.
    """
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise UserError(f"{text!r} names nothing", field=field, hint="write NAMESPACE/NAME")
    return ObjectMeta(name=name, namespace=namespace)
