"""`wattherd schema`: the JSON Schema of job files, for editors."""

from __future__ import annotations

import json

import click


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of job files."""
    from wattherd.workload.job_file import JobFile

    click.echo(json.dumps(JobFile.model_json_schema(), indent=2))
