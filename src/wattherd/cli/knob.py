"""`wattherd knob read | set | switch | restore | probe`: limits of devices, by address."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.output import lists, printed, prints
from wattherd.cli.signals import set_on

if TYPE_CHECKING:
    from wattherd.devices.knobs.contract import KnobReading, KnobUnit, OrderOutcome
    from wattherd.devices.knobs.switch import Position

SCHEMA = "wattherd.knob/1"
SWITCH_SCHEMA = "wattherd.switch/1"

journals_option = click.option(
    "--journals", type=click.Path(file_okay=False, path_type=Path),
    help="Where it is noted what was found (default: your state folder).",
)  # fmt: skip


@click.group()
def knob() -> None:
    """Set limits of devices and switch nodes, one URI each; everything is read back."""


@knob.command("read")
@click.argument("uris", metavar="URI...", nargs=-1, required=True)
@prints
def read(*, uris: tuple[str, ...], output: str) -> int:
    """Print the limit that each knob holds now; exits with 1 if one did not answer."""
    from wattherd.devices.knobs.registry import open_knob

    troubles = 0
    for one in [open_knob(uri) for uri in uris]:
        with one:
            reading = one.read()
            troubles += reading.trouble is not None
            _tell_reading(reading, one.unit, output)
    return int(troubles > 0)


@knob.command("set")
@click.argument("uri")
@click.argument("value", metavar="WATTS|HERTZ|none")
@click.option("--for", "period", metavar="60s", help="Put back what was found after this time.")
@journals_option
@prints
def set_(*, uri: str, value: str, period: str | None, journals: Path | None, output: str) -> int:
    """Set a limit and read it back; exits with 1 unless it took effect as asked.

    With --for, what was found is put back afterwards, on SIGINT and SIGTERM, and after a kill by
    `wattherd knob restore` or by the next `--for` of the same knob.
    """
    from wattherd.devices.knobs import temporary as borrowing
    from wattherd.devices.knobs.contract import OrderResult
    from wattherd.devices.knobs.registry import open_knob
    from wattherd.units import seconds

    folder = journals or borrowing.default_folder()
    with open_knob(uri) as one:
        asked = _value(value, one.unit)
        if period is None:
            outcome = one.set(asked)
            if outcome.in_force:
                borrowing.forget(uri, folder)
            _tell(outcome, one.unit, output)
            return int(outcome.result is not OrderResult.TOOK_EFFECT)
    return _set_for(uri, asked, seconds(period, field="--for"), folder, output)


@knob.command("switch")
@click.argument("uri")
@click.argument("position", type=click.Choice(["on", "off"]), required=False)
@prints
def switch(*, uri: str, position: str | None, output: str) -> int:
    """Tell whether a node has power, or switch it `on` or `off` and read that back.

    Exits with 1 if it did not answer or did not follow. Off ends whatever runs there.
    """
    from wattherd.devices.knobs.contract import OrderResult
    from wattherd.devices.knobs.registry import open_switch

    outlet = open_switch(uri)
    found = outlet.read() if position is None else outlet.turn(on=position == "on")
    _tell_position(found, output)
    return int(found.on is None or found.result not in (None, OrderResult.TOOK_EFFECT))


@knob.command("restore")
@journals_option
@prints
def restore(*, journals: Path | None, output: str) -> int:
    """Put back what killed processes left changed; exits with 1 if one could not be."""
    from wattherd.devices.knobs import temporary as borrowing
    from wattherd.devices.knobs.registry import open_knob

    outcomes = borrowing.settle_debts(journals or borrowing.default_folder())
    for outcome in outcomes:
        _tell(outcome, open_knob(outcome.knob).unit, output)
    return int(not all(outcome.in_force for outcome in outcomes))


@knob.command("probe")
@click.argument("uris", metavar="[URI...]", nargs=-1)
@lists
def probe(*, uris: tuple[str, ...], output: str) -> int:
    """Tell what knobs can be set to, and whether we may; nothing is set.

    Without a URI, looks for the knobs of this machine and lists the protocols there are. Exits
    with 1 if a named knob does not answer.
    """
    from wattherd.devices.knobs import probing

    document = probing.document(uris or probing.local_uris())
    if not printed(document, output):
        _show(document)
    return int(bool(uris) and any(found["trouble"] for found in document["knobs"]))


def _set_for(uri: str, asked: float, period_s: float, folder: Path, output: str) -> int:
    from wattherd.devices.knobs import temporary as borrowing
    from wattherd.devices.knobs.contract import OrderResult

    outcomes: list[OrderOutcome] = []
    ended = _told_to_end()
    with borrowing.borrowed(uri, folder, outcomes.append) as one:
        outcomes.append(one.set(asked))
        _tell(outcomes[0], one.unit, output)
        if outcomes[0].in_force:
            ended.wait(period_s)
    _tell(outcomes[-1], one.unit, output)
    return int(any(outcome.result is not OrderResult.TOOK_EFFECT for outcome in outcomes))


def _told_to_end() -> threading.Event:
    """Set by the signals that would end this process, which has a knob to put back first."""
    ended = threading.Event()
    set_on(dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), ended))
    return ended


def _value(text: str, unit: KnobUnit) -> float:
    from wattherd.devices.knobs.contract import NO_LIMIT
    from wattherd.units import hertz, watts

    if text == "none":
        return NO_LIMIT
    return watts(text, field="WATTS") if unit == "W" else hertz(text, field="HERTZ")


def _tell_reading(reading: KnobReading, unit: KnobUnit, output: str) -> None:
    from wattherd.devices.knobs.contract import NO_LIMIT
    from wattherd.devices.knobs.probing import finite

    limited = None if reading.value is None else reading.value != NO_LIMIT
    if printed(
        {
            "schema": SCHEMA,
            "knob": reading.knob,
            "unit": unit,
            "value": finite(reading.value),
            "limited": limited,
            "trouble": reading.trouble,
            "problem": reading.problem or None,
        },
        output,
    ):
        return
    if reading.value is None:
        click.echo(f"wattherd: {reading.knob}: {reading.trouble}: {reading.problem}", err=True)
    else:
        click.echo(f"{_plain(reading.value, unit):>12}  {reading.knob}")


def _tell(outcome: OrderOutcome, unit: KnobUnit, output: str) -> None:
    from wattherd.devices.knobs.probing import finite

    if printed(
        {
            "schema": SCHEMA,
            "knob": outcome.knob,
            "unit": unit,
            "result": outcome.result,
            "requested": finite(outcome.requested),
            "read_back": finite(outcome.read_back),
            "trouble": outcome.trouble,
            "problem": outcome.problem or None,
        },
        output,
    ):
        return
    problem = f" ({outcome.problem})" if outcome.problem else ""
    value = "" if outcome.read_back is None else f"  {_plain(outcome.read_back, unit)}"
    click.echo(f"{outcome.result}{value}  {outcome.knob}{problem}", err=not outcome.in_force)


def _tell_position(found: Position, output: str) -> None:
    if printed(
        {
            "schema": SWITCH_SCHEMA,
            "switch": found.switch,
            "on": found.on,
            "result": found.result,
            "trouble": found.trouble,
            "problem": found.problem or None,
        },
        output,
    ):
        return
    state = {True: "on", False: "off", None: f"{found.trouble}: {found.problem}"}[found.on]
    result = f"  {found.result}" if found.result else ""
    click.echo(f"{state}{result}  {found.switch}", err=found.on is None)


def _plain(value: float | None, unit: str) -> str:
    from wattherd.devices.knobs.contract import NO_LIMIT
    from wattherd.units import show_hertz, show_watts

    if value is None:
        return "-"
    if value == NO_LIMIT:
        return "no limit"
    return show_watts(value) if unit == "W" else show_hertz(value)


def _show(document: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    rows = [
        [
            found["knob"],
            "no limit" if found["limited"] is False else _plain(found["now"], found["unit"]),
            *(_plain(found[name], found["unit"]) for name in ("lowest", "highest", "default")),
            {True: "yes", False: "no", None: "ask it"}[found["may_set"]],
            f"{found['trouble']}: {found['problem']}" if found["trouble"] else "",
        ]
        for found in document["knobs"]
    ]
    if rows:
        print_table(["KNOB", "NOW", "LOWEST", "HIGHEST", "DEFAULT", "MAY SET", "STATE"], rows)
        click.echo()
    kinds = [[kind["scheme"], "yes" if kind["installed"] else "no",
              "yes" if kind["switches"] else "", kind["example"]]
             for kind in document["protocols"]]  # fmt: skip
    print_table(["PROTOCOL", "INSTALLED", "SWITCHES", "EXAMPLE"], kinds)
