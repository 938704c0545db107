"""The guard of training knobs: which micro-batch a running job is told, and on what belief.

The policy proposes a size (`policy.power.micro_batch`); only one that the job allows is ordered.
Caps count against the budget as before: a size only lets a job compute more of the time under the
cap it has, as far as it was measured to draw less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from wattherd.engine.jobs.lifecycle import State
from wattherd.engine.jobs.record import JobRecord
from wattherd.estimate.micro_batches import MicroBatches
from wattherd.model.command import SetBatch
from wattherd.model.event import JobDrew
from wattherd.policy.power.micro_batch import choose

# Two percent, since beliefs move with every measurement and each change is an order to a training
# loop.
SAME = 0.02
"""Part by which a belief must change to be told anew."""
MOST_GONE = 1000
RULE = "MicroBatch"
"""Name of the guard's rule."""


# Learned per job and not per kind: two jobs of one model may load their data differently, and that
# is what a larger batch changes.
class Batches:
    """What is learned of jobs that let their micro-batch be chosen, and what each was told."""

    def __init__(self, strikes: Counter[str]) -> None:
        """Nothing is known; refused proposals are counted in `strikes`."""
        self._strikes = strikes
        self._curves: dict[str, MicroBatches] = {}
        self._told: dict[str, SetBatch] = {}

    def curve(self, job_id: str) -> MicroBatches | None:
        """What was learned of a job."""
        return self._curves.get(job_id)

    def heard(
        self, job: JobRecord, event: JobDrew, idle_w: float, live: Container[str]
    ) -> list[SetBatch]:
        """Note what a run drew, and say what it is to train with from now on, if that is new."""
        spec = job.spec
        if not spec.micro_batches or spec.batch_size is None or job.state is not State.RUNNING:
            return []
        self._forget(live)
        curve = self._curves.get(job.id)
        if curve is None:
            curve = self._curves[job.id] = MicroBatches(spec.micro_batches, spec.batch_size)
        if event.micro_batch is not None:
            curve.note(
                event.micro_batch, event.watts, duty=event.duty, idle_w=idle_w,
                rate_per_s=event.rate_per_s,
            )  # fmt: skip
        return self._order(job, curve, choose(curve, job.cap_w, idle_w))

    def _order(self, job: JobRecord, curve: MicroBatches, size: int) -> list[SetBatch]:
        # A policy that is wrong is counted and not obeyed, as everywhere: policies propose, the
        # guard disposes.
        if size not in job.spec.micro_batches:
            self._strikes[RULE] += 1
            return []
        order = SetBatch(
            job_id=job.id, attempt=job.attempt, micro_batch=size, full_w=curve.full_w(size)
        )
        known = self._told.get(job.id)
        if known is not None and _alike(known, order):
            return []
        self._told[job.id] = order
        return [order]

    def _forget(self, live: Container[str]) -> None:
        # Now and then, and not at each job's end, which nobody tells this book of.
        if len(self._curves) > MOST_GONE:
            self._curves = {one: curve for one, curve in self._curves.items() if one in live}
            self._told = {one: order for one, order in self._told.items() if one in live}


def _alike(known: SetBatch, order: SetBatch) -> bool:
    if (known.attempt, known.micro_batch) != (order.attempt, order.micro_batch):
        return False
    before, after = known.full_w, order.full_w
    if before is None or after is None:
        return before is after
    return abs(after - before) <= SAME * before
