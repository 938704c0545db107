"""`wattherd sim schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import json

import click


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from wattherd.workload.scenario import Scenario

    click.echo(json.dumps(Scenario.model_json_schema(), indent=2))
