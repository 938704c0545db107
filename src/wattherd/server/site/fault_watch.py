"""Takes a device out of use when it is at fault, or the node where it is not known which."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from wattherd.errors import UserError
from wattherd.local.devices import Machine
from wattherd.local.gpu_faults import KernelLog, fault_of
from wattherd.model.event import DeviceDrained, Event, NodeLost
from wattherd.server.periodic import PeriodicThread

PERIOD_S = 1.0
_LOG = logging.getLogger(__name__)


class FaultWatch(PeriodicThread):
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
        super().__init__("faults", PERIOD_S)
        self.problem = ""
        self._machine, self._tell, self._count = machine, tell, count
        self._log: KernelLog | None = None
        try:
            self._log = KernelLog(log)
        except UserError as error:
            self.problem = f"faults of devices are not seen: {error.line()}"

    def end(self) -> None:
        """Stop, and let go of the log."""
        super().end()
        if self._log is not None:
            self._log.close()
            self._log = None

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
                for part in self._machine.nodes:
                    self._tell(NodeLost(at_s=0.0, node=part.name, cause=fault.text))
            else:
                self._tell(DeviceDrained(at_s=0.0, node=node, gpu=gpu, cause=fault.text))
