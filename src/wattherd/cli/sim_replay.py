"""`wattherd sim replay` and `sim explain`: a recorded run again, or what became of one of its jobs.

A run directory of the simulator must give the same commands. The store of a service is lived
through once more under another policy or budget.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from wattherd.cli.options import command_line, parse_policies
from wattherd.cli.output import printed, prints
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
    from wattherd.experiments.schedule.explain import replayed_digest
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


def read_document(directory: Path) -> dict[str, Any]:
    """The `wattherd.sim/1` document of a run directory.

    Raises:
        UserError: there is none, or it is unreadable.
    """
    try:
        document: dict[str, Any] = json.loads((directory / "sim.json").read_text())
    except (OSError, ValueError):
        hint = "`wattherd sim run --out DIR` writes it"
        raise UserError("no readable sim.json", where=str(directory), hint=hint) from None
    return document


@click.command("explain")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("job")
@click.option("--policy", help="Under which policy.  [default: the first of the directory]")
@prints
def explain(*, directory: Path, job: str, policy: str | None, output: str) -> None:
    """Tell the story of JOB in the run that DIRECTORY holds (`sim run --out DIRECTORY`)."""
    from wattherd.experiments.schedule.explain import explain as account_of
    from wattherd.experiments.schedule.explain import explain_document, fresh_core
    from wattherd.spelling import hint_for
    from wattherd.store.event_log import read_log

    document = read_document(directory)
    names = [str(row["policy"]) for row in document["policies"]]
    chosen = policy or names[0]
    if chosen not in names:
        hint = hint_for(chosen, names)
        raise UserError(f"{chosen!r} was not run here", field="--policy", hint=hint)
    path = directory / f"log-{chosen}.jsonl.gz"
    if not path.exists():
        raise UserError("no log", where=str(path), hint="run it again without --no-log")
    events, _ = read_log(path)
    account = account_of(fresh_core(document, chosen), events, job)
    if printed(explain_document(account, chosen), output):
        return
    click.echo(f"{job} under {chosen}: {account.state}")
    for line in account.text():
        click.echo(line)
