"""A training job as it sees itself: what it tells, and what it is told."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from wattherd_train import files, protocol
from wattherd_train.batches import BatchPlan
from wattherd_train.checkpoints import Checkpoints
from wattherd_train.control import Control, StopOrder
from wattherd_train.pace import RankPace
from wattherd_train.pod import pod_reporter
from wattherd_train.progress import Reporter
from wattherd_train.quorum import Alone, AnyRank, Collective, Quorum, SharedFile
from wattherd_train.trouble import Trouble
from wattherd_train.world import World, world_of

BY_SIGNAL = StopOrder("SIGTERM")


@dataclass(frozen=True, slots=True)
class StopAnswer:
    """Whether to save and end now: true or false as it stands, and when called."""

    now: bool
    reason: str = ""

    def __bool__(self) -> bool:
        """For those who write `job.should_stop`."""
        return self.now

    def __call__(self) -> bool:
        """For those who write `job.should_stop()`."""
        return self.now


class Job:
    """This process's part of a job. Without wattherd it reports nothing and is never stopped.

    Nothing here raises because a disk is full or a file is missing: `failures` counts that.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.managed = protocol.JOB_ID in environ
        """Whether wattherd runs this."""
        self.id = environ.get(protocol.JOB_ID, "")
        self.attempt = _attempt(environ)
        """Which run of the job this is, from 1."""
        self.world: World = world_of(environ)
        self.checkpoint_dir = Path(environ.get(protocol.CHECKPOINT_DIR) or "checkpoint")
        """Kept from attempt to attempt; `./checkpoint` without wattherd."""
        self.step_done: float = 0
        """The latest step that was told."""
        self.checkpoint_phase = _phase(environ)
        """Where in each period it is to save, 0 to 1."""
        self._window: int | None = None
        self._run_dir = _path(environ, protocol.RUN_DIR)
        self._trouble = Trouble()
        self._control = Control(
            _path(environ, protocol.CONTROL), self._trouble, _path(environ, protocol.NOTICE)
        )
        progress = _path(environ, protocol.PROGRESS) if self.world.leads else None
        pod = pod_reporter(environ, self._trouble) if self.world.leads else None
        self._reporter = Reporter(progress, self._trouble, also=pod)
        self._reporter.announce()
        self._pace = RankPace(self._run_dir, self.world, self._trouble)
        self._quorum = self._default_quorum()
        self._plan: BatchPlan | None = None
        self._signalled = False
        self._handles = False

    def _default_quorum(self) -> Quorum:
        if self.world.size == 1 or self._run_dir is None:
            return Alone()
        return SharedFile(self._run_dir / protocol.STOP_AT, self._trouble)

    # What it tells ------------------------------------------------------------------------------

    def step(
        self,
        number: float,
        *,
        loss: Any = None,
        samples: float | None = None,
        total: float | None = None,
        noise_scale: float | None = None,
    ) -> None:
        """Step `number` (from 1) is done, of `total` if known.

        `samples` are those of this step over all ranks; `noise_scale` is that of its gradient, in
        samples (`GradientNoise`). Call it at every step: a line is written at
        most once a second, by the first rank only, and `loss` (a number, or a tensor of one
        element) is read no more often than that. Every rank tells how long it needed for its own
        part of a step, so that one that holds up the others is found.
        """
        self.step_done = number
        self._pace.step(number)
        micro = self._plan.micro_batch if self._plan is not None else None
        told = {"loss": loss, "total": total, "micro_batch": micro, "noise_scale": noise_scale}
        self._reporter.step(number, samples, told)

    def waiting(self) -> AbstractContextManager[None]:
        """`with job.waiting():` around what waits for other ranks: reductions, barriers."""
        return self._pace.waiting()

    def exit_checkpointed(self) -> NoReturn:
        """End this process: the state is saved, and the job goes on from it later.

        The exit code is 143. torchrun takes any code but 0 for a failure, so under it the code is 0
        and a file in the run directory tells wattherd.
        """
        self._reporter.flush()
        if self._run_dir is not None and self.world.leads:
            with self._trouble.swallowed("cannot tell that the job was checkpointed"):
                told = {"step": self.step_done, "at": time.time()}
                files.replace(self._run_dir / protocol.CHECKPOINTED, told)
        sys.exit(0 if self.managed and self.world.elastic else protocol.EXIT_CHECKPOINTED)

    # What it is told ----------------------------------------------------------------------------

    @property
    def should_stop(self) -> StopAnswer:
        """Whether to save a checkpoint and end, asked once after every step.

        One rank that is asked suffices: all ranks get a yes after the same step. Works as a
        property and as a method.
        """
        order = self.stop_order
        with self._pace.waiting():
            now = self._quorum.decide(int(self.step_done), wanted=order is not None)
        return StopAnswer(now, order.reason if order else "another rank")

    @property
    def stop_order(self) -> StopOrder | None:
        """What this rank was told: why, and by when; None if nothing. No other rank is asked."""
        return self._control.stop or (BY_SIGNAL if self._signalled else None)

    @property
    def notice(self) -> dict[str, Any] | None:
        """What the scheduler announced of a later stop, if anything: `reason`, `by` (Unix time)."""
        return self._control.notice

    @property
    def failures(self) -> int:
        """How often a disk or file failed and training went on."""
        return self._trouble.count

    # What it may use ----------------------------------------------------------------------------

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Its checkpoints, the last two."""
        return self.checkpoints_of()

    def checkpoints_of(self, part: str = "", *, keep: int = 2) -> Checkpoints:
        """Others than those of the whole job: of one rank, say, in a folder named `part`."""
        return Checkpoints(self.checkpoint_dir / part, keep=keep, trouble=self._trouble)

    def checkpoint_due(self, every_s: float, *, now_s: float | None = None) -> bool:
        """Whether to save again: true once in every `every_s` seconds, in this job's own window.

        Windows are cut by the clock (`now_s`, Unix time) and the job's phase, not by when it began:
        jobs with equal periods save one after the other, however they started. A rank goes by its
        own clock: where all ranks save together, the first one asks and tells the others.

        Raises:
            ValueError: a period that is not above zero.
        """
        if not every_s > 0:
            raise ValueError(f"no period: {every_s!r} s")
        at_s = time.time() if now_s is None else now_s
        window = math.floor(at_s / every_s - self.checkpoint_phase)
        due = self._window is not None and window > self._window
        # A clock that is put back begins anew, and saves no second time for the same window.
        self._window = window
        return due

    def batches(self, global_batch: int, micro_batch: int | None = None) -> BatchPlan:
        """A plan to train on `global_batch` a step, `micro_batch` at once or fewer where wanted.

        Raises:
            ValueError: fewer samples than ranks.
        """
        self._plan = BatchPlan(
            global_batch,
            micro_batch,
            rank=self.world.rank,
            size=self.world.size,
            wanted=lambda: self._control.micro_batch,
        )
        return self._plan

    def agree_by(self, any_rank: AnyRank) -> None:
        """Have ranks agree on a stop by this reduction; else they do by a file of the run.

        With PyTorch across nodes: `job.agree_by(wattherd_train.any_rank)`.
        """
        self._quorum = Collective(any_rank)

    # As a context -------------------------------------------------------------------------------

    def __enter__(self) -> Job:  # noqa: PYI034 - `Self` came with Python 3.11
        """Also take SIGTERM for a wish to stop, unless somebody else handles it."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, self._on_signal)
            self._handles = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what is still to be reported; SIGTERM does again what it did."""
        self._reporter.flush()
        if self._handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._handles = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signalled = True


def current(environ: Mapping[str, str] | None = None) -> Job:
    """The job that this process is of, by its environment. Make one at the start, and keep it."""
    return Job(os.environ if environ is None else environ)


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _phase(environ: Mapping[str, str]) -> float:
    try:
        phase = float(environ[protocol.CHECKPOINT_PHASE])
    except (KeyError, ValueError):
        return 0.0
    return phase if 0 <= phase < 1 else 0.0


def _attempt(environ: Mapping[str, str]) -> int:
    try:
        return max(1, int(environ[protocol.ATTEMPT]))
    except (KeyError, ValueError):
        return 1
