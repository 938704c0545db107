"""`wattherd kube agent` and `cap-helper`: watts and caps of nodes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.listening import answering, say
from wattherd.cli.signals import set_on
from wattherd.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattherd.server.kube.compose import BenchOptions

STATE = Path("/var/lib/wattherd")
SOCKET = Path("/run/wattherd/caps.sock")
_PATH = click.Path(path_type=Path)


def _devices(command: Callable[..., None]) -> Callable[..., None]:
    """Options of whoever works with this machine's devices."""
    options = (
        click.option("--state", type=_PATH, default=STATE, show_default=True,
                     help="Folder of the journal: what devices were like."),
        click.option("--silence", default="60s", show_default=True,
                     help="So long may who decides be silent until caps sink."),
        click.option("--safe-cap", help="What they sink to, per GPU; else the lowest it takes."),
        click.option("--zeusd", type=_PATH, help="Socket of a zeusd that sets GPU limits."),
        click.option("--powercap", type=_PATH, help="Folder of RAPL counters, if elsewhere."),
        click.option("--pod-resources", type=_PATH,
                     help="The kubelet's socket that tells who has which GPU."),
        click.option("--limit", help="What the node may draw as a whole, as in 6kW."),
        click.option("--meter", help="Address of the node's own meter; {node} is its name."),
        click.option("--base", help="What the node draws beside its GPUs at least."),
        click.option("--rack-limit", help="What the rack may draw that the node hangs on."),
        click.option("--rack-meter", help="Address of the rack's meter; {node} as above."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command("cap-helper")
@_devices
@click.option("--socket", type=_PATH, default=SOCKET, show_default=True, help="Listens here.")
@click.option("--node", default="", envvar="NODE_NAME", help="This machine, for addresses.")
def cap_helper(socket: Path, **chosen: Any) -> None:
    """Hold the caps of this machine's GPUs for an agent that has no privileges."""
    try:
        from wattherd.server.kube import compose
    except ImportError as missing:
        raise _needs(missing) from None
    helper = compose.cap_helper(_bench_options(chosen), socket)
    over = _until_told()
    helper.begin()
    try:
        found = len(helper.bench.devices)
        say(f"wattherd holds caps of {found} GPUs for {socket}")
        over.wait()
    finally:
        helper.close()


@click.command("claims-plugin")
@click.option(
    "--plugins",
    type=_PATH,
    default=Path("/var/lib/kubelet/plugins"),
    show_default=True,
    help="The kubelet's folder of plugins.",
)
@click.option("--registry", type=_PATH, default=Path("/var/lib/kubelet/plugins_registry"),
              show_default=True, help="Where it looks for new ones.")  # fmt: skip
def claims_plugin(plugins: Path, registry: Path) -> None:
    """Tell this machine's kubelet that pods which claimed watts may start."""
    try:
        from wattherd.kube.live.claims_plugin import ClaimsPlugin
    except ImportError as missing:
        raise _needs(missing) from None
    plugin, over = ClaimsPlugin(plugins, registry), _until_told()
    plugin.begin()
    try:
        say(f"wattherd answers kubelets at {plugin.endpoint}")
        over.wait()
    finally:
        plugin.close()


@click.command()
@click.option("--node", required=True, envvar="NODE_NAME", help="This machine, as nodes are named.")
@click.option("--helper", type=_PATH, help="Socket of a cap-helper; else devices are used at once.")
@_devices
@click.option("--rest", is_flag=True, help="Hold GPUs that no pod has at their lowest cap.")
@click.option("--lease", help="NAMESPACE/NAME of the lease that who decides renews.")
@click.option("--daemonset", help="NAMESPACE/NAME: while that is there, caps stay at the end.")
@click.option("--kubeconfig", type=_PATH, help="As of kubectl.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--health", help="ADDRESS:PORT for /healthz, /readyz and /metrics.")
def agent(
    *,
    node: str,
    helper: Path | None,
    rest: bool,
    lease: str | None,
    daemonset: str | None,
    kubeconfig: Path | None,
    context: str | None,
    health: str | None,
    **chosen: Any,
) -> None:
    """Meter this node and hold its pods' caps: docs/guides/kubernetes-nodes.md."""
    try:
        from wattherd.kube.live.agent import AgentOptions
        from wattherd.server.kube import compose
    except ImportError as missing:
        raise _needs(missing) from None
    bench = _bench_options({**chosen, "node": node})
    options = AgentOptions(
        node=node,
        rests=rest,
        lease=compose.object_named(lease, "--lease"),
        lease_s=bench.lease_s,
        daemon_set=compose.object_named(daemonset, "--daemonset"),
    )
    live = compose.live_agent(
        options, helper=helper, bench=bench, kubeconfig=kubeconfig, context=context,
        say=lambda text: say(f"wattherd: {text}"),
    )  # fmt: skip
    over = _until_told()
    with answering(health, compose.agent_checkup(live)):
        live.begin()
        try:
            say(f"wattherd is the agent of node {node}")
            over.wait()
        finally:
            live.close()


@click.command()
@click.option("--switches", type=_PATH, help="YAML: NODE: address of its switch.")
@click.option("--grow", is_flag=True, help="Have Karpenter and the Cluster Autoscaler grow, too.")
@click.option(
    "--gpu-power",
    default="700W",
    show_default=True,
    help="What a GPU that the Cluster Autoscaler brings may draw.",
)
@click.option("--budget", "budgets", multiple=True, help="40kW, or DOMAIN=8kW.")
@click.option("--policy", default="best-fit", show_default=True, help="Where pods would go.")
@click.option("--idle-after", default="10m", show_default=True, help="Then a node may go.")
@click.option("--spare", default=0, show_default=True, help="So many idle nodes stay.")
@click.option(
    "--busy",
    default=1.0,
    show_default=True,
    help="Part of the GPUs in use above which a node is woken ahead.",
)
@click.option(
    "--slack",
    default=0.2,
    show_default=True,
    help="How far below that the pool must stay when a node goes.",
)
@click.option("--hold", default="5m", show_default=True, help="Least time between two changes.")
@click.option(
    "--wake-power",
    default="0",
    show_default=True,
    help="What a node draws at least while it starts; a node may say more.",
)
@click.option(
    "--wake-most",
    default="15m",
    show_default=True,
    help="A node that takes longer to start is not counted on.",
)
@click.option("--kubeconfig", type=_PATH, help="As of kubectl.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--lease", help="NAMESPACE/NAME: of several copies one works.")
@click.option("--health", help="ADDRESS:PORT for /healthz, /readyz and /metrics.")
def pools(
    idle_after: str,
    hold: str,
    wake_power: str,
    wake_most: str,
    gpu_power: str,
    health: str | None,
    **chosen: Any,
) -> None:
    """Switch idle nodes off, and on again for pods that wait."""
    if not (chosen["switches"] or chosen["grow"]):
        raise UserError("nothing to switch, nobody to ask", field="--switches", hint="or --grow")
    try:
        from wattherd.server.kube import pooling
    except ImportError as missing:
        raise _needs(missing) from None
    from wattherd.units import seconds, watts

    options = pooling.PoolOptions(
        idle_s=seconds(idle_after, field="--idle-after"),
        hold_s=seconds(hold, field="--hold"),
        wake_w=watts(wake_power, field="--wake-power"),
        wake_most_s=seconds(wake_most, field="--wake-most"),
        gpu_w=watts(gpu_power, field="--gpu-power"),
        **chosen,
    )
    live = pooling.live_pools(options, lambda text: say(f"wattherd: {text}"))
    over = _until_told(live.feed.unwanted)
    with answering(health, pooling.pools_checkup(live)):
        live.begin()
        try:
            say("wattherd looks after the pool")
            over.wait()
        finally:
            live.close()


def _bench_options(chosen: dict[str, Any]) -> BenchOptions:
    from wattherd.kube.decide.node_loop import NO_LIMIT_W
    from wattherd.server.kube.compose import BenchOptions
    from wattherd.units import seconds, watts

    safe = chosen["safe_cap"]

    def level(name: str) -> float:
        text = chosen[name]
        return NO_LIMIT_W if not text else watts(text, field=f"--{name.replace('_', '-')}")

    return BenchOptions(
        state=chosen["state"],
        lease_s=seconds(chosen["silence"], field="--silence"),
        safe_w=None if safe is None else watts(safe, field="--safe-cap"),
        zeusd=chosen["zeusd"],
        powercap=chosen["powercap"],
        pod_resources=chosen["pod_resources"],
        node=chosen["node"],
        limit_w=level("limit"),
        meter=chosen["meter"],
        base_w=watts(chosen["base"], field="--base") if chosen["base"] else 0.0,
        rack_limit_w=level("rack_limit"),
        rack_meter=chosen["rack_meter"],
    )


def _until_told(over: threading.Event | None = None) -> threading.Event:
    over = over or threading.Event()
    set_on({signal.SIGTERM: over, signal.SIGINT: over})
    return over


def _needs(missing: ImportError) -> UserError:
    hint = 'pip install "wattherd[kube-agent]"'
    return UserError(f"needs {missing.name}", hint=hint)
