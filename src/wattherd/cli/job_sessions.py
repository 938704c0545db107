"""`wattherd exec` and `wattherd attach`: into jobs that run.

What is typed is sent as far as the other side takes it; what comes is said to be taken once it is
printed. So neither side fills the other's memory, and a pager may stop it for as long as it likes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.job_names import FINAL, job_called
from wattherd.cli.job_output import outcome, print_runs
from wattherd.cli.kube_what_if import POD
from wattherd.cli.options import server_option
from wattherd.errors import UserError
from wattherd.library.client import TIMEOUT_S, Client

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

WINDOW, CHUNK = 256 << 10, 16 << 10
"""Bytes that may be on their way untaken, and of one message: as the service has it."""
BROKEN = 255
"""Exit code where the session ended otherwise than by the command's end, as of ssh."""
LEAVE = b"\x10\x11"
"""Ctrl-P Ctrl-Q, as of docker."""
AGAIN_S = 0.5
IN = b"\0"


class _WithCommand(click.Command):
    """The first word that is no option is the job; what follows its options is the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `--` before the command, unless it is there."""
        valued = {one for param in self.params if isinstance(param, click.Option)
                  if not param.is_flag for one in param.opts}  # fmt: skip
        at, words = 0, 0
        while at < len(args) and args[at] != "--":
            if args[at].startswith("-"):
                at += 2 if args[at] in valued else 1
                continue
            words += 1
            if words > 1:
                args = [*args[:at], "--", *args[at:]]
                break
            at += 1
        return super().parse_args(ctx, args)


@click.command("exec", cls=_WithCommand)
@click.argument("job")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--rank", default=0, show_default=True, help="Beside which task.")
@click.option("-i", "--input", "with_input", is_flag=True, help="Let it read this shell's input.")
@click.option(
    "-t/-T", "--tty/--no-tty", "terminal", default=None,
    help="In a terminal of its own.  [default: where input and output are one here]",
)  # fmt: skip
@server_option
def exec_command(
    *,
    job: str,
    command: tuple[str, ...],
    rank: int,
    with_input: bool,
    terminal: bool | None,
    server: str | None,
) -> int:
    """Run COMMAND inside the running JOB: `wattherd exec j-12 -- nvidia-smi`.

    COMMAND has the account, folder, environment, devices and limits of the job. It ends with the
    job, and when this shell goes; in a terminal `~.` after Enter ends it. The exit code is its own.
    """
    if job.startswith(POD):
        name = job.removeprefix(POD)
        hint = f"kubectl exec -it {name} -- {' '.join(command) or 'bash'}"
        raise UserError("runs on Kubernetes, where the kubelet lets in", where=job, hint=hint)
    if not command:
        hint = f"wattherd exec -it {job} -- bash"
        raise UserError("nothing to run", field="COMMAND", hint=hint)
    here = sys.stdin.isatty() and sys.stdout.isatty()
    in_terminal = here if terminal is None else terminal
    client = Client(server)
    job_id = _enterable(client, job)
    wanted = {
        "command": command,
        "rank": rank,
        "input": with_input or in_terminal,
        "terminal": _size() if in_terminal else None,
    }
    with contextlib.closing(client.socket(f"jobs/{job_id}/sessions")) as socket:
        session = _Session(socket, escapes=in_terminal and sys.stdin.isatty())
        with contextlib.suppress(ConnectionError):  # why it has closed is told by what it has sent
            session.say(**wanted)
        with _raw() if in_terminal and sys.stdin.isatty() else contextlib.nullcontext():
            last = session.carry(reads=bool(wanted["input"]))
    return _exit_code(last)


def _enterable(client: Client, job: str) -> str:
    """The id of a job that can be gone into; else why not, in the words of every other command."""
    job_id = job_called(client, job)
    if not client.get(f"jobs/{job_id}/sessions")["allowed"]:
        hint = "an operator has switched that off (`exec: false`)"
        raise UserError("no command may be run inside jobs here", where=job_id, hint=hint)
    return job_id


def _exit_code(last: dict[str, Any]) -> int:
    problem = last.get("problem") or last.get("why") or ""
    if problem:
        hint = f" (hint: {last['hint']})" if last.get("hint") else ""
        click.echo(f"wattherd: {problem}{hint}", err=True)
    return int(last.get("exit_code", BROKEN))


class _Escape:
    """Finds `~.` at the beginning of a line among what is typed, and other keys to leave by."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys
        self._begins, self._tilde = True, False
        self._last = b""

    def passed(self, data: bytes) -> tuple[bytes, bool]:
        """What is to be sent of it, and whether the user leaves."""
        kept = bytearray()
        for value in data:
            one = bytes([value])
            if self._tilde:
                self._tilde = False
                if one == b".":
                    return bytes(kept), True
                if one != b"~":
                    kept += b"~"
            elif one == b"~" and self._begins:
                self._tilde, self._begins = True, False
                continue
            self._last = (self._last + one)[-2:]
            if self._last in self._keys:
                return bytes(kept[:-1]), True
            self._begins = one in b"\r\n"
            kept += one
        return bytes(kept), False


class _Session:
    """One WebSocket: what is typed goes one way, what comes is printed."""

    def __init__(self, socket: ClientConnection, *, escapes: bool) -> None:
        self._socket = socket
        self._escape = _Escape() if escapes else None
        self._credit = threading.Condition()
        self._untaken = 0
        self._over = False
        self._left = False
        self._woken, self._waker = os.pipe()

    def say(self, **document: Any) -> None:
        """Say something.

        Raises:
            ConnectionError: the other side has closed; what it has sent before is still to be read.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(json.dumps(document))
        except ConnectionClosed:
            raise ConnectionError from None

    def carry(self, *, reads: bool) -> dict[str, Any]:
        """Until it is over: the last words."""
        from websockets.exceptions import ConnectionClosed

        last: dict[str, Any] = {"problem": "the connection broke"}
        reader = threading.Thread(target=self._read, daemon=True)
        before = signal.signal(signal.SIGWINCH, lambda *_: os.write(self._waker, b"w"))
        try:
            for message in self._socket:
                if isinstance(message, bytes):
                    self._print(message)
                    continue
                document = json.loads(message)
                if "taken" in document:
                    self._taken(int(document["taken"]))
                elif document.get("ready"):
                    if reads:
                        reader.start()
                else:
                    last = document
        except ConnectionClosed:
            pass  # the service is gone without a word
        finally:
            signal.signal(signal.SIGWINCH, before)
            self._end()
        return {"problem": "you have left"} if self._left else last

    def _print(self, message: bytes) -> None:
        left = memoryview(message)[1:]
        target = sys.stderr.fileno() if message[0] == 2 else sys.stdout.fileno()
        while left:
            left = left[os.write(target, left) :]
        with contextlib.suppress(ConnectionError):
            self.say(taken=len(message) - 1)

    def _taken(self, count: int) -> None:
        with self._credit:
            self._untaken -= count
            self._credit.notify()

    def _end(self) -> None:
        with self._credit:
            self._over = True
            self._credit.notify()
        os.write(self._waker, b"e")

    def _read(self) -> None:
        """In a thread of its own: what is typed, and how large the terminal is."""
        with contextlib.suppress(Exception):  # the connection ends first: the other side tells how
            while not self._over:
                ready, _, _ = select.select([sys.stdin.fileno(), self._woken], [], [])
                if self._woken in ready and b"e" not in os.read(self._woken, 64):
                    self.say(size=_size())
                if sys.stdin.fileno() in ready and not self._send(self._typed()):
                    return

    def _typed(self) -> bytes:
        return os.read(sys.stdin.fileno(), CHUNK)

    def _send(self, data: bytes) -> bool:
        """Whether there is more to come."""
        if not data:
            self.say(end=True)
            return False
        leaves = False
        if self._escape is not None:
            data, leaves = self._escape.passed(data)
        if data:
            self.give(data)
        if leaves:
            self._left = True
            self._socket.close()
        return not leaves

    def give(self, data: bytes) -> None:
        """Send input, once enough of what was sent before is taken."""
        with self._credit:
            self._credit.wait_for(lambda: self._over or self._untaken + len(data) <= WINDOW)
            self._untaken += len(data)
        self._socket.send(IN + data)


def _size() -> dict[str, Any]:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = 80, 24
    return {"rows": rows, "columns": columns, "name": os.environ.get("TERM", "")}


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Keys go to the other side as they are; whatever ends this command, the shell's are back."""
    with _restored(), _orderly():
        tty.setraw(sys.stdin.fileno(), termios.TCSADRAIN)  # what was typed by now is kept
        yield


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _orderly() -> Iterator[None]:
    """Signals that end a process let it tidy up."""
    known = (signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.signal(one, lambda number, _: sys.exit(128 + number)) for one in known}
    # Begun in the background of a shell, it would ignore Ctrl-C at this terminal.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# Attach ------------------------------------------------------------------------------------------


@click.command()
@click.argument("job")
@click.option("-n", "--lines", type=int, help="Begin with the last lines only.")
@click.option("--rank", default=0, show_default=True, help="Task whose output is shown.")
@click.option("--no-stdin", is_flag=True, help="Only look on.")
@click.option("--eof", is_flag=True, help="At the end of this input, end the job's, too.")
@server_option
def attach(
    *, job: str, lines: int | None, rank: int, no_stdin: bool, eof: bool, server: str | None
) -> int:
    """Follow JOB, and give it input if it was submitted with --stdin.

    Ctrl-C, Ctrl-P Ctrl-Q, and `~.` after Enter leave it; the job goes on. Once it is over, the exit
    code is the job's.
    """
    client = Client(server)
    return follow(client, job_called(client, job), lines=lines, rank=rank,
                  reads=not no_stdin, eof=eof)  # fmt: skip


def follow(
    client: Client,
    job_id: str,
    *,
    lines: int | None = None,
    rank: int = 0,
    reads: bool = True,
    eof: bool = False,
    seen: int | None = None,
) -> int:
    """Print what the job's runs print until it is over, and send it what is typed meanwhile.

    The exit code is the job's; 0 where the user has left.
    """
    job = client.get(f"jobs/{job_id}")
    runs = max(job["attempts"] - 1, 0) if seen is None else seen
    takes = reads and job["spec"]["stdin"] and job["state"] not in FINAL
    if takes:
        _enterable(client, job_id)
    click.echo(f"attached to {job_id}; Ctrl-C{', or `~.` after Enter,' if takes else ''} leaves it",
               err=True)  # fmt: skip
    giver = _Giver(client, job_id, eof=eof) if takes else None
    with _lines_with_keys() if takes and sys.stdin.isatty() else contextlib.nullcontext():
        try:
            if giver is not None:
                giver.start()
            last = print_runs(client, job_id, runs, rank=rank, lines=lines)
        except KeyboardInterrupt:
            click.echo(f"\nyou have left {job_id}, which goes on", err=True)
            return 0
    click.echo(outcome(last), err=True)
    return 0 if last["state"] == "Succeeded" else last["exit_code"] or 1


@contextlib.contextmanager
def _lines_with_keys() -> Iterator[None]:
    """A line is also at its end with Ctrl-Q, which else would only let the terminal print again."""
    with _restored(), _orderly():
        descriptor = sys.stdin.fileno()
        changed = termios.tcgetattr(descriptor)
        changed[0] &= ~termios.IXON
        changed[6][termios.VEOL] = LEAVE[1:]
        termios.tcsetattr(descriptor, termios.TCSADRAIN, changed)
        yield


class _Giver(threading.Thread):
    """Sends what is typed to the run under way, and to the next one once that is over."""

    def __init__(self, client: Client, job_id: str, *, eof: bool) -> None:
        super().__init__(name="input", daemon=True)
        self._client, self._job_id, self._eof = client, job_id, eof
        self._escape = _Escape(LEAVE)
        self._session: _Input | None = None

    def run(self) -> None:
        """Until the input ends, the job takes no more, or the user leaves."""
        terminal = sys.stdin.isatty()
        while data := os.read(sys.stdin.fileno(), CHUNK):
            leaves = False
            if terminal:
                data, leaves = self._escape.passed(data)
            if data and not self._deliver(data):
                return
            if leaves:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
        if self._eof:
            self._deliver(b"")

    def _deliver(self, data: bytes) -> bool:
        """Whether a run has taken it; `data` that is empty is the end of all."""
        from websockets.exceptions import WebSocketException

        while True:
            try:
                if self._session is None:
                    self._session = _Input(self._client.socket(f"jobs/{self._job_id}/sessions"))
                data = self._session.give(data)
            except _TakesNone as refused:
                click.echo(f"wattherd: {refused}", err=True)
                return False
            except (UserError, OSError, WebSocketException):
                # It waits, or is between two runs: what was not taken is the next one's.
                data, self._session = self._left(data), None
                time.sleep(AGAIN_S)
            else:
                return True

    def _left(self, data: bytes) -> bytes:
        return data if self._session is None else self._session.left(data)


class _TakesNone(Exception):
    """The job reads no input."""


class _Input:
    """A session that gives a run's first task input."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._taken = 0
        self._say(attach=True)
        told = json.loads(socket.recv(TIMEOUT_S))
        if told.get("takes") is False:
            raise _TakesNone(told["problem"])
        if not told.get("ready"):
            raise OSError(told.get("problem", "no answer"))

    def _say(self, **document: Any) -> None:
        self._socket.send(json.dumps(document))

    def give(self, data: bytes) -> bytes:
        """Send it, or the end of all, and wait until it is taken; what is left then: nothing.

        Raises:
            OSError, WebSocketException: the run is over before.
        """
        self._taken = 0
        if data:
            self._socket.send(IN + data)
        else:
            self._say(end=True)
        while True:
            told = json.loads(self._socket.recv())
            self._taken += told.get("taken", 0)
            if "problem" in told:
                raise OSError(told["problem"])
            if told.get("input_ended") or (data and self._taken >= len(data)):
                return b""

    def left(self, data: bytes) -> bytes:
        """What of it nobody has taken."""
        return data[self._taken :]
