"""Replay: the same events into a fresh core, without any world, must give the same commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wattherd.catalog.gpus import GPUS
from wattherd.engine.core import Core
from wattherd.model.command import Command
from wattherd.model.event import Event
from wattherd.service.presets import preset
from wattherd.service.schedule import core_config
from wattherd.service.workloads import read_profiles
from wattherd.store.event_log import digest
from wattherd.workload.cluster_text import parse_cluster


def replayed_digest(given: Mapping[str, Any], policy: str, events: Iterable[Event]) -> str:
    """Digest of the commands of a fresh core, set up as a `wattherd.sim/1` document says."""
    chosen = preset(str(given["preset"]))
    jobs = read_profiles(str(given["format"]), _path(given["profiles"]))
    config = core_config(
        parse_cluster(str(given["cluster"]), known=GPUS),
        chosen.planner(policy, jobs),
        chosen.round_s,
        str(given["power"]),
    )
    core = Core(config)
    commands: list[Command] = []
    for event in events:
        commands.extend(core.handle(event))
    return digest(commands)


def _path(text: object) -> Path | None:
    return Path(str(text)) if text else None
