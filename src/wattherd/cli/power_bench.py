"""`wattherd power bench`: power controllers against scenarios and faults, from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import check_folder
from wattherd.cli.output import printed, prints


def _names(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Comma-separated names, each once; all of them where nothing is given."""
    if text is None:
        return default
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


@click.command("bench")
@click.option("--scenario", metavar="NAME,...", help="Scenarios; all if left out.")
@click.option("--fault", metavar="KIND[+KIND],...", help="Faults; `none` and each single one.")
@click.option(
    "--controller", metavar="NAME,...", help="wattherd, uniform; also with-curves, open-loop."
)
@click.option(
    "--controller-command",
    "command",
    metavar="CMD",
    help="Also run a controller of your own: a process that speaks lines of JSON.",
)
@click.option("--pairs", is_flag=True, help="Also every two faults at once.")
@click.option("--quick", is_flag=True, help="Shorter scenarios: 180 or 240 s, not 360 or 600 s.")
@click.option("--out", type=click.Path(path_type=Path), help="Also write a page, plots, tables.")
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(min=0), help="Of loads and faults."
)
@prints
def bench(
    *,
    scenario: str | None,
    fault: str | None,
    controller: str | None,
    command: str | None,
    pairs: bool,
    quick: bool,
    out: Path | None,
    seed: int,
    output: str,
) -> None:
    """Run power controllers in simulated machine rooms in which meters and knobs fail.

    Some rooms are orderly, others as data sheets describe them: other load, coarse and slow meters,
    caps that hold a mean, knobs that round. `wattherd` is the loop that `power hold` runs.

    Every run is determined by its seed. Trips are those that a controller which knows the future
    would have avoided under the same fault.
    """
    from wattherd.experiments.power_bench import run as power_bench

    if out is not None:
        check_folder(out)
    choice = power_bench.BenchChoice()
    faults = _names(fault, choice.faults)
    choice = power_bench.BenchChoice(
        scenarios=_names(scenario, choice.scenarios),
        faults=(*faults, *power_bench.pairs()) if pairs else faults,
        controllers=(*_names(controller, choice.controllers), *(["external"] if command else [])),
        command=command,
        seed=seed,
        quick=quick,
    )
    document, histories = power_bench.bench_and_histories(
        choice, lambda line: click.echo(line, err=True)
    )
    if out is not None:
        from wattherd.report.power_bench_page import write_bench

        click.echo(str(write_bench(document, histories, out)), err=True)
    if printed(document, output):
        return
    _show(document)
    for one in document["skipped"]:
        click.echo(f"skipped {one['scenario']}: {one['reason']}")


HEAD = ["SCENARIO", "FAULT", "CONTROLLER", "OVER s", "WORST %", "TRIPS", "USED %", "BACK s",
        "SAFE s", "WORK %", "RESTORED", "ALARMS"]  # fmt: skip
TOTAL = ["CONTROLLER", "RUNS", "OVER s", "OVER kJ", "TRIPS", "UNAVOIDABLE", "NOT RESTORED",
         "NOT RECOVERED", "WORK %"]  # fmt: skip


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    print_table(HEAD, [_row(run) for run in document["runs"]], right_from=3)
    click.echo()
    print_table(TOTAL, [_total(one) for one in document["summary"]], right_from=1)
    for run in document["runs"]:
        for reason in run["trip_reasons"]:
            click.echo(f"trip in {run['scenario']}, {run['fault']}, {run['controller']}: {reason}")


def _row(run: dict[str, Any]) -> list[str]:
    return [
        run["scenario"],
        run["fault"],
        run["controller"],
        str(run["over_limit_s"]),
        f"{run['worst_excess_pct']:.1f}",
        str(run["breaker_trips"]),
        _or_dash(run["usable_pct"]),
        _or_dash(run["back_s"]),
        str(run["safe_mode_s"]),
        f"{100 * run['progress_of_oracle']:.1f}",
        "yes" if run["caps_restored"] else "no",
        " ".join(run["alarms"]) or "-",
    ]


def _total(one: dict[str, Any]) -> list[str]:
    return [
        one["controller"],
        str(one["runs"]),
        str(one["over_limit_s"]),
        f"{one['over_limit_j'] / 1e3:,.0f}",
        str(one["breaker_trips"]),
        str(one["unavoidable_trips"]),
        str(one["not_restored"]),
        str(one["not_recovered"]),
        f"{100 * one['progress_of_oracle']:.1f}",
    ]


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
