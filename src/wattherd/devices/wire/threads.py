"""Threads that are there before they are needed: later the machine may have none to give.

Python says `RuntimeError` where clone(2) says EAGAIN, so that no handler of `OSError` sees it: a
loop that begins a thread at work would end by it, for good.
"""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor


def begun_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool that has begun all its threads.

    Raises:
        OSError: there are not so many to be had; then none of them stays.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    gate = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):  # each waits at the gate, so that the next needs a thread, too
            pool.submit(gate.wait)
        gate.wait()
    except RuntimeError as error:
        gate.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise OSError(errno.EAGAIN, f"{threads} threads cannot be had", name) from error
    return pool
