"""`wattherd kube`: Kubernetes."""

from __future__ import annotations

import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.kube_clusters import clusters
from wattherd.cli.kube_files import chart, crds, dashboards, manifests
from wattherd.cli.kube_nodes import agent, cap_helper, claims_plugin, pools
from wattherd.cli.kube_what_if import simulate_pods, snapshot
from wattherd.cli.listening import address_of, answering, listen, say
from wattherd.cli.signals import set_on
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.kube.api.feed import ApiFeed
    from wattherd.kube.live.scheduler import LiveScheduler
    from wattherd.server.kube.dashboard import Pages


# --- What is wrong with a controller on a cluster, told in its log when it begins and when it is
# over.
#
# Rights that were taken away and tokens that expired are seen by nobody else: whoever has no rights
# cannot write an event either.

EVERY_S = 1.0


@contextmanager
def troubles_told(complaints: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Meanwhile what `complaints` says is written to standard error, as it comes and goes."""
    over = threading.Event()

    def tell() -> None:
        told: list[str] = []
        while not over.wait(EVERY_S):
            told = tell_changes(told, list(dict.fromkeys(complaints())))

    thread = threading.Thread(target=tell, name="wattherd-troubles", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def tell_changes(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """Write what is new and, once nothing is wrong any more, that it is over; `now` as a list."""
    for one in now:
        if one not in before:
            say(f"trouble: {one}")
    if before and not now:
        say("trouble: over")
    return list(now)


_HERE = ("127.0.0.1", "::1", "localhost")
_SWITCH_S = 0.0005
"""Python's own is 5 ms, of which an answer would wait for several."""


@click.group()
def kube() -> None:
    """Decide for Kubernetes clusters: docs/guides/kubernetes.md."""


for _command in (
    agent, cap_helper, chart, claims_plugin, clusters, crds, dashboards, manifests, pools,
    simulate_pods, snapshot,
):  # fmt: skip
    kube.add_command(_command)


def _cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Options that all who decide for a cluster have."""
    options = (
        click.option(
            "--placement",
            "--policy",
            "policy",
            default="wattherd",
            show_default=True,
            help="Which node; see `policies`.",
        ),
        click.option(
            "--history",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Pod list (CSV) that tells which pods to expect; else those on the cluster.",
        ),
        click.option("--budget", "budgets", multiple=True, help="40kW, or DOMAIN=8kW."),
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="As of kubectl."),
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--lease", default="", help="NAMESPACE/NAME: of several copies one works."),
        click.option("--health", help="ADDRESS:PORT for /healthz, /readyz and /metrics."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@kube.command()
@_cluster
@click.option(
    "--scheduler",
    default="",
    help="Who runs, and where: see `policies`; else gangs by priority, by --placement.",
)
@click.option(
    "--power",
    default="",
    help="Watts for whom: see `policies`; water-filling if none is named.",
)
@click.option("--name", default="wattherd", show_default=True, help="As pods call it.")
@click.option("--dashboard", help="ADDRESS:PORT of this machine for pages, and POST /simulate.")
@click.option(
    "--patience",
    default="10min",
    show_default=True,
    help="A gang that waits longer for room goes before all behind it.",
)
@click.option(
    "--learned",
    default="",
    help="NAMESPACE/NAME: ConfigMap in which what jobs taught outlives a restart.",
)
def scheduler(health: str | None, dashboard: str | None, **chosen: Any) -> None:
    """Schedule the pods that ask for it: gangs, priorities, watts."""
    with answering(health) as tell:
        try:
            from wattherd.server.kube.run import KubeOptions, live_scheduler, scheduler_checkup
        except ImportError as missing:
            hint = 'pip install "wattherd[kube]"'
            raise UserError(f"needs {missing.name}", hint=hint) from None
        live = live_scheduler(KubeOptions(**chosen))
        tell(scheduler_checkup(live))
        if live.scheduler.choice is not None:
            say(f"planned by {live.scheduler.choice.name}")
        told = f"wattherd schedules pods with schedulerName: {chosen['name']}"
        _work(live, told, _pages(live, dashboard))


@kube.command()
@_cluster
def admit(health: str | None, **chosen: Any) -> None:
    """Hold pods by a scheduling gate until there are watts; others bind them."""
    with answering(health) as tell:
        try:
            from wattherd.server.kube.run import KubeOptions, live_admission, scheduler_checkup
        except ImportError as missing:
            hint = 'pip install "wattherd[kube]"'
            raise UserError(f"needs {missing.name}", hint=hint) from None
        live = live_admission(KubeOptions(**chosen))
        tell(scheduler_checkup(live))
        told = "wattherd releases pods with the scheduling gate wattherd.dev/power"
        _work(live, told)


@kube.command("admission-check")
@_cluster
@click.option("--retry", default=60, show_default=True, help="Seconds until Kueue asks again.")
def admission_check(health: str | None, retry: int, **chosen: Any) -> None:
    """Answer Kueue: which workloads there are watts for, and where."""
    with answering(health) as tell:
        try:
            from wattherd.server.kube.run import KubeOptions, live_kueue_check, scheduler_checkup
        except ImportError as missing:
            hint = 'pip install "wattherd[kube]"'
            raise UserError(f"needs {missing.name}", hint=hint) from None
        live = live_kueue_check(KubeOptions(**chosen), retry)
        tell(scheduler_checkup(live))
        told = "wattherd answers for AdmissionChecks with controllerName: wattherd.dev/power"
        _work(live, told)


@kube.command()
@_cluster
def dra(health: str | None, **chosen: Any) -> None:
    """Offer watts as devices, which kube-scheduler allocates to claims."""
    with answering(health) as tell:
        try:
            from wattherd.server.kube.run import KubeOptions, claims_checkup, live_claims
        except ImportError as missing:
            hint = 'pip install "wattherd[kube]"'
            raise UserError(f"needs {missing.name}", hint=hint) from None
        live = live_claims(KubeOptions(**chosen))
        tell(claims_checkup(live))
        told = "wattherd publishes watts as devices of the driver watts.wattherd.dev"
        _work(live, told)


def _work(
    live: LiveScheduler, told: str, beside: AbstractContextManager[None] | None = None
) -> None:
    """Until a signal ends it; `beside` is there as long as it works."""
    over = _ends_by_signal(live.feed)
    with troubles_told(lambda: live.feed.complaints), _tidied(live.feed):
        live.begin()
        try:
            say(told)
            with beside or nullcontext():
                over.wait()
        finally:
            live.close()


def _pages(live: LiveScheduler, dashboard: str | None) -> AbstractContextManager[None]:
    """Pages about a scheduler that was not begun yet, if there is an address for them.

    Raises:
        UserError: other machines could reach it, or it cannot be listened on.
    """
    if dashboard is None:
        return nullcontext()
    try:
        from wattherd.server.kube.dashboard import Dashboard, Pages, dashboard_app
    except ImportError as missing:
        hint = 'pip install "wattherd[kube,server]"'
        raise UserError(f"needs {missing.name}", hint=hint) from None
    host, port = address_of(dashboard, "--dashboard")
    if host not in _HERE:
        hint = "listen on 127.0.0.1; `kubectl port-forward` leads there"
        raise UserError(
            "has no login: everybody who reaches it would see the whole cluster",
            where=host,
            field="--dashboard",
            hint=hint,
        )
    listener = listen(host, port, "--dashboard")
    return _served(Pages(dashboard_app(Dashboard(live)), listener), listener)


@contextmanager
def _served(pages: Pages, listener: socket.socket) -> Iterator[None]:
    host, port = listener.getsockname()[:2]
    pages.begin()
    say(f"dashboard on http://{host}:{port}")
    try:
        yield
    finally:
        pages.close()


@kube.command()
@_cluster
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8088, show_default=True, help="Port; 0 takes any that is free.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain (PEM).")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Its key (PEM).")
@click.option("--client-ca", type=click.Path(path_type=Path), help="Who signs the scheduler's.")
@click.option("--deadline", default=0.2, show_default=True, help="Seconds, then no answer is one.")
def extender(
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    deadline: float,
    health: str | None,
    **chosen: Any,
) -> None:
    """Answer a stock kube-scheduler: which node, within which watts."""
    tls = _tls(host, tls_cert, tls_key, client_ca)
    listener = listen(host, port)
    shown = listener.getsockname()[:2]
    say(f"wattherd answers on {'https' if tls else 'http'}://{shown[0]}:{shown[1]}")
    with answering(health) as tell:
        try:
            from wattherd.server.kube.answering import extender_server
            from wattherd.server.kube.run import KubeOptions, extender_checkup, live_extender
        except ImportError as missing:
            hint = 'pip install "wattherd[kube]"'
            raise UserError(f"needs {missing.name}", hint=hint) from None
        live, app = live_extender(KubeOptions(deadline_s=deadline, **chosen))
        tell(extender_checkup(live, app))
        # Several threads have a hand in an answer: none may hold the others up for long.
        sys.setswitchinterval(_SWITCH_S)
        server = extender_server(app, tls)
        over = _ends_by_signal(live.feed)
        with troubles_told(lambda: live.feed.complaints), _tidied(live.feed):
            live.begin()
            # In the loop that binds: it is answered and bound without change of threads.
            serving = live.feed.loop.begin(server.serve(sockets=[listener]))
            serving.add_done_callback(lambda _: over.set())
            try:
                over.wait()
                server.should_exit = True
                serving.result()
            finally:
                live.close()


def _ends_by_signal(feed: ApiFeed) -> threading.Event:
    """Set when we are asked to end, also while `feed` waits for the API server to begin."""
    set_on({signal.SIGTERM: feed.unwanted, signal.SIGINT: feed.unwanted})
    return feed.unwanted


@contextmanager
def _tidied(feed: ApiFeed) -> Iterator[None]:
    """Meanwhile garbage is collected while there are few news.

    To look through all that is known of a large cluster takes longer than many decisions, and would
    be done amid them: a sixth of the processor time of an extender that is asked without a pause.
    """
    from wattherd.server.site.housekeeping import Housekeeping

    housekeeping = Housekeeping(lambda: feed.events)
    housekeeping.begin()
    try:
        yield
    finally:
        housekeeping.end()


def _tls(host: str, cert: Path | None, key: Path | None, client_ca: Path | None) -> dict[str, Any]:
    """Options of the server; other machines are let in by certificate only.

    Raises:
        UserError: what belongs together is not given together.
    """
    if (cert is None) != (key is None):
        raise UserError("certificate and key go together", field="--tls-cert")
    open_to_others = host not in _HERE
    if open_to_others and (cert is None or client_ca is None):
        hint = "give --tls-cert, --tls-key and --client-ca"
        raise UserError(
            "needs client certificates: everybody who reaches it could bind pods",
            where=host,
            field="--host",
            hint=hint,
        )
    if cert is None:
        return {}
    found: dict[str, Any] = {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}
    if client_ca is not None:
        found |= {"ssl_ca_certs": str(client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return found
