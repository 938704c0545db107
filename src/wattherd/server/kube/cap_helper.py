"""The privileged part of a node's agent: devices behind a socket, with no network and no rights.

It knows caps, leases and devices, and nothing of Kubernetes but the kubelet's own socket; whoever
may open its socket may set caps within what devices allow, and no more. One line of JSON asks, one
answers. It goes round its devices each second whether asked or not: an agent that hangs, is killed
or cannot see who decides lets its lease end, and all caps sink to the safe one.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from wattherd.errors import ClusterError, UserError, words
from wattherd.kube.decide.agent_caps import NodeRound
from wattherd.server.kube.agent_devices import Bench

ROUND_S = 1.0
SEARCH_ROUNDS = 60
"""Between two searches for new devices: a driver may be loaded later, a GPU be plugged in."""
MODE = 0o660
MOST_LINE_BYTES = 16 << 20
PATIENCE_S = 30.0
"""For an answer: a round over devices that hang is bounded by their own time limits."""


class CapRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked: caps in watts by UUID for a lease, or that all be put back, or only a look.

    With caps comes the node's limit; None leaves it as it was.
    """

    caps_w: dict[str, float] | None = None
    lease_s: float = 0.0
    limit_w: float | None = None
    put_back: bool = False


class CapReply(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered: the devices after that, or why it cannot be done."""

    look: NodeRound | None = None
    problem: str = ""


_ASK = msgspec.json.Decoder(CapRequest)
_REPLY = msgspec.json.Decoder(CapReply)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    answer: Callable[[bytes], CapReply]


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = cast("_Server", self.server)
        while line := self.rfile.readline(MOST_LINE_BYTES):
            try:
                self.wfile.write(msgspec.json.encode(server.answer(line)) + b"\n")
            except OSError:
                return  # the agent is gone


class CapHelper:
    """Serves a bench on a socket from `begin` to `close`; `find` makes the bench."""

    def __init__(self, find: Callable[[], Bench], path: Path) -> None:
        """Look for devices, and listen.

        Raises:
            UserError: the socket cannot be made or is another helper's, or the devices cannot be
                used.
        """
        _refuse_if_answered(path)
        self.bench = find()
        self._over = threading.Event()
        self._server = _listening(path)
        self._server.answer = self._answer
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="caps-serve", daemon=True),
            threading.Thread(target=self._rounds, name="caps-rounds", daemon=True),
        ]

    def begin(self) -> None:
        """Answer and go round from now on."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; caps stay as they are, since whoever asked for them may still count on them."""
        self._over.set()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()
        self.bench.close()

    def _rounds(self) -> None:
        rounds = 0
        while not self._over.wait(ROUND_S):
            rounds += 1
            if rounds % SEARCH_ROUNDS == 0:
                self.bench.search()
            self.bench.look()

    def _answer(self, line: bytes) -> CapReply:
        try:
            ask = _ASK.decode(line)
        except msgspec.MsgspecError as error:
            return CapReply(problem=f"cannot be read: {error}")
        if ask.put_back:
            self.bench.put_back()
            return CapReply(look=self.bench.look())
        if ask.caps_w is None:
            return CapReply(look=self.bench.look())
        return CapReply(look=self.bench.hold(ask.caps_w, ask.lease_s, ask.limit_w))


def _refuse_if_answered(path: Path) -> None:
    """Two helpers would order the same GPUs by turns.

    Raises:
        UserError: somebody listens there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(str(path))
        except OSError:
            return
    raise UserError("another helper listens there", where=str(path), field="--socket",
                    hint="end it first, or choose another path")  # fmt: skip


def _listening(path: Path) -> _Server:
    """A server on a socket that its user and group may open, whatever lay there before."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        before = os.umask(0o777 & ~MODE)
        try:
            return _Server(str(path), _Handler)
        finally:
            os.umask(before)
    except OSError as error:
        problem = f"no socket can be made: {error.strerror or error}"
        raise UserError(problem, where=str(path), field="--socket") from None


class NoHelper(ClusterError):
    """The helper does not answer."""


@dataclass(slots=True)
class RemoteBench:
    """The helper's devices for its agent; a call that failed connects anew at the next one."""

    path: Path
    _stream: Any = field(default=None)

    def look(self) -> NodeRound:
        """Tell what is; what was ordered goes on.

        Raises:
            NoHelper: it does not answer.
        """
        return self._asked(CapRequest())

    def hold(
        self, caps_w: Mapping[str, float], lease_s: float, limit_w: float | None = None
    ) -> NodeRound:
        """Hold these by UUID for so long, put back all others, and tell what is.

        Raises:
            NoHelper: it does not answer.
        """
        return self._asked(CapRequest(caps_w=dict(caps_w), lease_s=lease_s, limit_w=limit_w))

    def put_back(self) -> None:
        """Put back all that was changed.

        Raises:
            NoHelper: it does not answer.
        """
        self._asked(CapRequest(put_back=True))

    def close(self) -> None:
        """Let go; caps stay."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(OSError):  # what was not sent yet cannot be sent any more
                stream.close()

    def _asked(self, ask: CapRequest) -> NodeRound:
        try:
            stream = self._opened()
            stream.write(msgspec.json.encode(ask) + b"\n")
            stream.flush()
            reply = _REPLY.decode(stream.readline(MOST_LINE_BYTES))
        except (OSError, msgspec.MsgspecError) as error:
            self.close()
            problem = f"the cap helper at {self.path} does not answer: {words(error)}"
            raise NoHelper(problem) from None
        if reply.look is None:
            raise NoHelper(f"the cap helper at {self.path}: {reply.problem}")
        return reply.look

    def _opened(self) -> Any:
        if self._stream is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(PATIENCE_S)
            try:
                connection.connect(str(self.path))
                self._stream = connection.makefile("rwb")
            finally:
                connection.close()  # the stream keeps it open
        return self._stream
