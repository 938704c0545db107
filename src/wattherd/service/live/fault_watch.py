"""Takes a device out of use when it is at fault, or the node where it is not known which."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from wattherd.errors import UserError
from wattherd.model.event import DeviceDrained, Event, NodeLost
from wattherd.runtime.local.devices import Machine
from wattherd.runtime.local.faults import KernelLog, fault_of

PERIOD_S = 1.0
_LOG = logging.getLogger(__name__)


class FaultWatch:
    """Looks into the kernel's log once a second, in a thread of its own.

    `tell` takes the device out of use: its jobs are stopped and queued again, and nothing is
    started on it before an operator has it back. `count` gets node, device and kind of every fault.
    """

    def __init__(
        self,
        log: Path,
        machine: Machine,
        tell: Callable[[Event], None],
        count: Callable[[str, str, str], None],
    ) -> None:
        """Without a log to read nothing is watched; `problem` says why."""
        self.problem = ""
        self._machine, self._tell, self._count = machine, tell, count
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._log: KernelLog | None = None
        try:
            self._log = KernelLog(log)
        except UserError as error:
            self.problem = f"faults of devices are not seen: {error.line()}"

    def begin(self) -> None:
        """Let it look."""
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _run(self) -> None:
        while not self._over.wait(PERIOD_S):
            self.look()

    def look(self) -> None:
        """Deal with what was reported since the last look."""
        for line in self._log.new() if self._log is not None else ():
            fault = fault_of(line)
            if fault is None:
                continue
            node, gpu = self._machine.node.name, self._machine.at(fault.gpu)
            what = "the node" if gpu is None else f"GPU {gpu}"
            _LOG.error("%s %s: %s; %s is drained", node, fault.gpu, fault.text, what)
            self._count(node, fault.gpu, fault.kind)
            if gpu is None:
                self._tell(NodeLost(at_s=0.0, node=node, cause=fault.text))
            else:
                self._tell(DeviceDrained(at_s=0.0, node=node, gpu=gpu, cause=fault.text))
