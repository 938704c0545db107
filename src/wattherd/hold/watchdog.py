"""The watchdog of `wattherd power hold`: lowers every device to its floor when the loop is dead.

A raised cap is a lease. Knobs know no leases, so this process, a child in a session of its own,
stands for them: its parent tells it each cycle that it lives. After a lease without news all
devices go to their floor: while the pipe is open the parent hangs and may come back; once it is
closed the parent is dead, and the watchdog ends when all are low or a successor owns the journal,
or has owned it since. A parent that ends deliberately says for how long its caps may stay for a
successor to take over. What was found stays in the journal.
"""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattherd.devices.knobs.journal import KnobJournal, owned
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.registry import open_knob
from wattherd.errors import UserError
from wattherd.hold.lines import ask_all
from wattherd.hold.saved_state import owner_of, replace_file

BEAT, LEAVE, KEEP = b".", b"x", b"k"
ROUND_S = 10.0
"""How long one attempt to lower all may take."""
AGAIN_S = 1.0
LONGEST_S = 30.0
"""Between two attempts on devices that do not answer: the pause doubles up to that."""


@dataclass(slots=True)
class Guard:
    """The parent's end; starts the child again if it dies, as nobody else would notice."""

    floor_w: Mapping[str, float]
    lease_s: float
    journal: Path
    handover_s: float = 0.0
    starts: int = 0
    _child: subprocess.Popen[bytes] | None = None

    def beat(self) -> None:
        """Tell that the loop lives; without devices to lower there is nobody to be told."""
        if not self.floor_w:
            return
        child = self._child
        if child is None or child.poll() is not None or not _told(child, BEAT):
            self._start()

    def leave(self) -> None:
        """Tell that the devices have been put back, and wait for the child's end."""
        if self._child is not None and _told(self._child, LEAVE):
            self._child.wait()
        self._child = None

    def keep(self) -> None:
        """Tell that caps are to stay as they are for `handover_s`, and go: a successor comes."""
        if not self.floor_w:
            return
        if self._child is None or not _told(self._child, KEEP):
            self._start()
            if self._child is not None:
                _told(self._child, KEEP)
        child, self._child = self._child, None
        if child is not None and child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
            child.returncode = 0  # it outlives this process: nobody is to wait for it

    def _start(self) -> None:
        self.starts += 1
        owner = owner_of(self.journal)
        order = {
            "floor_w": dict(self.floor_w),
            "lease_s": self.lease_s,
            "handover_s": self.handover_s,
            "owner": owner.token if owner else "",
        }
        # A file that is there before the child is: a parent that dies at once leaves a guard that
        # knows what to do, and long orders would not fit into a pipe.
        path = self.journal.with_name(f"{self.journal.name}.guard")
        replace_file(path, json.dumps(order), sync=False)
        command = [sys.executable, "-m", "wattherd.hold.watchdog"]
        self._child = subprocess.Popen(  # noqa: S603 - this very program
            [*command, str(self.journal), str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def _told(child: subprocess.Popen[bytes], news: bytes) -> bool:
    if child.stdin is None:
        return False
    try:
        child.stdin.write(news)
        child.stdin.flush()
    except OSError:
        return False
    return True


@dataclass(slots=True)
class Watch:
    """The child: floors by the address of knobs, and when it last heard of its parent."""

    floor_w: Mapping[str, float]
    lease_s: float
    journal: Path
    inbox: int
    handover_s: float = 0.0
    owner: str = ""
    """Whose devices these are: whoever else held the site since has seen to them."""
    _heard_s: float = field(default_factory=time.monotonic)
    _knobs: Sequence[tuple[Knob, float]] = ()

    def run(self) -> None:
        """Wait, and lower when there is no news; ends with the parent's leave, or the work done."""
        self._knobs = [(_opened(uri), floor_w) for uri, floor_w in self.floor_w.items()]
        while (news := self._news()) != LEAVE:
            if news is None:
                self._note("parent", state="dead")
                self._lower_for_good()
                return
            if news == b"":
                self._note("parent", state="hangs")
                self._lower()

    def _news(self) -> bytes | None:
        """A beat or the leave; nothing if a lease passed without; None if the parent is dead."""
        inbox = select.poll()  # `select` knows no descriptor above 1,023
        inbox.register(self.inbox, select.POLLIN)
        while (left_s := self._heard_s + self.lease_s - time.monotonic()) > 0:
            if not inbox.poll(math.ceil(left_s * 1e3)):
                break
            said = os.read(self.inbox, 4096)
            if not said:
                time.sleep(max(self._heard_s + self.lease_s - time.monotonic(), 0.0))
                return None
            self._heard_s = time.monotonic()
            if KEEP in said:
                self.lease_s = max(self.lease_s, self.handover_s)
                self._note("parent", state="left", keeps_s=self.lease_s)
            return LEAVE if LEAVE in said else BEAT
        self._heard_s = time.monotonic() - self.lease_s + AGAIN_S
        return b""

    def _lower_for_good(self) -> None:
        pause_s = AGAIN_S
        while True:
            with owned(self.journal) as mine:
                if not mine or self._succeeded():
                    self._note("successor")
                    return
                self._keep_notes()
                if self._lower():
                    return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_S)

    def _succeeded(self) -> bool:
        owner = owner_of(self.journal)
        return bool(self.owner) and owner is not None and owner.token != self.owner

    def _keep_notes(self) -> None:
        """Devices that the dead loop never heard of are noted before they are lowered."""
        journal = KnobJournal(self.journal)
        for knob, _ in self._knobs:
            knob.journal = journal

    def _lower(self) -> bool:
        """One attempt; whether all are known to be at their floor or below."""
        lowering = ((knob.driver, _lowering(knob, floor_w)) for knob, floor_w in self._knobs)
        low = ask_all(lowering, ROUND_S)
        pairs = zip(self._knobs, low, strict=True)
        self._note("lowered", high=[knob.source for (knob, _), is_low in pairs if not is_low])
        return all(low)

    def _note(self, event: str, **more: Any) -> None:
        line = json.dumps({"event": event, "at_s": time.time(), **more})
        with self.journal.with_name(f"{self.journal.name}.watchdog").open("a") as file:
            file.write(f"{line}\n")


def _opened(uri: str) -> Knob:
    knob = open_knob(uri)
    knob.settle_s = max(knob.settle_s, AGAIN_S)
    return knob


def _lowering(knob: Knob, floor_w: float) -> Any:
    def lower() -> bool:
        held = knob.read().value
        if held is not None and held <= floor_w + knob.driver.step:
            return True
        outcome = knob.set(floor_w)
        low_w = floor_w + knob.driver.step
        return outcome.read_back is not None and outcome.read_back <= low_w

    return lower


def main() -> None:
    """The child's beginning: a file says what to guard, a pipe that its parent lives."""
    order = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    watch = Watch(
        floor_w=order["floor_w"],
        lease_s=order["lease_s"],
        journal=Path(sys.argv[1]),
        inbox=sys.stdin.fileno(),
        handover_s=order["handover_s"],
        owner=order["owner"],
    )
    try:
        watch.run()
    except UserError as error:
        sys.exit(error.line())


if __name__ == "__main__":
    main()
