"""`wattherd sim replay`: feed a recorded log to a fresh core; the commands must be the same."""

from __future__ import annotations

import json
from pathlib import Path

import click

from wattherd.errors import UserError


@click.command("replay")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--policy", help="Only this one.  [default: all in the directory]")
def replay(*, directory: Path, policy: str | None) -> int:
    """Replay the logs in DIRECTORY (written by `sim run --log`); exit code 1 if one differs."""
    from wattherd.service.replay import replayed_digest
    from wattherd.store.event_log import read_log

    given = _given(directory)
    names = [policy] if policy else [str(row["policy"]) for row in given["policies"]]
    differing = 0
    for name in names:
        events, recorded = read_log(directory / f"log-{name}.jsonl.gz")
        again = replayed_digest(given, name, events)
        differing += again != recorded
        verdict = "same" if again == recorded else "DIFFERENT"
        click.echo(f"{name}: {len(events)} events, commands {again[:16]}, {verdict}")
    return 1 if differing else 0


def _given(directory: Path) -> dict[str, list[dict[str, object]]]:
    path = directory / "sim.json"
    try:
        document: dict[str, list[dict[str, object]]] = json.loads(path.read_text())
    except (OSError, ValueError):
        hint = "`wattherd sim run --out DIR --log` writes it"
        raise UserError("no readable sim.json", where=str(directory), hint=hint) from None
    return document
