"""The loop beside those who decide: what is at work there ends in its own way."""

from __future__ import annotations

import asyncio
import threading

from wattherd.runtime.kube.api.loops import LoopThread


def test_who_is_cancelled_may_still_say_goodbye_before_anything_is_closed() -> None:
    """As a leader gives its lease back: it takes a request, for which the loop must go on."""
    loop, begun, said = LoopThread("test"), threading.Event(), list[str]()

    async def leader() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for word in ("the", "lease", "is", "yours"):
                await asyncio.sleep(0)
                said.append(word)

    try:
        loop.begin(leader())
        assert begun.wait(60)
        loop.quieten()
        assert said == ["the", "lease", "is", "yours"]
    finally:
        loop.close()
