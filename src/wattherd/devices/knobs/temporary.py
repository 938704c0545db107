"""Turn a knob for a while: put back afterwards, on a signal, or by a successor after a kill.

Each knob that is borrowed has a journal of its own, named after its address, whose lock says that
the borrower still lives.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wattherd.devices.knobs.contract import OrderOutcome
from wattherd.devices.knobs.journal import KnobJournal, owned
from wattherd.devices.knobs.knob import Knob
from wattherd.devices.knobs.registry import open_knob
from wattherd.errors import UserError


def default_folder() -> Path:
    """Where journals of borrowed knobs are kept (XDG base directories: state)."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "wattherd" / "knobs"


def journal_path(folder: Path, uri: str) -> Path:
    """The journal of one knob."""
    return folder / f"{hashlib.sha256(uri.encode()).hexdigest()[:24]}.json"


@contextmanager
def borrowed(uri: str, folder: Path, put_back: Callable[[OrderOutcome], None]) -> Iterator[Knob]:
    """A knob that is put back at the end; `put_back` is told what became of that.

    Raises:
        UserError: the address cannot be used, or somebody has borrowed it already.
    """
    path = journal_path(folder, uri)
    with owned(path) as mine:
        if not mine:
            raise UserError("is set by another process for a while", where=uri,
                            hint="wait until it has ended")  # fmt: skip
        with open_knob(uri, KnobJournal(path)) as knob:
            try:
                yield knob
            finally:
                put_back(knob.restore())


def settle_debts(folder: Path) -> Sequence[OrderOutcome]:
    """Put back every knob whose borrower died."""
    return [outcome for path in sorted(folder.glob("*.json")) for outcome in _settled(path)]


def forget(uri: str, folder: Path) -> None:
    """What was found no longer matters: the knob has been set for good."""
    path = journal_path(folder, uri)
    if path.exists():
        KnobJournal(path).forget(uri)


def _settled(path: Path) -> Iterator[OrderOutcome]:
    with owned(path) as mine:
        if not mine:
            return
        journal = KnobJournal(path)
        for uri in journal.entries:
            with open_knob(uri, journal) as knob:
                yield knob.restore()
