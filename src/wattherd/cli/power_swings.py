"""`wattherd power swings`: how unsteady a draw is, from recordings or from a meter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.options import check_folder, server_option
from wattherd.cli.output import printed, prints
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.workload.power_samples import DrawRecording

HEAD = ["RECORDING", "LENGTH s", "MEAN W", "SWING W", "WORST SWING W", "UP W/s", "DOWN W/s",
        "STRONGEST Hz", "ITS SWING W"]  # fmt: skip
FASTEST_S = 0.001


@click.command("swings")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", metavar="ID", help="Of a running service, by its samples of each second.")
@server_option
@click.option("--meter", "uri", metavar="URI", help="Record from this meter first.")
@click.option("--for", "length", metavar="TIME",
              help="How long, from a meter (60s) or from those of the job's devices.")  # fmt: skip
@click.option("--every", metavar="TIME", help="How often, from meters; 0.1s if left out.")
@click.option("--averaged", default="0s", show_default=True, metavar="TIME",
              help="What each sample is a mean over, as of power.draw on an H100: 1s.")  # fmt: skip
@click.option("--ramp-up", metavar="POWER", help="Allowed rise each second.")
@click.option("--ramp-down", metavar="POWER", help="Allowed fall each second.")
@click.option("--swing", metavar="POWER", help="Allowed range within 10 s.")
@click.option("--ramp-over", default="1s", show_default=True, help="Ramps are means over this.")
@click.option("--jobs", default=1, show_default=True,
              help="Also add up so many jobs like it, begun together and spread out.")  # fmt: skip
@click.option(
    "--storage",
    metavar="POWER,ENERGY",
    help="Of --jobs, also with storage beside them: 250kW,2kWh (,0.9 comes back).",
)
@click.option("--drift", default=0.0, show_default=True, help="By how much their pace differs.")
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of when jobs begin."
)
@click.option("--out", type=click.Path(path_type=Path), help="Also write a page, plots, tables.")
@prints
def swings(
    *,
    files: tuple[Path, ...],
    job: str | None,
    server: str | None,
    uri: str | None,
    length: str | None,
    every: str | None,
    averaged: str,
    ramp_up: str | None,
    ramp_down: str | None,
    swing: str | None,
    ramp_over: str,
    jobs: int,
    storage: str | None,
    drift: float,
    seed: int,
    out: Path | None,
    output: str,
) -> int:
    """Tell how far, how fast and at which frequencies draws swing.

    FILES are logs of nvidia-smi (timestamp, power.draw) or tables of time_s and watts. --job asks a
    running service instead. Exits with 1 if a draw is beyond a limit that was given.
    """
    from wattherd.experiments.grid.swings import SwingLimits, report, storage_size
    from wattherd.units import seconds, watts
    from wattherd.workload.power_samples import read_samples

    if job is not None:
        if files or uri is not None or out is not None or jobs > 1:
            raise UserError("is of a service: nothing else can be judged beside it", field="--job",
                            hint="leave out recordings, --jobs and --out")  # fmt: skip
        return _of_job(server, job, length, every, output)
    if not files and uri is None:
        raise UserError("nothing to judge", field="FILES",
                        hint="a recording, --meter URI or --job ID")  # fmt: skip
    if out is not None:
        check_folder(out)

    def optional_w(given: str | None, field: str) -> float | None:
        return None if given is None else watts(given, field=field)

    limits = SwingLimits(
        ramp_up_w_s=optional_w(ramp_up, "--ramp-up"),
        ramp_down_w_s=optional_w(ramp_down, "--ramp-down"),
        swing_w=optional_w(swing, "--swing"),
        ramp_s=_above_zero(ramp_over, "--ramp-over"),
    )
    size = None if storage is None else storage_size(storage, "--storage")
    if size is not None and jobs < 2:
        raise UserError("smooths jobs that are added up", field="--storage", hint="--jobs 64")
    averaged_s = seconds(averaged, field="--averaged")
    recordings = [one for path in files for one in read_samples(path, averaged_s)]
    if uri is not None:
        length_s, every_s = (
            _above_zero(length or "60s", "--for"),
            _above_zero(every or "0.1s", "--every"),
        )
        recordings.append(_recorded(uri, length_s, every_s, averaged_s))
    document, drawn = report(recordings, limits, jobs=jobs, drift=drift, seed=seed, storage=size)
    if out is not None:
        from wattherd.report.swings_page import write_swings

        click.echo(str(write_swings(document, drawn, out)), err=True)
    if not printed(document, output):
        _show(document)
    return int(any(one["beyond"] for one in document["recordings"]))


def _above_zero(text: str, field: str) -> float:
    from wattherd.units import seconds

    found_s = seconds(text, field=field)
    if found_s < FASTEST_S:
        raise UserError("is too short", field=field, hint="write 1s")
    return found_s


def _recorded(uri: str, length_s: float, every_s: float, averaged_s: float) -> DrawRecording:
    """What a meter says, read at even times."""
    from wattherd.devices.meters.recording import fastest, record
    from wattherd.estimate.swing import Samples
    from wattherd.workload.power_samples import DrawRecording

    found = fastest(uri)
    at_s, watts = record([found.uri], length_s, max(every_s, found.renewed_s))
    samples = Samples(at_s=at_s, watts=watts, averaged_s=averaged_s or found.averaged_s)
    return DrawRecording(name=found.uri, parts=1, samples=samples)


def _of_job(
    server: str | None, job: str, length: str | None, every: str | None, output: str
) -> int:
    from wattherd.library.client import Client

    query = {"for": length, "every": every}
    asked = {name: value for name, value in query.items() if value is not None}
    document = Client(server).get(f"jobs/{job}/swings", **asked)
    if not printed(document, output):
        _show(document)
        click.echo(f"by {document['by']}, {document['stated']}")
    return 0


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = document["recordings"]
    print_table(HEAD, [_row(one) for one in rows], right_from=1)
    click.echo()
    bands = [f"{band['low_hz']:g}-{band['high_hz']:g} Hz" for band in rows[0]["bands"]]
    print_table(
        ["RMS W BY BAND", *bands, "SEEN TO Hz"],
        [[one["name"], *map(_band, one["bands"]), f"{one['seen_up_to_hz']:.2f}"] for one in rows],
        right_from=1,
    )
    for one in rows:
        if one.get("mean_wait_s"):
            click.echo(f"{one['name']}: starts wait {one['mean_wait_s']:.1f} s on average")
        if one.get("slowed"):
            click.echo(f"{one['name']}: work takes {100 * one['slowed']:.1f} % longer")
        if one.get("lost_w"):
            click.echo(
                f"{one['name']}: loses {one['lost_w']:,.0f} W on average, "
                f"and is empty, full or too weak for {one['missed_s']:,.1f} s"
            )
        for beyond in one.get("beyond", ()):
            unit = "W" if beyond["limit"] == "swing_w" else "W/s"
            click.echo(
                f"{one['name']}: {beyond['limit'].removesuffix('_s').removesuffix('_w')} "
                f"{beyond['worst']:,.0f} {unit}, allowed {beyond['allowed']:,.0f} {unit}"
            )


def _row(one: dict[str, Any]) -> list[str]:
    strongest = one["strongest"]
    return [
        one["name"],
        f"{one['length_s']:,.0f}",
        *(f"{one[key]:,.0f}" for key in
          ("mean_w", "swing_w", "worst_swing_w", "ramp_up_w_s", "ramp_down_w_s")),
        "-" if strongest is None else f"{strongest['frequency_hz']:.3f}",
        "-" if strongest is None else f"{strongest['swing_w']:,.0f}",
    ]  # fmt: skip


def _band(band: dict[str, Any]) -> str:
    """Its RMS; marked where only part of the band is seen."""
    if band["rms_w"] is None:
        return "unseen"
    part = "" if band["seen_to_hz"] >= band["high_hz"] else " (part)"
    return f"{band['rms_w']:,.0f}{part}"
