"""`wattherd import`: a site's log as a scenario; `wattherd export`: jobs in a format of others."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import click

from wattherd.cli.output import printed, prints
from wattherd.errors import UserError

KINDS = ("sacct", "squeue", "swf", "kube", "philly", "helios", "acme")
SCHEMA = "wattherd.import/1"
_SHOWN = 5


@click.command("import")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("file", metavar="FILE|-")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the scenario, jobs, nodes and what was assumed.",
)
@click.option("--cluster", metavar="16x8:A100", help="Instead of the nodes that the log names.")
@click.option("--gpu-model", default="A100", show_default=True, help="Where the log names none.")
@click.option("--duration", default="1h", show_default=True, help="Of jobs of unknown length.")
@click.option(
    "--processors",
    type=click.Choice(["gpu", "cpu"]),
    default="gpu",
    show_default=True,
    help="What a processor of an SWF log is.",
)
@click.option("--force", is_flag=True, help="Overwrite what is in DIR.")
@prints
def import_site(
    *,
    kind: str,
    file: str,
    out: Path,
    cluster: str | None,
    gpu_model: str,
    duration: str,
    processors: str,
    force: bool,
    output: str,
) -> None:
    """Turn a log of another system into a scenario that `sim compare` runs as it is.

    DIR gets scenario.yaml, jobs.jsonl, nodes.csv, tree.yaml and import.json: what had to be
    assumed, what was left out, and every line that could not be read.
    """
    from wattherd.catalog.gpus import GPUS, gpu
    from wattherd.units import seconds
    from wattherd.workload.cluster_text import parse_cluster
    from wattherd.workload.imports import site as sites
    from wattherd.workload.native import native_line

    gpu(gpu_model)
    default_s = seconds(duration, field="--duration")
    given = parse_cluster(cluster, known=GPUS).nodes if cluster else None
    if (out / "scenario.yaml").exists() and not force:
        raise UserError("exists already", where=str(out), hint="--force overwrites it")
    log = sites.ImportLog("<stdin>" if file == "-" else file)
    jobs, nodes = _read(kind, _text(file), log, default_s, gpu_model, processors)
    if given is not None:
        nodes = list(given)
    elif not nodes and jobs:
        nodes = list(sites.nodes_used(jobs, gpu_model, log))
    site = sites.site_of(jobs, nodes, log)
    document = _document(kind, site, log, out)
    files = {
        "nodes.csv": sites.nodes_csv(site.nodes),
        "jobs.jsonl": "".join(f"{native_line(job)}\n" for job in site.jobs),
        "tree.yaml": sites.tree_yaml(site.nodes),
        "scenario.yaml": sites.scenario_yaml(site, cluster="nodes.csv", source=kind),
    }
    _write(out, files, document)
    if not printed(document, output):
        _tell(document)


def _text(file: str) -> str:
    from wattherd.workload.source import opened

    if file == "-":
        raw = sys.stdin.buffer.read()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    else:
        with opened(Path(file)) as stream:
            raw = stream.read()
    return raw.decode("utf-8-sig", errors="replace")


def _read(
    kind: str, text: str, log: Any, default_s: float, gpu_model: str, processors: str
) -> tuple[list[Any], list[Any]]:
    from wattherd.workload.imports import kube_list, public_logs, slurm, swf

    match kind:
        case "sacct":
            return slurm.read_sacct(text, log, default_s), []
        case "squeue":
            return slurm.read_squeue(text, log, default_s), []
        case "swf":
            return swf.read_swf(text, log, default_s, processors=processors), []
        case "kube":
            return kube_list.read_kube(text, log, default_s, gpu_model)
        case "philly":
            return public_logs.read_philly(text, log, default_s), []
        case _:
            return public_logs.read_columns(text, log, default_s), []


def _document(kind: str, site: Any, log: Any, out: Path) -> dict[str, Any]:
    def remarks(found: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"text": one.text, "count": one.count, "examples": one.examples}
            for one in found.values()
        ]

    return {
        "schema": SCHEMA,
        "kind": kind,
        "source": log.where,
        "scenario": str(out / "scenario.yaml"),
        "records": log.records,
        "imported": len(site.jobs),
        "gpus": sum(node.gpu_count for node in site.nodes),
        "first_s": site.first_s,
        "assumptions": remarks(log.assumptions),
        "left_out": remarks(log.left_out),
        "unreadable": [{"where": where, "problem": problem} for where, problem in log.unreadable],
    }


def _write(out: Path, files: dict[str, str], document: dict[str, Any]) -> None:
    from wattherd.store.run_dir import RunDir

    directory = RunDir(out)
    for name, text in files.items():
        directory.write_text(name, text)
    directory.write_json("import.json", document)


def _tell(document: dict[str, Any]) -> None:
    nodes = f"{document['gpus']:,} GPUs"
    click.echo(f"{document['imported']:,} jobs for {nodes}; run: ", nl=False)
    click.echo(f"wattherd sim compare {document['scenario']}")
    for one in document["assumptions"]:
        click.echo(f"assumed: {one['text']}{_how_many(one)}")
    for one in document["left_out"]:
        click.echo(f"left out: {one['text']}{_how_many(one)}")
    unreadable = document["unreadable"]
    for one in unreadable[:_SHOWN]:
        click.echo(f"unreadable: {one['where']}: {one['problem']}")
    if len(unreadable) > _SHOWN:
        click.echo(f"unreadable: {len(unreadable):,} in all, each in import.json")


def _how_many(remark: dict[str, Any]) -> str:
    examples = ", ".join(remark["examples"])
    return f" [{remark['count']:,}x{f': {examples}' if examples else ''}]"


@click.command("export")
@click.argument("kind", type=click.Choice(["swf"]))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def export(*, kind: str, file: Path) -> None:
    """Print a native job file (CSV or JSON lines) in the Standard Workload Format.

    GPUs become processors and times whole seconds; what the format has no column for is named
    on stderr.
    """
    del kind
    from wattherd.workload.imports.swf import write_swf
    from wattherd.workload.native import read_jobs

    jobs = read_jobs(file)
    lost = {
        "dependencies": sum(bool(job.after or job.after_any or job.after_notok) for job in jobs),
        "GPU models": sum(bool(job.gpu_models) for job in jobs),
        "priorities": sum(bool(job.priority) for job in jobs),
        "fractions of a second": sum(
            job.submit_s % 1 != 0 or (job.duration_s or 0) % 1 != 0 for job in jobs
        ),
    }
    for what, count in lost.items():
        if count:
            click.echo(f"note: SWF has no column for {what} ({count:,} jobs)", err=True)
    click.echo(write_swf(jobs, source=file.name), nl=False)
