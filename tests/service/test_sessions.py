"""Commands inside running jobs: they are the job's, end with it, and harm nobody else."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from service.guarded import Guarded
from service.inside import inside
from service.serving import Serving, until
from wattherd.local import processes, run_lock
from wattherd.local.observation import certain
from wattherd.local.sessions import CHUNK, WINDOW
from wattherd.server.api.routes.sessions import PATH
from wattherd.server.documents import job_sessions as sessions

pytestmark = pytest.mark.long
SECRET = "open-sesame-of-the-job"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    os.environ["SECRET_SOURCE"] = SECRET
    guarded = Guarded(
        tmp_path_factory.mktemp("site") / "state", slots=8, secret_env=["SECRET_SOURCE"]
    ).let_people_in()
    yield guarded
    guarded.close()
    del os.environ["SECRET_SOURCE"]


def running(guarded: Guarded, run: str = "sleep 1000", who: str = "user", **more: Any) -> str:
    job = guarded.submit(who, run, **more)
    guarded.until(lambda: state(guarded, job) == "Running")
    return job


def state(guarded: Guarded, job: str) -> str:
    return str(guarded.ask("GET", f"/api/v1/jobs/{job}", "admin").json["state"])


@pytest.fixture
def job(guarded: Guarded) -> Iterator[str]:
    job = running(guarded, secrets={"KEY": "env:SECRET_SOURCE"}, envs={"COLOUR": "red"})
    yield job
    guarded.ask("POST", f"/api/v1/jobs/{job}/cancel", "admin")
    guarded.until(lambda: state(guarded, job) == "Cancelled")


def into(guarded: Guarded, job: str, *command: str, who: str = "user", **more: Any) -> Any:
    return inside(guarded.port, job, *command, token=guarded.tokens[who], **more)


def marked(word: str) -> list[int]:
    """Processes with a word on their command line."""
    found = []
    for pid in certain(processes.all_pids()) or ():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            found.append(pid)
    return found


# What it is ---------------------------------------------------------------------------------------


def test_streams_come_apart_and_the_exit_code_is_the_command_s(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "sh", "-c", "echo out; echo err >&2; exit 7") as session:
        assert session.rest() == {"exit_code": 7}
    assert (session.out, session.err) == (b"out\n", b"err\n")


def test_a_command_is_where_the_job_is_and_has_what_it_has(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "sh", "-c", 'pwd; echo "$KEY $COLOUR $WATTHERD_JOB_ID"; umask') as one:
        one.rest()
    run = guarded.site.config.state / "jobs" / job
    assert one.out.decode().splitlines() == [
        str((run / "work").absolute()), f"{SECRET} red {job}", "0077",
    ]  # fmt: skip
    (task,) = task_of(guarded, job)
    with into(guarded, job, "cat", "/proc/self/cgroup", "/proc/self/limits") as one:
        one.rest()
    assert Path(f"/proc/{task}/cgroup").read_bytes() in one.out
    assert Path(f"/proc/{task}/limits").read_bytes() in one.out


def task_of(guarded: Guarded, job: str) -> list[int]:
    run = guarded.site.config.state / "jobs" / job / "run-1"
    begun = json.loads((run / "begun").read_text())
    return [pid for pid in certain(processes.descendants(begun["pid"])) or () if _sleeps(pid)]


def _sleeps(pid: int) -> bool:
    return b"sleep\x001000" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_input_is_read_to_its_end_and_more_than_a_window_of_it(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "wc", "-c", input=True) as session:
        for _ in range(3 * WINDOW // CHUNK):
            session.until(lambda: session.given - session.taken <= WINDOW - CHUNK)
            session.give(b"x" * CHUNK)
        session.say(end=True)
        assert session.rest() == {"exit_code": 0}
    assert int(session.out) == session.given


def test_without_input_a_command_finds_the_end_of_it(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "cat") as session:
        assert session.rest() == {"exit_code": 0}


def test_a_terminal_has_its_size_and_keys_that_interrupt(guarded: Guarded, job: str) -> None:
    terminal = {"rows": 33, "columns": 99, "name": "xterm-256color"}
    # The trap stands before a word is said, and no program is begun behind it: a key that comes
    # just then would wait for that program's end.
    script = 'trap "stty size; exit 9" INT; stty size; echo "$TERM"; while :; do read x; done'
    words = ("sh", "-c", script)
    with into(guarded, job, *words, terminal=terminal) as session:
        session.until(lambda: b"33 99\r\nxterm-256color\r\n" in session.out)
        session.say(size={"rows": 11, "columns": 22})
        session.give(b"\x03")
        session.until(lambda: b"11 22" in session.out)
        assert session.rest() == {"exit_code": 9}


def test_a_terminal_ends_at_the_key_for_the_end(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "cat", terminal={"rows": 9, "columns": 9}) as session:
        session.give(b"abc\r\x04")
        assert session.rest() == {"exit_code": 0}
    assert session.out.count(b"abc") == 2  # as it is typed, and as it is printed


LEAVES_ITS_TERMINAL = """
import os, time
print("before", flush=True)
for descriptor in (0, 1, 2):
    os.close(descriptor)
time.sleep(0.5)
again = os.open("/dev/tty", os.O_WRONLY)
os.write(again, b"after")
os.close(again)
time.sleep(0.5)
os._exit(7)
"""
"""As programs do that close what they print to before they exit, here slowly."""


def test_a_program_that_closes_its_terminal_ends_by_itself(guarded: Guarded, job: str) -> None:
    command = (sys.executable, "-c", LEAVES_ITS_TERMINAL)
    with into(guarded, job, *command, terminal={"rows": 9, "columns": 9}) as session:
        assert session.rest() == {"exit_code": 7}
    assert session.out == b"before\r\nafter"


def test_what_cannot_be_run_says_so_as_a_shell_does(guarded: Guarded, job: str) -> None:
    for word, code in (("no-such-program", 127), ("/etc/passwd", 126)):
        with into(guarded, job, word) as session:
            assert session.rest()["exit_code"] == code
            assert "cannot run" in session.last["why"]


def test_another_rank_has_its_own_devices_and_unknown_ones_are_refused(guarded: Guarded) -> None:
    roles = {"worker": {"run": "sleep 1000", "taskNumber": 2}}
    reply = guarded.ask("POST", "/api/v1/jobs", "user", {"taskRoles": roles})
    gang = reply.json["id"]
    guarded.until(lambda: state(guarded, gang) == "Running")
    with into(guarded, gang, "sh", "-c", "echo $RANK", rank=1) as session:
        session.rest()
    assert session.out == b"1\n"
    with into(guarded, gang, "true", rank=2) as session:
        assert "no task 2" in session.rest()["problem"]
    guarded.ask("POST", f"/api/v1/jobs/{gang}/cancel", "admin")


# How it ends --------------------------------------------------------------------------------------

STUBBORN = (
    "import os, signal, sys, time\n"
    "for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        os.closerange(0, 3)\n"
    "        time.sleep(1000)\n"
    "    os._exit(0)\n"
    "print('ready', flush=True)\n"
    "time.sleep(1000)\n"
)


@pytest.mark.parametrize("terminal", [None, {"rows": 9, "columns": 9}])
def test_a_client_that_vanishes_leaves_nothing_behind(
    guarded: Guarded, job: str, terminal: Any
) -> None:
    with into(
        guarded, job, "python3", "-c", STUBBORN, "vanishing-word", terminal=terminal
    ) as session:
        session.until(lambda: b"ready" in session.out)
        until(lambda: len(marked("vanishing-word")) == 2)
        session.socket.socket.close()  # no word of farewell
    until(lambda: not marked("vanishing-word"), 20.0)
    assert state(guarded, job) == "Running"


def test_what_a_command_leaves_in_the_background_ends_with_it(guarded: Guarded, job: str) -> None:
    words = ("sh", "-c", "(setsid sleep 1000.7654 &) ; echo done")
    with into(guarded, job, *words) as session:
        assert session.rest() == {"exit_code": 0}
    assert session.out == b"done\n"
    until(lambda: not marked("1000.7654"), 10.0)


def test_a_cancelled_job_ends_in_time_with_all_that_is_inside(guarded: Guarded) -> None:
    job = running(guarded, "trap 'exit 0' TERM; while :; do sleep 0.1; done")
    with into(guarded, job, "python3", "-c", STUBBORN, "cancelled-word") as session:
        session.until(lambda: b"ready" in session.out)
        begun_s = time.monotonic()
        guarded.ask("POST", f"/api/v1/jobs/{job}/cancel", "user")
        guarded.until(lambda: state(guarded, job) in ("Cancelled", "Succeeded"))
        lasted_s = time.monotonic() - begun_s
        assert "problem" in session.rest()
    assert lasted_s < 10.0
    until(lambda: not marked("cancelled-word"), 5.0)


def test_a_job_that_ends_by_itself_ends_what_is_inside(guarded: Guarded, tmp_path: Path) -> None:
    job = running(guarded, f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    with into(guarded, job, "python3", "-c", STUBBORN, "ended-word") as session:
        session.until(lambda: b"ready" in session.out)
        (tmp_path / "go").touch()
        assert "problem" in session.rest()
    guarded.until(lambda: state(guarded, job) == "Succeeded")
    assert not marked("ended-word")


def test_a_session_holds_no_lock_of_the_job(guarded: Guarded, job: str) -> None:
    run = guarded.site.config.state / "jobs" / job / "run-1"
    with into(guarded, job, "python3", "-c", STUBBORN, "lock-word") as session:
        session.until(lambda: b"ready" in session.out)
        holders = set(certain(run_lock.holders(run.absolute())) or ())
        assert holders
        assert not holders & {*marked("lock-word"), *marked("wattherd.local.session_process")}


def test_a_supervisor_that_is_killed_takes_sessions_along(guarded: Guarded) -> None:
    job = running(guarded, "sleep 1000")
    run = guarded.site.config.state / "jobs" / job / "run-1"
    with into(guarded, job, "python3", "-c", STUBBORN, "orphaned-word") as session:
        session.until(lambda: b"ready" in session.out)
        os.kill(json.loads((run / "begun").read_text())["pid"], signal.SIGKILL)
        assert "problem" in session.rest()
    guarded.until(lambda: state(guarded, job) == "Failed")
    assert not marked("orphaned-word")


def test_a_run_of_an_earlier_version_says_that_its_next_one_can_be_entered(
    guarded: Guarded, job: str
) -> None:
    folder = guarded.site.config.state / "jobs" / job / "run-1" / "sessions"
    folder.rmdir()
    with into(guarded, job, "true") as session:
        assert "earlier version" in session.rest()["problem"]
    folder.mkdir(mode=0o700)


def test_long_commands_arrive_whole_and_are_written_down_in_part(
    guarded: Guarded, job: str
) -> None:
    word = "é" * 9_000
    with into(guarded, job, "sh", "-c", 'printf %s "$1" | wc -m', "sh", word) as session:
        assert session.rest() == {"exit_code": 0}
    assert int(session.out) in (9_000, 18_000)
    told = guarded.ask("GET", f"/api/v1/jobs/{job}", "user").json["story"][-1]["what"]
    assert len(told) < 1_100


def test_an_idle_session_ends_and_a_used_one_does_not(
    guarded: Guarded, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = guarded.site.config.model_copy(update={"exec_idle": "2s"})
    monkeypatch.setattr(guarded.site, "config", idle)
    with into(guarded, job, "sh", "-c", "for i in 1 2 3 4; do echo $i; sleep 1; done") as session:
        assert session.rest() == {"exit_code": 0}
    with into(guarded, job, "sleep", "1000.4321") as session:
        assert "nothing came or went" in session.rest()["problem"]
    until(lambda: not marked("1000.4321"), 10.0)


# Who may ------------------------------------------------------------------------------------------


def refused(guarded: Guarded, job: str, who: str = "", **headers: str) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as info, into(guarded, job, "id", who=who, headers=headers):
        pass
    response = info.value.response
    return response.status_code, json.loads(response.body)["error"]


@pytest.mark.parametrize(
    ("who", "status"),
    [("", 401), ("viewer", 403), ("colleague", 403), ("stranger", 404), ("nobody", 404),
     ("operator", 403)],
)  # fmt: skip
def test_others_than_its_user_and_admins_are_refused(
    guarded: Guarded, job: str, who: str, status: int
) -> None:
    code, said = refused(guarded, job, who)
    assert (code, SECRET in said) == (status, False)
    path = PATH.replace("{job_id}", job)
    if status != 404:
        guarded.until(lambda: guarded.desk.audit.lines(1, path=path, result="refused"))


def test_an_admin_may_go_into_every_job_and_the_story_says_who_did(
    guarded: Guarded, job: str
) -> None:
    with into(guarded, job, "echo", f"key={SECRET}", who="admin") as session:
        session.rest()
    told = guarded.ask("GET", f"/api/v1/jobs/{job}", "user").json["story"][-1]
    assert (told["what"], told["cause"]) == ("A command was run in it: echo key=***", "by admin")
    acts = guarded.ask("GET", f"/api/v1/audit?about={job}&what=JobEntered", "admin").text
    assert "key=***" in acts
    guarded.until(lambda: guarded.desk.audit.lines(1)[0].get("session") == "ends")
    begins, ends = guarded.desk.audit.lines(2)[::-1]
    assert (begins["by"], begins["session"], begins["command"]) == (
        "admin", "begins", "echo key=***",
    )  # fmt: skip
    assert (ends["session"], ends["exit_code"]) == ("ends", 0)
    assert SECRET not in guarded.desk.audit.path.read_text()


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://elsewhere.example"}, {"sec-fetch-site": "cross-site"},
     {"sec-fetch-site": "same-origin"}],
)  # fmt: skip
def test_no_page_of_a_browser_gets_in_with_whatever_it_shows(
    guarded: Guarded, job: str, headers: dict[str, str]
) -> None:
    cookie = f"wattherd_token={guarded.tokens['admin']}"
    assert refused(guarded, job, "admin", **headers)[0] == 403
    assert refused(guarded, job, cookie=cookie, **headers)[0] == 403


def test_a_page_of_the_dashboard_does_not_get_in_by_the_admin_s_cookie(
    guarded: Guarded, job: str
) -> None:
    cookie = f"wattherd_token={guarded.tokens['admin']}"
    assert refused(guarded, job, cookie=cookie, origin=guarded.url)[0] == 403
    assert refused(guarded, job, cookie=cookie) == (403, "a cookie does not open this")


def test_a_token_that_is_revoked_ends_its_session(
    guarded: Guarded, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "TOKEN_S", 0.5)
    number = guarded.let_in("passing", sessions_role(), "")
    with into(guarded, job, "sleep", "1000.9876", who="passing") as session:
        session.until(lambda: session.last == {"ready": True})
        guarded.desk.tokens.revoke(number)
        assert "token" in session.rest()["problem"]
    until(lambda: not marked("1000.9876"), 10.0)


def sessions_role() -> Any:
    from wattherd.server.auth.caller import Role

    return Role.ADMIN


def test_an_operator_can_switch_it_off(
    guarded: Guarded, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        guarded.site, "config", guarded.site.config.model_copy(update={"exec": False})
    )
    assert refused(guarded, job, "user")[0] == 403
    listed = guarded.ask("GET", f"/api/v1/jobs/{job}/sessions", "user").json
    assert (listed["allowed"], listed["sessions"]) == (False, [])


def test_who_is_inside_can_be_seen(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "cat", input=True) as first:
        first.until(lambda: first.last == {"ready": True})
        (row,) = guarded.ask("GET", f"/api/v1/jobs/{job}/sessions", "user").json["sessions"]
        assert (row["by"], row["rank"], row["command"]) == ("a/user", 0, "cat")


@pytest.mark.parametrize(
    ("most", "job", "user"),
    [(sessions.MOST_OF_JOB, "j-1", "ann-{}"), (sessions.MOST_OF_USER, "j-{}", "ann"),
     (sessions.MOST_IN_ALL, "j-{}", "ann-{}")],
)  # fmt: skip
def test_there_are_so_many_sessions_at_a_time(most: int, job: str, user: str) -> None:
    book = sessions.SessionBook()
    with contextlib.ExitStack() as held:
        for n in range(most):
            held.enter_context(book.place(job.format(n), user.format(n), of_input=False))
        with pytest.raises(sessions.SessionEnded, match=r"end one|try again"):
            held.enter_context(book.place(job.format(most), user.format(most), of_input=False))
    assert not book.held


def test_a_job_that_does_not_run_cannot_be_entered(guarded: Guarded) -> None:
    over = guarded.submit("user", "true")
    guarded.until(lambda: state(guarded, over) == "Succeeded")
    assert refused(guarded, over, "user") == (409, "is over: Succeeded")
    waits = guarded.submit("user", "true", begin="in 1h")
    assert refused(guarded, waits, "user")[0] == 409
    assert refused(guarded, "j-999", "user")[0] == 404


# Clients that do not keep to it -------------------------------------------------------------------


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def queued(socket: ClientConnection) -> int:
    """Bytes that have come, and come within a second."""
    count = 0
    with contextlib.suppress(TimeoutError):
        while True:
            count += len(socket.recv(1.0))
    return count


def test_a_reader_that_does_not_read_fills_no_memory(guarded: Guarded, job: str) -> None:
    with into(guarded, job, "cat", "/dev/zero") as session:
        session.until(lambda: session.last == {"ready": True})
        before = resident()
        time.sleep(2.0)
        assert queued(session.socket) <= WINDOW + CHUNK
        assert resident() - before < 32 << 20
        assert state(guarded, job) == "Running"


def test_a_reader_that_lies_of_what_it_has_taken_fills_no_memory(
    guarded: Guarded, job: str
) -> None:
    with connect(
        f"ws://127.0.0.1:{guarded.port}/api/v1/jobs/{job}/sessions",
        additional_headers={"authorization": f"Bearer {guarded.tokens['user']}"},
        proxy=None, compression=None, max_queue=1, ping_interval=None,
    ) as socket:  # fmt: skip
        socket.send(json.dumps({"command": ["cat", "/dev/zero"]}))
        before, end_s = resident(), time.monotonic() + 3.0
        while time.monotonic() < end_s:
            socket.send(json.dumps({"taken": 1 << 30}))
            time.sleep(0.01)
        assert resident() - before < 64 << 20
        socket.socket.close()
    assert state(guarded, job) == "Running"


@pytest.mark.parametrize(
    "said",
    ["", "[]", "{}", '{"command": 3}', '{"command": ["a", 3]}', '{"command": ["\\u0000"]}',
     '{"command": ["\\ud800"]}', '{"command": ["a"], "rank": "x"}', "[" * 20_000,
     '{"command": ["a"], "terminal": 7}', json.dumps({"command": ["x" * 40_000]}), b"\0abc"],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused(guarded: Guarded, job: str, said: Any) -> None:
    with connect(
        f"ws://127.0.0.1:{guarded.port}/api/v1/jobs/{job}/sessions",
        additional_headers={"authorization": f"Bearer {guarded.tokens['user']}"},
        proxy=None,
    ) as socket:
        socket.send(said)
        assert json.loads(socket.recv(20.0))["problem"]


@pytest.mark.parametrize(
    "said",
    [
        "{",
        '{"go": true}',
        '{"taken": "x"}',
        '{"taken": null}',
        '{"taken": 1e999}',
        b"\1abc",
        b"\0" * 40_000,
    ],
)
def test_a_client_that_speaks_out_of_turn_is_hung_up_on(
    guarded: Guarded, job: str, said: Any
) -> None:
    with into(guarded, job, "sleep", "1000.2468", input=True) as session:
        session.until(lambda: session.last == {"ready": True})
        session.socket.send(said)
        assert "problem" in session.rest()
    until(lambda: not marked("1000.2468"), 10.0)


def test_more_input_than_was_agreed_ends_the_session_and_not_the_job(
    guarded: Guarded, job: str
) -> None:
    with into(guarded, job, "sleep", "1000.1357", input=True) as session:
        session.until(lambda: session.last == {"ready": True})
        for _ in range(3 * WINDOW // CHUNK):
            session.give(b"x" * CHUNK)
        assert "problem" in session.rest()
    until(lambda: not marked("1000.1357"), 10.0)
    assert state(guarded, job) == "Running"


# Input of the job itself --------------------------------------------------------------------------


def test_a_job_that_keeps_its_input_open_is_given_some_and_goes_on(guarded: Guarded) -> None:
    job = running(guarded, "while read line; do echo got $line; done; echo end", stdin=True)
    log = guarded.site.config.state / "jobs" / job / "run-1" / "logs" / "0.log"
    for word in (b"one", b"two"):  # two people, one after the other
        with into(guarded, job) as session:
            session.until(lambda: session.last == {"ready": True})
            session.give(word + b"\n")
            session.until(lambda word=word: session.taken == len(word) + 1)
    until(lambda: log.read_text() == "got one\ngot two\n")
    assert state(guarded, job) == "Running"
    with into(guarded, job) as session:
        session.say(end=True)
        assert session.rest() == {"input_ended": True}
    guarded.until(lambda: state(guarded, job) == "Succeeded")
    assert log.read_text() == "got one\ngot two\nend\n"
    told = guarded.ask("GET", f"/api/v1/audit?about={job}&what=JobEntered", "admin").json["acts"]
    assert [one["by"] for one in told] == ["a/user"] * 3


def test_a_job_without_input_says_how_it_would_have_some(guarded: Guarded, job: str) -> None:
    with into(guarded, job) as session:
        assert "--stdin" in session.rest()["problem"]


# The service ends ---------------------------------------------------------------------------------


def test_a_service_that_is_killed_ends_sessions_and_no_job(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "state")
    serving.begin()
    try:
        serving.ready()
        job = serving.submit("sleep 1000")
        serving.wait_for(job, "Running")
        for end in (serving.kill, serving.end_service):
            with inside(serving.port, job, "python3", "-c", STUBBORN, "killed-word") as session:
                session.until(lambda session=session: b"ready" in session.out)
                end()
                session.rest()
            until(lambda: not marked("killed-word"), 10.0)
            serving.begin()
            serving.ready()
            assert serving.state_of(job) == "Running"
        with inside(serving.port, job, "echo", "again") as session:
            assert session.rest() == {"exit_code": 0}
        assert list((tmp_path / "state" / "jobs" / job / "run-1" / "sessions").iterdir()) == []
    finally:
        serving.end()
