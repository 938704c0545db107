"""What follows when a single device is taken out of use, or a rank lags on it."""

from __future__ import annotations

from collections.abc import Sequence

from wattherd.engine.conduct import Batch, Conduct
from wattherd.engine.drained import Drained, Place
from wattherd.engine.ledger import Entry, JobRecord
from wattherd.engine.lifecycle import State, Trigger
from wattherd.model.allocation import Allocation, device_of_rank
from wattherd.model.event import DeviceDrained, DeviceReturned, RankLagged
from wattherd.model.reason import StopReason


class Drains(Conduct):
    """The part of a core that knows of single devices."""

    def _note_device(self, event: DeviceDrained | DeviceReturned, batch: Batch) -> None:
        node = self._nodes.get(event.node)
        if node is None or not 0 <= event.gpu < self.config.cluster.nodes[node].gpu_count:
            return
        if isinstance(event, DeviceDrained):
            self._drain((node, event.gpu), event.cause, batch)
        elif self.drained.returned((node, event.gpu)):
            self.planned.put_back(node, event.gpu)
            batch.replan = True

    def _drain(self, place: Place, cause: str, batch: Batch) -> None:
        """Nobody is given a device any more; who has it is asked to checkpoint and leave it."""
        if place in self.drained.out:
            return
        self.drained.out[place] = Drained(self.now_s, cause)
        for job in list(self.jobs.values()):
            if _uses(job.wanted, place):
                self._forget_plan(job)
            if _uses(job.allocations, place) and job.state in (State.STARTING, State.RUNNING):
                self._stop(job, StopReason.DEVICE_DRAINED, Trigger.REQUEUE, batch)
        self.planned.take_out(*place)
        batch.replan = True

    def _lags(self, job: JobRecord, event: RankLagged, batch: Batch) -> None:
        """One rank holds all others up: told in the job's story, and held against its device."""
        place = device_of_rank(job.allocations, event.rank, event.ranks)
        on = "" if place is None else f" on GPU {place[1]}"
        why = f"rank {event.rank}{on} needs {event.slowdown:.1f} times what the others need"
        job.story.append(Entry(self.now_s, "lags", why))
        if place is not None and self.drained.lagged(place, job.id, event.attempt):
            self._drain(place, f"ranks lagged there in two runs, last {job.id}", batch)


def _uses(allocations: Sequence[Allocation], place: Place) -> bool:
    return any(one.node == place[0] and place[1] in one.gpus for one in allocations)
