"""`wattherd meter`: read power meters of any kind."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.output import lists, printed, prints

if TYPE_CHECKING:
    from wattherd.devices.meters.watch import Outcome

SCHEMA = "wattherd.reading/1"
COUNTERS = "wattherd.counters/1"
PROBE_ROUNDS = 3


@click.group()
def meter() -> None:
    """Read power meters, one URI each."""


@meter.command("read")
@click.argument("uris", metavar="URI...", nargs=-1, required=True)
@click.option("--watch", metavar="1s", help="Read again and again, this often.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many rounds.")
@prints
def read(*, uris: tuple[str, ...], watch: str | None, count: int | None, output: str) -> int:
    """Print the watts that each meter reads; with `-o json`, one object a line.

    Exits with 1 if a meter gave no reading in the last round.
    """
    from wattherd.devices.meters.registry import open_meter
    from wattherd.devices.meters.watch import rounds
    from wattherd.devices.wire.device_errors import DeviceError
    from wattherd.errors import UserError
    from wattherd.units import seconds

    every_s = seconds(watch, field="--watch") if watch else 1.0
    if every_s <= 0:
        raise UserError("must be above zero", field="--watch", hint="write 1s")
    last: list[Outcome] = []
    with ExitStack() as stack:
        meters = [stack.enter_context(open_meter(uri)) for uri in uris]
        for last in rounds(meters, every_s, count or (None if watch else 1)):
            for outcome in last:
                _tell(outcome, output)
    return int(any(isinstance(outcome, DeviceError) for outcome in last))


@meter.command("probe")
@click.argument("uris", metavar="[URI...]", nargs=-1)
@lists
def probe(*, uris: tuple[str, ...], output: str) -> int:
    """Try meters: whether each answers, how fast, and what ails those that do not.

    Without a URI, tries the meters of this machine and lists the protocols there are. Exits with
    1 if a named meter does not answer.
    """
    from wattherd.devices.meters import probing

    document = probing.document(uris or probing.local_uris(), PROBE_ROUNDS)
    if not printed(document, output):
        _show(document)
    return int(bool(uris) and any(found["trouble"] for found in document["meters"]))


@meter.command("counters")
@click.option(
    "--pid",
    default=0,
    type=click.IntRange(min=0),
    help="Whose; this command's own if left out.",
)
@click.option("--window", default="1s", show_default=True, help="For how long to count.")
@prints
def counters(*, pid: int, window: str, output: str) -> int:
    """Count what a process makes the CPU do: instructions, cache hits, time, bytes of memory.

    The names are those of features that `power fit` takes. What the kernel or the processor does
    not tell is left out.
    """
    from wattherd.devices.meters.perf import PerfCounters
    from wattherd.devices.wire.device_errors import DeviceError
    from wattherd.errors import UserError
    from wattherd.units import seconds

    window_s = seconds(window, field="--window")
    if window_s <= 0:
        raise UserError("must be above zero", field="--window", hint="write 1s")
    device = PerfCounters(pid)
    try:
        counts = device.counts(window_s)
    except DeviceError as error:
        click.echo(f"wattherd: {error}", err=True)
        return 1
    finally:
        device.close()
    told = {"schema": COUNTERS, "pid": pid, "seconds": counts.seconds}
    if printed({**told, "features": counts.features()}, output):
        return 0
    for name, value in counts.features().items():
        click.echo(f"{name:22} {value:,.4g}")
    return 0


def _tell(outcome: Outcome, output: str) -> None:
    if not printed({"schema": SCHEMA, **_fields(outcome)}, output):
        click.echo(_line(outcome), err=not _is_reading(outcome))


def _is_reading(outcome: Outcome) -> bool:
    from wattherd.devices.meters.contract import MeterReading

    return isinstance(outcome, MeterReading)


def _fields(outcome: Outcome) -> dict[str, Any]:
    from wattherd.devices.meters.contract import MeterReading

    if isinstance(outcome, MeterReading):
        return {"meter": outcome.source, "at_s": outcome.at_s, "watts": outcome.watts,
                "quality": outcome.quality}  # fmt: skip
    return {"meter": outcome.source, "at_s": time.time(), "watts": None,
            "trouble": outcome.trouble, "problem": outcome.problem}  # fmt: skip


def _line(outcome: Outcome) -> str:
    from datetime import UTC, datetime

    from wattherd.devices.meters.contract import MeterReading

    if not isinstance(outcome, MeterReading):
        return f"wattherd: {outcome}"
    stamp = datetime.fromtimestamp(outcome.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-5] + "Z"
    return f"{stamp}  {outcome.watts:>12,.1f} W  {outcome.quality:<8}  {outcome.source}"


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = [
        [
            found["meter"],
            "-" if found["watts"] is None else f"{found['watts']:,.1f}",
            "-" if found["latency_s"] is None else f"{1e3 * found['latency_s']:,.1f}",
            f"{found['trouble']}: {found['problem']}" if found["trouble"] else found["quality"],
        ]
        for found in document["meters"]
    ]
    if rows:
        print_table(["METER", "WATTS", "ANSWERS IN MS", "STATE"], rows)
        click.echo()
    kinds = [[kind["scheme"], "yes" if kind["installed"] else "no", kind["example"]]
             for kind in document["protocols"]]  # fmt: skip
    print_table(["PROTOCOL", "INSTALLED", "EXAMPLE"], kinds)
