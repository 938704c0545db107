"""`wattherd traces`: which traces there are, getting them, making them, looking at them.

Data goes to stdout, talk to stderr. Everything heavy is imported by the command that needs it,
so that `--help` stays quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.output import lists, printed, prints
from wattherd.cli.tables import print_table
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.model.cluster import ClusterSpec
    from wattherd.model.job import TracePod
    from wattherd.workload.public_files import PublicFile


@click.group()
def traces() -> None:
    """List, fetch, generate and inspect workload traces."""


@traces.command("list")
@lists
def list_traces(output: str) -> None:
    """Show the public traces, which are on disk, and which can be generated."""
    from wattherd.workload.public_files import PUBLIC_FILES, condition, data_directory

    directory = data_directory()
    entries = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "bytes": entry.size_bytes,
            "checksum": "known" if entry.sha256 else "none",
            "on_disk": str(condition(entry, directory)),
            "can_generate": entry.name != "all_node",
            "file": entry.file,
        }
        for entry in PUBLIC_FILES.values()
    ]
    if printed(
        {"schema": "wattherd.traces/1", "directory": str(directory), "traces": entries}, output
    ):
        return
    click.echo(f"public traces in {directory}", err=True)
    rows = [[_cell(value) for value in entry.values()] for entry in entries]
    print_table([key.replace("_", " ").upper() for key in entries[0]], rows)


@traces.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "everything", is_flag=True, help="Every public trace.")
@click.option("--unverified", is_flag=True, help="Also take files whose checksum is not known.")
@click.option(
    "--base-url",
    metavar="URL",
    help="Where the files are.  [default: $WATTHERD_TRACE_URL or where they were published]",
)
@click.option(
    "--to",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to put them in.  [default: $WATTHERD_DATA/openb or the user's cache]",
)
def fetch(
    *,
    names: tuple[str, ...],
    everything: bool,
    unverified: bool,
    base_url: str | None,
    directory: Path | None,
) -> None:
    """Download public traces and check them; prints where each one is.

    A file that is here and right is not downloaded again. `wattherd traces list` shows the names.
    """
    from wattherd.workload.fetch import fetch as fetch_one
    from wattherd.workload.fetch import trace_url
    from wattherd.workload.public_files import data_directory, read_lock

    chosen = _chosen(names, everything=everything)
    where = directory or data_directory()
    left_out: list[str] = []
    if everything and not unverified:
        locked = read_lock(where)
        left_out = [one.name for one in chosen if not one.sha256 and one.file not in locked]
    for entry in chosen:
        if entry.name in left_out:
            continue
        got = fetch_one(entry, where, url=base_url or trace_url(), unverified=unverified)
        click.echo(f"{entry.name}: {got.said()}", err=True)
        click.echo(got.path)
    if left_out:
        raise UserError(
            f"no checksum is known for {', '.join(left_out)}; these were left out",
            hint="--unverified takes them as they come",
        )


@traces.command()
@click.option("--family", default="default", show_default=True, help="A pod list of the trace.")
@click.option("--nodes", default=1213, show_default=True, help="Nodes of the cluster.")
@click.option("--pods", type=int, help="Number of pods; or else:")
@click.option("--load", type=float, help="GPUs requested per GPU there is.")
@click.option("--span-s", type=float, help="Seconds within which they arrive.  [default: 6 weeks]")
@click.option("--seed", default=42, show_default=True, help="Order, lifetimes and arrivals.")
@click.option(
    "--out",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory for nodes.csv and pods.csv.",
)
@click.option("--force", is_flag=True, help="Overwrite what is there.")
def generate(
    *,
    family: str,
    nodes: int,
    pods: int | None,
    load: float | None,
    span_s: float | None,
    seed: int,
    directory: Path,
    force: bool,
) -> None:
    """Make a cluster and a workload from published statistics.

    Prints the paths of the two files. Without --pods and --load there are as many pods per node
    as in the published list.
    """
    from wattherd.workload import published
    from wattherd.workload.generate import generate_cluster, generate_pods, write_openb

    if pods is not None and load is not None:
        raise UserError("--pods and --load both say how many pods", hint="give one of them")
    if not force:
        _refuse_to_overwrite(directory)
    mix = published.family_of(family)
    cluster = generate_cluster(nodes=nodes, seed=seed)
    if pods is None and load is None:
        pods = max(1, round(mix.pods * nodes / published.NODES))
    workload = generate_pods(
        family=family,
        seed=seed,
        pods=pods,
        gpu_capacity_milli=cluster.gpu_milli,
        load=1.0 if load is None else load,
        span_s=published.SPAN_S if span_s is None else span_s,
    )
    click.echo(_in_words(cluster, workload), err=True)
    for path in write_openb(cluster, workload, directory):
        click.echo(path)


@traces.command("generate-jobs")
@click.option("--jobs", default=400, show_default=True, help="How many.")
@click.option("--gpus", default=64, show_default=True, help="GPUs that they are to keep busy.")
@click.option("--load", default=1.0, show_default=True, help="GPU time asked for over what is.")
@click.option("--widest", default=8, show_default=True, help="GPUs of the widest job.")
@click.option(
    "--power-profiles",
    default="",
    metavar="A,B,…",
    help="Measured power profiles that jobs may have.",
)
@click.option("--longest", default="12h", show_default=True, help="Limit of run times.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Of everything that is drawn by lot.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="File for the jobs.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE.")
def generate_training_jobs(
    *,
    jobs: int,
    gpus: int,
    load: float,
    widest: int,
    longest: str,
    power_profiles: str,
    seed: int,
    out: Path,
    force: bool,
) -> None:
    """Draw training jobs from the statistics of the public Philly trace.

    The file is for `wattherd sim run --format native --preset none`.
    """
    from wattherd.units import seconds
    from wattherd.workload.generate_jobs import JobMix, generate_jobs, jobs_csv

    if out.exists() and not force:
        raise UserError("exists already", where=str(out), hint="--force overwrites it")
    longest_s = seconds(longest, field="--longest")
    profiles = tuple(name for name in power_profiles.split(",") if name)
    mix = JobMix(
        jobs=jobs,
        gpus=gpus,
        load=load,
        widest=widest,
        longest_s=longest_s,
        power_profiles=profiles,
    )
    specs = generate_jobs(mix, seed)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(jobs_csv(specs), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=str(out)) from None
    hours = sum(one.gpus * (one.duration_s or 0.0) for one in specs) / 3600
    click.echo(f"{len(specs):,} jobs ask for {hours:,.0f} GPU hours", err=True)
    click.echo(out)


@traces.command()
@click.argument("file")
@prints
def inspect(file: str, output: str) -> None:
    """Print the statistics of a node list or pod list.

    FILE is a path, or the name of a public trace that is on disk.
    """
    from wattherd.catalog.gpus import GPUS
    from wattherd.workload.inspect import summarise
    from wattherd.workload.openb import read_nodes, read_pods

    path = _on_disk(file)
    kind = "nodes" if _is_node_list(path) else "pods"
    summary = (
        summarise(read_nodes(path, known=GPUS))
        if kind == "nodes"
        else summarise(read_pods(path, known=GPUS))
    )
    head = {"schema": "wattherd.inspect/1", "file": str(path), "kind": kind}
    if printed(head | asdict(summary), output):
        return
    print_table((), [[*row] for row in summary.rows()])


def _chosen(names: Sequence[str], *, everything: bool) -> list[PublicFile]:
    from wattherd.workload.public_files import PUBLIC_FILES, public_file

    if bool(names) == everything:
        raise UserError("name the traces to fetch, or say --all", hint="see wattherd traces list")
    return list(PUBLIC_FILES.values()) if everything else [public_file(name) for name in names]


def _refuse_to_overwrite(directory: Path) -> None:
    for name in ("nodes.csv", "pods.csv"):
        if (directory / name).exists():
            raise UserError(
                "exists already", where=str(directory / name), hint="--force overwrites it"
            )


def _in_words(cluster: ClusterSpec, pods: Sequence[TracePod]) -> str:
    asked = sum(pod.request.total_gpu_milli for pod in pods)
    return (
        f"{len(cluster.nodes):,} nodes with {cluster.gpu_milli // 1000:,} GPUs;"
        f" {len(pods):,} pods request {asked / cluster.gpu_milli:.1%} of the GPUs"
    )


def _on_disk(file: str) -> Path:
    """A path as it stands, or the public file of that name in the data directory."""
    from wattherd.workload.public_files import PUBLIC_FILES, data_directory

    path = Path(file)
    if path.exists() or file not in PUBLIC_FILES:
        return path
    here = data_directory() / PUBLIC_FILES[file].file
    if not here.exists():
        raise UserError("not on disk", where=str(here), hint=f"wattherd traces fetch {file}")
    return here


def _is_node_list(path: Path) -> bool:
    """By its first line; whatever is no node list is read, and judged, as a pod list."""
    from wattherd.workload.source import opened

    if not path.is_file():  # a pipe can be read only once
        return False
    with opened(path) as file:
        header = file.readline(4096).decode("utf-8", "replace")
    return "sn" in [name.strip() for name in header.lstrip("\ufeff").split(",")]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
