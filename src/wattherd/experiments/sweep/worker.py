"""A process that computes cells: one JSON line in, one out, until there are no more.

It is a program of its own instead of a fork: what somebody's scheduler does to it (an endless loop,
a crash, a print in the wrong place) stays in it, and notebooks and scripts need no guard around
their main part. When whoever started it is gone, its input ends, and so does it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import IO, Any

from wattherd.errors import UserError, harmless
from wattherd.experiments.sweep.cell import FileDigests
from wattherd.experiments.sweep.kinds import of_task

MOST_WORDS = 500
READY: dict[str, Any] = {}
"""Said first, when everything is imported: a cell's time begins then."""
CHANGED = "what it reads changed while it ran; run it again"


def main() -> None:
    """Read, compute, answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it says when to stop
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print is no answer
    tasks: SimpleQueue[str | None] = SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(sys.stdin, tasks, busy), daemon=True).start()
    print(json.dumps(READY), file=answers, flush=True)
    while (line := tasks.get()) is not None:
        answer = json.dumps(_answer(json.loads(line)))
        busy.clear()  # before the answer, upon which the next task may come
        print(answer, file=answers, flush=True)


def _listen(lines: IO[str], tasks: SimpleQueue[str | None], busy: threading.Event) -> None:
    for line in lines:
        busy.set()
        tasks.put(line)
    if busy.is_set():  # nobody is there to take the answer
        os._exit(1)
    tasks.put(None)


def _answer(task: Mapping[str, Any]) -> dict[str, Any]:
    """The result, or the failure in one line, whatever somebody's code raises."""
    try:
        cell = of_task(task)
        result = cell.compute()
        if cell.key(FileDigests()) != task["key"]:
            return {"failure": CHANGED}
    except UserError as error:
        return {"failure": one_line(error.line())}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a policy of somebody's may raise anything
        return {"failure": one_line(f"{type(error).__name__}: {error}")}
    return {"result": result}


def one_line(text: str) -> str:
    """What went wrong, as a cell of a table."""
    return harmless(" ".join(text.split()), MOST_WORDS)


if __name__ == "__main__":
    main()
