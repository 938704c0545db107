"""The safety loop of one node: its GPUs within what is ordered for each, and the node in its limit.

The same `engine.safety.loop` loop that `power hold` runs. The node is its one feed, and what the
node hangs on (a rack) is its site; both have a limit and a meter as far as the agent was told of
any. All that a meter shows beside the GPUs is other load: processors, fans, losses, and at the rack
the other nodes. Orders of whoever leads are the most that each GPU may draw.

GPUs of which nobody asks anything are left alone while no limit is to be kept: the loop reads them,
and takes what they hold for what was ordered. With a limit it orders all of them, never above what
they were found with. Reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattherd.engine.safety.contract import Floats, SafetyNote
from wattherd.engine.safety.loop import (
    Breaker,
    Fleet,
    Readings,
    SafetyConfig,
    SafetyLoop,
    SafetyState,
)

NO_LIMIT_W = 1e12
"""Stands for no limit: more than any node draws."""
NODE, RACK = 0, 1
LOOKS_S = 0.5
"""Looks that follow each other faster (two asked at once) tell nothing new of a meter."""
ALARMS = {
    "over-limit": "draws more than its limit",
    "defiant": "does not obey its cap",
    "late": "has not taken its cap",
    "frozen-meter": "has a meter that stands still",
    "floor-not-reached": "does not get as low as its cap",
}
"""Notes of the loop that an operator is told as a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRange:
    """Between which caps a GPU can be held, in what steps, and whether it is metered."""

    uuid: str
    floor_w: float
    max_w: float
    step_w: float = 1.0
    metered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSurroundings:
    """What the agent was told of the node and what it hangs on, in watts.

    `base_w` is other load of the node that is known of beforehand: at least so much is counted.
    """

    limit_w: float = NO_LIMIT_W
    base_w: float = 0.0
    metered: bool = False
    rack_limit_w: float = NO_LIMIT_W
    rack_metered: bool = False


@dataclass(frozen=True, slots=True)
class LevelReading:
    """What a meter of node or rack said, and when, on the loop's clock; NaN for nothing."""

    watts: float = math.nan
    at_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What a GPU holds and draws, NaN where it does not say; `asked_w` is what it may draw."""

    cap_w: float = math.nan
    draw_w: float = math.nan
    asked_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePower:
    """The node as its loop sees it, in watts; None where there is no limit, or no meter.

    `counted_w` is the most that it may draw now, other load included. `gpus_w` is the same for each
    GPU: its cap as read back, or more where draw shows that this does not hold.
    """

    limit_w: float | None = None
    counted_w: float = 0.0
    draw_w: float | None = None
    base_w: float = 0.0
    safe_mode: bool = False
    kinds: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    gpus_w: Mapping[str, float] = field(default_factory=dict)


class NodeLoop:
    """The loop of these GPUs; `state` is what a predecessor of the same GPUs left."""

    def __init__(
        self,
        gpus: Sequence[GpuRange],
        around: NodeSurroundings,
        *,
        config: SafetyConfig | None = None,
        state: SafetyState | None = None,
    ) -> None:
        """Nothing is read yet."""
        self.gpus, self.around = tuple(gpus), around
        self.fleet = _fleet(self.gpus, around)
        self.loop = SafetyLoop(self.fleet, config or SafetyConfig(refresh_s=LOOKS_S), state=state)
        self._limit_w = around.limit_w
        self._read_w: Floats = np.full(len(self.gpus), math.nan)
        self._left_alone = np.ones(len(self.gpus), dtype=np.bool_)
        self._node = LevelReading()

    def cycle(
        self,
        now_s: float,
        found: Mapping[str, GpuReading],
        *,
        limit_w: float = NO_LIMIT_W,
        node: LevelReading = LevelReading(),
        rack: LevelReading = LevelReading(),
    ) -> dict[str, float]:
        """Caps in watts by UUID; GPUs that are left alone have none.

        `limit_w` is the node's as the API has it, beside the one that the agent was told. A GPU
        that `found` does not name does not answer.
        """
        looked = [found.get(one.uuid, GpuReading()) for one in self.gpus]
        read_w = np.array([one.cap_w for one in looked])
        read_w = np.where(np.isinf(read_w), self.fleet.max_w, read_w)
        asked = np.array([math.nan if one.asked_w is None else one.asked_w for one in looked])
        self._read_w, self._node = read_w, node
        self._limit_w = min(limit_w, self.around.limit_w)
        governed = min(self._limit_w, self.around.rack_limit_w) < NO_LIMIT_W
        self._left_alone = np.isnan(asked) & (not governed)
        self._take_as_ordered(self._left_alone, read_w)
        orders = self.loop.cycle(
            self._readings(now_s, looked, read_w, node, rack),
            np.array([self._limit_w, self.around.rack_limit_w]),
            self._most_w(asked, read_w),
        )
        cap_w = orders.cap_w
        if not governed:
            # No limit is in danger: what is asked for holds, whatever is drawn or not read.
            cap_w = np.clip(asked, self.fleet.floor_w, self.fleet.max_w)
            self._take_as_ordered(~self._left_alone, cap_w)
        return {
            gpu.uuid: float(cap_w[row])
            for row, gpu in enumerate(self.gpus)
            if not self._left_alone[row]
        }

    def power(self) -> NodePower:
        """What the last cycle found."""
        base, caps = self.loop.base, self.loop.caps
        known, kinds = self._notes(), dict[str, int]()
        for note in known:
            kinds[note.kind] = kinds.get(note.kind, 0) + 1
        counted_w = float(caps.counted_w.sum()) + float(base.now_w[NODE])
        return NodePower(
            limit_w=self._limit_w if self._limit_w < NO_LIMIT_W else None,
            counted_w=counted_w,
            draw_w=None if math.isnan(self._node.watts) else self._node.watts,
            base_w=float(base.now_w[NODE]),
            safe_mode=self.loop.safe_mode,
            kinds=kinds,
            problems=tuple(dict.fromkeys(self._told(one) for one in known if one.kind in ALARMS)),
            gpus_w={
                gpu.uuid: float(caps.counted_w[row])
                for row, gpu in enumerate(self.gpus)
                if not self._left_alone[row] and not caps.silent[row]
            },
        )

    def _most_w(self, asked: Floats, read_w: Floats) -> Floats:
        """The most that each GPU may be counted at: what is asked for, or else what was found.

        Where nothing is to be kept it is what holds now, whoever has set that.
        """
        found_w = np.where(np.isnan(self.loop.found_w), read_w, self.loop.found_w)
        unasked_w = np.where(self._left_alone, read_w, found_w)
        return np.where(np.isnan(asked), unasked_w, asked)

    def _take_as_ordered(self, which: np.ndarray, cap_w: Floats) -> None:
        """These hold what they hold by somebody else's order."""
        known = which & np.isfinite(cap_w) & np.isfinite(self.loop.caps.ordered_w)
        caps = self.loop.caps
        caps.ordered_w = np.where(known, cap_w, caps.ordered_w)

    def _readings(
        self, now_s: float, looked: Sequence[GpuReading], read_w: Floats, node: LevelReading,
        rack: LevelReading,
    ) -> Readings:  # fmt: skip
        draw_w = np.array([one.draw_w for one in looked])
        return Readings(
            now_s=now_s,
            draw_w=draw_w,
            draw_at_s=np.where(np.isnan(draw_w), math.nan, now_s),
            cap_w=read_w,
            feed_w=np.array([node.watts]),
            feed_at_s=np.array([node.at_s]),
            off=np.zeros(len(looked), dtype=np.bool_),
            site_w=rack.watts,
            site_at_s=rack.at_s,
        )

    def _notes(self) -> list[SafetyNote]:
        """What the loop noticed, but of GPUs that are left alone."""
        return [
            one
            for one in self.loop.notes()
            if one.device < 0 or not self._left_alone[one.device]
            if one.kind != "no-meter"
        ]

    def _told(self, note: SafetyNote) -> str:
        who = self.gpus[note.device].uuid if note.device >= 0 else _LEVELS[note.level]
        return f"{who} {ALARMS[note.kind]}"


_LEVELS = ("the node", "what the node hangs on")


def _fleet(gpus: Sequence[GpuRange], around: NodeSurroundings) -> Fleet:
    return Fleet(
        feed=np.zeros(len(gpus), dtype=np.int64),
        floor_w=np.array([min(one.floor_w, one.max_w) for one in gpus], dtype=np.float64),
        max_w=np.array([one.max_w for one in gpus], dtype=np.float64),
        breaker=Breaker(rated_w=np.full(2, NO_LIMIT_W)),
        metered=np.array([around.metered]),
        site_metered=around.rack_metered,
        device_metered=np.array([one.metered for one in gpus], dtype=np.bool_),
        step_w=np.array([one.step_w for one in gpus], dtype=np.float64),
        base_w=np.array([around.base_w, 0.0]),
    )
