"""`wattherd sim sweep`: a grid of schedulers, budgets, seeds, clusters and workloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.options import command_line, parse_policies, parse_seeds
from wattherd.cli.output import printed, prints
from wattherd.errors import UserError
from wattherd.units import seconds

if TYPE_CHECKING:
    from wattherd.experiments.sweep.cell import ScheduleCell
    from wattherd.library.caching import Caching
    from wattherd.library.sweep import SweptRuns
    from wattherd.workload.scenario import Scenario


def caching(command: Any) -> Any:
    """Options of a command whose results are kept: `--cache` and `--no-cache`."""
    for option in (
        click.option("--no-cache", is_flag=True, help="Compute everything, keep nothing."),
        click.option(
            "--cache", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
            help="Where results are kept.  [default: see `wattherd cache show`]",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def cache_asked(cache: Path | None, *, no_cache: bool) -> Caching:
    """What these options mean.

    Raises:
        UserError: both were given.
    """
    if cache is not None and no_cache:
        raise UserError("goes against --no-cache", field="--cache", hint="give one of them")
    return cache if cache is not None else not no_cache


@click.command("sweep")
@click.argument("scenarios", nargs=-1, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a field.")
@click.option("--jobs", multiple=True, type=click.Path(path_type=Path), help="Job file; again.")
@click.option("--format", "kind", metavar="NAME", help="Of the job files.  [default: native]")
@click.option("--profiles", type=click.Path(path_type=Path), help="Profiles the format needs.")
@click.option("--preset", metavar="NAME", help="Job model and rounds.")
@click.option("--cluster", multiple=True, metavar="16x4:T4|V100M16=8,…", help="Again for more.")
@click.option("--policy", metavar="A,B,…", help="Schedulers; `wattherd policies` lists them.")
@click.option("--budget", multiple=True, metavar="40kW|0:40kW,2h:30kW|none", help="Again for more.")
@click.option("--power", metavar="A,B,…", help="How watts are shared.")
@click.option("--seed", metavar="N|A..B|A,B,C", help="Seeds to run.")
@click.option(
    "--processes", type=click.IntRange(1, 256), help="At a time.  [default: one per core]"
)
@click.option("--limit", metavar="10min", help="A cell that takes longer is ended, and fails.")
@caching
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory.")
@click.option("--parquet", is_flag=True, help="Write the table to DIR as Parquet, too.")
@prints
def sweep(
    *,
    scenarios: tuple[Path, ...],
    seed: str | None,
    processes: int | None,
    limit: str | None,
    cache: Path | None,
    no_cache: bool,
    out: Path | None,
    parquet: bool,
    output: str,
    **given: Any,
) -> int:
    """Run a grid of simulations; what was computed before is not computed again.

    The grid is every policy, budget, way of sharing and seed of every scenario, or of --jobs on
    every --cluster; options go before the scenarios' fields. Each result is kept as soon as it is
    there: the same command goes on where it was stopped. A cell that fails says why in the table,
    the others run, and the exit code is 1.
    """
    from wattherd.library.sweep import SweptRuns, run_cells

    if parquet and out is None:
        raise UserError("--parquet needs --out DIR", hint="add --out runs/mine")
    cells = list(_cells(scenarios, given, parse_seeds(seed) if seed else None))
    limit_s = seconds(limit, field="--limit") if limit else None
    asked = cache_asked(cache, no_cache=no_cache)
    done = run_cells(cells, processes=processes, limit_s=limit_s, cache=asked)
    found = SweptRuns(cells=done.results(), command=command_line())
    if out:
        click.echo(f"wrote {found.save(out, parquet=parquet)}", err=True)
    tell_kept(found, done.cache.problem)
    code = 1 if len(found.failures) else 0
    if printed(found.document, output):
        return code
    _show(found)
    return code


def tell_kept(found: SweptRuns, problem: str) -> None:
    """On stderr: how many cells were computed now, and whether they could be kept."""
    before = len(found.cells) - found.computed
    click.echo(f"{len(found.cells)} cells: {found.computed} computed, {before} known", err=True)
    if problem:
        hint = "hint: --cache DIR, or WATTHERD_CACHE"
        click.echo(f"note: results cannot be kept: {problem} ({hint})", err=True)


def _cells(
    paths: Sequence[Path], given: dict[str, Any], seeds: list[int] | None
) -> Iterator[ScheduleCell]:
    """Cells of all scenarios, workload by workload, cluster by cluster."""
    from wattherd.library.sweep import checked, names_of

    if not paths and not given["jobs"]:
        hint = "name a scenario file, or --jobs FILE"
        raise UserError("there are no jobs to run", field="--jobs", hint=hint)
    files = [str(one) for one in dict.fromkeys(given["jobs"])]
    scenarios: list[Path | None] = [*paths] or [None]
    jobs: list[str | None] = [*files] or [None]
    known = names_of([str(one) for one in paths]) or [""]
    for path, called in zip(scenarios, known, strict=True):
        for file, name in zip(jobs, names_of(files) or [called], strict=True):
            workload = name if len(paths) < 2 or name == called else f"{called}: {name}"
            for cluster in dict.fromkeys(given["cluster"]) or [None]:
                scenario = _scenario(path, file, cluster, given)
                yield from checked(workload, scenario, seeds or [scenario.seed])


def _scenario(
    path: Path | None, file: str | None, cluster: str | None, given: dict[str, Any]
) -> Scenario:
    """The scenario of a file, or an empty one, with the options on top."""
    from wattherd.experiments.schedule.workloads import TIMED
    from wattherd.workload.scenario import beside, change_field, load, validated

    stated: dict[str, Any] = load(path) if path else {}
    for change in given["changes"]:
        change_field(stated, change)
    kind = given["kind"] or (None if path else "native")
    of_jobs = {"file": file and Path(file).absolute(), "format": kind}
    of_jobs["profiles"] = given["profiles"] and given["profiles"].absolute()
    said = {name: str(value) for name, value in of_jobs.items() if value}
    if said:
        stated["jobs"] = {**_group(stated, "jobs"), **said}
    known = _group(stated, "jobs").get("format")
    default = "none" if path is None and known in TIMED else None
    fields = {
        "cluster": cluster,
        "preset": given["preset"] or (None if "preset" in stated else default),
        "policies": given["policy"] and parse_policies(given["policy"]),
        "power": given["power"] and parse_policies(given["power"]),
        "budgets": [None if one.casefold() == "none" else one for one in given["budget"]],
    }
    stated |= {name: value for name, value in fields.items() if value}
    return beside(validated(stated, str(path or "options")), path.parent if path else Path())


def _group(stated: dict[str, Any], name: str) -> dict[str, Any]:
    found = stated.get(name)
    return found if isinstance(found, dict) else {}


_HEAD = ("WORKLOAD", "CLUSTER", "POLICY", "POWER", "BUDGET", "SEED", "FINISHED", "AVG JCT", "P99",
         "ENERGY MJ", "OVER s", "FAILURE")  # fmt: skip


def _show(found: SweptRuns) -> None:
    from wattherd.cli.tables import print_table

    rows = list(found.runs)
    one_cluster = len({row["cluster"] for row in rows}) == 1
    head = [name for name in _HEAD if name != "CLUSTER" or not one_cluster]
    lines = [_line(row) for row in rows]
    if one_cluster:
        lines = [[line[0], *line[2:]] for line in lines]
    if not len(found.failures):
        head, lines = head[:-1], [line[:-1] for line in lines]
    print_table(head, lines, right_from=head.index("SEED") if not len(found.failures) else 99)


def _line(row: dict[str, Any]) -> list[str]:
    from wattherd.units import show_seconds

    def time(name: str) -> str:
        return "–" if row.get(name) is None else show_seconds(row[name])

    ran = row.get("jobs") is not None
    return [
        row["workload"],
        row["cluster"],
        row["policy"],
        row["power"] or "–",
        row["budget"] or "none",
        str(row["seed"]),
        f"{row['finished']:.0f}/{row['jobs']:.0f}" if ran else "–",
        time("avg_jct_s"),
        time("p99_jct_s"),
        f"{row['energy_j'] / 1e6:,.1f}" if ran else "–",
        f"{row['over_budget_s']:,.1f}" if ran else "–",
        row["failure"] or "",
    ]
