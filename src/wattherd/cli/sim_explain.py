"""`wattherd sim explain`: what became of one job of a simulated run, and why it waited."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from wattherd.cli.output import printed, prints
from wattherd.cli.run_document import read_document
from wattherd.errors import UserError


@click.command("explain")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.argument("job")
@click.option("--policy", help="Under which policy.  [default: the first of the directory]")
@prints
def explain(*, directory: Path, job: str, policy: str | None, output: str) -> None:
    """Tell the story of JOB in the run that DIRECTORY holds (`sim run --out DIRECTORY`)."""
    from wattherd.experiments.schedule.explain import explain as account_of
    from wattherd.experiments.schedule.explain import explain_document
    from wattherd.experiments.schedule.replay import fresh_core
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
    _show(job, chosen, explain_document(account, chosen))


def _show(job: str, policy: str, told: Mapping[str, Any]) -> None:
    from wattherd.units import show_seconds

    click.echo(f"{job} under {policy}: {told['state']}")
    for line in told["story"]:
        click.echo(f"{line['at_s']:>12,.0f} s  {line['what']}")
    waited = [f"{show_seconds(s)} {code}" for code, s in told["waited_s"].items() if s > 0]
    click.echo(f"waited {', '.join(waited) if waited else 'not at all'}")
