"""`wattherd kube agent` and `wattherd kube cap-helper`, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattherd.errors import UserError
from wattherd.runtime.kube.agent.live import AgentOptions, LiveAgent
from wattherd.runtime.kube.api.access import find_access
from wattherd.runtime.kube.api.health import Checkup
from wattherd.runtime.kube.api.objects import ObjectMeta
from wattherd.service.kube_nodes.bench import AsksKubelet, Bench, open_bench
from wattherd.service.kube_nodes.cap_helper import CapHelper, RemoteBench
from wattherd.service.live.config import ServeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How devices are found and limited: `safe_w` per GPU (None: the lowest it takes)."""

    state: Path
    lease_s: float
    safe_w: float | None = None
    zeusd: Path | None = None
    powercap: Path | None = None
    pod_resources: Path | None = None


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
    )


def _kubelet(path: Path | None) -> AsksKubelet | None:
    if path is None:
        return None
    try:
        from wattherd.runtime.kube.agent.pod_resources import PodResources
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
    return Checkup(live.feed)


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
