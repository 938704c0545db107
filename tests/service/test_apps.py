"""Pages that jobs serve: passed on to those who may open them, and to nobody else."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from service.guarded import Guarded, Reply, handed_over
from service.serving import Serving, until
from wattherd.errors import UserError
from wattherd.local.apps import App
from wattherd.server.apps.headers import location, policy
from wattherd.server.auth.app_origin import AppHost, AppOrigins
from wattherd.server.auth.caller import Role
from wattherd.server.site.idle_apps import IdleWatch
from wattherd.workload.app_spec import COMMANDS
from wattherd.workload.job_file import JobFile, validated_job

V1 = "/api/v1"
PROGRAM = Path(__file__).with_name("web_app.py")
HTML = "text/html,*/*"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state", slots=6)
    for name, role, tenant in (
        ("viewer", Role.VIEWER, "a"),
        ("user", Role.USER, "a"),
        ("colleague", Role.USER, "a"),
        ("stranger", Role.USER, "b"),
        ("operator", Role.OPERATOR, ""),
    ):
        guarded.let_in(name, role, tenant)
    yield guarded
    guarded.close()


def begin(guarded: Guarded, **app: Any) -> str:
    """A job that serves pages, once it does."""
    job = guarded.submit("user", [sys.executable, str(PROGRAM)], app={"kind": "web", **app})  # type: ignore[arg-type]
    guarded.until(lambda: guarded.ask("GET", f"/jobs/{job}/app/", "user").status == 200)
    return job


@pytest.fixture(scope="module")
def job(guarded: Guarded) -> str:
    return begin(guarded)


@pytest.fixture(scope="module")
def shared(guarded: Guarded) -> str:
    return begin(guarded, share="tenant", keep_prefix=True)


def opened(guarded: Guarded, job: str, who: str = "user", more: str = "") -> dict[str, str]:
    return guarded.opened(f"/jobs/{job}/app/", who, more)


def secret_of(guarded: Guarded, job: str) -> str:
    app = App.read(guarded.site.config.state / "jobs" / job / "run-1")
    assert app is not None
    return app.secret


def talk(guarded: Guarded, job: str, who: str = "user", **more: Any) -> ClientConnection:
    shown = {**opened(guarded, job, who, "; own=1"), **more.pop("headers", {})}
    return socket_to(guarded.port, f"/jobs/{job}/app/talk?x=1", shown, **more)


def socket_to(port: int, path: str, shown: dict[str, str], **more: Any) -> ClientConnection:
    """With `shown` as headers, the host among them."""
    host = shown.pop("host", f"127.0.0.1:{port}")
    wire = socket.create_connection(("127.0.0.1", port))
    try:
        return connect(
            f"ws://{host}{path}", additional_headers=shown, sock=wire, max_size=None, **more
        )
    except BaseException:
        wire.close()
        raise


# What is passed on ------------------------------------------------------------------------------


def test_a_request_reaches_the_app_and_its_answer_comes_back(guarded: Guarded, job: str) -> None:
    body = b"x" * 3_000_000  # longer than the service itself takes
    told = guarded.ask("PUT", f"/jobs/{job}/app/a%2Fb/c?q=1&r=%20", "user", body).json
    assert (told["method"], told["path"], told["query"]) == ("PUT", "/a/b/c", "q=1&r=%20")
    assert (told["length"], told["knows"]) == (len(body), True)


def test_the_app_learns_neither_token_nor_cookie_of_the_service(guarded: Guarded, job: str) -> None:
    token = guarded.tokens["user"]
    wrong = {"x-wattherd-user": "root", "te": "trailers"}
    own = opened(guarded, job, more=f"; own=1; wattherd_token={token}")
    here = {"cookie": "own=1", "authorization": f"Bearer {token}", "host": "127.0.0.1"}
    for headers in ({**own, **wrong}, {**here, **wrong}):
        told = guarded.ask("GET", f"/jobs/{job}/app/", **headers).json["headers"]
        assert token not in json.dumps(told)
        assert told["cookie"] == ["own=1"]
        assert told["x-wattherd-user"] == ["a/user"]
        assert told["x-forwarded-prefix"] == [f"/jobs/{job}/app"]
        assert told["host"] == [headers["host"]]
        assert not {"authorization", "te"} & set(told)


def test_an_answer_speaks_for_the_app_alone(guarded: Guarded, job: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port)
    connection.request("GET", f"/jobs/{job}/app/cookies", headers=(shown := opened(guarded, job)))
    answer = connection.getresponse()
    told = answer.getheaders()
    connection.close()
    names = {name.lower() for name, _ in told}
    assert not names & {"clear-site-data", "service-worker-allowed", "x-private"}
    cookies = [value for name, value in told if name.lower() == "set-cookie"]
    assert len(cookies) == 1
    assert cookies[0].startswith("plain=1")
    assert f"Path=/jobs/{job}/app/" in cookies[0]
    assert "Domain" not in cookies[0]
    policies = [value for name, value in told if name.lower() == "content-security-policy"]
    assert policies[0] == "default-src 'self'"  # the app's own is left as it was
    own = f"http://{shown['host']}/jobs/{job}/app/"
    assert f"connect-src {own} {own.replace('http', 'ws')} " in policies[1]
    assert "cross-origin-opener-policy" not in names
    page = guarded.ask("GET", f"/jobs/{job}", "user", accept=HTML)
    assert page.headers["cross-origin-opener-policy"] == "same-origin"


def test_redirects_stay_below_the_address(guarded: Guarded, job: str, shared: str) -> None:
    def to(which: str, where: str) -> str:
        reply = guarded.ask("GET", f"/jobs/{which}/app/moved?to={where}", "user")
        return reply.headers["location"]

    base = f"/jobs/{job}/app/"
    assert to(job, "/login") == base + "login"
    assert to(job, base + "x") == base + "x"
    assert to(job, "x") == "x"
    assert to(job, "https://example.org/x") == "https://example.org/x"
    assert guarded.ask("GET", f"/jobs/{job}/app", "user").headers["location"] == base
    told = guarded.ask("GET", f"/jobs/{shared}/app/x", "user").json
    assert told["path"] == f"/jobs/{shared}/app/x"  # this one knows where it is seen


def test_an_endless_answer_comes_as_it_is_made_and_ends_with_its_reader(
    guarded: Guarded, job: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", f"/jobs/{job}/app/endless", headers=opened(guarded, job))
        with connection.getresponse() as answer:
            assert [answer.readline() for _ in range(2)] == [b"line 0\n", b"line 1\n"]
    guarded.until(lambda: "left" in guarded.ask("GET", f"{V1}/jobs/{job}/logs", "user").text)


def test_a_socket_carries_texts_and_bytes_both_ways(guarded: Guarded, job: str) -> None:
    with talk(guarded, job, subprotocols=["one", "two"]) as socket:
        assert socket.subprotocol == "two"
        told = json.loads(socket.recv())
        assert (told["path"], told["query"], told["knows"]) == ("/talk", "x=1", True)
        assert guarded.tokens["user"] not in json.dumps(told)
        assert told["headers"]["cookie"] == ["own=1"]
        for said, heard in (("ab", "abab"), (b"\x00\x01\xff", b"\xff\x01\x00")):
            socket.send(said)
            assert socket.recv() == heard
        socket.send(b"z" * 2_000_000)
        assert len(socket.recv()) == 2_000_000
        socket.send("end")
        with pytest.raises(ConnectionClosed) as ended:
            socket.recv()
    assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (4001, "as asked")
    with talk(guarded, job) as socket:
        socket.recv()
        socket.close(4002)
    guarded.until(lambda: "closed 4002" in guarded.ask("GET", f"{V1}/jobs/{job}/logs", "user").text)


# At an origin of its own --------------------------------------------------------------------------


def test_a_login_opens_an_app_at_its_own_address_only(guarded: Guarded, job: str) -> None:
    """And what opens the app there opens nothing of ours."""
    path, login = f"/jobs/{job}/app/x", {"cookie": f"wattherd_token={guarded.tokens['user']}"}
    sent = guarded.send("GET", path, None, login)
    assert sent.status == 303
    assert sent.headers["location"].startswith(f"http://{job}-")
    assert guarded.send("POST", path, b"", login).status == 403
    own = guarded.opened(path, "user")
    assert guarded.send("GET", path, None, own).status == 200
    for more in (f"{V1}/whoami", f"{V1}/health", "/", "/login", f"/jobs/{job}", "/static/style.css",
                 "/metrics", "/jobs/j-99/app/"):  # fmt: skip
        assert guarded.send("GET", more, None, own).status == 404
        with_login = {**own, **login}
        assert guarded.send("GET", more, None, with_login).status == 404
    here = {"cookie": own["cookie"]}
    assert guarded.send("GET", f"{V1}/whoami", None, here).status == 401
    assert guarded.send("GET", path, None, {**login, "host": own["host"]}).status == 401


def test_a_ticket_is_good_once_and_for_its_app(guarded: Guarded, job: str, shared: str) -> None:
    login = {"cookie": f"wattherd_token={guarded.tokens['user']}"}

    def entry(which: str) -> tuple[str, str]:
        told = guarded.send("GET", f"/jobs/{which}/app/", None, login)
        assert told.headers["referrer-policy"] == "no-referrer"
        parts = urlsplit(told.headers["location"])
        return parts.netloc, f"{parts.path}?{parts.query}"

    host, path = entry(job)
    other, _ = entry(shared)
    assert guarded.send("GET", path, None, {"host": other}).status == 403
    assert guarded.send("GET", path, None, {}).status in (401, 404)  # at our own address: nothing
    assert guarded.send("GET", path, None, {"host": host}).status == 303
    assert guarded.send("GET", path, None, {"host": host}).status == 403
    host, path = entry(job)
    astray = path.replace("next=%2Fjobs", "next=https%3A%2F%2Fevil.example%2Fjobs")
    assert guarded.send("GET", astray, None, {"host": host}).status == 403


def test_an_app_of_another_store_with_the_same_number_has_another_address() -> None:
    one, other = AppOrigins(None, "1"), AppOrigins(None, "2")
    address = one.address("j-1", "http", "127.0.0.1:8700", here=True)
    assert address is not None
    host = address.removeprefix("http://")
    assert host.endswith(".localhost:8700")
    assert one.of(host) == AppHost("j-1")
    assert not other.of(host).shows("j-1")  # type: ignore[union-attr]
    assert one.of("127.0.0.1:8700") is None
    assert one.address("j-1", "https", "gpu1.example", here=False) is None


def test_names_and_ports_of_apps_are_as_the_operator_says() -> None:
    named = AppOrigins("https://{job}.apps.example", "1")
    address = named.address("j-7", "https", "gpu1.example", here=False)
    assert address is not None
    assert named.of(address.removeprefix("https://")) == AppHost("j-7")
    assert named.of("apps.example") is None
    assert named.cookie("j-7", secure=True) == ("__Host-wattherd_app", "/")
    beside = AppOrigins("https://gpu1.example:8701", "1")
    assert beside.port == 8701
    assert beside.of("gpu1.example:8701") == AppHost(None)
    assert beside.of("gpu1.example:8700") is None
    assert beside.cookie("j-7", secure=True) == ("wattherd_app_j-7", "/jobs/j-7/app/")
    for wrong in ("apps.example", "https://x.{job}.example", "https://gpu1.example", "ftp://a:1",
                  "https://gpu1.example:8701/apps"):  # fmt: skip
        with pytest.raises(UserError, match=r"address|port|name"):
            AppOrigins(wrong, "1")


def test_who_logs_out_or_loses_a_token_loses_the_app(guarded: Guarded, job: str) -> None:
    made = guarded.let_in("user-again", Role.OPERATOR)
    own = guarded.opened(f"/jobs/{job}/app/", "user-again")
    assert guarded.send("GET", f"/jobs/{job}/app/", None, own).status == 200
    guarded.desk.tokens.revoke(made)
    assert guarded.send("GET", f"/jobs/{job}/app/", None, own).status == 401
    own = guarded.opened(f"/jobs/{job}/app/", "user")
    guarded.desk.origins.end(guarded.tokens["user"])
    assert guarded.send("GET", f"/jobs/{job}/app/", None, own).status == 401


# Who may ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "own", "tenants"),
    [
        ("", 401, 401),
        ("stranger", 404, 404),
        ("viewer", 403, 200),
        ("colleague", 403, 200),
        ("user", 200, 200),
        ("operator", 200, 200),
    ],
)
def test_only_those_who_may_open_it_do(
    guarded: Guarded, job: str, shared: str, who: str, own: int, tenants: int
) -> None:
    for which, status in ((job, own), (shared, tenants)):
        for method in ("GET", "POST", "DELETE"):
            assert guarded.ask(method, f"/jobs/{which}/app/", who).status == status
        if status == 200:
            with talk(guarded, which, who) as socket:
                assert json.loads(socket.recv())["knows"]
        else:
            login = {"cookie": f"wattherd_token={guarded.tokens[who]}"}
            with pytest.raises(InvalidStatus) as refused:
                socket_to(guarded.port, f"/jobs/{which}/app/talk", login)
            assert refused.value.response.status_code == 403


def test_a_browser_without_login_is_led_there(guarded: Guarded, job: str) -> None:
    reply = guarded.ask("GET", f"/jobs/{job}/app/lab", accept=HTML)
    assert (reply.status, reply.headers["location"]) == (303, f"/login?next=/jobs/{job}/app/lab")


def test_pages_of_other_sites_reach_no_app(guarded: Guarded, job: str) -> None:
    own = opened(guarded, job)
    own["origin"] = f"http://{own['host']}"
    assert guarded.ask("POST", f"/jobs/{job}/app/", body=b"", **own).status == 200
    for foreign in ({"origin": "https://evil.example"}, {"sec-fetch-site": "same-site"}):
        reply = guarded.ask("POST", f"/jobs/{job}/app/", body=b"", **{**own, **foreign})
        assert reply.status == 403
        with pytest.raises(InvalidStatus):
            talk(guarded, job, headers=foreign)


def test_the_secret_is_in_no_log_and_in_no_document(guarded: Guarded, job: str) -> None:
    secret = secret_of(guarded, job)
    log = guarded.ask("GET", f"{V1}/jobs/{job}/logs", "user").text
    assert "secret: ***" in log
    for path in (f"{V1}/jobs/{job}", f"/jobs/{job}", f"{V1}/decisions?job={job}"):
        assert secret not in guarded.ask("GET", path, "user").text
    folder = guarded.site.config.state / "jobs" / job / "run-1"
    assert (folder / "app.json").stat().st_mode & 0o777 == 0o600
    assert secret not in (folder / "order.json").read_text()


def test_what_is_asked_of_apps_is_not_in_the_audit_but_what_was_refused_is(
    guarded: Guarded, job: str
) -> None:
    guarded.ask("POST", f"/jobs/{job}/app/quiet", "user")
    guarded.ask("POST", f"/jobs/{job}/app/loud", "colleague")

    def paths() -> list[str]:
        return [line["path"] for line in guarded.desk.audit.lines(100)]

    guarded.until(lambda: f"/jobs/{job}/app/loud" in paths())  # written once it is answered
    assert f"/jobs/{job}/app/quiet" not in paths()


# Beginning and end ------------------------------------------------------------------------------


def test_the_link_is_told_while_it_runs(guarded: Guarded, job: str) -> None:
    told = guarded.ask("GET", f"{V1}/jobs/{job}", "user").json["app"]
    assert told == {"kind": "web", "path": f"/jobs/{job}/app/", "share": "owner"}
    page = guarded.ask("GET", f"/jobs/{job}", "user", accept=HTML).text
    assert f'href="/jobs/{job}/app/"' in page
    page = guarded.ask("GET", f"/jobs/{job}", "colleague", accept=HTML).text
    assert f'href="/jobs/{job}/app/"' not in page


def status(guarded: Guarded, path: str) -> Reply:
    return guarded.ask("GET", path, "user", accept=HTML)


def test_before_and_after_the_app_a_page_says_so(guarded: Guarded) -> None:
    plain = guarded.submit("user", "sleep 300")
    guarded.until(
        lambda: guarded.ask("GET", f"{V1}/jobs/{plain}", "user").json["state"] == "Running"
    )
    assert status(guarded, f"/jobs/{plain}/app/").status == 404
    deaf = guarded.submit("user", "sleep 300", app="web")
    guarded.until(lambda: "does not listen" in status(guarded, f"/jobs/{deaf}/app/").text)
    reply = status(guarded, f"/jobs/{deaf}/app/")
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    with pytest.raises(InvalidStatus):
        talk(guarded, deaf)
    for one in (plain, deaf):
        guarded.ask("POST", f"{V1}/jobs/{one}/cancel", "user")
    guarded.until(lambda: status(guarded, f"/jobs/{deaf}/app/").status == 410)


@pytest.mark.long
def test_an_idle_app_is_ended_and_one_in_use_is_not(guarded: Guarded) -> None:
    job = guarded.submit("user", "sleep 300", app={"kind": "web", "idle": "1s"})
    guarded.until(
        lambda: guarded.ask("GET", f"{V1}/jobs/{job}", "user").json["state"] == "Cancelled"
    )
    acts = guarded.ask("GET", f"{V1}/decisions?job={job}", "operator").json["decisions"]
    assert "idle for 1.0 s" in json.dumps(acts)


def test_idleness_is_counted_from_the_last_use() -> None:
    watch = IdleWatch(None)  # type: ignore[arg-type] - it is not begun
    assert watch.due({"j-1": 60.0, "j-2": 60.0}, 0.0) == []
    watch._used_s["j-2"] = 30.0
    assert [one.job_id for one in watch.due({"j-1": 60.0, "j-2": 60.0}, 61.0)] == ["j-1"]
    assert watch.due({"j-1": 60.0}, 62.0)[0].cause == "idle for 60.0 s"
    assert watch.due({}, 63.0) == []
    assert watch.due({"j-1": 60.0}, 64.0) == []  # begun anew


# What is run ------------------------------------------------------------------------------------


def test_kinds_know_their_command_and_the_web_does_not() -> None:
    for kind in ("jupyter", "vscode"):
        found = JobFile.model_validate({"app": kind})
        assert found.spec().roles[0].command == ("/bin/sh", "-c", COMMANDS[kind])
        again = JobFile.model_validate(found.model_dump(exclude_unset=True, by_alias=True))
        assert again.paper()["app"] == found.paper()["app"]
    assert validated_job({"app": "jupyter", "run": "own"}, "").spec().roles[0].command[-1] == "own"
    with pytest.raises(UserError, match="needs either `run`"):
        validated_job({"app": "web"}, "job.yaml")
    for wrong in ({"kind": "emacs"}, {"idle": "0s"}, {"idle": "soon"}, {"shar": "owner"}):
        with pytest.raises(UserError):
            validated_job({"run": "x", "app": wrong}, "job.yaml")


def run_script(kind: str, folder: Path, *programs: str) -> dict[str, Any]:
    """What a kind's command calls, with programs that write down how they were called."""
    import subprocess

    for name in programs:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps(sys.argv))\n")
        path.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "WATTHERD_APP_PORT": "4711",
           "WATTHERD_APP_BASE": "/jobs/j-1/app/"}  # fmt: skip
    done = subprocess.run(
        ["/bin/sh", "-c", COMMANDS[kind]], env=env, cwd=folder, capture_output=True, check=True
    )
    argv = json.loads(done.stdout)
    return {"program": Path(argv[0]).name, "argv": argv[1:]}


def test_code_server_is_called_with_port_password_and_folder(tmp_path: Path) -> None:
    called = run_script("vscode", tmp_path, "code-server")
    assert called["argv"][:4] == ["--bind-addr", "127.0.0.1:4711", "--auth", "password"]
    assert called["argv"][-1] == str(tmp_path)
    app = App(kind="vscode", port=1, base="/jobs/j-1/app/", secret="ab" * 32, keep_prefix=False)
    assert app.secrets()["HASHED_PASSWORD"] == app.secret


def test_jupyter_lab_is_taken_where_it_is_and_the_plain_server_else(tmp_path: Path) -> None:
    called = run_script("jupyter", tmp_path, "jupyter-server")
    assert called["program"] == "jupyter-server"
    assert "--ServerApp.base_url=/jobs/j-1/app/" in called["argv"]
    assert run_script("jupyter", tmp_path, "jupyter-lab")["program"] == "jupyter-lab"


def test_a_host_that_is_none_opens_nothing() -> None:
    app = App(kind="web", port=1, base="/jobs/j-1/app/", secret="s", keep_prefix=False)
    assert "connect-src https://invalid/" in policy(app, "https", "a b; script-src *")
    assert location("http://127.0.0.1:1/x", app) == "/jobs/j-1/app/x"
    assert location("//evil.example/x", app) == "//evil.example/x"


# A real one -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jupyter(guarded: Guarded) -> str:
    pytest.importorskip("jupyter_server", reason="jupyter-server is not installed")
    if shutil.which("jupyter-server", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("jupyter-server is not beside this Python")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    job = guarded.ask("POST", f"{V1}/jobs", "user", {"app": "jupyter", "envs": {"PATH": path}})
    job_id = str(job.json["id"])
    guarded.until(lambda: guarded.ask("GET", f"/jobs/{job_id}/app/api", "user").status == 200)
    return job_id


@pytest.mark.long
def test_a_jupyter_server_lists_writes_and_reads_files(guarded: Guarded, jupyter: str) -> None:
    at = f"/jobs/{jupyter}/app/api"
    assert "version" in guarded.ask("GET", at, "user").json
    assert guarded.ask("GET", f"{at}/me", "user").json["identity"]["username"]
    note = {"type": "file", "format": "text", "content": "kept"}
    assert guarded.ask("PUT", f"{at}/contents/note.txt", "user", note).status == 201
    work = guarded.site.config.state / "jobs" / jupyter / "work" / "note.txt"
    assert work.read_text() == "kept"
    assert guarded.ask("GET", f"{at}/contents/note.txt", "user").json["content"] == "kept"
    assert guarded.ask("GET", f"{at}/contents", "colleague").status == 403
    log = guarded.ask("GET", f"{V1}/jobs/{jupyter}/logs", "user").text
    assert secret_of(guarded, jupyter) not in log


@pytest.mark.long
def test_a_jupyter_socket_is_open_to_its_owner_alone(guarded: Guarded, jupyter: str) -> None:
    path = f"/jobs/{jupyter}/app/api/events/subscribe"
    with socket_to(guarded.port, path, opened(guarded, jupyter)) as socket:
        guarded.ask("PUT", f"/jobs/{jupyter}/app/api/contents/event.txt", "user",
                    {"type": "file", "format": "text", "content": "x"})  # fmt: skip
        guarded.ask("GET", f"/jobs/{jupyter}/app/api/contents/event.txt", "user")
        assert "contents_service" in socket.recv(timeout=60)
    app = App.read(guarded.site.config.state / "jobs" / jupyter / "run-1")
    assert app is not None
    with pytest.raises(InvalidStatus):  # who reaches its port without the secret gets nowhere
        connect(f"ws://127.0.0.1:{app.port}{path}", proxy=None)


@pytest.mark.long
def test_an_endless_answer_does_not_keep_the_service_from_ending(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "state")
    serving.begin()
    try:
        serving.ready()
        run = [sys.executable, str(PROGRAM)]
        submitted = serving.call("submit", "--app", "web", "--", *run)
        job = submitted.stdout.strip()

        def shown() -> dict[str, str]:
            return handed_over(serving.port, f"/jobs/{job}/app/", {})

        def running() -> bool:
            return serving.state_of(job) == "Running"

        def status() -> int:
            with contextlib.closing(_connection(serving)) as connection:
                connection.request("GET", f"/jobs/{job}/app/", headers=shown())
                return connection.getresponse().status

        until(running)
        until(lambda: status() == 200)
        link = f"web: http://127.0.0.1:{serving.port}/jobs/{job}/app/"
        assert link in serving.call("show", job).stdout
        with contextlib.closing(_connection(serving)) as connection:
            connection.request("GET", f"/jobs/{job}/app/endless", headers=shown())
            with connection.getresponse() as endless:
                assert endless.readline() == b"line 0\n"
                assert serving.process is not None
                serving.process.terminate()
                assert serving.process.wait(60) in (0, -15)
        serving.begin()  # the job has gone on, and is found again
        serving.ready()
        assert status() == 200
        assert serving.ask(f"jobs/{job}")["attempts"] == 1
        serving.ask(f"jobs/{job}/cancel", {})
        serving.wait_for(job, "Cancelled")
    finally:
        serving.end()


def _connection(serving: Serving) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", serving.port, timeout=60)


@pytest.mark.long
def test_names_of_apps_lead_to_the_service_by_ipv6_too(tmp_path: Path) -> None:
    """Else another program of this machine could listen there and be handed tickets."""
    service = Serving(tmp_path / "state")
    try:
        service.begin()
        service.ready()
        with socket.create_connection(("::1", service.port), 5.0) as wire:
            wire.sendall(b"GET /api/v1/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert wire.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        service.end()


@pytest.mark.long
def test_a_service_does_not_start_where_names_of_apps_lead_to_another_program(
    tmp_path: Path,
) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        service = Serving(tmp_path / "state", port=other.getsockname()[1])
        service.begin()
        assert service.process is not None
        try:
            assert service.process.wait(20) == 2
        finally:
            service.end()
        assert "another program listens there" in service.errors.read_text()
        config = tmp_path / "config.yaml"
        config.write_text("app_url: 'http://{job}.apps.example'\n")
        apart = Serving(tmp_path / "apart", "--config", str(config), port=service.port)
        try:
            apart.begin()
            apart.ready()
        finally:
            apart.end()
