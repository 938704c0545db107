"""What a node is within: its own limit and meter, and those of the rack that it hangs on.

Meters are asked beside the round, so that a slow one delays no cap. Their timestamps are turned
into ages at once: a clock that is set anew makes no reading old.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from wattherd.devices.meters.contract import Quality
from wattherd.devices.meters.registry import open_meter
from wattherd.devices.wire.device_errors import DeviceError
from wattherd.hold.lines import InstrumentLine, is_concurrent, poll_all, wait_for
from wattherd.kube.decide.node_loop import LevelReading, NodeSurroundings

WAIT_S = 0.25
"""For so long a round waits for these meters; later answers count the next time."""


class LevelMeter:
    """A meter by its address, asked beside the round."""

    def __init__(self, uri: str) -> None:
        """Nothing is asked yet.

        Raises:
            UserError: the address cannot be used.
        """
        self._meter = open_meter(uri)
        self.line: InstrumentLine[LevelReading] = InstrumentLine(
            self._ask, is_concurrent(self._meter.driver)
        )
        self._told_at_s = math.nan
        self._at_s = math.nan

    @property
    def reading(self) -> LevelReading:
        """Its last answer; the loop judges how old that may be."""
        return LevelReading() if self.line.answer is None else self.line.answer.value

    def close(self) -> None:
        """Let go."""
        self._meter.close()

    def _ask(self) -> LevelReading:
        try:
            told = self._meter.read()
        except DeviceError:
            return LevelReading()
        if told.quality is Quality.STALE:
            return LevelReading()
        if told.at_s != self._told_at_s:
            self._told_at_s = told.at_s
            self._at_s = time.monotonic() - max(time.time() - told.at_s, 0.0)
        return LevelReading(told.watts, self._at_s)


@dataclass(slots=True)
class NodeAround:
    """Limits as they were stated, and the meters of node and rack."""

    stated: NodeSurroundings = field(default_factory=NodeSurroundings)
    node: LevelMeter | None = None
    rack: LevelMeter | None = None

    def poll(self) -> None:
        """Ask both, and wait for a moment."""
        lines = [one.line for one in (self.node, self.rack) if one is not None]
        if lines:
            poll_all(lines)
            wait_for(lines, time.monotonic() + WAIT_S)

    def readings(self) -> tuple[LevelReading, LevelReading]:
        """Of the node and of the rack."""
        node, rack = self.node, self.rack
        nothing = LevelReading()
        return (
            nothing if node is None else node.reading,
            nothing if rack is None else rack.reading,
        )

    def close(self) -> None:
        """Let go of the meters."""
        for one in (self.node, self.rack):
            if one is not None:
                one.close()
