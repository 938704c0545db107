"""The extender's HTTP shell: an ASGI application around `kube.decide.extender.Extender`.

Deciding and hearing news go by turns. What is quick is decided in the event loop, if its turn comes
at once: kube-scheduler asks from its only loop, and to wake another thread and be woken by it may
take longer than the decision. Else another thread decides, and the event loop waits for it, not for
longer than `deadline_s`: a slow answer holds up every pod of the cluster. Without an answer in time
a filter fails closed (the pod is tried again, and finds its decision made), scores fail open.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from wattherd.errors import UserError
from wattherd.kube.api.serial import SerialExecutor, TurnTimeout
from wattherd.kube.decide import extender_wire as wire
from wattherd.kube.decide.extender import Extender, Grant
from wattherd.kube.decide.feasibility import MOST_AT_WORK, read_pods
from wattherd.kube.facts.extender_tally import ExtenderTally
from wattherd.kube.facts.refusal import NodeRefusal
from wattherd.plugin_watch import not_returning

DEADLINE_S = 0.2
_AT_ONCE_S = 0.002
"""How long the event loop itself waits for its turn: a batch of news takes a part of that."""
_MOST_BODY = 16 * 2**20
"""Bytes; 5,000 node names of 253 characters and the largest pod there can be are less."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BindResult:
    """What became of a binding: `problem` is empty if all is well.

    `free`: the pod will not be bound by it any more, so that what was reserved may be given up.
    """

    problem: str = ""
    free: bool = False


SendBinding = Callable[[wire.BindArgs, Grant], Awaitable[BindResult]]
"""Has the API server bind a pod; does not raise what the cluster did."""
Answer = tuple[int, str, bytes]
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class ExtenderApp:
    """`POST /filter`, `/prioritize`, `/bind`, and `/simulate` for anybody who asks what if.

    `GET /healthz`, `/readyz` and `/metrics`.
    """

    def __init__(
        self,
        extender: Extender,
        turns: SerialExecutor,
        bind: SendBinding,
        *,
        clock: Callable[[], float] = time.monotonic,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`turns` are also those of whoever brings news to the extender."""
        self.tally = ExtenderTally()
        self._extender = extender
        self._turns = turns
        self._bind = bind
        self._clock = clock
        self._deadline_s = deadline_s
        self._posts: dict[str, Callable[[bytes], Awaitable[Answer]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bound,
            "/simulate": self._simulate,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI 3)."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            status, kind, body = await self._answer(scope, receive)
            head = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": head})
            await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        post = self._posts.get(path)
        if method == "POST" and post is not None:
            began = self._clock()
            body = await _body(receive)
            if body is None:
                return 413, _TEXT, b"too large\n"
            answer = await post(body)
            self.tally.answered(path[1:], self._clock() - began)
            return answer
        if method != "GET":
            return 405, _TEXT, b"method not allowed\n"
        return self._look(path)

    def _look(self, path: str) -> Answer:
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            missing = not_returning() or ("" if self._extender.synced else "not synced")
            return (503, _TEXT, f"{missing}\n".encode()) if missing else (200, _TEXT, b"ok\n")
        if path == "/metrics":
            return 200, _TEXT, self.tally.text().encode()
        return 404, _TEXT, b"not found\n"

    async def _filter(self, body: bytes) -> Answer:
        try:
            pod, names = wire.read_args(body)
        except UserError as error:
            return 400, _TEXT, f"{error.line()}\n".encode()
        if not self._extender.synced:
            return 200, _JSON, wire.filter_error("wattherd has not seen the cluster yet")
        now_s = self._clock()
        try:
            verdict = await self._turn(lambda: self._extender.filter(pod, names, now_s))
        except TimeoutError:
            self.tally.late += 1
            late = f"wattherd took longer than {self._deadline_s:g} s; the pod is tried again"
            late = not_returning() or late
            return 200, _JSON, wire.filter_error(late)
        return 200, _JSON, wire.filtered(verdict, names)

    async def _prioritize(self, body: bytes) -> Answer:
        try:
            pod, names = wire.read_args(body)
        except UserError as error:
            return 400, _TEXT, f"{error.line()}\n".encode()
        by_node = dict.fromkeys(names, 0)
        if self._extender.synced:
            try:
                by_node = await self._turn(lambda: self._extender.prioritize(pod, names))
            except TimeoutError:
                self.tally.late += 1
        return 200, _JSON, wire.scores(by_node)

    async def _bound(self, body: bytes) -> Answer:
        try:
            args = wire.read_bind(body)
        except UserError as error:
            return 400, _TEXT, f"{error.line()}\n".encode()
        uid, node, now_s = args.pod_uid, args.node, self._clock()
        grant = await self._wait(lambda: self._extender.grant(uid, node, now_s))
        if isinstance(grant, NodeRefusal):
            return 200, _JSON, wire.bound(grant.line())
        done = await self._bind(args, grant)
        if done.free:
            await self._wait(lambda: self._extender.unbound(uid))
        return 200, _JSON, wire.bound(done.problem)

    async def _simulate(self, body: bytes) -> Answer:
        """Nobody waits for it who holds up others, so it has no deadline."""
        try:
            pods = read_pods(body, MOST_AT_WORK)
        except UserError as error:
            return 400, _TEXT, f"{error.line()}\n".encode()
        if not self._extender.synced:
            return 503, _TEXT, b"wattherd has not seen the cluster yet\n"
        simulate = self._turns.submit(self._extender.simulate, pods)
        found = await asyncio.wrap_future(simulate)
        return 200, _JSON, json.dumps(found).encode()

    async def _wait(self, note: Callable[[], Any]) -> Any:
        """What takes no time worth mentioning, once it is our turn."""
        try:
            return self._turns.run_soon(_AT_ONCE_S, note)
        except TurnTimeout:
            return await asyncio.wrap_future(self._turns.submit(note))

    async def _turn(self, decide: Callable[[], Any]) -> Any:
        """A decision, in time.

        Raises:
            TimeoutError: there was none in time; what is decided then holds all the same.
        """
        try:
            return self._turns.run_soon(_AT_ONCE_S, self._if_quick, decide)
        except TurnTimeout:
            turn = asyncio.wrap_future(self._turns.submit(decide))
        return await asyncio.wait_for(asyncio.shield(turn), self._deadline_s)

    def _if_quick(self, decide: Callable[[], Any]) -> Any:
        """A decision that will not keep the event loop from its deadlines.

        Raises:
            Busy: much is to be made anew for it.
        """
        if not self._extender.prompt:
            raise TurnTimeout
        return decide()


async def _body(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > _MOST_BODY:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
