"""Makes a snapshot in a process of its own, so that no turn of the service waits for it.

    python -m wattherd.server.recovery.snapshot_process < URL

It lives the journal through from the last snapshot on, as a service that starts would. What it
leaves is therefore what that service would have come to.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from itertools import takewhile

from wattherd import __version__
from wattherd.errors import ClusterError, UserError
from wattherd.server.journal.snapshot_codec import freeze
from wattherd.server.recovery.replay import resumed, settings_of
from wattherd.store.database import Database
from wattherd.store.journal import Journal
from wattherd.store.projection import Projection
from wattherd.store.snapshots import Snapshots, StateSnapshot

NICENESS = 10
_LOG = logging.getLogger(__name__)


class SnapshotProcess:
    """Has a snapshot made after every so many entries; one at a time."""

    def __init__(self, url: str, every: int) -> None:
        """Nothing runs yet."""
        self._url, self._every = url, every
        self._since = 0
        self._process: subprocess.Popen[bytes] | None = None

    def grown(self, entries: int) -> None:
        """Hear that the journal has grown; a snapshot that is due is begun, and not waited for."""
        self._since += entries
        if self._since >= self._every and not self.busy:
            self._since = 0
            try:
                self._begin()
            except OSError as error:  # no descriptors or processes left: the next turns try again
                _LOG.warning("no snapshot is made now: %s", error.strerror)
                self.end()

    @property
    def busy(self) -> bool:
        """Whether one is being made."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        return self._process is not None

    def _begin(self) -> None:
        """The URL may hold a password, and others may read command lines: it goes in by a pipe."""
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None  # noqa: S101 - asked for above
        self._process.stdin.write(self._url.encode())
        self._process.stdin.close()

    def end(self) -> None:
        """Leave no process behind; half a snapshot is none."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def make_snapshot(database: Database, goal: int | None = None) -> int:
    """Make a snapshot of entry `goal`, or of the last that the projections know; which it is.

    What is over by then has been written down, so that the snapshot need not hold it.

    Raises:
        ClusterError: it cannot be made.
    """
    journal, snapshots = Journal(database), Snapshots(database)
    goal = Projection(database).projected() if goal is None else goal
    replay, _ = resumed(journal, snapshots, settings_of(snapshots), until=goal)
    after = replay.state.standing.seq
    tail = takewhile(lambda entry: entry.seq <= goal, journal.entries(after))
    for _ in replay.live(tail):
        pass
    seq = replay.state.standing.seq
    if seq > after:
        replay.arrive(seq)
        snapshot = StateSnapshot(
            seq=seq,
            digest=journal.digest(seq),
            version=__version__,
            setting=replay.setting,
            body=freeze(replay.frozen()),
        )
        snapshots.put(snapshot, base=journal.base().seq)
    return seq


def main() -> None:
    """One snapshot of the store whose URL comes by standard input."""
    url = sys.stdin.read()
    os.nice(NICENESS)
    try:
        database = Database(url, sole=False)
        try:
            make_snapshot(database)
        finally:
            database.close()
    except (UserError, ClusterError) as error:
        sys.exit(f"wattherd: no snapshot: {error}")


if __name__ == "__main__":
    main()
