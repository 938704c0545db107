"""`wattherd sim`: simulations. `sim pack` answers which placement policy wastes least."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.options import command_line, parse_policies, parse_seeds
from wattherd.cli.output import printed, prints
from wattherd.cli.sim_compare import compare
from wattherd.cli.sim_mix import mix
from wattherd.cli.sim_replay import explain, replay
from wattherd.cli.sim_run import run
from wattherd.cli.sim_sweep import sweep
from wattherd.errors import UserError
from wattherd.library.progress import tracked

if TYPE_CHECKING:
    from wattherd.experiments.placement.pack import Experiment


# --- `wattherd sim schema`: the JSON Schema of scenario files, for editors.


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from wattherd.workload.scenario import Scenario

    click.echo(json.dumps(Scenario.model_json_schema(), indent=2))


DEFAULT_POLICIES = "wattherd,fgd,pwr+fgd:0.1,best-fit"


@click.group()
def sim() -> None:
    """Simulate placement and scheduling."""


sim.add_command(run)
sim.add_command(replay)
sim.add_command(explain)
sim.add_command(compare)
sim.add_command(sweep)
sim.add_command(mix)
sim.add_command(schema)


@sim.command("pack")
@click.option("--nodes", required=True, type=click.Path(path_type=Path), help="Node list (CSV).")
@click.option("--pods", required=True, type=click.Path(path_type=Path), help="Pod list (CSV).")
@click.option(
    "--policy",
    default=DEFAULT_POLICIES,
    show_default=True,
    metavar="A,B,…",
    help="Placement policies; `wattherd policies` lists them.",
)
@click.option(
    "--load",
    type=float,
    metavar="1.3",
    help="Draw pods of the list until they ask for so much of the GPUs.  [default: the list once]",
)
@click.option(
    "--seed", default="42", show_default=True, metavar="N|A..B|A,B,C", help="Seeds to run."
)
@click.option(
    "--order",
    type=click.Path(path_type=Path),
    metavar="F.json.gz",
    help="Exact arrival and tie orders, instead of drawing them from the seed.",
)
@click.option(
    "--ties",
    type=click.Choice(["order", "random"]),
    default="order",
    show_default=True,
    help="Among equally good nodes: the first, or a random one.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory to write."
)
@click.option("--decisions", is_flag=True, help="Write every decision to DIR.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=None,
    help="Runs at a time.  [default: one per core]",
)
@click.option("--reference", is_flag=True, help="Use the NumPy definitions, not compiled kernels.")
@click.option("--core", "by_core", is_flag=True, help="Submit every pod to a core (slower, equal).")
@prints
def pack(
    *,
    nodes: Path,
    pods: Path,
    policy: str,
    load: float | None,
    seed: str,
    order: Path | None,
    ties: str,
    out: Path | None,
    decisions: bool,
    processes: int | None,
    reference: bool,
    by_core: bool,
    output: str,
) -> None:
    """Pack pods into a cluster one by one under each policy, and measure every step.

    Each pod of the list arrives once, in an order of each seed, and the answer says whether the
    list fits. With --load pods are drawn until they ask for so much: 1.3 is 130 % of all GPUs.

    \b
    Columns of --nodes  sn, cpu_milli, memory_mib, gpu, model; or also cpu_model
    Columns of --pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli; or also
                        gpu_spec, creation_time, deletion_time, scheduled_time

    `wattherd docs reference/pack-json` says what they mean.
    """  # noqa: D301 - click's mark for text that keeps its lines
    from wattherd.catalog.cpus import CPUS
    from wattherd.catalog.gpus import GPUS
    from wattherd.experiments.placement.pack import Experiment
    from wattherd.experiments.placement.policies import place_policy
    from wattherd.store.run_dir import RunDir
    from wattherd.workload.openb import read_nodes, read_pods

    if decisions and out is None:
        raise UserError("--decisions needs --out DIR", hint="add --out runs/mine")
    policies, seeds = parse_policies(policy), parse_seeds(seed)
    for name in policies:
        place_policy(name)
    experiment = Experiment(
        cluster=read_nodes(nodes, known=GPUS, known_cpus=CPUS),
        pods=read_pods(pods, known=GPUS),
        load=load,
        order_file=order,
        random_ties=ties == "random",
        compiled=not reference,
        by_core=by_core,
        out=RunDir(out) if out else None,
        keep_decisions=decisions,
    )
    workers = processes or os.cpu_count() or 1
    _run_and_show(experiment, policies, seeds, workers, str(nodes), str(pods), output)


@sim.command("churn")
@click.option("--nodes", required=True, type=click.Path(path_type=Path), help="Node list (CSV).")
@click.option("--pods", required=True, type=click.Path(path_type=Path), help="Pod list (CSV).")
@click.option(
    "--policy",
    default=DEFAULT_POLICIES,
    show_default=True,
    metavar="A,B,…",
    help="Placement policies, see `wattherd policies`.",
)
@click.option(
    "--load",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 100, min_open=True),
    help="GPU time offered in the long run, over the cluster's GPU capacity.",
)
@click.option(
    "--arrivals",
    default=30_000,
    show_default=True,
    type=click.IntRange(1, 10_000_000),
    help="Pods that arrive.",
)
@click.option(
    "--seed", default="1", show_default=True, metavar="N|A..B|A,B,C", help="One run for each."
)
@prints
def churn(
    *, nodes: Path, pods: Path, policy: str, load: float, arrivals: int, seed: str, output: str
) -> None:
    """Let pods arrive and leave, and average over time.

    Arrivals are Poisson; requests and run times are drawn from the pod list. A pod that finds no
    room is lost.
    """
    from wattherd.catalog.gpus import GPUS
    from wattherd.experiments.placement.churn import ChurnExperiment, churn_document, run_churn
    from wattherd.workload.openb import read_nodes, read_pods

    experiment = ChurnExperiment(
        cluster=read_nodes(nodes, known=GPUS),
        pods=read_pods(pods, known=GPUS),
        load=load,
        arrivals=arrivals,
    )
    tasks = [(name, one) for name in parse_policies(policy) for one in parse_seeds(seed)]
    rows = [
        run_churn(experiment, name, one) for name, one in tracked(tasks, len(tasks), "churning")
    ]
    if printed(churn_document(experiment, rows, command_line()), output):
        return
    from wattherd.cli.tables import print_table

    shown = [name for name in rows[0] if name not in ("arrivals", "simulated_s")]
    cells = [[_cell(row[name]) for name in shown] for row in rows]
    print_table([name.upper() for name in shown], cells, right_from=1)


def _cell(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _run_and_show(
    experiment: Experiment,
    policies: list[str],
    seeds: list[int],
    workers: int,
    nodes_file: str,
    pods_file: str,
    output: str,
) -> None:
    from wattherd.experiments.placement.pack import document, run_all
    from wattherd.store.run_dir import PACK_FILE
    from wattherd.workload.impossible_requests import never_fits

    impossible = never_fits(experiment.pods, experiment.cluster)
    if impossible:
        _warn_impossible(sum(one.count for one in impossible), impossible[0].reason)
    stream = run_all(experiment, policies, seeds, processes=workers)
    finished = dict(tracked(stream, len(policies) * len(seeds), "packing"))
    runs = [finished[position] for position in sorted(finished)]
    result = document(
        experiment,
        runs,
        nodes_file=nodes_file,
        pods_file=pods_file,
        impossible=impossible,
        command=command_line(),
    )
    if experiment.out:
        written = experiment.out.write_json(PACK_FILE, result)
        click.echo(f"wrote {written}", err=True)
    if printed(result, output):
        return
    from wattherd.cli.tables import print_comparison
    from wattherd.experiments.placement.pack import fit_sentences

    if result["whole_list"]:
        click.echo("\n".join(fit_sentences(runs)) + "\n")
    print_comparison(result)


def _warn_impossible(pods: int, reason: str) -> None:
    click.echo(f"note: {pods} pods fit no node even when it is empty (first: {reason})", err=True)
