"""`wattherd sim replay`: a recorded run again, the same or with something changed.

A run directory of the simulator must give the same commands. The store of a service is lived
through once more under another policy or budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import command_line, parse_policies
from wattherd.cli.output import printed, prints
from wattherd.cli.run_document import read_document
from wattherd.errors import UserError

SCHEMA = "wattherd.what-if/1"


@click.command("replay")
@click.argument("source", metavar="DIRECTORY|STATE|URL")
@click.option("--policy", metavar="A,B,…", help="Only these.  [default: as it was]")
@click.option("--budget", help="0.9x of what it was, 40kW, or none; of a service's store only.")
@click.option("--power", help="How watts are shared; of a service's store only.")
@prints
def replay(
    *, source: str, policy: str | None, budget: str | None, power: str | None, output: str
) -> int:
    """Replay what happened.

    DIRECTORY was written by `sim run --out`: a fresh core must give the same commands; exit code 1
    if one differs. STATE is the folder of a service, URL its database: yesterday's jobs are
    simulated under another policy, budget or way of sharing watts, and compared with how it was.
    """
    url = _store_url(source)
    if url is not None:
        _what_if(url, policy, budget, power, output)
        return 0
    if budget or power:
        hint = "`wattherd sim run` takes other budgets"
        raise UserError("is a run of the simulator", where=source, field="--budget", hint=hint)
    return _again(Path(source), policy)


def _store_url(source: str) -> str | None:
    """The URL of a service's store; None for a directory of the simulator."""
    if "://" in source:
        return source
    if not (Path(source) / "journal.sqlite").is_file():
        return None
    return f"sqlite:///{Path(source) / 'journal.sqlite'}"


def _again(directory: Path, policy: str | None) -> int:
    from wattherd.experiments.schedule.replay import replayed_digest
    from wattherd.store.event_log import read_log

    given = read_document(directory)
    names = parse_policies(policy) if policy else [str(row["policy"]) for row in given["policies"]]
    differing = 0
    for name in names:
        events, recorded = read_log(directory / f"log-{name}.jsonl.gz")
        again = replayed_digest(given, name, events)
        differing += again != recorded
        verdict = "same" if again == recorded else "DIFFERENT"
        click.echo(f"{name}: {len(events)} events, commands {again[:16]}, {verdict}")
    return 1 if differing else 0


def _what_if(
    url: str, policy: str | None, budget: str | None, power: str | None, output: str
) -> None:
    try:
        from wattherd.server.recovery.what_if import WhatIfChange, read_past, what_if
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    policies = tuple(parse_policies(policy)) if policy else ()
    past = read_past(url)
    rows = what_if(past, WhatIfChange(policies=policies, budget=budget, power=power))
    document = {"schema": SCHEMA, "command": command_line(), "work": dict(past.bases)}
    if printed({**document, "runs": rows}, output):
        return
    _show(rows, past.bases)


def _show(rows: Sequence[Mapping[str, Any]], bases: Mapping[str, int]) -> None:
    from wattherd.cli.tables import print_table

    head = ["POLICY", "BUDGET", "POWER", "FINISHED", "AVG JCT", "P99", "ENERGY kJ", "OVER s"]
    print_table(head, [_line(row) for row in rows], right_from=3)
    known = ", ".join(f"{count} {basis}" for basis, count in bases.items())
    click.echo(f"work of jobs: {known}")
    click.echo(
        "simulated: jobs stop without loss, and devices draw what their caps allow, busy or not"
    )


def _line(row: Mapping[str, Any]) -> list[str]:
    from wattherd.units import show_seconds

    over_s = row["over_budget_s"]
    return [
        str(row["policy"]),
        str(row["budget"]),
        str(row["power"]),
        f"{row['finished']}/{row['jobs']}",
        "–" if row["avg_jct_s"] is None else show_seconds(row["avg_jct_s"]),
        "–" if row["p99_jct_s"] is None else show_seconds(row["p99_jct_s"]),
        f"{sum(row['energy_j'].values()) / 1e3:,.1f}",
        "–" if over_s is None else f"{over_s:,.1f}",
    ]
