"""Arrays and grids on a real service: as commands hand them in, show, change and end them."""

from __future__ import annotations

import getpass
import json
import secrets
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Serving, until

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.cli.main import main

Said = tuple[int, str, str]
Say = Callable[..., Said]
HELD = ("--begin", "in 10h")
"""Keeps tasks waiting."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    service = Serving(tmp_path_factory.mktemp("arrays") / "state")
    service.begin()
    service.ready()
    yield service
    service.end()


@pytest.fixture
def say(
    service: Serving, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Say:
    """A command as typed: exit code, stdout, stderr."""
    monkeypatch.setenv("WATTHERD_SERVER", f"http://127.0.0.1:{service.port}")

    def run(*words: str) -> Said:
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = capfd.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run


def of(service: Serving, array: str) -> dict[str, Any]:
    return dict(service.ask(f"arrays/{array}"))


def over(service: Serving, array: str) -> dict[str, int]:
    ends = {"Succeeded", "Failed", "Cancelled", "TimedOut"}
    return dict(until(lambda: (now := of(service, array)["states"]).keys() <= ends and now))


def handed_in(say: Say, *words: str) -> str:
    code, said, why = say("submit", *words)
    assert code == 0, why
    return said.strip()


@pytest.mark.long
def test_each_task_knows_its_index_and_its_values_and_has_a_log_of_its_own(
    say: Say, service: Serving
) -> None:
    script = (
        "echo $WATTHERD_ARRAY_ID $WATTHERD_ARRAY_INDEX/$WATTHERD_ARRAY_COUNT"
        " $WATTHERD_GRID_LR $WATTHERD_GRID_SEED"
    )
    array = handed_in(
        say, "-n", "sweep", "--grid", "lr=0.1,0.01", "--grid", "seed=1..2", "-a", "%2",
        "--", "sh", "-c", script + ' "$1"', "x", '{"lr": {lr}, "run": "r-{index}"}',
    )  # fmt: skip
    assert over(service, array) == {"Succeeded": 4}
    assert say("logs", f"{array}[2]")[1] == (f'{array} 2/4 0.01 1 {{"lr": 0.01, "run": "r-2"}}\n')
    first = array.replace("a-", "j-")
    assert say("logs", f"{first}[3]")[1].startswith(f"{array} 3/4 0.01 2 ")
    assert say("logs", f"{array[2:]}_0")[1].startswith(f"{array} 0/4 0.1 1 ")
    assert say("logs", "sweep[0]")[1].startswith(f"{array} 0/4 0.1 1 ")
    shown = json.loads(say("show", f"{array}[1]", "-o", "json")[1])
    assert (shown["name"], shown["array"]["values"]) == ("sweep[1]", {"lr": "0.1", "seed": "2"})
    code, _, why = say("logs", array)
    assert (code, f"of an array name one task: {array}[0]" in why) == (3, True)
    code, _, why = say("logs", f"{array}[9]")
    assert (code, "no task 9" in why, "it has 0-3" in why) == (2, True, True)
    code, _, why = say("logs", f"{array}[0-1]")
    assert (code, "one task is asked for" in why) == (2, True)


def test_an_array_of_a_job_file_is_one_row_of_the_queue_until_tasks_are_asked_for(
    say: Say, service: Serving, tmp_path: Any
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: big\nrun: sleep 60\narray: 0-19:2%3\nbegin: in 10h\nlabels: {of: queue}\n"
    )
    array = handed_in(say, str(file))
    only = ("--label", "of=queue")
    rows = say("queue", "--no-headers", *only)[1].splitlines()
    assert len(rows) == 1
    assert rows[0].split()[:5] == [
        f"{array}[0-18:2]", "big[0-18:2]", getpass.getuser(), "Queued", "10x1"
    ]  # fmt: skip
    assert len(say("queue", "--no-headers", "--tasks", *only)[1].splitlines()) == 10
    names = say("queue", "-o", "name", *only)[1].split()
    assert names == [one["id"] for one in of(service, array)["tasks"]]
    assert len(json.loads(say("queue", "-o", "json", *only)[1])["jobs"]) == 10
    shown = say("show", array)[1]
    assert f"{array} big: 10 tasks (0-18:2), 3 at a time\n  Queued 10\n" in shown
    assert f"{array}[4]" in shown
    assert say("show", array, "-o", "name")[1] == f"{array}\n"
    listed = service.ask(f"jobs?array={array}&over=true")["jobs"]
    assert [row["array"]["index"] for row in listed] == list(range(0, 20, 2))
    assert say("cancel", array)[:2] == (0, f"{array} is being cancelled: 10 tasks\n")
    assert over(service, array) == {"Cancelled": 10}
    assert say("queue", "--no-headers", *only)[1] == ""
    listed = service.ask(f"jobs?array={array}&over=true")["jobs"]
    assert [row["state"] for row in listed] == ["Cancelled"] * 10
    assert say("cancel", array) == (1, "", f"{array} is over: Cancelled 10\n")


def test_pages_of_a_grouped_queue_show_every_array_once(say: Say, service: Serving) -> None:
    label = ("-l", "of=pages")
    arrays = [handed_in(say, *HELD, *label, "-a", "0-4", "--", "true") for _ in range(3)]
    alone = handed_in(say, *HELD, *label, "--", "true")
    seen: list[str] = []
    after = ""
    for _ in range(4):
        page = service.ask(f"jobs?grouped=true&limit=1&count=true&label=of=pages{after}")
        assert page["total"] == 4
        seen += [row["id"] for row in page["jobs"]]
        after = f"&after={page['after']}"
    assert seen == [*(f"{one}[0-4]" for one in arrays), alone]
    assert page["after"] is None
    for one in (*arrays, alone):
        say("cancel", one)


def test_the_queue_page_has_a_row_for_an_array_and_its_tasks_when_they_are_looked_for(
    say: Say, service: Serving
) -> None:
    array = handed_in(say, *HELD, "-n", "paged", "-a", "0-6", "--", "true")
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/queue?shown=waiting") as page:
        rows = page.read().decode()
    assert (rows.count(f">{array}[0-6]</a>"), rows.count("paged[")) == (1, 1)
    assert "7 × 1" in rows
    assert f'href="/arrays/{array}"' in rows
    address = f"http://127.0.0.1:{service.port}/queue?shown=waiting&q={array}"
    with urllib.request.urlopen(address) as page:
        tasks = page.read().decode()
    assert tasks.count(">paged[") == 7
    first = array.replace("a-", "j-")
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/jobs/{first}") as page:
        text = page.read().decode()
    assert f'href="/arrays/{array}">{array}</a>, index 0 of 7 tasks' in text
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/submit?from={first}") as page:
        assert "array: " in page.read().decode()
    say("cancel", array)
    over(service, array)

    def ended() -> bool:  # the archive follows
        address = f"http://127.0.0.1:{service.port}/queue?shown=ended&q={array}"
        with urllib.request.urlopen(address) as page:
            return page.read().decode().count(">paged[") == 7

    until(ended)


@pytest.mark.long
def test_half_an_array_is_cancelled_and_the_other_half_goes_on(say: Say, service: Serving) -> None:
    array = handed_in(say, *HELD, "-a", "0-7%2", "-n", "half", "--", "true")
    assert say("cancel", f"{array}[4-7]")[1] == f"{array}[4-7] is being cancelled: 4 tasks\n"
    assert say("cancel", f"{array}[0]")[1] == f"{array}[0] is being cancelled\n"
    assert of(service, array)["states"] == {"Cancelled": 5, "Queued": 3}
    assert say("edit", f"{array}[1]", "--begin", "in 0s")[0] == 0
    until(lambda: of(service, array)["states"].get("Succeeded") == 1)
    assert say("edit", "half", "--begin", "in 0s")[1] == "half edited\n"
    assert over(service, array) == {"Cancelled": 5, "Succeeded": 3}
    code, _, why = say("edit", array, "--priority", "low")
    assert (code, "is over" in why) == (2, True)


def page_of(service: Serving, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}{path}") as page:
        return str(page.read().decode())


@pytest.mark.long
def test_the_page_of_an_array_has_its_tasks_by_state_its_limit_and_what_the_next_waits_for(
    say: Say, service: Serving
) -> None:
    array = handed_in(
        say, "-n", "looked", "--grid", "lr=0.1,0.01", "--grid", "x=1..2", "-a", "%1", "--",
        "sh", "-c", 'echo {"step": {index}, "total": 4} >> $WATTHERD_PROGRESS; exec sleep 300',
    )  # fmt: skip
    until(lambda: of(service, array)["states"] == {"Running": 1, "Queued": 3})
    text = page_of(service, f"/arrays/{array}")
    assert f"Next is {array}[1]: ArrayLimit (waits for a task of {array} to end" in text
    assert "0 of 4 tasks are over; 1 may run at a time" in text
    assert f"wattherd edit {array} --at-a-time 2" in text
    assert [text.count(f"/jobs/{one['id']}") for one in of(service, array)["tasks"]] == [1] * 4
    assert "<td>0.01</td><td>2</td>" in text
    text = page_of(service, f"/arrays/{array}?state=Running")
    assert text.count('href="/jobs/j-') == 1
    say("cancel", array)
    over(service, array)
    until(lambda: "4 of 4 tasks are over" in page_of(service, f"/arrays/{array}"))
    assert "<button" not in page_of(service, f"/arrays/{array}").partition("<h1>")[2]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page_of(service, "/arrays/a-99999")


@pytest.mark.long
def test_how_many_tasks_run_at_a_time_is_changed_while_they_run(say: Say, service: Serving) -> None:
    array = handed_in(say, "-a", "0-4%1", "-n", "limited", "--", "sleep", "300")
    until(lambda: of(service, array)["states"] == {"Running": 1, "Queued": 4})
    assert say("edit", array, "--at-a-time", "2")[1] == f"{array} edited\n"
    until(lambda: of(service, array)["states"] == {"Running": 2, "Queued": 3})
    assert of(service, array)["most"] == 2
    assert ", 2 at a time" in say("show", array)[1]
    assert say("edit", "limited", "--at-a-time", "1", "--priority", "low")[0] == 0
    assert (of(service, array)["most"], service.ask(f"jobs/{array}[4]")["priority"]) == (1, -10)
    say("cancel", f"{array}[0]")
    until(lambda: of(service, array)["states"] == {"Running": 1, "Queued": 3, "Cancelled": 1})
    service.kill()
    service.begin()
    service.ready()
    assert (of(service, array)["most"], of(service, array)["states"]["Queued"]) == (1, 3)
    assert say("edit", array, "--at-a-time", "all")[0] == 0
    assert of(service, array)["most"] is None
    for words, why in (
        ((array, "--at-a-time", "0"), "'0' is no number of tasks"),
        ((array, "--at-a-time", "-3"), "'-3' is no number of tasks"),
        ((f"{array}[1-2]", "--at-a-time", "2"), "is of the whole array"),
    ):
        code, _, told = say("edit", *words)
        assert (code, why in told, "hint:" in told) == (2, True, True), told
    say("cancel", array)
    over(service, array)
    code, _, told = say("edit", array, "--at-a-time", "2")
    assert (code, "is over" in told) == (2, True)
    alone = handed_in(say, *HELD, "--", "true")
    code, _, told = say("edit", alone, "--at-a-time", "2")
    assert (code, "is for arrays" in told) == (2, True)
    say("cancel", alone)


def test_an_array_explains_why_its_next_task_waits(say: Say, service: Serving) -> None:
    array = handed_in(say, "-a", "0-2%1", "-n", "asked", "--", "sleep", "300")
    until(lambda: of(service, array)["states"] == {"Running": 1, "Queued": 2})
    text = say("explain", array)[1]
    assert f"{array} asked: Queued 2, Running 1, 1 at a time\n  running: {array}[0]\n" in text
    assert f"  next: {array}[1]\n  `wattherd edit {array} --at-a-time 2` gives it a turn\n" in text
    assert f"ArrayLimit (waits for a task of {array} to end: 1 may run at a time)" in text
    assert f"{array}[1]" in json.loads(say("explain", array, "-o", "json")[1])["next"]
    assert "ArrayLimit" in say("explain", f"{array}[2]")[1]
    rows = say("queue", "--no-headers", "--array", array)[1].splitlines()
    assert [row.split()[1] for row in rows] == ["asked[0]", "asked[1]", "asked[2]"]
    code, _, why = say("queue", "--array", "a-99999")
    assert (code, "no array 'a-99999'" in why) == (3, True)
    say("pause", f"{array}[1-2]")
    assert f"`wattherd resume {array}` lets paused tasks go on" in say("explain", array)[1]
    say("cancel", array)
    over(service, array)
    assert "no task waits" in say("explain", array)[1]


@pytest.mark.long
def test_a_command_is_run_inside_of_one_task(say: Say, service: Serving) -> None:
    array = handed_in(say, "-a", "0-1", "--", "sleep", "60")
    until(lambda: of(service, array)["states"] == {"Running": 2})
    said = service.call("exec", f"{array}[1]", "--", "sh", "-c", "echo $WATTHERD_ARRAY_INDEX")
    assert (said.returncode, said.stdout) == (0, "1\n"), said.stderr
    say("cancel", array)
    over(service, array)


def test_an_array_is_paused_and_resumed_as_a_whole(say: Say, service: Serving) -> None:
    array = handed_in(say, *HELD, "-a", "0-3%1", "--", "true")
    assert say("pause", array)[0] == 0
    assert of(service, array)["states"] == {"Paused": 4}
    assert say("resume", f"{array}[0-1]")[0] == 0
    assert of(service, array)["states"] == {"Paused": 2, "Queued": 2}
    say("cancel", array)


@pytest.mark.long
def test_failed_tasks_are_run_again_with_their_own_indices_and_values(
    say: Say, service: Serving, tmp_path: Any
) -> None:
    mark = tmp_path / "mark"
    script = f"test {{x}} -lt 3 || test -e {mark} && echo {{x}} {{{{x}}}} $WATTHERD_GRID_X"
    array = handed_in(say, "-n", "again", "--grid", "x=1..4", "-a", "%2", "--", "sh", "-c", script)
    assert over(service, array) == {"Failed": 2, "Succeeded": 2}
    mark.touch()
    again = say("rerun", array, "--failed")[1].strip()
    assert over(service, again) == {"Succeeded": 2}
    assert (of(service, again)["indices"], of(service, again)["most"]) == ("2-3", 2)
    assert say("logs", f"{again}[3]")[1] == "4 {x} 4\n"
    job = service.ask(f"jobs/{again}[3]")
    assert (job["name"], job["labels"]) == ("again[3]", {"rerun-of": array})
    one = say("rerun", f"{array}[1]")[1].strip()
    service.wait_for(one, "Succeeded")
    assert say("logs", one)[1] == "2 {x} 2\n"
    assert service.ask(f"jobs/{one}")["array"]["index"] == 1
    code, _, why = say("rerun", again, "--failed")
    assert (code, "no task has failed" in why) == (2, True)


@pytest.mark.long
def test_a_job_waits_for_a_whole_array_or_for_one_task(say: Say, service: Serving) -> None:
    array = handed_in(say, *HELD, "-n", "first", "-a", "0-2", "--", "true")
    whole = handed_in(say, "--after", array, "--", "true")
    named = handed_in(say, "--after-any", "first[1]", "--", "true")
    task = handed_in(say, "--after-any", f"{array}[1]", "--", "true")
    never = handed_in(say, "--after-notok", array, "--", "true")
    assert service.ask(f"jobs/{whole}")["spec"]["after"] == [array]
    assert service.ask(f"jobs/{task}")["spec"]["after_any"] == [
        of(service, array)["tasks"][1]["id"]
    ]
    assert array in service.ask(f"jobs/{whole}")["reason"]["text"]
    say("edit", f"{array}[1]", "--begin", "in 0s")
    service.wait_for(task, "Succeeded")
    service.wait_for(named, "Succeeded")
    assert service.state_of(whole) == "Queued"
    say("edit", array, "--begin", "in 0s")
    service.wait_for(whole, "Succeeded")
    service.wait_for(never, "Cancelled")
    late = handed_in(say, "--after", array, "--", "true")
    service.wait_for(late, "Succeeded")
    code, _, why = say("submit", "--after", "a-99999", "--", "true")
    assert (code, "no job 'a-99999'" in why) == (2, True)


@pytest.mark.long
def test_a_job_that_waited_in_vain_for_an_array_is_told_so(say: Say, service: Serving) -> None:
    array = handed_in(say, "-a", "0-1", "--begin", "in 2s", "--", "false")
    child = handed_in(say, "--after", array, "--", "true")
    service.wait_for(child, "Failed")
    text = (service.ask(f"jobs/{child}")["reason"] or {}).get("text", "")
    assert f"DependencyNeverSatisfied: not all tasks of {array} have succeeded" in text


@pytest.mark.parametrize(
    ("words", "field", "why"),
    [
        (("-a", "9-0"), "array", "ends before it begins"),
        (("-a", "0-99999"), "array", "100,000 tasks, 10,000 are the most"),
        (("--grid", "lr"), "--grid", "lr=0.1,0.01 or seed=1..5"),
        (("--grid", "lr="), "grid.lr", "has no value"),
        (("--grid", "lr=1", "--grid", "lr=2"), "--grid", "--grid lr=1,2"),
        (("--grid", "lr=1", "--", "echo", "{lt}"), "run", "known: index, lr"),
        (("-a", "0-1", "--singleton", "-n", "x"), "job", "%1` lets one run"),
    ],
)
def test_what_is_no_array_is_refused_before_anything_is_kept(
    say: Say, service: Serving, words: tuple[str, ...], field: str, why: str
) -> None:
    before = len(service.ask("jobs?over=true")["jobs"])
    command = () if "--" in words else ("--", "true")
    code, said, told = say("submit", *words, *command)
    assert (code, said) == (2, "")
    assert field in told
    assert why in told
    assert len(service.ask("jobs?over=true")["jobs"]) == before


def test_whatever_makes_one_job_refuses_an_array_and_the_other_way_round(
    say: Say, service: Serving
) -> None:
    refused = service.ask("jobs", {"run": "true", "array": "0-1"})
    assert (refused["code"], refused["hint"]) == (400, "POST /api/v1/arrays takes it")
    refused = service.ask("arrays", {"run": "true"})
    assert (refused["code"], refused["field"]) == (400, "array")
    code, _, why = say("run", "-a", "0-1", "--", "true")
    assert (code, "one job can be followed" in why) == (2, True)
    assert say("submit", "--dry-run", "-a", "0-1", "--", "true")[0] == 0


def test_an_array_that_can_never_run_is_said_to_fail(say: Say) -> None:
    code, said, why = say("submit", "-g", "400", "-a", "0-2", "--", "true")
    assert (code, said[:2]) == (1, "a-")
    assert "Failed: NeverFits: asked 400" in why


@pytest.mark.long
def test_the_same_key_hands_an_array_in_once_also_after_a_kill(service: Serving) -> None:
    key = {"idempotency-key": secrets.token_hex(8)}
    asked = {"run": "sleep 100", "array": "0-4%1", "begin": "in 10h", "labels": {"of": "kill"}}
    first = service.ask("arrays", asked, **key)
    service.kill()
    service.begin()
    service.ready()
    again = service.ask("arrays", asked, **key)
    assert (again["id"], again["tasks"]) == (first["id"], first["tasks"])
    assert len(service.ask("jobs?label=of=kill")["jobs"]) == 5
    service.ask(f"arrays/{first['id']}/cancel", {})


@pytest.mark.long
def test_an_array_is_there_whole_or_not_at_all_when_the_service_is_killed_amid_its_submission(
    service: Serving,
) -> None:
    """The kill comes while it is taken in, at another moment each time; then it is sent again."""
    for number in range(6):
        key = {"idempotency-key": secrets.token_hex(8)}
        asked = {
            "run": "true",
            "array": "0-299",
            "begin": "in 10h",
            "labels": {"round": f"r{number}"},
        }
        with ThreadPoolExecutor(1) as sender:
            sender.submit(service.ask, "arrays", asked, **key)
            time.sleep(0.01 + 0.04 * number)
            service.kill()
        service.begin()
        service.ready()
        found = service.ask(f"jobs?label=round=r{number}")["jobs"]
        assert len(found) in (0, 300)
        array = service.ask("arrays", asked, **key)
        assert array["states"] == {"Queued": 300}
        found = service.ask(f"jobs?label=round=r{number}")["jobs"]
        assert [row["id"] for row in found] == [task["id"] for task in array["tasks"]]
        service.ask(f"arrays/{array['id']}/cancel", {})


@pytest.mark.long
def test_no_more_run_than_may_across_kills_of_the_service(service: Serving, tmp_path: Any) -> None:
    """Each task notes who else is there: a folder a task, removed when it ends."""
    script = (
        f"mkdir {tmp_path}/run-$WATTHERD_ARRAY_INDEX; ls {tmp_path} | grep -c run- "
        f">> {tmp_path}/seen; sleep 0.7; rmdir {tmp_path}/run-$WATTHERD_ARRAY_INDEX"
    )
    array = service.ask("arrays", {"run": script, "array": "0-5%1", "gpus": 1})["id"]
    for _ in range(2):
        until(lambda: of(service, array)["states"].get("Running"))
        service.kill()
        service.begin()
        service.ready()
    assert over(service, array) == {"Succeeded": 6}
    seen = (tmp_path / "seen").read_text().split()
    assert Counter(seen) == {"1": 6}
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]
