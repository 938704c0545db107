"""Replay: the same events into a fresh core, without any world, must give the same commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from wattherd.engine.core.core import Core
from wattherd.errors import UserError
from wattherd.experiments.schedule.run import core_config
from wattherd.experiments.schedule.setup import setting_of
from wattherd.model.command import Command
from wattherd.model.event import Event
from wattherd.store.event_log import digest
from wattherd.workload.scenario import validated


def fresh_core(document: Mapping[str, Any], policy: str) -> Core:
    """A core set up as a `wattherd.sim/1` document says.

    Raises:
        UserError: the document holds no scenario, or a file that it names is gone.
    """
    if "scenario" not in document:
        raise UserError("holds no scenario", where="sim.json", hint="written by an older version?")
    scenario = validated(document["scenario"], "sim.json")
    setting = setting_of(scenario, budget=scenario.budgets[0], power=scenario.power[0])
    setting = replace(setting, sets_aside=document.get("rules", 0) >= 1)
    return Core(core_config(setting, setting.preset.scheduler(policy, setting.given)))


def replayed_digest(document: Mapping[str, Any], policy: str, events: Iterable[Event]) -> str:
    """Digest of the commands that a fresh core gives."""
    core = fresh_core(document, policy)
    commands: list[Command] = []
    for event in events:
        commands.extend(core.handle(event))
    return digest(commands)
