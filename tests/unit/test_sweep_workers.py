"""Answers of the processes of a sweep, cut and joined by the pipe as it likes."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wattherd.experiments.sweep.worker import READY
from wattherd.experiments.sweep.workers import _Worker


class _Heard(_Worker):
    """A worker whose process is a pipe that the test writes."""

    def __init__(self) -> None:
        self.number, self.until_s = 0, 0.0
        self._limit_s, self._ready, self._come = None, False, b""
        self.reads, self.writes = os.pipe()
        self.process: Any = SimpleNamespace(stdout=os.fdopen(self.reads, "rb"), wait=lambda: 7)

    def close(self) -> None:
        self.process.stdout.close()
        os.close(self.writes)


@given(cuts=st.lists(st.integers(1, 40), max_size=4, unique=True), words=st.text(max_size=9))
def test_an_answer_is_heard_however_its_bytes_come(cuts: list[int], words: str) -> None:
    """A process that has answered says no more: bytes left unread would wait for ever."""
    told = f"{json.dumps(READY)}\n{json.dumps({'failure': words})}\n".encode()
    pieces = [told[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True)]
    assert list(accumulate(map(len, pieces)))[-1] == len(told)
    worker = _Heard()
    heard = []
    for piece in filter(None, pieces):
        os.write(worker.writes, piece)
        heard.append(worker.answer())
    worker.close()
    assert heard[-1] == {"failure": words}
    assert not any(heard[:-1])
