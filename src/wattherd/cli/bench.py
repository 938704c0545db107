"""`wattherd bench`: every policy of a kind on fixed workloads, ranked; one JSON and one page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.options import check_folder, command_line, parse_policies
from wattherd.cli.output import printed, prints
from wattherd.cli.sim_sweep import cache_asked, caching, tell_kept
from wattherd.errors import UserError
from wattherd.spelling import hint_for
from wattherd.units import seconds

if TYPE_CHECKING:
    from wattherd.experiments.leaderboard.leaderboards import Leaderboard


@click.group()
def bench() -> None:
    """Rank schedulers, ways of sharing power, placement policies."""


def _board(command: Callable[..., int]) -> Any:
    """Options that all boards have."""
    for option in (
        click.option(
            "--out", type=click.Path(path_type=Path), metavar="DIR", help="Folder for the page."
        ),
        caching,
        click.option("--limit", metavar="10min", help="A run that takes longer has no rank."),
        click.option(
            "--processes", type=click.IntRange(1, 256), help="At a time.  [default: one per core]"
        ),
        click.option(
            "--generated", is_flag=True, help="Generated workloads, also where public ones are."
        ),
        click.option("--workload", metavar="A,B,…", help="Only these workloads."),
        click.option("--policy", metavar="A,B,…", help="Only these policies."),
        prints,
    ):
        command = option(command)
    return command


@bench.command("schedulers")
@_board
def schedulers(**given: Any) -> int:
    """Schedulers of training jobs, under no budget and two budgets."""
    from wattherd.experiments.leaderboard.leaderboards import SCHEDULERS

    return _run(SCHEDULERS, **given)


@bench.command("power")
@_board
def power(**given: Any) -> int:
    """Ways of sharing watts between jobs, under three budgets."""
    from wattherd.experiments.leaderboard.leaderboards import POWER

    return _run(POWER, **given)


@bench.command("placement")
@_board
def placement(**given: Any) -> int:
    """Placement policies on nodes that fill up."""
    from wattherd.experiments.leaderboard.leaderboards import PLACEMENT

    return _run(PLACEMENT, **given)


def _run(
    board: Leaderboard,
    *,
    policy: str | None,
    workload: str | None,
    generated: bool,
    processes: int | None,
    limit: str | None,
    cache: Path | None,
    no_cache: bool,
    out: Path | None,
    output: str,
) -> int:
    from wattherd.experiments.leaderboard.leaderboards import (
        document,
        placement_cells,
        schedule_cells,
    )
    from wattherd.library.sweep import SweptRuns, run_cells

    if out is not None:
        check_folder(out)
    asked = cache_asked(cache, no_cache=no_cache)
    limit_s = seconds(limit, field="--limit") if limit else None
    policies = parse_policies(policy) if policy else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattherd-")))
        found: Any = _workloads(board, folder, generated=generated)
        chosen: Any = _chosen(found, workload)
        make: Any = placement_cells if board.name == "placement" else schedule_cells
        cells = make(chosen, policies) if make is placement_cells else make(board, chosen, policies)
        done = run_cells(
            cells, processes=processes, limit_s=limit_s, cache=asked, what=f"bench {board.name}"
        )
    runs = SweptRuns(cells=done.results(), command=command_line())
    result = document(board, chosen, runs.cells, command_line())
    if out is not None:
        from wattherd.report.leaderboard_page import write_leaderboard

        click.echo(f"wrote {write_leaderboard(result, out)}", err=True)
    tell_kept(runs, done.cache.problem)
    code = 1 if len(runs.failures) else 0
    if printed(result, output):
        return code
    _show(result)
    return code


def _workloads(board: Leaderboard, folder: Path, *, generated: bool) -> list[Any]:
    """The public workloads whose files are there, else the generated ones."""
    from wattherd.experiments.leaderboard import workloads

    pods = board.name == "placement"
    root = os.environ.get("WATTHERD_DATA", "")
    if root and not generated:
        public: Any = workloads.public_pods if pods else workloads.public_jobs
        found, absent = public(Path(root))
        if absent:
            click.echo(f"not in WATTHERD_DATA, left out: {', '.join(absent)}", err=True)
        if found:
            return list(found)
    drawn: Any = workloads.generated_pods if pods else workloads.generated_jobs
    return list(drawn(folder))


def _chosen(found: Sequence[Any], names: str | None) -> list[Any]:
    if names is None:
        return list(found)
    by_name = {one.name: one for one in found}
    for name in (wanted := [one.strip() for one in names.split(",") if one.strip()]):
        if name not in by_name:
            hint = hint_for(name, by_name)
            raise UserError(f"unknown workload {name!r}", field="--workload", hint=hint)
    if not wanted:
        raise UserError("names nothing", field="--workload", hint=hint_for("", by_name))
    return [by_name[name] for name in dict.fromkeys(wanted)]


def _show(result: dict[str, Any]) -> None:
    """A row for each policy: its place over all, and on each problem."""
    from wattherd.cli.tables import print_table

    problems = result["problems"]
    places = [{one["policy"]: one["place"] for one in problem["standings"]} for problem in problems]
    head = ["POLICY", "PLACE", "BEHIND", *(str(number + 1) for number in range(len(problems)))]
    rows = [
        [
            one["policy"],
            one["place"],
            "–" if one["score"] is None else f"{100 * (one['score'] - 1):.1f} %",
            *(place.get(one["policy"], "") for place in places),
        ]
        for one in result["overall"]
    ]
    print_table(head, rows, right_from=1)
    for number, problem in enumerate(problems, start=1):
        budget = f", {problem['budget']}" if problem["budget"] else ""
        click.echo(f"{number}: {problem['workload']}{budget}")
    click.echo(f"= is a tie: no more than {100 * result['tie']:g} % behind the first of it")
