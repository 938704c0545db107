"""`wattherd schema`: JSON Schemas of what users write and of what is kept."""

from __future__ import annotations

import json
from typing import Any

import click


def _job() -> dict[str, Any]:
    from wattherd.workload.job_file import JobFile

    return JobFile.model_json_schema()


def _scenario() -> dict[str, Any]:
    from wattherd.workload.scenario import Scenario

    return Scenario.model_json_schema()


def _serve() -> dict[str, Any]:
    from wattherd.server.settings.config import ServeConfig

    return ServeConfig.model_json_schema()


def _journal() -> dict[str, Any]:
    from wattherd.store.event_schema import journal_schema

    return journal_schema()


KINDS = {"job": _job, "scenario": _scenario, "serve": _serve, "journal": _journal}


@click.command("schema")
@click.argument("kind", type=click.Choice(list(KINDS)), default="job")
def schema(*, kind: str) -> None:
    """Print a JSON Schema, for editors: of job files unless another KIND is named.

    `serve` is the configuration of a service, `journal` has every kind of event and order.
    """
    click.echo(json.dumps(KINDS[kind](), indent=2))
