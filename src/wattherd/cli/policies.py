"""`wattherd policies`: what can be named where a policy is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from wattherd.cli.output import lists, printed
from wattherd.errors import UserError
from wattherd.policy.place.contract import Scorer

SHELLS = ["sim", "local", "kube"]
"""Where policies run: `sim run`, `serve`, `kube scheduler`. Who runs live runs in both of these."""


@click.command()
@lists
def policies(*, output: str) -> None:
    """List placement policies, schedulers of training jobs, and ways of sharing power.

    Then comes what else installed packages add: meters, knobs, signals, file formats, reports.
    """
    document = {
        "schema": "wattherd.policies/1",
        "place": _placement(),
        "schedulers": _schedulers(),
        "power": _power(),
        "others": _others(),
    }
    if printed(document, output):
        return
    _show(document)


def _placement() -> list[dict[str, Any]]:
    from wattherd.experiments.placement.policies import scorers

    known = scorers()
    return [_scorer(known, name) for name in known]


def _scorer(known: Mapping[str, Scorer], name: str) -> dict[str, Any]:
    """One that a package announces and that cannot be had says why in its place."""
    try:
        scorer = known[name]
    except UserError as error:
        return {"name": name, "about": error.line(), "options": []}
    options = [*scorer.tokens, *(f"{option}=NUMBER" for option in scorer.options)]
    return {"name": name, "about": scorer.doc, "options": options}


def _schedulers() -> list[dict[str, Any]]:
    from wattherd.experiments.schedule.descriptions import SCHEDULER_NOTES
    from wattherd.experiments.schedule.live import live_schedulers
    from wattherd.experiments.schedule.plugin_policies import notes
    from wattherd.experiments.schedule.simulators import PRESETS

    names = sorted({name for preset in PRESETS.values() for name in preset.schedulers})
    live = live_schedulers()
    told = {**notes("schedule"), **SCHEDULER_NOTES}
    return [
        {
            "name": name,
            "about": told[name],
            "presets": [key for key, preset in PRESETS.items() if name in preset.schedulers],
            "shells": SHELLS if name in live else SHELLS[:1],
        }
        for name in names
    ]


def _power() -> list[dict[str, Any]]:
    from wattherd.experiments.schedule.descriptions import POWER_NOTES
    from wattherd.experiments.schedule.plugin_policies import notes
    from wattherd.experiments.schedule.run import POWER_POLICIES

    told = {**notes("power"), **POWER_NOTES}

    return [
        {"name": name, "about": told[name], "shells": SHELLS} for name in sorted(POWER_POLICIES)
    ]


def _others() -> list[dict[str, Any]]:
    """What packages add that is no policy."""
    from wattherd.plugins import SEAMS, announced, told_of

    return [
        {"seam": seam, "name": name, "about": told_of(seam, name)}
        for seam in SEAMS
        if seam not in ("place", "schedule", "power")
        for name in sorted(announced(seam))
    ]


def _show(found: dict[str, Any]) -> None:
    from wattherd.cli.tables import print_table

    place = [[one["name"], one["about"], " ".join(one["options"])] for one in found["place"]]
    print_table(["PLACEMENT", "WHAT IT DOES", "OPTIONS"], place)
    click.echo("\nOptions follow the name: fgd@exact. Blends: pwr+fgd:0.1 weighs them 100 to 900.")
    click.echo()
    schedulers = [
        [one["name"], one["about"], " ".join(one["shells"]), " ".join(one["presets"])]
        for one in found["schedulers"]
    ]
    print_table(["SCHEDULER", "WHAT IT DOES", "SHELLS", "PRESETS"], schedulers)
    click.echo()
    power = [[one["name"], one["about"], " ".join(one["shells"])] for one in found["power"]]
    print_table(["POWER", "WHAT IT DOES", "SHELLS"], power)
    if found["others"]:
        click.echo()
        others = [[one["name"], one["seam"], one["about"]] for one in found["others"]]
        print_table(["OF PACKAGES", "SEAM", "WHAT IT IS"], others)
