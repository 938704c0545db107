"""One session inside a run: a command beside the run's tasks, or input for the first of them.

    python -m wattherd.local.session_process RUN_DIR NAME

Started by the run's supervisor for a socket that the service offers (`sessions`). The command has
the account, folder, environment, limits and devices of the task whose rank was asked for. Whatever
it starts is this process's to end (PR_SET_CHILD_SUBREAPER): when the command has ended, when
nobody listens any more, when the run ends, and when the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattherd.errors import words
from wattherd.local import cgroups, processes, run_dir, sessions
from wattherd.local.logs import MASK
from wattherd.local.observation import Present
from wattherd.local.sessions import CHUNK, ERR, IN, OUT, WINDOW, heard, said
from wattherd.local.supervisor import SET_CHILD_SUBREAPER, SET_DEATH_SIGNAL, settle

LET_GO_S = 0.05
"""Between looks at a terminal that nobody has open while the command lives."""
HANGUP_S = 1.0
"""For a command to end by itself when nobody listens any more."""
KILL_ROUNDS, KILL_PAUSE_S = 100, 0.02
NO_COMMAND, CANNOT_EXECUTE = 127, 126
"""Exit codes as of shells."""
END_OF_FILE = b"\x04"
TERMINAL = re.compile(r"[\w.+-]{1,40}", re.ASCII)
MOST_SIDE, MOST_SHOWN = 10_000, 2_000
GO_S = 60.0
"""For the service to write the session down."""


class SessionRefused(Exception):
    """There will be no session, and why."""


class TakesNone(SessionRefused):
    """The run reads no input, and will not."""


class SessionProcess:
    """One command and its streams."""

    def __init__(self, wire: socket.socket, woken: int) -> None:
        """`woken` becomes readable when a signal has come."""
        self._wire, self._woken = wire, woken
        self._outbox: deque[bytes] = deque()
        self._pending: deque[bytes] = deque()
        """What the command is to read, and has not."""
        self._waiting = 0
        self._credit = WINDOW
        """Bytes that may be sent before some are said to be taken."""
        self._taken = 0
        self._input: int | None = None
        self._terminal: int | None = None
        self._let_go_of = False
        """Whether the command lives and has closed its terminal."""
        self._input_ended = False
        self._streams: dict[int, int] = {}
        self._command: int | None = None
        self.status: int | None = None
        """Exit code of the command."""
        self.gone = self.stopping = False
        """Whether nobody listens any more; whether the run ends."""

    # The command --------------------------------------------------------------------------------

    def begin(self, given: Command, request: Mapping[str, Any]) -> None:
        """Start the command.

        Raises:
            OSError: it cannot be run.
            subprocess.SubprocessError: not as the run's account, in its folder and its group.
        """
        size = request.get("terminal")
        if size:
            self._begin_in_terminal(given, size)
            return
        wants_input = bool(request.get("input"))
        started = given.start(
            stdin=subprocess.PIPE if wants_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for pipe, stream in ((started.stdout, OUT), (started.stderr, ERR)):
            assert pipe is not None  # noqa: S101 - it was asked for
            self._streams[_kept(pipe.fileno())] = stream
            pipe.close()
        if started.stdin is not None:
            self._input = _kept(started.stdin.fileno())
            started.stdin.close()
        self._command = _let_go(started)

    def _begin_in_terminal(self, given: Command, size: Mapping[str, Any]) -> None:
        master, slave = pty.openpty()
        try:
            _resize(master, size)
            if given.user is not None:
                os.fchown(slave, given.user[0], -1)  # programs open it by its name, too
            started = given.start(stdin=slave, stdout=slave, stderr=slave, terminal=True)
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        os.set_blocking(master, False)
        self._terminal = self._input = master
        self._streams[master] = OUT
        self._command = _let_go(started)

    def take_input_to(self, descriptor: int) -> None:
        """There is no command: what comes is written there."""
        self._input = _kept(descriptor)

    # The streams --------------------------------------------------------------------------------

    def carry(self) -> None:
        """Until the command has ended and all is told, or nobody listens, or the run ends."""
        while not (self.gone or self.stopping):
            if self._command is not None and self.status is not None and not self._streams:
                return
            if self._command is None and self._input is None and not self._outbox:
                return
            self._turn()

    def flush(self) -> None:
        """Send what is left, as long as somebody takes it, and wait until they hang up.

        A socket that is closed while there is something to read loses what was sent by it.
        """
        self._wire.settimeout(HANGUP_S)
        with contextlib.suppress(OSError):
            while self._outbox:
                self._wire.send(self._outbox.popleft())
            self._wire.shutdown(socket.SHUT_WR)
            while self._wire.recv(sessions.MOST_PACKET):
                pass

    def tell(self, **document: Any) -> None:
        """Say something to who listens."""
        self._outbox.append(said(**document))

    def _turn(self) -> None:
        poller = select.poll()
        poller.register(self._wire, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        poller.register(self._woken, select.POLLIN)
        wanted: dict[int, int] = {}
        if self._credit > 0 and not self._outbox:
            wanted = dict.fromkeys(self._streams, select.POLLIN)
        if self._pending and self._input is not None:
            wanted[self._input] = wanted.get(self._input, 0) | select.POLLOUT
        pause_s, self._let_go_of = (LET_GO_S if self._let_go_of else None), False
        if pause_s is not None and self._terminal is not None:
            wanted.pop(self._terminal, None)
        for descriptor, events in wanted.items():
            poller.register(descriptor, events)
        for descriptor, event in poller.poll(pause_s and pause_s * 1000.0):
            if descriptor == self._woken:
                self._note_signals()
            elif descriptor == self._wire.fileno():
                self._speak(event)
            else:
                self._serve(descriptor, event)

    def _note_signals(self) -> None:
        if bytes([signal.SIGTERM]) in os.read(self._woken, 512):
            self.stopping = True
        self._wait()

    def _wait(self) -> None:
        """Take note of all that has ended; orphans of the command have fallen to us."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._command:
                    code = os.waitstatus_to_exitcode(status)
                    self.status = code if code >= 0 else 128 - code
                    self.end_all()  # what it left in the background ends with it

    def _speak(self, event: int) -> None:
        try:
            if event & select.POLLOUT and self._outbox:
                self._wire.send(self._outbox[0])
                self._outbox.popleft()
            if event & ~select.POLLOUT:
                self._hear(self._wire.recv(sessions.MOST_PACKET))
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, AttributeError, ArithmeticError):
            self.gone = True  # who speaks so is not listened to any more

    def _hear(self, packet: bytes) -> None:
        """What comes from who listens.

        Raises:
            ValueError: it makes no sense.
        """
        if not packet:
            self.gone = True
            return
        document = heard(packet)
        if document is None:
            if packet[0] != IN or self._waiting + len(packet) - 1 > WINDOW:
                raise ValueError("more than was agreed")
            self._pending.append(packet[1:])
            self._waiting += len(packet) - 1
            if self._input is None:
                self._drop_input()
            return
        self._credit = min(WINDOW, self._credit + max(0, int(document.get("taken", 0))))
        if document.get("size") and self._terminal is not None:
            _resize(self._terminal, document["size"])
        if document.get("end"):
            self._input_ended = True
            if self._terminal is not None:
                self._pending.append(END_OF_FILE)
                self._waiting += 1
            elif not self._pending:
                self._close_input()

    def _serve(self, descriptor: int, event: int) -> None:
        if descriptor == self._input and self._pending and event & ~select.POLLIN:
            self._feed(descriptor)
        if descriptor in self._streams and event & ~select.POLLOUT:
            self._drain(descriptor)

    def _feed(self, descriptor: int) -> None:
        try:
            count = os.write(descriptor, self._pending[0])
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self._drop_input()
            self._close_input()
            return
        rest = self._pending.popleft()[count:]
        if rest:
            self._pending.appendleft(rest)
        self._acknowledge(count)
        if self._input_ended and not self._pending:
            self._close_input()

    def _acknowledge(self, count: int) -> None:
        self._waiting -= count
        self._taken += count
        if self._taken >= WINDOW // 4 or not self._pending:
            self.tell(taken=self._taken)
            self._taken = 0

    def _drop_input(self) -> None:
        """Nobody reads it: whoever sends it must not wait for that."""
        count = self._waiting
        self._pending.clear()
        if count:
            self._acknowledge(count)

    def _close_input(self) -> None:
        if self._input is not None and self._input != self._terminal:
            os.close(self._input)
            self._input = None

    def _drain(self, descriptor: int) -> None:
        """One packet of what the command prints; the end of a terminal is an error (EIO).

        Programs close their streams before they exit (coreutils do, to hear of a full disk). Who
        closes the terminal then kills them by the hang-up and has its exit code from that.
        """
        try:
            found = os.read(descriptor, min(CHUNK, self._credit))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            found = b""
        if found:
            self._credit -= len(found)
            self._outbox.append(bytes([self._streams[descriptor]]) + found)
            return
        if descriptor == self._terminal and self.status is None:
            self._let_go_of = True
            return
        del self._streams[descriptor]
        if descriptor == self._terminal:
            self._terminal = self._input = None
        os.close(descriptor)

    # The end ------------------------------------------------------------------------------------

    @property
    def input_ended(self) -> bool:
        """Whether all that was to come has been written."""
        return self._input_ended and not self._pending

    def hang_up(self) -> None:
        """Nobody listens: the command is told so as by a terminal, and ended if it does not end."""
        for descriptor in self._streams:
            os.close(descriptor)
        self._streams.clear()
        below = processes.descendants(os.getpid())
        if isinstance(below, Present):
            processes.signal_all(below.value, signal.SIGHUP)
        until_s = time.monotonic() + HANGUP_S
        while self._command is not None and self.status is None and time.monotonic() < until_s:
            time.sleep(KILL_PAUSE_S)
            self._wait()
        self.end_all()

    def end_all(self) -> None:
        """Kill what the session has started, however it hides: all of it is below us."""
        for _ in range(KILL_ROUNDS):
            match processes.descendants(os.getpid()):
                case Present([]):
                    return
                case Present(below):
                    processes.signal_all(below, signal.SIGKILL)
                case _:
                    pass
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(KILL_PAUSE_S)


class Command:
    """What is to be run, as the run's order has it for the task of one rank."""

    def __init__(self, order: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Look it up.

        Raises:
            Refused: there is no such task.
        """
        rank, terminal = int(request.get("rank", 0)), request.get("terminal")
        tasks = {one["rank"]: one for one in order["tasks"]}
        if rank not in tasks:
            raise SessionRefused(
                f"there is no task {rank}, only {', '.join(map(str, sorted(tasks)))}"
            )
        self._order, task = order, tasks[rank]
        self._cwd: str = task["cwd"]
        self.user: list[int] | None = order["user"]
        held = {name: run_dir.HELD + name for name in order["secrets"]}
        self._secrets = {one: os.environ[at] for one, at in held.items() if at in os.environ}
        self._env = {**order["env"], **task["env"], **self._secrets}
        self._argv = [str(one) for one in request["command"]]
        name = str((terminal or {}).get("name", ""))
        named = {"TERM": name} if TERMINAL.fullmatch(name) else {}
        if "enter" in task:  # a container, whose runner knows all the rest
            told = [f"--env=TERM={one}" for one in named.values()]
            options = [*(["--tty"] if terminal else []), *told]
            self._argv = [*task["enter"], *options, task["container"], *self._argv]
        else:
            self._env |= named

    def shown(self, words: Sequence[str]) -> str:
        """The words without any secret of the job."""
        text = " ".join(words)
        for secret in sorted(filter(None, self._secrets.values()), key=len, reverse=True):
            text = text.replace(secret, MASK.decode())
        return text[:MOST_SHOWN]

    def start(self, *, stdin: int, stdout: int, stderr: int, terminal: bool = False) -> Any:
        """Begin it, in the run's group and as its account.

        Raises:
            OSError: it cannot be run.
            subprocess.SubprocessError: not in that group, as that account or in that folder.
        """
        order = self._order

        def prepare() -> None:
            # A service begun in the background of a shell ignores these, and so would its children.
            for number in (signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            settle(self._enter, order["rlimits"], self.user, self._cwd)

        return subprocess.Popen(  # noqa: S603 - what the run's user asks for
            self._argv,
            cwd=self._cwd if self.user is None else None,
            env=self._env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
            umask=int(order["umask"], 8),
        )

    def _enter(self) -> None:
        """Into the run's group: a command beside it would be under no limit, and might live on."""
        if not cgroups.join(cgroups.Support.of(self._order), self._order["group"]):
            raise OSError(errno.ESRCH, "the run's control group is gone")


def _kept(descriptor: int) -> int:
    """Ours, whatever becomes of the object that it was of; nobody waits at it."""
    own = os.dup(descriptor)
    os.set_blocking(own, False)
    return own


def _let_go(started: Any) -> int:
    """Its number; who waits for it is `_wait` alone."""
    pid: int = started.pid
    started.returncode = 0  # or else it would be waited for when it is forgotten
    return pid


def _resize(terminal: int, size: Mapping[str, Any]) -> None:
    """Tell a terminal, and so its foreground processes, how large it is."""
    rows, columns = (min(MOST_SIDE, max(0, int(size.get(one, 0)))) for one in ("rows", "columns"))
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def _why(error: Exception, argv: Sequence[str]) -> tuple[int, str]:
    if isinstance(error, subprocess.SubprocessError):
        return CANNOT_EXECUTE, "cannot begin in the run's folder, as its account, under its limits"
    code = NO_COMMAND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
    return code, f"cannot run {argv[0]!r}: {getattr(error, 'strerror', None) or error}"


def run_command(
    inside: SessionProcess, wire: socket.socket, run: Path, request: Mapping[str, Any]
) -> None:
    """From the request to the exit code.

    Raises:
        Refused: it cannot be asked for.
    """
    order = run_dir.read(run / run_dir.ORDER)
    if order is None:
        raise SessionRefused("the run's order is gone")
    command = Command(order, request)
    if not _may_go(wire, command.shown(request["command"])):
        return
    try:
        inside.begin(command, request)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        code, why = _why(error, request["command"])
        inside.tell(exit_code=code, why=command.shown([why]))
    else:
        inside.carry()
        if inside.gone:
            inside.hang_up()
        elif inside.stopping:
            inside.end_all()
            inside.tell(problem="the run ends")
        else:
            inside.tell(exit_code=inside.status)
    inside.flush()


def give_input(inside: SessionProcess, wire: socket.socket) -> int:
    """Pass input on to the run's first task; the exit code of this process.

    Raises:
        Refused: the job takes none.
    """
    if sessions.INPUT_VARIABLE not in os.environ:
        hint = "`wattherd submit --stdin` keeps it open"
        raise TakesNone(f"the job reads no input, or it was ended ({hint})")
    descriptor = int(os.environ[sessions.INPUT_VARIABLE])
    if not _may_go(wire, ""):
        return 0
    inside.take_input_to(descriptor)
    os.close(descriptor)
    inside.carry()
    inside.tell(input_ended=True)
    inside.flush()
    return sessions.END_OF_INPUT if inside.input_ended else 0


def _may_go(wire: socket.socket, shown: str) -> bool:
    """Whether the service lets it begin, having written it down."""
    wire.send(said(ready=True, command=shown))
    document = heard(wire.recv(sessions.MOST_PACKET) or b"{}")
    wire.settimeout(0)
    return bool(document and document.get("go"))


def main(run: Path, name: str) -> int:
    """One session, from the request to its end."""
    supervisor = os.getppid()
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    wire = sessions.connect(run, name) if os.getppid() == supervisor else None
    if wire is None:
        return 0
    wire.settimeout(GO_S)
    inside = SessionProcess(wire, woken)
    try:
        request = heard(wire.recv(sessions.MOST_REQUEST) or b"{}") or {}
        if name.startswith(sessions.INPUT):
            return give_input(inside, wire)
        if request.get("command"):
            run_command(inside, wire, run, request)
    except SessionRefused as refused:
        more = {"takes": False} if isinstance(refused, TakesNone) else {}
        inside.tell(problem=str(refused), **more)
        inside.flush()
    except (OSError, ValueError) as error:
        inside.tell(problem=f"cannot be served: {words(error)}")
        inside.flush()
    finally:
        inside.end_all()
        wire.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
