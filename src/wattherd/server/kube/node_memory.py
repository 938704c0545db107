"""What a node's loop has learned, on the node's disk: its successor in the next pod goes on there.

It stands beside the journal, as that of `power hold` does, and is read in the same way. The limit
that came from the API is kept with it, so that it holds while the API is silent. GPUs that were
seen since the machine was started, and are not there any more, still count: a GPU that fell off its
bus may draw on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from wattherd.catalog.gpus import GPUS
from wattherd.engine.safety.loop import SafetyState
from wattherd.hold.saved_state import SavedDevice, SavedSite, beside, read_memory, write_memory
from wattherd.kube.decide.node_loop import NO_LIMIT_W, GpuRange, NodeLoop

EVERY_S = 5.0
FEEDS = ("node",)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNKNOWN_W = 1_000.0
"""The most that a GPU may draw of which neither it nor the catalog tells."""


class NodeMemory:
    """Of the node whose journal this is."""

    def __init__(self, journal: Path, boot_id: Path = BOOT_ID) -> None:
        """Read what a predecessor left; what cannot be read is as nothing."""
        self._journal = journal
        self._boot = _text(boot_id)
        self._memory, self.trouble = read_memory(journal)
        self._due_s = 0.0

    @property
    def limit_w(self) -> float:
        """The limit of the node that was heard of last, in watts."""
        known = None if self._memory is None else self._memory.signal_w
        return NO_LIMIT_W if known is None else known

    @property
    def due(self) -> bool:
        """Whether it is time to keep it again."""
        return time.monotonic() >= self._due_s

    def hasten(self) -> None:
        """It is to be kept in this round."""
        self._due_s = 0.0

    def range_of(self, uuid: str) -> GpuRange | None:
        """What is known of a GPU that does not answer."""
        return next((_range(one) for one in self._members() if one.name == uuid), None)

    def absent(self, here: Collection[str]) -> tuple[GpuRange, ...]:
        """GPUs that were there since the machine was started, and are not `here` (UUIDs)."""
        return tuple(
            _range(one)
            for one in self._members()
            if one.name not in here and self._boot and one.identity == self._boot
        )

    def state_of(self, gpus: Sequence[GpuRange]) -> SafetyState | None:
        """What a predecessor learned of these, in their order; None if nothing is known."""
        if self._memory is None:
            return None
        rows = {one.name: row for row, one in enumerate(self._members())}
        found = np.array([rows.get(one.uuid, -1) for one in gpus], dtype=np.int64)
        levels = np.arange(len(FEEDS) + 1)
        state = self._memory.state.reordered(found, levels)
        state.off_age_s[:] += max(time.time() - self._memory.at_s, 0.0)
        return state

    def keep(
        self, loop: NodeLoop, knobs: Mapping[str, str], limit_w: float, *, sync: bool = False
    ) -> None:
        """Replace what was kept.

        Raises:
            OSError: it cannot be written; what was kept before stays.
        """
        self._due_s = time.monotonic() + EVERY_S
        before = {one.name: one for one in self._members()}
        self._memory = SavedSite(
            at_s=time.time(),
            feeds=FEEDS,
            devices=tuple(
                SavedDevice(
                    name=gpu.uuid,
                    knob=knobs.get(gpu.uuid) or before[gpu.uuid].knob,
                    feed=FEEDS[0],
                    floor_w=gpu.floor_w,
                    max_w=gpu.max_w,
                    step_w=gpu.step_w,
                    identity=self._boot,
                )
                for gpu in loop.gpus
            ),
            state=loop.loop.state(),
            signal_w=None if limit_w >= NO_LIMIT_W else limit_w,
        )
        write_memory(self._journal, self._memory, sync=sync)

    def forget(self) -> None:
        """Nothing is held any more."""
        self._memory = None
        beside(self._journal).unlink(missing_ok=True)

    def _members(self) -> tuple[SavedDevice, ...]:
        return () if self._memory is None else self._memory.devices


def catalog_range(uuid: str, model: str, step_w: float) -> GpuRange:
    """What the catalog tells of a GPU that does not."""
    known = GPUS.get(model)
    if known is None:
        return GpuRange(uuid=uuid, floor_w=0.0, max_w=UNKNOWN_W, step_w=step_w)
    floor_w = known.min_cap_w or 0.0
    return GpuRange(uuid=uuid, floor_w=floor_w, max_w=known.max_w, step_w=step_w)


def _range(member: SavedDevice) -> GpuRange:
    return GpuRange(
        uuid=member.name, floor_w=member.floor_w, max_w=member.max_w, step_w=member.step_w
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
