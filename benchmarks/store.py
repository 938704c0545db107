"""How long a service with a long journal takes to come back, and whether snapshots hold it up.

    python benchmarks/store.py [ENTRIES]

Jobs of a site of 8 slots are submitted, report, and end, until the journal has so many entries
(100,000 by default). Then: recovery by everything, the making of a snapshot with submissions going
on beside it, and recovery from that snapshot.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattherd.local.devices import slots
from wattherd.model.event import JobProgressed
from wattherd.model.job import JobSpec, TaskRole
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.recovery.recovery import RecoveredCore, recover
from wattherd.server.recovery.snapshot_process import SnapshotProcess
from wattherd.server.settings.blueprint import Blueprint
from wattherd.server.settings.config import ServeConfig
from wattherd.store.database import in_folder
from wattherd.store.store import ClusterStore
from wattherd.testing.live import PaperExecutor, SetClock

SUBMISSIONS_PER_S = 200


def keeper_on(
    store: ClusterStore, recovered: RecoveredCore, hands: PaperExecutor, clock: SetClock
) -> CoreLoop:
    replay, scribe = recovered.replay, recovered.scribe

    def on_turn(told: Sequence[Any]) -> None:
        scribe.told(told, [past for turn in told for past in replay.history.note(*turn)])

    keeper = CoreLoop(
        replay.state.core, store.journal, clock, on_turn=on_turn, standing=replay.state.standing
    )
    keeper.recover(hands)
    return keeper


def a_job() -> JobSpec:
    return JobSpec(id="new", submit_s=0.0, roles=(TaskRole(count=1),))


def fill(
    keeper: CoreLoop, store: ClusterStore, hands: PaperExecutor, clock: SetClock, entries: int
) -> None:
    while store.journal.last_seq < entries:
        clock.at_s += 1.0
        for _ in range(8 - len(keeper.core.jobs) // 4):
            keeper.submit(a_job(), {"name": "bench"}, by="bench")
        for number, key in enumerate(sorted(hands.runs)):
            keeper.tell(hands.started(key))
            keeper.tell(JobProgressed(at_s=0.0, job_id=key[0], attempt=key[1], progress=clock.at_s))
            if number % 4 == 0:
                keeper.tell(hands.exited(key))
        keeper.turn()
        keeper.turn()


def timed(what: str, work: Callable[[], Any]) -> Any:
    began_s = time.perf_counter()
    found = work()
    print(f"{what:48} {time.perf_counter() - began_s:8.2f} s")
    return found


def submissions(keeper: CoreLoop, over: Callable[[], bool]) -> list[float]:
    """Seconds from submission to acknowledgement, so many a second until `over`."""
    took_s: list[float] = []
    pending: list[threading.Event] = []
    next_s = time.perf_counter()
    while not over() or len(took_s) < SUBMISSIONS_PER_S:
        began_s = time.perf_counter()
        done = keeper.submit(a_job(), {"name": "bench"}, by="bench")
        heard = threading.Event()
        pending.append(heard)

        def note(_: Any, began_s: float = began_s, heard: threading.Event = heard) -> None:
            took_s.append(time.perf_counter() - began_s)
            heard.set()

        done.add_done_callback(note)
        next_s += 1 / SUBMISSIONS_PER_S
        time.sleep(max(0.0, next_s - time.perf_counter()))
    for heard in pending:
        heard.wait(10)
    return took_s


def spread(name: str, took_s: Sequence[float]) -> None:
    centiles = statistics.quantiles(took_s, n=100)
    print(
        f"{name:48} {1e3 * centiles[49]:8.1f} ms at the median, {1e3 * centiles[98]:.1f} ms at p99"
        f" ({len(took_s)} submissions, {SUBMISSIONS_PER_S}/s)"
    )


def main(entries: int) -> None:
    plan = Blueprint.of(ServeConfig(), slots("bench", 8))
    with tempfile.TemporaryDirectory() as folder:
        url, hands, clock = in_folder(Path(folder)), PaperExecutor(), SetClock()
        store = ClusterStore.open(url)
        recovered = recover(store, plan)
        recovered.scribe.begin()
        keeper = keeper_on(store, recovered, hands, clock)
        timed(f"{entries:,} entries written", lambda: fill(keeper, store, hands, clock, entries))
        recovered.scribe.end()
        store.close()

        store = ClusterStore.open(url)
        recovered = timed("recovery from everything", lambda: recover(store, plan))
        recovered.scribe.begin()
        keeper = keeper_on(store, recovered, hands, SetClock(clock.at_s))
        keeper.begin()
        spread("submission, nothing beside it", submissions(keeper, lambda: True))
        snapshots = SnapshotProcess(url, every=1)
        began_s = time.perf_counter()
        snapshots.grown(1)
        took_s = submissions(keeper, lambda: not snapshots.busy)
        print(f"{'a snapshot in a process of its own':48} {time.perf_counter() - began_s:8.2f} s")
        spread("submission, a snapshot being made", took_s)
        keeper.end()
        recovered.scribe.end()
        store.close()

        store = ClusterStore.open(url)
        recovered = timed("recovery from the snapshot", lambda: recover(store, plan))
        print(f"{'entries after the snapshot':48} {recovered.entries:8,}")
        store.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
