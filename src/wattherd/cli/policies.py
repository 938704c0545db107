"""`wattherd policies`: what can be named where a policy is asked for."""

from __future__ import annotations

import json

import click

from wattherd.cli.options import output_option


@click.command()
@output_option
def policies(*, output: str) -> None:
    """List the policies and their options."""
    from wattherd.service.compose import scorers

    found = [
        {
            "name": scorer.name,
            "about": scorer.doc,
            "options": [*scorer.tokens, *(f"{name}=NUMBER" for name in scorer.options)],
        }
        for scorer in scorers().values()
    ]
    if output == "json":
        click.echo(json.dumps({"schema": "wattherd.policies/1", "place": found}))
        return
    from wattherd.cli.tables import print_table

    rows = [[str(one["name"]), str(one["about"]), " ".join(one["options"])] for one in found]
    print_table(["POLICY", "WHAT IT DOES", "OPTIONS"], rows)
    click.echo("\nOptions follow the name: fgd@exact. Blends: pwr+fgd:0.1 weighs them 100 to 900.")
