"""Two tenants, hostile to each other, on one service of root: what each attempts is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pwd
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from websockets.exceptions import InvalidStatus

from service import hostile
from service.attempts import (
    ARRAYS,
    CALLS,
    FAILS,
    LISTS,
    REFUSED,
    REPORTS,
    SCRIPTS,
    Attempt,
    rows,
)
from service.hostile import PYTHON, SECRET, VICTIM, Tenants
from service.inside import inside
from service.serving import Serving, until
from wattherd.errors import UserError
from wattherd.local import cgroups, run_dir
from wattherd.local.accounts import Accounts, TenantRule
from wattherd.local.apps import App
from wattherd.local.observation import certain
from wattherd.local.processes import descendants

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(hostile.why_not()), reason=hostile.why_not()),
]
needs_cgroups = pytest.mark.skipif(
    not cgroups.find().complete, reason=f"cgroups: {cgroups.find().why_not}"
)
ATTEMPTS = [one for kind in SCRIPTS.values() for one in kind]
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "security.md"


@pytest.fixture(scope="module")
def tenants() -> Iterator[Tenants]:
    os.environ["HIDDEN_PASSWORD"] = "hidden"
    try:
        with hostile.tenants() as tenants:
            yield tenants
    finally:
        del os.environ["HIDDEN_PASSWORD"]


@pytest.fixture(scope="module")
def victim(tenants: Tenants) -> str:
    """A job of victor's with everything, that goes on running."""
    source = f"file:{tenants.secrets}/victor/key"
    job = tenants.submit("victor", VICTIM, app={"kind": "web"}, secrets={"KEY": source})
    until(lambda: tenants.ask("victor", f"jobs/{job}")["progress"] == 3.0)
    until(lambda: "words-of-victor" in tenants.log(job))
    return job


@pytest.fixture(scope="module")
def array(tenants: Tenants) -> str:
    """An array of victor's that waits, of a search group and with a label."""
    body = {"run": "true of-victor", "array": "0-3%2", "begin": "in 2h", "group": "of-victor",
            "name": "sweep-of-victor", "labels": {"paper": "of-victor"}}  # fmt: skip
    return str(tenants.ask("victor", "arrays", body)["id"])


@pytest.fixture(scope="module")
def given(tenants: Tenants, victim: str) -> dict[str, str]:
    """What mallory may know of the place, as variables."""
    begun = run_dir.read(tenants.run(victim) / run_dir.BEGUN)
    app = App.read(tenants.run(victim))
    assert begun is not None
    assert app is not None
    assert tenants.serving.process is not None
    return {
        "V": str(tenants.run(victim).parent),
        "VICTIM": victim,
        "VPID": str(until(lambda: serving_pages(begun["pid"]))),
        "SUPERVISOR": str(begun["pid"]),
        "SERVICE": str(tenants.serving.process.pid),
        "STATE": str(tenants.serving.state),
        "SECRETS": str(tenants.secrets),
        "URL": f"http://127.0.0.1:{tenants.serving.port}",
        "APP_PORT": str(app.port),
    }


def serving_pages(supervisor: int) -> int | None:
    """The process of victor's that stays: its shell and what that calls before do not."""
    for pid in certain(descendants(supervisor)) or ():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(f"{PYTHON}\0-c".encode()):
                return pid
    return None


def script_of(attempts: list[Attempt]) -> str:
    parts = [
        f"echo; echo BEGIN {number}; (\n{one.script}\n) 2>&1" for number, one in enumerate(attempts)
    ]
    return "\n".join([*parts, "true"])


def told(log: str) -> dict[int, str]:
    found = re.split(r"\nBEGIN (\d+)\n", f"\n{log}")
    return {int(number): text for number, text in zip(found[1::2], found[2::2], strict=True)}


@pytest.fixture(scope="module")
def attempted(tenants: Tenants, given: dict[str, str]) -> dict[int, str]:
    """What came of every script in a job of mallory's."""
    job = tenants.submit("mallory", script_of(ATTEMPTS), envs=given)
    assert tenants.wait_for(job, "Succeeded", "Failed") == "Succeeded", tenants.log(job)[-500:]
    return told(tenants.log(job))


@pytest.fixture(scope="module")
def by_root(given: dict[str, str]) -> dict[int, str]:
    """The same scripts, carried out by root."""
    wanted = [one if one.works_for_root else Attempt("", "", ":") for one in ATTEMPTS]
    done = subprocess.run(
        ["/bin/sh", "-c", script_of(wanted)],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return told(done.stdout)


@pytest.mark.parametrize("number", range(len(ATTEMPTS)), ids=[one.what for one in ATTEMPTS])
def test_a_job_cannot(attempted: dict[int, str], by_root: dict[int, str], number: int) -> None:
    assert "WON" not in attempted[number], attempted[number]
    assert "victor" not in re.sub(r"[\w./:-]*/[\w./-]*victor[\w./-]*", "", attempted[number])
    if ATTEMPTS[number].works_for_root:
        assert "WON" in by_root[number], by_root[number]


def test_the_control_a_job_runs_as_its_tenant_s_account_with_its_secret(tenants: Tenants) -> None:
    source = f"file:{tenants.secrets}/mallory/key"
    ended, log = tenants.result(
        "mallory", "id -un; id -G | wc -w; echo ${#KEY}", secrets={"KEY": source}
    )
    assert ended == "Succeeded"
    assert log.split() == [tenants.accounts["mallory"], "1", str(len("own-secret"))]


# Requests ---------------------------------------------------------------------------------------


def asked(tenants: Tenants, who: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", tenants.serving.port, timeout=60)
    headers = {"authorization": f"Bearer {tenants.tokens[who]}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body)
    with contextlib.closing(connection):
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def said_once(text: str) -> str:
    """A problem tells the same word to two kinds of readers; pages are left as they are."""
    if not text.startswith("{"):
        return text
    told = json.loads(text)
    if told.get("detail") == told.get("error"):
        told.pop("detail", None)
    return json.dumps(told)


@pytest.mark.parametrize("what", CALLS)
def test_a_tenant_s_token_cannot(tenants: Tenants, victim: str, array: str, what: str) -> None:
    _, method, path, body = CALLS[what]
    there = path.replace("VICTIM", victim).replace("ARRAY", array)
    status, text = asked(tenants, "mallory", method, there, body)
    assert status in (403, 404), text
    assert "victor" not in said_once(text).replace(there, "").replace("of-victor", "", 1)
    if method == "GET":
        assert asked(tenants, "admin", method, there)[0] in (
            200,
            403,
        )  # it is there; some not for curl
    assert tenants.state_of(victim) == "Running"
    assert tenants.ask("victor", f"arrays/{array}")["most"] == 2
    assert tenants.ask("victor", f"arrays/{array}")["states"] == {"Queued": 4}


@pytest.mark.parametrize("path", LISTS)
def test_no_list_shows_a_job_of_another_tenant(
    tenants: Tenants, victim: str, array: str, path: str
) -> None:
    there = path.replace("VICTIM", victim)
    status, text = asked(tenants, "mallory", "GET", there)
    assert status in (200, 403, 404)
    assert "sweep-of-victor" not in text
    assert not re.search(rf"\b{array}\b", text)
    assert "words-of-victor" not in text
    assert "WATTHERD_PROGRESS; " not in text
    # Mallory's own failed attempts tell what they asked for: paths with the victim's id in them.
    told = text.replace(there, "").replace(f"{tenants.serving.state}/jobs/{victim}", "")
    assert not re.search(rf"\b{victim}\b", told) or status in (403, 404), told[-3000:]


# Job files --------------------------------------------------------------------------------------


def filled(document: dict[str, Any], tenants: Tenants, victim: str) -> dict[str, Any]:
    """A job file of the list, with what is here in place of capitals."""
    text = json.dumps(document)
    for word, here in (
        ("ARRAY", f"a-{victim[2:]}"),  # array ids are those of their first jobs
        ('"VICTOR"', json.dumps(tenants.accounts["victor"])),
        ("SECRETS", str(tenants.secrets)),
        ("ABOVE", str(tenants.above)),
        ("STATE", str(tenants.serving.state)),
        ("VICTIM", victim),
    ):
        text = text.replace(word, here)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("what", REFUSED)
def test_a_job_file_cannot_ask_to(tenants: Tenants, victim: str, what: str) -> None:
    document = {"run": "true", **filled(REFUSED[what][1], tenants, victim)}
    for path in ("jobs", "dry-run"):
        answer = tenants.ask("mallory", path, document)
        assert answer.get("code") in (400, 422), answer
        assert SECRET not in str(answer)


@pytest.mark.parametrize("what", ARRAYS)
def test_no_array_is_so_large(tenants: Tenants, what: str) -> None:
    began_s = time.monotonic()
    status, text = asked(
        tenants, "mallory", "POST", "/api/v1/arrays", {"run": "true", **ARRAYS[what]}
    )
    assert status in (400, 422), text
    assert time.monotonic() - began_s < 30.0  # it is not made and then thrown away


@pytest.mark.parametrize("what", FAILS)
def test_a_job_fails_that_wants_to(tenants: Tenants, victim: str, what: str) -> None:
    document = filled(FAILS[what][1], tenants, victim)
    ended, log = tenants.result("mallory", document.pop("run"), **document)
    assert ended == "Failed"
    for word in ("WON", "root:", "note-of-root", "weights-of-victor", SECRET):
        assert word not in log
    assert not (tenants.above / "taken").exists()


def test_a_secret_called_as_what_a_program_loads_changes_nothing_of_root_s(
    tenants: Tenants,
) -> None:
    """Python runs `sitecustomize` of PYTHONPATH at its start; so would the supervisor, as root."""
    planted = tenants.above / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(
        f"import os\nif os.geteuid() == 0: open({str(planted / 'won')!r}, 'w')\n"
    )
    planted.chmod(0o755)
    key = tenants.secrets / "mallory" / "path"
    key.write_text(str(planted))
    key.chmod(0o644)
    ended, log = tenants.result(
        "mallory", "echo $PYTHONPATH $LD_PRELOAD",
        secrets={"PYTHONPATH": f"file:{key}"},
    )  # fmt: skip
    assert ended == "Succeeded"
    assert log == "***\n"  # the job has it, and it is masked
    assert not (planted / "won").exists()


# Names, sums and places that are shared ---------------------------------------------------------


def put_off(tenants: Tenants, who: str, path: str = "jobs", **more: Any) -> dict[str, Any]:
    found = tenants.ask(who, path, {"run": f"true {who}", "begin": "in 2h", "gpus": 0, **more})
    assert "id" in found, found
    return dict(found)


def test_the_service_asks_nothing_for_mallory_that_mallory_may_not(tenants: Tenants) -> None:
    """By a webhook: itself, this machine, a cloud's metadata, closed networks, and disguises."""
    hosts = [f"127.0.0.1:{tenants.serving.port}", f"localhost:{tenants.serving.port}", "0.0.0.0",
             "169.254.169.254", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0x7f000001", "127.1",
             "2130706433", "[64:ff9b::7f00:1]"]  # fmt: skip
    jobs = {
        host: tenants.submit("mallory", "true", gpus=0, notify={"webhook": f"http://{host}/x"})
        for host in hosts
    }
    for host, job in jobs.items():
        said = str(until(lambda job=job: tenants.ask("mallory", f"jobs/{job}")["undelivered"], 120))
        refused = "not a public address" in said or "this service itself" in said
        assert refused or host == "127.1", (host, said)  # no name everywhere


def test_keys_of_two_tenants_are_two_keys(tenants: Tenants) -> None:
    headers = {"Idempotency-Key": "the same"}
    found = [
        tenants.serving.ask(
            "jobs", {"run": f"echo {who}", "begin": "in 2h"},
            authorization=f"Bearer {tenants.tokens[who]}", **headers,
        )
        for who in ("victor", "mallory")
    ]  # fmt: skip
    assert found[0]["id"] != found[1]["id"]
    assert found[1]["user"] == "mallory"


def test_a_singleton_waits_for_nobody_else_of_that_name(tenants: Tenants) -> None:
    put_off(tenants, "mallory", name="train")
    assert tenants.result("victor", "true", name="train", singleton=True, gpus=0)[0] == "Succeeded"


def test_a_thousand_trials_hide_none_of_another_tenant(tenants: Tenants) -> None:
    # A group of this test's own: what looks for victor's may run after it.
    for who, tasks in (("victor", "0-3"), ("mallory", "0-1000")):
        put_off(tenants, who, "arrays", array=tasks, group="twins")
    found = tenants.ask("victor", "groups/twins")
    assert [one["tenant"] for one in found["trials"]] == ["victor"] * 4
    assert len(tenants.ask("mallory", "groups/twins")["trials"]) > 4
    told = {one["name"]: one["trials"] for one in tenants.ask("victor", "groups")["groups"]}
    assert told["twins"] == 4


def test_a_checkpoint_folder_tells_nothing_of_what_is_closed(tenants: Tenants, victim: str) -> None:
    """`rerun` from a checkpoint looks whether there is one: not with the eyes of root."""
    said = set()
    folders = [tenants.above / "closed", tenants.run(victim).parent / "checkpoint"]
    for folder in [*folders, tenants.above / "none"]:
        job = put_off(tenants, "mallory", checkpoint={"dir": str(folder)})["id"]
        tenants.ask("mallory", f"jobs/{job}/cancel", {})
        answer = tenants.ask("mallory", f"jobs/{job}/rerun?checkpoint=last", {})
        said.add(str(answer).replace(job, "J").replace(str(folder), "F"))
    assert len(said) == 1
    assert "has left no checkpoint" in said.pop()


def test_jobs_without_devices_take_a_part_of_the_machine_each(tenants: Tenants) -> None:
    count = 20 * len(os.sched_getaffinity(0))
    for more, fits in ((0, True), (1, False)):
        roles = {"w": {"run": "true", "gpus": 0, "count": count + more}}
        told = str(tenants.ask("mallory", "dry-run", {"taskRoles": roles}))
        assert ("NeverFits" in told) is not fits, told


def test_one_request_asks_for_so_many_labels(tenants: Tenants) -> None:
    labels = "&".join(f"label=a{n}" for n in range(33))
    status, _ = asked(tenants, "mallory", "GET", f"/api/v1/jobs?over=true&{labels}")
    assert status == 422


# What a job says of itself ----------------------------------------------------------------------


def still_watches(tenants: Tenants) -> None:
    """The service lives, and hears of the end of other jobs."""
    assert tenants.result("victor", "echo fine") == ("Succeeded", "fine\n")
    assert tenants.ask("admin", "health")["ok"] is True


def running(tenants: Tenants, run: str, **more: Any) -> Iterator[str]:
    job = tenants.submit("mallory", f"{run}\necho done; sleep 300", **more)
    until(lambda: "done" in tenants.log(job))
    tenants.wait_for(job, "Running")
    yield job
    tenants.ask("mallory", f"jobs/{job}/cancel", {})
    tenants.wait_for(job, "Cancelled", "Failed", "Succeeded")


def test_a_job_cannot_say_that_it_has_ended_and_go_on(tenants: Tenants) -> None:
    """Its devices would be given to others while it computes, and its watts counted for nothing."""
    lie = '\'{"exit_code": 0, "stopped": false, "why": ""}\''
    for job in running(tenants, f"echo {lie} > $WATTHERD_RUN_DIR/exit.json"):
        time.sleep(1.0)
        still_watches(tenants)
        assert tenants.state_of(job) == "Running"


@pytest.mark.parametrize("how", REPORTS)
def test_a_report_cannot_stop_the_service_that(tenants: Tenants, how: str) -> None:
    for job in running(tenants, REPORTS[how], gpus=2):
        time.sleep(2.5)  # ranks are looked at with every sample of watts
        still_watches(tenants)
        assert tenants.state_of(job) == "Running"


def test_a_pipe_in_place_of_a_token_does_not_hold_the_service_up(tenants: Tenants) -> None:
    token = "$WATTHERD_RUN_DIR/trainer-token"
    for job in running(tenants, f"rm -f {token}; mkfifo {token}"):
        answer = tenants.serving.ask(
            f"jobs/{job}/trainer-status", {"trainerStatus": {}}, authorization="Bearer x"
        )
        assert answer is not None
        assert answer["code"] == 401
        still_watches(tenants)


def test_links_in_a_run_s_folder_are_not_followed_by_root(tenants: Tenants) -> None:
    """Under every name that service or supervisor may use next, also after a restart."""
    target = tenants.above / "target"
    target.write_text("untouched")
    names = "begun control.json order.json usage.json heeded.json exit.json trainer-token app.json"
    script = (
        f"cd $WATTHERD_RUN_DIR; for name in {names}; do for pid in $(seq 1 200) $PPID $$;"
        f" do ln -sf {target} .$name.$pid; done; done"
    )
    for job in running(tenants, script):
        folder = tenants.run(job)
        assert not run_dir.forestall(folder)
        own = folder / f".begun.{os.getpid()}"
        own.symlink_to(target)
        assert not run_dir.forestall(folder)  # as a service does that starts anew
        still_watches(tenants)
    assert target.read_text() == "untouched"


@needs_cgroups
def test_a_job_that_asks_for_no_memory_cannot_have_it_all(tenants: Tenants, victim: str) -> None:
    hog = 'import mmap; m = mmap.mmap(-1, 1 << 20); print(open("/proc/self/cgroup").read())'
    ended, log = tenants.result("mallory", [PYTHON, "-c", hog])
    assert ended == "Succeeded"
    group = re.findall(r"memory:(\S+)|^0::(\S+)", log, re.MULTILINE)
    assert group
    order = run_dir.read(tenants.run("j-" + max(re.findall(r"j-(\d+)", str(group)))) / "order.json")
    assert order is not None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < order["limits"]["memory_bytes"] <= pages / 6
    assert tenants.state_of(victim) == "Running"


@needs_cgroups
def test_a_fork_bomb_and_a_flood_of_words_leave_others_alone(tenants: Tenants, victim: str) -> None:
    # It says "done" itself: a shell that cannot fork any more would end, and the job with it.
    bomb = (
        "import os, time\nfor _ in range(2000):\n    try:\n"
        "        os.fork() or os.kill(os.getpid(), 19)\n    except OSError: pass\n"
        "print('done', flush=True); time.sleep(300)"
    )
    job = tenants.submit("mallory", [PYTHON, "-c", bomb], processes=60)
    until(lambda: "done" in tenants.log(job))
    still_watches(tenants)
    order = run_dir.read(tenants.run(job) / run_dir.ORDER)
    assert order is not None
    pids = cgroups.find().pids
    assert pids is not None
    assert 30 <= int((pids / order["group"] / "pids.current").read_text()) <= 60
    tenants.ask("mallory", f"jobs/{job}/cancel", {})
    tenants.wait_for(job, "Cancelled")
    ended, _ = tenants.result("mallory", "yes mallory | head -c 150000000")
    assert ended == "Succeeded"
    logs = max(tenants.serving.state.glob("jobs/*/run-1/logs"), key=lambda one: one.stat().st_mtime)
    assert sum(one.stat().st_size for one in logs.iterdir()) <= 101 << 20
    assert tenants.state_of(victim) == "Running"


def test_the_guide_lists_every_attempt_and_what_refuses_it() -> None:
    text = GUIDE.read_text()
    assert [row for row in rows() if row not in text] == []
    told = text[text.index("## Attempts") :]
    assert told.count("\n| ") == len(rows()) + 1 >= 130  # and nothing that is no attempt


# Starting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "needs system accounts"),
        ({"default_account": "root"}, "rights of root"),
        ({"default_account": "nobody-of-that-name"}, "no user"),
        ({"default_account": "nobody", "require_account": True}, "require_account"),
        ({"tenants": {"a": {"account": "daemon"}, "b": {"account": "daemon"}}}, "same account"),
        ({"tenants": {"a": {"account": "daemon"}}, "default_account": "daemon"}, "same account"),
    ],
)
def test_a_service_of_root_does_not_start_with(
    tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    serving = Serving(tmp_path / "state")
    made = serving.call("token", "create", "--state", str(serving.state), "--role", "admin")
    assert made.returncode == 0
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    done = serving.call("serve", "--state", str(serving.state), "--port", "0", "--slots", "1",
                        "--config", str(tmp_path / "serve.yaml"))  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


def test_it_starts_where_it_is_told_to_and_says_so_loudly(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "state", "--allow-root-jobs")
    serving.call("token", "create", "--state", str(serving.state), "--role", "admin")
    serving.begin()
    try:
        serving.ready()
        assert "jobs without an account run as ROOT" in serving.errors.read_text()
    finally:
        serving.end()


def test_users_of_single_sign_on_have_accounts_as_those_of_tokens_have() -> None:
    """By tenant, one by one, or their own name; a name that is the system's is none of theirs."""
    rules = Accounts(
        tenants={
            "lab": TenantRule(own_accounts=True, users={"ann@example.org": "daemon"}),
            "vision": TenantRule(account="daemon", accounts=("bin",)),
        },
        asks=lambda: True,
    )
    assert rules.account_of("lab", "ann@example.org") == "daemon"
    assert rules.account_of("vision", "anybody") == "daemon"
    assert rules.account_of("vision", "anybody", "bin") == "bin"
    for tenant, owner, user in (("lab", "bin", None), ("lab", "nobody-there", None),
                                ("vision", "ann", "lp"), ("", "olga", None),
                                ("vision", "root", "root"), ("other", "ann", None)):  # fmt: skip
        with pytest.raises(UserError):
            rules.account_of(tenant, owner, user)
    assert rules.account_of("", "olga", "bin", of_site=True) == "bin"
    with pytest.raises(UserError, match="root"):
        rules.account_of("", "olga", "root", of_site=True)


# Sessions ---------------------------------------------------------------------------------------


def into(tenants: Tenants, who: str, job: str, *words: str, **more: Any) -> Any:
    return inside(tenants.serving.port, job, *words, token=tenants.tokens[who], **more)


@pytest.mark.parametrize("words", [("id",), ()])
def test_a_tenant_gets_into_no_job_of_another(
    tenants: Tenants, victim: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidStatus) as refused, into(tenants, "mallory", victim, *words):
        pass
    assert refused.value.response.status_code == 404
    assert b"victor" not in refused.value.response.body
    assert tenants.state_of(victim) == "Running"


def test_a_command_inside_is_its_run_s_account_and_no_more(tenants: Tenants) -> None:
    tries = (
        "id -u; id -G | wc -w; cat /proc/$PPID/environ | head -c 1; ls $WATTHERD_RUN_DIR/sessions"
    )
    for job in running(tenants, "true"):
        begun = run_dir.read(tenants.run(job) / run_dir.BEGUN)
        assert begun is not None
        reads = f"{tries}; head -c 1 /proc/{begun['pid']}/environ; kill -9 {begun['pid']} $PPID"
        for more in ({}, {"terminal": {"rows": 9, "columns": 99}}):
            with into(tenants, "mallory", job, "sh", "-c", f"({reads}) 2>&1", **more) as session:
                session.rest()
            said = session.out.decode()
            own = pwd.getpwnam(tenants.accounts["mallory"]).pw_uid
            assert said.split()[:2] == [str(own), "1"]
            assert said.lower().count("permission denied") == 3
            assert said.lower().count("not permitted") >= 1
        assert tenants.state_of(job) == "Running"
        with into(tenants, "admin", job, "id", "-u") as session:
            session.rest()  # an admin acts as the job does, not as root
        assert session.out.decode().split() == [str(own)]


def test_a_command_inside_leaves_nothing_running(tenants: Tenants) -> None:
    hides = (
        f"{PYTHON} -c 'import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(77.77)'"
    )
    for job in running(tenants, "true"):
        with into(
            tenants, "mallory", job, "sh", "-c", f"{hides} & env -i {hides} & sleep 1"
        ) as one:
            assert one.rest() == {"exit_code": 0}
        until(lambda: b"77.77" not in lines_of_processes(), 10.0)


def lines_of_processes() -> bytes:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return b"\n".join(lines)


@needs_cgroups
def test_a_command_inside_is_under_the_job_s_limits(tenants: Tenants) -> None:
    hog = "x = bytearray(1 << 30); print(len(x))"
    for job in running(tenants, "true", memory_per_gpu="100MiB", processes=20):
        with into(tenants, "mallory", job, PYTHON, "-c", hog) as session:
            assert session.rest()["exit_code"] == 137
        forks = "for i in $(seq 50); do sleep 5 & done; wait"
        with into(tenants, "mallory", job, "sh", "-c", forks) as session:
            session.rest()
        assert b"fork" in session.err.lower()
        assert tenants.state_of(job) == "Running"


def test_a_job_cannot_offer_its_supervisor_a_session(tenants: Tenants) -> None:
    for job in running(
        tenants, "touch $WATTHERD_RUN_DIR/sessions/x; ls $WATTHERD_RUN_DIR/sessions"
    ):
        assert tenants.log(job).lower().count("permission denied") == 2
        assert not list((tenants.run(job) / "sessions").iterdir())
