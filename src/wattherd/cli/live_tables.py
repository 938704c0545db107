"""How a service's documents look in a terminal; tables fit a hundred columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from wattherd.cli.output import show
from wattherd.errors import UserError
from wattherd.spelling import hint_for
from wattherd.units import counted, show_seconds

SORT: Callable[[Any], Any] = click.option(
    "--sort", "by", default="", metavar="FIELD", help="A field of -o json; -FIELD: greatest first."
)


def ordered(rows: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows by a field of theirs, from the greatest down if it begins with `-`; None comes last.

    Raises:
        UserError: no row has such a field, or it holds more than one value.
    """
    field = by.removeprefix("-")
    if not by or not rows:
        return list(rows)
    known = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
    if field not in known:
        hint = hint_for(field, known)
        raise UserError(f"cannot sort by {field!r}", field="--sort", hint=hint)
    told = sorted((row for row in rows if row[field] is not None), key=lambda row: row[field])
    rest = [row for row in rows if row[field] is None]
    return [*(reversed(told) if by.startswith("-") else told), *rest]


def show_jobs(
    rows: Sequence[Mapping[str, Any]], *, wide: bool = False, fit: bool | None = None
) -> None:
    """ID NAME USER STATE GPUS WATTS TIME DONE LEFT WHERE/WHY; `wide` adds columns at the end."""
    from wattherd.cli.tables import print_table

    head = ["ID", "NAME", "USER", "STATE", "GPUS", "WATTS", "TIME", "DONE", "LEFT", "WHERE/WHY"]
    if wide:
        head += ["QUEUE", "PRIO", "CAP W", "KJ", "SUBMITTED"]
    lines = [_line(row, wide=wide) for row in rows]
    currencies = {row["bill"]["currency"] for row in rows if row.get("bill")}
    if wide and currencies:
        one = next(iter(currencies)) if len(currencies) == 1 else ""
        head += [f"COST {one}".strip(), "KGCO2E"]
        several = len(currencies) > 1
        cells = [bill_cells(row.get("bill"), named=several) for row in rows]
        lines = [line + more for line, more in zip(lines, cells, strict=True)]
    print_table(head, lines, fit=not wide if fit is None else fit)


def _line(row: Mapping[str, Any], *, wide: bool) -> list[str]:
    line = [
        row["id"],
        row["name"] or "-",
        row["user"] or "-",
        row["state"],
        f"{row['tasks']}x{row['gpus']}" if row.get("tasks") else str(row["gpus"]),
        _number(row["watts"], 1),
        _duration(row["started"], row["finished"]),
        _done(row),
        "-" if row["remaining_s"] is None else show_seconds(row["remaining_s"]),
        where_or_why(row),
    ]
    if wide:
        line += [
            row["queue"],
            str(row["priority"]),
            _number(row["cap_w"], 1),
            _number(row["energy_j"] / 1e3, 2),
            row["submitted"][:19].replace("T", " "),
        ]
    return line


def bill_cells(bill: Mapping[str, Any] | None, *, named: bool = False) -> list[str]:
    """Cost and emissions; `~` where a part of the energy was drawn at unknown rates."""
    if bill is None:
        return ["-", "-"]
    cost = _at_least(bill["cost"], bill["unpriced_j"])
    return [
        f"{cost} {bill['currency']}" if named and cost != "-" else cost,
        _at_least(bill["co2e_kg"], bill["unrated_j"]),
    ]


def _at_least(value: float | None, unknown_j: float) -> str:
    """A sum of what is known. Prices may be below zero, but what is missing is said either way."""
    return "-" if value is None else f"{'~' if unknown_j else ''}{value:,.4f}"


def _done(row: Mapping[str, Any]) -> str:
    """Percent of what there is to do, or how much is done where it was not said of how much."""
    if row["state"] == "Succeeded":
        return "100%"
    if row["total"] and row["progress"] is not None:
        return f"{min(row['progress'] / row['total'], 1.0):.0%}"
    return _number(row["progress"] or None, 0)


def where_or_why(row: Mapping[str, Any]) -> str:
    """Where it runs, or why it does not."""
    if row["where"]:
        parts = (f"{one['node']}[{','.join(map(str, one['gpus']))}]" for one in row["where"])
        return " ".join(parts)
    reason = (row["reason"] or {}).get("text", "")
    place = f"#{row['position']} " if row.get("position") else ""
    return f"{place}{reason}" or "-"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _duration(started: str | None, finished: str | None) -> str:
    if started is None:
        return "-"
    end = datetime.fromisoformat(finished) if finished else datetime.now(UTC)
    return show_seconds(max(0.0, (end - datetime.fromisoformat(started)).total_seconds()))


def show_job(job: Mapping[str, Any], server: str = "") -> None:
    """One job of `server`, a line for each thing known of it."""
    show_jobs([job], wide=True, fit=True)
    for warning in job.get("unenforced", ()):
        click.echo(f"warning: {warning}")
    if job.get("undelivered"):
        click.echo(f"warning: {job['undelivered']}")
    spec = job["spec"]
    for role in spec["roles"]:
        click.echo(f"{role['name']}: {role['count']} x {' '.join(role['command'])}")
    times = {"expected": spec["expected_s"], "limit": spec["time_limit_s"]}
    numbers = {"attempts": job["attempts"], "exit code": job["exit_code"], "loss": job["loss"]}
    known = {
        **{name: show_seconds(span_s) for name, span_s in times.items() if span_s is not None},
        **{name: f"{value:g}" for name, value in numbers.items() if value is not None},
    }
    click.echo("  ".join(f"{name} {text}" for name, text in known.items()))
    if job.get("speed"):
        _show_speed(job["speed"])
    if job.get("app"):
        click.echo(f"{job['app']['kind']}: {server}{job['app']['path']}")
    _show_story(job["story"])


def states_text(states: Mapping[str, int]) -> str:
    """How many tasks are in which state."""
    return ", ".join(f"{state} {count}" for state, count in sorted(states.items()))


def show_array_explanation(told: Mapping[str, Any]) -> None:
    """How many tasks run, and what the next one waits for."""
    at_a_time = "" if told["most"] is None else f", {told['most']} at a time"
    name = f" {told['name']}" if told["name"] else ""
    click.echo(f"{told['id']}{name}: {states_text(told['states'])}{at_a_time}")
    if told["running"]:
        shown, more = told["running"][:8], len(told["running"]) - 8
        click.echo(f"  running: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}")
    if told["next"] is None:
        click.echo("  no task waits")
        return
    click.echo(f"  next: {told['next']}")
    for hint in told["would_help"]:
        click.echo(f"  {hint}")
    show_explanation(told["explanation"])


def show_array(array: Mapping[str, Any]) -> None:
    """An array in a few lines, and its tasks."""
    from wattherd.cli.tables import print_table

    at_a_time = f", {array['most']} at a time" if array["most"] else ""
    name = f" {array['name']}" if array["name"] else ""
    click.echo(f"{array['id']}{name}: {array['count']} tasks ({array['indices']}){at_a_time}")
    for axis, values in array["grid"].items():
        click.echo(f"  {axis}: {', '.join(values)}")
    click.echo(f"  {states_text(array['states'])}")
    rows = [[one["task"], one["id"], one["state"]] for one in array["tasks"]]
    print_table(["TASK", "ID", "STATE"], rows)


def _show_speed(speed: Mapping[str, Any]) -> None:
    """Step times as measured, and what is expected where; nothing where there is nothing to say."""
    from wattherd.cli.tables import print_table

    if speed["measured"]:
        rows = [
            [
                one["of"], one["gpu_model"], str(one["gpus"]), _number(one["batch"], 0),
                _number(one["cap_w"], 1), f"{one['step_s']:.3g}", f"{one['uncapped_step_s']:.3g}",
                str(one["count"]),
            ]
            for one in speed["measured"]
        ]  # fmt: skip
        print_table(
            ["MEASURED", "MODEL", "GPUS", "BATCH", "CAP W", "STEP S", "UNCAPPED S", "COUNT"], rows
        )
    if len(speed["expected"]) > 1:
        rows = [
            [
                one["gpu_model"], f"{one['times']:.3g} x",
                "-" if one["step_s"] is None else f"{one['step_s']:.3g}", one["source"],
            ]
            for one in speed["expected"]
        ]  # fmt: skip
        print_table(["EXPECTED ON", "SPEED", "STEP S", "SOURCE"], rows)


def _show_story(story: Sequence[Mapping[str, Any]]) -> None:
    for entry in story:
        click.echo(f"{entry['at'][11:19]}  {entry['what']}  {entry['cause']}".rstrip())


def show_explanation(told: Mapping[str, Any]) -> None:
    """State, what it waits for, what would help, and what was decided about it."""
    place = f", #{told['position']} in queue" if told.get("position") else ""
    click.echo(f"{told['id']}: {told['state']}{place}")
    if told["reason"]:
        click.echo(f"  {told['reason']['text']}")
    for hint in told["would_help"]:
        click.echo(f"  {hint}")
    for line in told.get("speed", ()):
        click.echo(f"  {line}")
    for one in told.get("holders", ()):
        click.echo(f"  {_holder(one)}")
    for line in told.get("log", ()):
        click.echo(f"  | {line}")
    _show_story(told["story"])


def _holder(one: Mapping[str, Any]) -> str:
    """Who holds what, and until about when, in the time of who reads it."""
    from datetime import datetime

    watts = "" if one["watts"] is None else f" ({one['watts']:,.0f} W)"
    held = f"{one['id']} holds {counted(one['gpus'], 'GPU')}{watts}"
    if one["until"] is None:
        return f"{held}; until when is not known"
    end = datetime.fromisoformat(one["until"]).astimezone()
    return f"{held} until about {end:%Y-%m-%d %H:%M:%S} (by its {one['basis']})"


def show_candidates(document: Mapping[str, Any], output: str) -> None:
    """What a job could get, and what was chosen."""
    from wattherd.cli.tables import print_table

    def table() -> None:
        rows = [
            [
                one["placement"],
                _number(one["cap_w"], 0),
                "-" if one["time_s"] is None else show_seconds(one["time_s"]),
                _number(one["slowdown"], 2),
                "-" if one["energy_j"] is None else f"{one['energy_j'] / 3.6e6:,.3f}",
                one["start"],
                "✔" if one["chosen"] else "",
            ]
            for one in document["candidates"]
        ]
        head = ["PLACEMENT", "CAP W", "EST.TIME", "SLOWDOWN", "EST.KWH", "START", "CHOSEN"]
        if rows:
            print_table(head, rows)
        click.echo(document["why"])

    show(document, output, table)
