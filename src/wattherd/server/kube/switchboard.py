"""Switches of nodes by name, as a file lists them: `NODE: ADDRESS` in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattherd.devices.knobs.contract import OrderResult
from wattherd.devices.knobs.registry import open_switch
from wattherd.devices.knobs.switch import Switch
from wattherd.errors import UserError
from wattherd.workload.scenario import load


@dataclass(frozen=True, slots=True)
class Switchboard:
    """Implements `kube.live.pools.Switches` for switches behind addresses."""

    switches: Mapping[str, Switch]

    def turn(self, node: str, *, on: bool) -> str:
        """Switch it and read that back; empty if it is so, else what is wrong."""
        position = self.switches[node].turn(on=on)
        if position.result is OrderResult.TOOK_EFFECT:
            return ""
        return position.problem or f"it is {'off' if on else 'on'} still"


def read_switches(path: Path) -> Switchboard:
    """The switches of a file; nothing is asked of them yet.

    Raises:
        UserError: the file cannot be read, or an address cannot be used.
    """
    document = load(path)
    strange = next((name for name, uri in document.items() if not isinstance(uri, str)), None)
    if strange is not None or not document:
        hint = "write NODE: redfish+https://BMC/redfish/v1/Systems/1?credentials=FILE"
        raise UserError("lists no switches", where=str(path), field=strange or "", hint=hint)
    return Switchboard({name: open_switch(uri) for name, uri in document.items()})
