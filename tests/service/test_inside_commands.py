"""`wattherd exec`, `attach` and `run --stdin` as people use them, at a terminal and in pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.serving import MOST_S, WATTHERD, Serving, until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("site") / "state", "--slots", "6")
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


@pytest.fixture(scope="module")
def job(serving: Serving) -> str:
    job = serving.submit("sleep 1000")
    serving.wait_for(job, "Running")
    return job


def wattherd(
    serving: Serving, *words: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*WATTHERD, *words],
        env={**os.environ, "WATTHERD_SERVER": f"http://127.0.0.1:{serving.port}"},
        input=given,
        capture_output=True,
        timeout=MOST_S,
        check=False,
    )


class Typist:
    """Somebody at a terminal of 40 lines and 120 columns."""

    def __init__(self, serving: Serving, *words: str) -> None:
        self.seen = b""
        self.master, slave = pty.openpty()
        self.resize(40, 120)
        self.keys = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            [*WATTHERD, *words],
            env={
                **os.environ,
                "WATTHERD_SERVER": f"http://127.0.0.1:{serving.port}",
                "TERM": "xterm",
            },
            stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def sees(self, text: bytes) -> None:
        end_s = time.monotonic() + MOST_S
        while text not in self.seen:
            assert time.monotonic() < end_s, self.seen[-800:]
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096)

    def ends(self) -> int:
        """The exit code; the terminal is as it was."""
        end_s = time.monotonic() + MOST_S
        while self.process.poll() is None:
            assert time.monotonic() < end_s, self.seen[-800:]
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096)
        assert termios.tcgetattr(self.slave) == self.keys
        return int(self.process.returncode)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def at_a_terminal(serving: Serving, *words: str) -> Iterator[Typist]:
    typist = Typist(serving, *words)
    try:
        yield typist
    finally:
        typist.close()


# exec ---------------------------------------------------------------------------------------------


def test_a_command_prints_here_and_its_exit_code_is_passed_on(serving: Serving, job: str) -> None:
    done = wattherd(serving, "exec", job, "--", "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (done.returncode, done.stdout, done.stderr) == (5, b"out\n", b"err\n")


@pytest.mark.parametrize("words", [("exec", "JOB", "ls", "-d", "/"), ("exec", "--rank", "0", "JOB",
    "ls", "-d", "/"), ("exec", "JOB", "-T", "--rank=0", "--", "ls", "-d", "/")])  # fmt: skip
def test_options_of_the_command_are_its_own(
    serving: Serving, job: str, words: tuple[str, ...]
) -> None:
    done = wattherd(serving, *(job if word == "JOB" else word for word in words))
    assert (done.returncode, done.stdout) == (0, b"/\n"), done.stderr


def test_input_is_passed_on_where_it_is_asked_for(serving: Serving, job: str) -> None:
    given = os.urandom(1 << 20)
    done = wattherd(serving, "exec", "-i", job, "--", "cat", given=given)
    assert (done.returncode, done.stdout == given) == (0, True)
    assert wattherd(serving, "exec", job, "--", "cat", given=b"lost").stdout == b""


def test_what_goes_wrong_is_said_with_the_exit_codes_of_shells(serving: Serving, job: str) -> None:
    done = wattherd(serving, "exec", job, "--", "no-such-program")
    assert (done.returncode, b"cannot run" in done.stderr) == (127, True)
    assert wattherd(serving, "exec", "j-999", "--", "true").returncode == 3
    done = wattherd(serving, "exec", job)
    assert (done.returncode, b"nothing to run" in done.stderr) == (2, True)
    done = wattherd(serving, "exec", "pod/train-0", "--", "nvidia-smi")
    assert b"kubectl exec -it train-0 -- nvidia-smi" in done.stderr
    over = serving.submit("true")
    serving.wait_for(over, "Succeeded")
    done = wattherd(serving, "exec", over, "--", "true")
    assert (done.returncode, b"is over" in done.stderr) == (2, True)


def test_a_pipe_that_closes_ends_it(serving: Serving, job: str) -> None:
    line = f"{' '.join(WATTHERD)} exec {job} -- yes | head -n 2"
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}"],
        env={**os.environ, "WATTHERD_SERVER": f"http://127.0.0.1:{serving.port}"},
        capture_output=True, timeout=MOST_S, check=False,
    )  # fmt: skip
    assert done.stdout == b"y\ny\n1\n"  # as click has it


def test_at_a_terminal_there_is_a_terminal_inside(serving: Serving, job: str) -> None:
    with at_a_terminal(serving, "exec", "-it", job, "--", "sh") as typist:
        typist.type(b"stty size; echo $TERM; tty\r")
        typist.sees(b"40 120")
        typist.sees(b"xterm\r\n/dev/pts/")
        typist.resize(22, 33)
        os.kill(typist.process.pid, signal.SIGWINCH)
        typist.type(b"sleep 0.5; stty size\r")
        typist.sees(b"22 33")
        typist.type(b"sleep 1000\r")
        time.sleep(0.5)
        typist.type(b"\x03")
        typist.type(b"echo code=$?\r")
        typist.sees(b"code=130")
        typist.type(b"exit 4\r")
        assert typist.ends() == 4
    with at_a_terminal(serving, "exec", job, "sh", "-c", "echo ready; cat") as typist:
        typist.sees(b"ready")
        typist.type(b"abc\r\x04")
        assert typist.ends() == 0
        assert typist.seen.count(b"abc") == 2


def test_a_session_that_hangs_is_left_by_keys_as_of_ssh(serving: Serving, job: str) -> None:
    with at_a_terminal(serving, "exec", "-it", job, "sleep", "1000.31415") as typist:
        time.sleep(1.0)
        typist.type(b"\r~.")
        assert typist.ends() == 255
    until(lambda: not running("1000.31415"))
    assert serving.state_of(job) == "Running"


def running(word: str) -> bool:
    lines = [one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline") if one.exists()]
    return any(line.endswith(word.encode() + b"\0") for line in lines)


@pytest.mark.parametrize("kills", [True, False])
def test_a_service_that_goes_leaves_the_terminal_in_order(tmp_path: Path, *, kills: bool) -> None:
    serving = Serving(tmp_path / "state")
    serving.begin()
    try:
        serving.ready()
        job = serving.submit("sleep 1000")
        serving.wait_for(job, "Running")
        with at_a_terminal(serving, "exec", "-it", job, "sh") as typist:
            typist.type(b"echo be''gun\r")
            typist.sees(b"begun")
            (serving.kill if kills else serving.end_service)()
            assert typist.ends() == 255
            assert b"Traceback" not in typist.seen
    finally:
        serving.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_client_that_is_ended_leaves_its_terminal_in_order(
    serving: Serving, job: str, number: signal.Signals
) -> None:
    with at_a_terminal(serving, "exec", "-it", job, "sh") as typist:
        typist.type(b"echo be''gun\r")
        typist.sees(b"begun")
        typist.process.send_signal(number)
        assert typist.ends() == 128 + number


# attach -------------------------------------------------------------------------------------------

READER = 'echo ready; while read line; do echo "got $line"; done; echo end; exit 6'


def test_a_job_is_followed_and_given_input_and_goes_on_when_it_is_left(serving: Serving) -> None:
    job = serving.submit(READER, stdin=True)
    for leave in (b"\x10\x11", b"~.\r", b"\x03"):
        with at_a_terminal(serving, "attach", job) as typist:
            typist.sees(b"ready")
            word = b"word" + leave[:1].hex().encode()
            typist.type(word + b"\r")
            typist.sees(b"got " + word)
            typist.type(leave)
            typist.sees(b"goes on")
            assert typist.ends() == 0
        assert serving.state_of(job) == "Running"
    done = wattherd(serving, "attach", "--eof", "--lines", "0", job, given=b"last\n")
    assert (done.returncode, done.stdout) == (6, b"got last\nend\n"), done.stderr


def test_an_end_of_input_alone_does_not_end_the_job_s(serving: Serving) -> None:
    job = serving.submit("read line; echo $line; exit 3", stdin=True)
    serving.wait_for(job, "Running")
    client = subprocess.Popen(
        [*WATTHERD, "attach", job],
        env={**os.environ, "WATTHERD_SERVER": f"http://127.0.0.1:{serving.port}"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(2.0)
    assert serving.state_of(job) == "Running"
    wattherd(serving, "attach", job, given=b"now\n")
    assert (client.communicate(timeout=MOST_S)[0], client.returncode) == (b"now\n", 3)


def test_a_job_without_input_is_looked_at_only(serving: Serving) -> None:
    job = serving.submit("sleep 1; echo done")
    done = wattherd(serving, "attach", job, given=b"nobody reads this\n")
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_run_passes_its_input_on(serving: Serving) -> None:
    lines = b"".join(b"%d\n" % number for number in range(200_000))
    done = wattherd(serving, "run", "-i", "--", "wc", "-l", given=lines)
    assert (done.returncode, done.stdout) == (0, b"200000\n"), done.stderr
