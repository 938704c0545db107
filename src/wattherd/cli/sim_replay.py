"""`wattherd sim replay`: feed a recorded log to a fresh core; the commands must be the same."""

from __future__ import annotations

from pathlib import Path

import click

from wattherd.cli.run_document import read_document


@click.command("replay")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--policy", help="Only this one.  [default: all in the directory]")
def replay(*, directory: Path, policy: str | None) -> int:
    """Replay the logs in DIRECTORY (written by `sim run --out`); exit code 1 if one differs."""
    from wattherd.service.replay import replayed_digest
    from wattherd.store.event_log import read_log

    given = read_document(directory)
    names = [policy] if policy else [str(row["policy"]) for row in given["policies"]]
    differing = 0
    for name in names:
        events, recorded = read_log(directory / f"log-{name}.jsonl.gz")
        again = replayed_digest(given, name, events)
        differing += again != recorded
        verdict = "same" if again == recorded else "DIFFERENT"
        click.echo(f"{name}: {len(events)} events, commands {again[:16]}, {verdict}")
    return 1 if differing else 0
