"""`wattherd kube snapshot`, `kube simulate`, `sim run --snapshot`, `explain pod/NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.output import printed, prints
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.kube.facts.cluster_snapshot import ClusterSnapshot

POD = "pod/"
_SHOWN = 20


def _of_cluster(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="As of kubectl."),
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--budget", "budgets", multiple=True, help="40kW, or DOMAIN=8kW."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_of_cluster
def snapshot(*, kubeconfig: Path | None, context: str | None, budgets: tuple[str, ...]) -> None:
    """Print the cluster as decisions see it: no commands, environments, images or secrets.

    Budgets are those of PowerBudget objects; name those that a command was given beside.
    """
    take, write = _what_if()
    sys.stdout.buffer.write(write(take(kubeconfig, context, budgets)))


@click.command("simulate")
@_of_cluster
@click.option(
    "-f", "--filename", type=click.Path(path_type=Path), required=True, help="YAML or JSON."
)
@click.option("--snapshot", "taken", type=click.Path(path_type=Path), help="Instead of a cluster.")
@click.option("--policy", default="wattherd", show_default=True, help="See `policies`.")
@click.option("--name", default="wattherd", show_default=True, help="As pods call the scheduler.")
@prints
def simulate_pods(
    *,
    kubeconfig: Path | None,
    context: str | None,
    budgets: tuple[str, ...],
    filename: Path,
    taken: Path | None,
    policy: str,
    name: str,
    output: str,
) -> None:
    """Say whether pods would start now, and where: feasible, not reserved.

    Takes pods, and objects that make pods: jobs, deployments, stateful sets.
    """
    take, _ = _what_if()
    from wattherd.server.kube.manifests import pods_of
    from wattherd.server.kube.what_if import Supposed, simulate

    pods = pods_of(_bytes(filename), str(filename))
    there = read_snapshot(taken) if taken else take(kubeconfig, context, budgets)
    on_top = budgets if taken else ()
    document = simulate(there, pods, Supposed(policy=policy, scheduler=name, budgets=on_top))
    if printed(document, output):
        return
    _show_feasible(document)


def _show_feasible(document: Mapping[str, Any]) -> None:
    if not document["feasible"]:
        click.echo(f"not feasible: {document['reason']}: {document['text']}")
        for remedy in document["would_start"]:
            click.echo(f"would start {remedy['text']}")
        return
    for row in document["pods"][:_SHOWN]:
        where = f" in {row['power_domain']}" if row["power_domain"] else ""
        click.echo(f"{row['pod']} on {row['node']}: adds {row['watts']:,.0f} W{where}")
    if len(document["pods"]) > _SHOWN:
        click.echo(f"... and {len(document['pods']) - _SHOWN} more")
    click.echo("feasible, not reserved")


def _what_if() -> tuple[Callable[..., ClusterSnapshot], Callable[[ClusterSnapshot], bytes]]:
    try:
        from wattherd.kube.facts.cluster_snapshot import write
        from wattherd.server.kube.what_if import take
    except ImportError as missing:
        hint = 'pip install "wattherd[kube]"'
        raise UserError(f"needs {missing.name}", hint=hint) from None
    return take, write


def read_snapshot(path: Path) -> ClusterSnapshot:
    """A file of `kube snapshot`; `-` is what comes in.

    Raises:
        UserError: it cannot be read, or is none.
    """
    _what_if()
    from wattherd.kube.facts.cluster_snapshot import read

    return read(_bytes(path), str(path))


def _bytes(path: Path) -> bytes:
    """Of a file, or of what comes in (`-`)."""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None


# sim run --snapshot -----------------------------------------------------------------------------


def run_snapshot(
    path: Path, policies: list[str], budgets: tuple[str, ...], output: str, *, afresh: bool
) -> None:
    """Print what would change, by policy."""
    there = read_snapshot(path)
    from wattherd.server.kube.what_if import Supposed, compare

    document = compare(there, policies, Supposed(budgets=budgets, afresh=afresh))
    if printed(document, output):
        return
    for row in document["policies"]:
        _show_policy(row)


def _show_policy(row: Mapping[str, Any]) -> None:
    counts = {name: len(row[name]) for name in ("starts", "evictions", "waits")}
    gpus = row["gpus"]
    click.echo(
        f"{row['policy']}: {counts['starts']} start, {counts['evictions']} are evicted, "
        f"{counts['waits']} wait; {gpus['in_use']} of {gpus['total']} GPUs in use"
    )
    for one in row["power"]:
        of = "" if one["budget_w"] is None else f" of {one['budget_w']:,.0f} W"
        who = one["power_domain"] or "the site"
        click.echo(f"  {who} may draw {one['bound_w']:,.0f} W{of}")
    for one in row["starts"][:_SHOWN]:
        click.echo(f"  + {one['pod']} on {one['node']}, adds {one['watts']:,.0f} W")
    for one in row["evictions"][:_SHOWN]:
        click.echo(f"  - {one['pod']}: {one['reason']}")
    for one in row["waits"][:_SHOWN]:
        click.echo(f"  . {one['pod']}: {one['reason']}: {one['text']}")
    left = sum(max(0, count - _SHOWN) for count in counts.values())
    if left:
        click.echo(f"  and {left} lines more: -o json")


# explain pod/NAME -------------------------------------------------------------------------------


def explain_pod(
    name: str,
    namespace: str,
    *,
    kubeconfig: Path | None,
    context: str | None,
    budgets: tuple[str, ...],
    policy: str,
) -> dict[str, Any]:
    """The document of `wattherd explain pod/NAME`."""
    _what_if()
    from wattherd.server.kube.explain import explain_pod as explained
    from wattherd.server.kube.what_if import Supposed

    supposed = Supposed(policy=policy, budgets=budgets)
    return explained(name, namespace, kubeconfig=kubeconfig, context=context, supposed=supposed)


def show_pod(document: Mapping[str, Any]) -> None:
    """For people."""
    where = f" on {document['node']}" if document["node"] else ""
    click.echo(f"{document['pod']} ({document['scheduler']}): {document['state']}{where}")
    for name, value in document["written"].items():
        click.echo(f"  {name}: {value}")
    if document["gang"] is not None:
        gang = document["gang"]
        click.echo(f"  gang {gang['name']}: {gang['placed']} of {gang['pods']} pods placed")
    if document["reason"] is not None:
        click.echo(f"  {document['reason']}: {document['text']}")
    for remedy in document["would_start"]:
        click.echo(f"  would start {remedy['text']}")
    if document["told"]:
        click.echo(f"  told: {document['told']}")
    for event in document["events"]:
        click.echo(f"  {event['last']} {event['from']} {event['reason']}: {event['note']}")
