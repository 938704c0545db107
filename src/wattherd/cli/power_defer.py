"""`wattherd power defer`: when jobs that may wait would run, and what waiting saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wattherd.cli.output import printed, prints

_PATH = click.Path(path_type=Path)


@click.command("defer")
@click.argument("jobs", type=_PATH)
@click.option("--rates", required=True, metavar="FILE|URL", help="Prices, carbon intensities.")
@click.option(
    "--by",
    type=click.Choice(["carbon", "cost"]),
    default="carbon",
    show_default=True,
    help="What is to be lowest: emissions or price.",
)
@click.option("--rule", "rules", metavar="A,B,…", help="Rules to compare; default: all.")
@click.option("--wait", default="24h", show_default=True, help="For jobs without a deadline.")
@click.option("--gpu", "gpu", default="300W", show_default=True, help="Draw of a busy GPU.")
@click.option("--scaling", metavar="1,1.9,2.7", help="Speeds on 1, 2, 3 times the GPUs.")
@click.option("--gpus", type=float, help="No more at once, for the optimum.")
@click.option("--start", metavar="TIME", help="When the first second of JOBS is.")
@click.option("--out", type=_PATH, help="Write JOBS with the begin times of the first rule.")
@prints
def defer(
    *,
    jobs: Path,
    rates: str,
    by: str,
    rules: str | None,
    wait: str,
    gpu: str,
    scaling: str | None,
    gpus: float | None,
    start: str | None,
    out: Path | None,
    output: str,
) -> int:
    """Compare rules that let jobs wait for cheap or clean energy, and the least possible.

    JOBS is a CSV file with `submit_s, duration_s, gpus` and, if known, `deadline_s`. Rules see one
    job at a time and the rates to come; the optimum sees all jobs.
    """
    from wattherd.devices.wire.device_errors import DeviceError
    from wattherd.estimate.deferral import RULES, RateSignal
    from wattherd.experiments.grid import defer as service
    from wattherd.units import seconds, watts
    from wattherd.workload.rates_file import read_rates

    try:
        found, start_s = read_rates(rates, start)
    except DeviceError as error:
        click.echo(f"wattherd: error: {error}", err=True)
        return 1
    signal = RateSignal(found, by)
    every = service.read_jobs(
        jobs,
        start_s=start_s,
        wait_s=seconds(wait, field="--wait"),
        gpu_w=watts(gpu, field="--gpu"),
        speeds=_speeds(scaling),
    )
    chosen = service.within(every, signal)
    if not chosen:
        from wattherd.errors import UserError

        hint = "give rates of a longer time, or say with --start when the jobs begin"
        raise UserError("no job has all its time within the rates", field="--rates", hint=hint)
    names = [one.strip() for one in rules.split(",")] if rules else list(RULES)
    outcomes, at_once, least = service.compared(chosen, found, signal, names, gpus)
    left_out = len(every) - len(chosen)
    document = service.document(outcomes, at_once, least, by, len(chosen), left_out, found)
    if out is not None:
        service.write_begins(out, chosen, signal, names[0], start_s)
    if not printed(document, output):
        _tell(document, gpus)
    return 0


def _speeds(text: str | None) -> tuple[float, ...]:
    from wattherd.errors import UserError

    try:
        return tuple(float(one) for one in text.split(",")) if text else (1.0,)
    except ValueError:
        raise UserError(f"{text!r} is no list of speeds", field="--scaling", hint="1,1.9") from None


def _tell(document: dict[str, Any], gpus: float | None) -> None:
    from wattherd.cli.tables import print_table
    from wattherd.units import show_seconds

    def shown(value: float | None, form: str = ",.3f") -> str:
        return "–" if value is None else f"{value:{form}}"

    rows = [
        [
            one["rule"],
            shown(one["kwh"]),
            shown(one["cost"]),
            shown(one["co2e_kg"]),
            shown(one["saved_pct"], ".1f"),
            shown(one["above_optimum_pct"], ".1f"),
            show_seconds(one["mean_completion_s"]),
            show_seconds(one["mean_wait_s"]),
            str(one["stops"]),
            f"{one['peak_gpus']:g}",
        ]
        for one in document["rules"]
    ]
    head = ["RULE", "kWh", f"COST {document['currency']}".strip(), "kgCO2e", "SAVED %",
            "ABOVE OPTIMUM %", "MEAN JCT", "MEAN WAIT", "PAUSES", "PEAK GPUS"]  # fmt: skip
    print_table(head, rows, right_from=1)
    best = document["optimum"]["saved_pct"]
    if best is not None:
        at_once = "" if gpus is None else f" with {gpus:g} GPUs"
        click.echo(f"the optimum{at_once} saves {best:.1f} %")
    elif gpus is not None:
        click.echo(f"no plan with {gpus:g} GPUs keeps all deadlines")
    if document["left_out"]:
        left = document["left_out"]
        click.echo(f"{left} jobs are left out: not all of their time has known rates", err=True)
