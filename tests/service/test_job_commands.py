"""Everyday commands on a real service: what they say of jobs that are over, misnamed or refused."""

from __future__ import annotations

import getpass
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, until

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.cli.main import main

Said = tuple[int, str, str]
Say = Callable[..., Said]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    service = Serving(tmp_path_factory.mktemp("commands") / "state", "--budget", "9W")
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("exit 3", "exit code 3"),
        ("echo on its way; exec no-such-program", "exit code 127"),
    ],
)
def test_who_ran_a_job_that_failed_is_told_why(say: Say, command: str, why: str) -> None:
    code, _, said = say("run", "--", "sh", "-c", command)
    assert (code, said.splitlines()[-1].split(": ", 1)[1]) == (1, f"Failed: {why}")


@pytest.mark.long
def test_a_program_that_is_not_there_is_named(say: Say) -> None:
    code, _, said = say("run", "--", "no-such-program")
    assert code == 1
    assert "Failed: cannot run 'no-such-program': no such file or directory" in said


def test_what_can_never_run_is_said_when_it_is_handed_in(say: Say) -> None:
    code, said, why = say("submit", "-g", "400", "--", "true")
    assert (code, said[:2]) == (1, "j-")
    assert f"{said.strip()}: Failed: NeverFits: asked 400" in why


@pytest.mark.long
@pytest.mark.parametrize("flag", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("words", "field", "hint"),
    [
        (("-q", "prodd"), "queue", "keeps no queues"),
        (("--gpu-type", "A100"), "gpu_type", "known: CPU; `wattherd gpus` lists all devices"),
        (("--gpu-type", "cpu"), "gpu_type", "did you mean 'CPU'?"),
    ],
)
def test_a_job_that_names_what_is_not_there_is_refused_and_not_kept(
    say: Say, service: Serving, flag: tuple[str, ...], words: tuple[str, ...], field: str, hint: str
) -> None:
    before = service.ask("jobs?over=true")["jobs"]
    code, said, why = say("submit", *flag, *words, "--", "true")
    assert (code, said) == (2, "")
    assert f"{field}: " in why
    assert hint in why
    assert len(service.ask("jobs?over=true")["jobs"]) == len(before)


@pytest.mark.long
def test_of_several_gpu_types_one_that_is_there_is_enough(say: Say, service: Serving) -> None:
    job = say("submit", "--gpu-type", "A100,CPU", "--", "true")[1].strip()
    service.wait_for(job, "Succeeded")


def test_a_dry_run_of_what_never_fits_is_no_success(say: Say) -> None:
    code, said, why = say("submit", "-g", "400", "--dry-run", "--", "true")
    assert (code, "NeverFits: asked 400" in said) == (1, True)
    assert "it could never start (hint: `wattherd gpus`" in why
    document = json.loads(say("submit", "-g", "400", "--dry-run", "-o", "json", "--", "true")[1])
    assert (document["fits"], document["candidates"]) == (False, [])
    assert say("submit", "-g", "1", "--dry-run", "--", "true")[0] == 0


@pytest.mark.long
def test_jobs_are_found_by_name(say: Say, service: Serving) -> None:
    _, job, _ = say("submit", "-n", "long-training", "--", "sleep", "100")
    job = job.strip()
    service.wait_for(job, "Running")
    assert say("show", "long-training", "-o", "name")[1].strip() == job
    assert say("explain", "long", "-o", "name")[1].strip() == job
    code, _, said = say("cancel", "long")  # what ends jobs wants the whole name
    assert (code, "no job 'long'" in said) == (3, True)
    waits = json.loads(say("submit", "--after", "long-training", "-o", "json", "--", "true")[1])
    assert waits["spec"]["after"] == [job]
    assert say("cancel", "long-training")[:2] == (0, f"{job} is being cancelled\n")
    service.wait_for(job, "Cancelled")


@pytest.mark.long
def test_of_jobs_of_one_name_the_live_one_is_meant(say: Say, service: Serving) -> None:
    first = say("submit", "-n", "twin", "--", "true")[1].strip()
    service.wait_for(first, "Succeeded")
    one, other = (say("submit", "-n", "twin", "--", "sleep", "100")[1].strip() for _ in range(2))
    code, _, said = say("show", "twin")
    assert (code, f"2 jobs are called 'twin' (hint: one of {one}, {other})" in said) == (2, True)
    say("cancel", other)
    service.wait_for(other, "Cancelled")
    assert say("show", "twin", "-o", "name")[1].strip() == one
    say("cancel", one)
    service.wait_for(one, "Cancelled")
    assert say("show", "twin", "-o", "name")[1].strip() == other


@pytest.mark.long
@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_a_job_that_is_over_is_said_to_be(say: Say, service: Serving, verb: str) -> None:
    job = say("submit", "--", "true")[1].strip()
    service.wait_for(job, "Succeeded")
    assert say(verb, job) == (1, "", f"{job} is over: Succeeded\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rank", "7"), "has no task 7 (hint: its only rank is 0)"),
        (("--attempt", "9"), "has had 1 runs, none is number 9"),
    ],
)
def test_logs_of_no_task_are_not_empty_but_refused(
    say: Say, service: Serving, words: tuple[str, ...], said: str
) -> None:
    job = say("submit", "--", "true")[1].strip()
    service.wait_for(job, "Succeeded")
    code, _, why = say("logs", job, *words)
    assert (code, said in why) == (3, True)


@pytest.mark.long
def test_logs_are_followed_from_before_the_start_through_every_run(
    say: Say, service: Serving
) -> None:
    first = say("submit", "-g", "2", "--", "sleep", "1")[1].strip()
    program = "echo run $WATTHERD_ATTEMPT; [ $WATTHERD_ATTEMPT = 2 ]"
    job = say("submit", "--restarts", "1", "--after", first, "--", "sh", "-c", program)[1].strip()
    code, said, _ = say("logs", "-f", job)
    assert (code, said) == (0, "run 1\nrun 2\n")


@pytest.mark.long
def test_what_became_of_a_job_is_told_after_its_end(say: Say, service: Serving) -> None:
    job = say("submit", "--", "true")[1].strip()
    service.wait_for(job, "Succeeded")
    said = say("explain", job)[1]
    assert said.startswith(f"{job}: Succeeded\n")
    assert f"submitted {job}, which asks for 1 GPU in queue default." in said
    assert f"Run 1 of {job} starts on " in said
    assert f"{job} is over: Succeeded.  Run 1 of {job} ended and succeeded." in said
    assert "StartJob" not in said


@pytest.mark.long
def test_joules_of_a_job_that_is_over_are_known_at_once(say: Say, service: Serving) -> None:
    job = say("submit", "--", "sleep", "3")[1].strip()
    service.wait_for(job, "Succeeded")
    told = [json.loads(say("show", job, "-o", "json")[1])["energy_j"] for _ in range(20)]
    assert min(told) > 0
    assert len(set(told)) == 1


def test_lists_are_of_states_that_there_are(say: Say, service: Serving) -> None:
    job = say("submit", "--", "false")[1].strip()
    service.wait_for(job, "Failed")
    assert job in say("queue", "--state", "failed", "-o", "name")[1].split()
    code, _, said = say("queue", "--state", "dead")
    assert (code, "'timedout'" in said.casefold()) == (2, True)


@pytest.mark.long
def test_history_begins_when_it_is_asked_to(say: Say, service: Serving) -> None:
    job = say("submit", "--", "true")[1].strip()
    service.wait_for(job, "Succeeded")
    assert job in say("history", "--since", "10m", "-o", "name")[1].split()
    assert job not in say("history", "--since", "2999-01-01T00:00", "-o", "name")[1].split()
    live = say("submit", "--", "sleep", "100")[1].strip()
    service.wait_for(live, "Running")
    assert say("history", "--since", "2999-01-01T00:00", "-o", "name")[1].split() == [live]
    say("cancel", live)
    assert say("history", "--since", "yesterday")[0] == 2


def test_a_budget_holds_in_a_window_of_every_day(say: Say) -> None:
    code, _, said = say("power", "set", "6W", "--from", "18:00", "--to", "22:00")
    assert code == 0, said
    timeline = json.loads(say("power", "-o", "json")[1])["timeline"]
    assert len({str(span["limit_w"]) for span in timeline} & {"6.0"}) == 1
    for words in ("6W --from 18:00", "--from 1:00 --to 2:00", "none --to 2:00"):
        code, _, said = say("power", "set", *words.split())
        assert (code, "a window is BUDGET, --from and --to" in said) == (2, True)
    assert say("power", "set", "--no-schedule")[0] == 0


def test_whoever_changes_a_budget_is_known_by_the_name_of_his_account(say: Say) -> None:
    assert say("power", "set", "8W")[0] == 0
    (act,) = json.loads(say("audit", "--action", "BudgetChanged", "-n", "1", "-o", "json")[1])[
        "acts"
    ]
    assert (act["by"], act["detail"]["budget_w"]) == (getpass.getuser(), 8.0)


@pytest.mark.long
def test_lists_tell_how_a_job_failed(say: Say, service: Serving) -> None:
    job = say("submit", "--", "sh", "-c", "exit 9")[1].strip()
    service.wait_for(job, "Failed")
    (row,) = (line for line in say("history")[1].splitlines() if line.startswith(job))
    assert row.rstrip().endswith("exit code 9")


def test_a_command_that_is_misspelt_is_guessed(say: Say) -> None:
    assert "no command 'qeue' (hint: did you mean 'queue'?)" in say("qeue")[2]
    assert "`wattherd --help` lists all" in say("xyzzy")[2]


def columns(table: str) -> list[str]:
    return table.splitlines()[0].split()


@pytest.mark.long
def test_wide_tables_add_columns_and_move_none(say: Say, service: Serving) -> None:
    job = say("submit", "--", "sleep", "100")[1].strip()
    service.wait_for(job, "Running")
    plain, wide = (columns(say("queue", "-o", how)[1]) for how in ("table", "wide"))
    assert plain == [
        "ID",
        "NAME",
        "USER",
        "STATE",
        "GPUS",
        "WATTS",
        "TIME",
        "DONE",
        "LEFT",
        "WHERE/WHY",
    ]
    assert wide[: len(plain)] == plain
    say("cancel", job)
    until(lambda: not _live(service))


def _live(service: Serving) -> Any:
    return service.ask("jobs")["jobs"]


def wait_for(say: Say, job_id: str, state: str) -> dict[str, Any]:
    def there() -> bool:
        return bool(json.loads(say("show", job_id, "-o", "json")[1])["state"] == state)

    until(there)
    shown: dict[str, Any] = json.loads(say("show", job_id, "-o", "json")[1])
    return shown


def submitted(say: Say, *words: str) -> str:
    code, said, why = say("submit", *words)
    assert code == 0, why
    return said.strip()


@pytest.mark.long
def test_jobs_that_follow_others_start_or_end_as_those_do(say: Say) -> None:
    first = submitted(say, "-n", "first", "--", "sh", "-c", "sleep 2; exit 1")
    cleans = submitted(say, "--after-any", "first", "--", "true")
    reports = submitted(say, "--after-notok", first, "--", "true")
    goes_on = submitted(say, "--after", first, "--", "true")
    _, said, _ = say("explain", cleans)
    assert f"waits for {first} to end" in said
    wait_for(say, first, "Failed")
    wait_for(say, cleans, "Succeeded")
    wait_for(say, reports, "Succeeded")
    never = wait_for(say, goes_on, "Failed")
    assert never["reason"]["code"] == "DependencyNeverSatisfied"
    assert f"{first} has ended as Failed (see to {first}" in never["reason"]["text"]
    late = submitted(say, "--after-notok", cleans, "--", "true")
    shown = wait_for(say, late, "Cancelled")
    assert shown["reason"]["code"] == "DependencyNeverSatisfied"


@pytest.mark.long
def test_a_job_that_is_put_off_says_until_when(say: Say) -> None:
    job_id = submitted(say, "--begin", "in 5h", "--", "true")
    shown = json.loads(say("show", job_id, "-o", "json")[1])
    assert (shown["state"], shown["reason"]["code"]) == ("Queued", "NotBefore")
    assert "UTC, in about 5 h)" in shown["reason"]["text"]
    assert shown["spec"]["begin"] > shown["submitted"]
    say("cancel", job_id)
    soon = submitted(say, "--begin", "in 1s", "--", "true")
    wait_for(say, soon, "Succeeded")


@pytest.mark.long
def test_singletons_of_one_name_run_one_after_the_other(say: Say) -> None:
    first = submitted(say, "-n", "alone", "--singleton", "--", "sleep", "2")
    second = submitted(say, "-n", "alone", "--singleton", "--", "true")
    shown = json.loads(say("show", second, "-o", "json")[1])
    assert f"waits for {first} to end, which has its name" in shown["reason"]["text"]
    wait_for(say, second, "Succeeded")
    assert say("submit", "--singleton", "--", "true")[0] == 2


def test_jobs_are_found_by_label_user_and_name_while_they_live_and_after(say: Say) -> None:
    lab = f"lab-{secrets.token_hex(4)}"  # name and key of its own: others here label jobs too
    job_id = submitted(
        say, "-n", lab, "-l", f"{lab}=vision", "-l", "paper=4 2", "--begin", "in 1h", "--",
        "true",
    )  # fmt: skip
    other = submitted(say, "-n", "other", "-l", f"{lab}=Vision", "--begin", "in 1h", "--", "true")

    def found(*words: str) -> list[str]:
        code, said, why = say(*words, "-o", "json")
        assert code == 0, why
        return [row["id"] for row in json.loads(said)["jobs"]]

    for command in ("queue", "history"):
        assert found(command, "-l", f"{lab}=vision") == [job_id]
        assert len(found(command, "-l", lab)) == 2
        assert found(command, "-l", f"{lab}=vision", "-l", "paper=4 2") == [job_id]
        assert found(command, "-l", f"{lab}=vision", "-l", "paper=4") == []
        mine = (command, "--name", lab, "--user", getpass.getuser())
        assert found(*mine) == [job_id]
        assert found(command, "--name", lab, "--user", "nobody-else") == []
    shown = json.loads(say("show", job_id, "-o", "json")[1])
    assert shown["labels"] == {lab: "vision", "paper": "4 2"}
    say("cancel", job_id, other)
    wait_for(say, job_id, "Cancelled")
    assert found("history", "-l", f"{lab}=vision") == [job_id]
    assert say("submit", "-l", "name=x", "--", "true")[0] == 2
    assert say("submit", "-l", "x", "--", "true")[0] == 2


@pytest.mark.long
def test_a_waiting_job_is_edited_and_its_story_says_by_whom(say: Say) -> None:
    job_id = submitted(say, "--begin", "in 1h", "-g", "1", "--", "true")
    code, said, why = say("edit", job_id, "--priority", "high", "--time", "10m")
    assert (code, said.strip()) == (
        0, f"{job_id} was edited: priority 0 -> 10, time limit none -> 600 s"
    ), why  # fmt: skip
    shown = json.loads(say("show", job_id, "-o", "json")[1])
    assert (shown["priority"], shown["spec"]["time_limit_s"]) == (10, 600.0)
    assert any(getpass.getuser() in one["cause"] for one in shown["story"])
    for words in (["--gpus", "400"], ["--queue", "prodd"], []):
        assert say("edit", job_id, *words)[0] == 2
    assert json.loads(say("show", job_id, "-o", "json")[1])["gpus"] == 1
    assert say("edit", job_id, "--begin", "in 0s")[0] == 0
    wait_for(say, job_id, "Succeeded")
    code, _, why = say("edit", job_id, "--priority", "low")
    assert (code, "is over" in why) == (2, True)


@pytest.mark.long
def test_of_a_running_job_only_the_time_limit_is_lowered(say: Say) -> None:
    job_id = submitted(say, "-t", "10m", "--", "sleep", "60")
    wait_for(say, job_id, "Running")
    for words in (["--priority", "high"], ["--time", "20m"]):
        code, _, why = say("edit", job_id, *words)
        assert (code, "runs: " in why) == (2, True)
    assert say("edit", job_id, "--time", "1s")[0] == 0
    wait_for(say, job_id, "TimedOut")


@pytest.mark.long
def test_a_job_that_is_over_is_run_again_with_what_it_had(say: Say) -> None:
    words = ("-n", "once-more", "-l", "team=vision", "-e", "WORD=hello", "--export", "GREETING=hi")
    first = submitted(say, *words, "--", "sh", "-c", 'test "$WORD$GREETING" = hellohi')
    wait_for(say, first, "Succeeded")
    code, said, why = say("rerun", first)
    assert code == 0, why
    shown = wait_for(say, said.strip(), "Succeeded")
    assert shown["labels"] == {"team": "vision", "rerun-of": first}
    assert shown["id"] != first
    assert say("rerun", "j-99999")[0] != 0


SAVES = (
    'cat "$WATTHERD_CHECKPOINT_DIR/step" 2>/dev/null || echo none; '
    'echo $WATTHERD_JOB_ID >> "$WATTHERD_CHECKPOINT_DIR/step"'
)


def logged(say: Say, *words: str) -> tuple[str, str]:
    code, said, why = say(*words)
    assert code == 0, why
    wait_for(say, said.strip(), "Succeeded")
    return said.strip(), say("logs", said.strip())[1]


@pytest.mark.long
def test_a_job_is_run_again_with_its_last_checkpoint_or_anew(say: Say) -> None:
    first = submitted(say, "--", "sh", "-c", SAVES)
    wait_for(say, first, "Succeeded")
    assert logged(say, "rerun", first)[1] == "none\n"
    assert logged(say, "rerun", "--fresh", first)[1] == "none\n"
    second, said = logged(say, "rerun", "--from-checkpoint", first)
    assert said.endswith(f"{first}\n")
    assert logged(say, "rerun", "--from-checkpoint", second)[1].endswith(f"{first}\n{second}\n")
    third = logged(say, "rerun", "--from-checkpoint", first)[1]
    assert second not in third  # the first one's files are as they were
    assert logged(say, "rerun", "--fresh", second)[1] == "none\n"


@pytest.mark.long
def test_a_job_with_a_checkpoint_folder_of_its_choice_goes_on_there_unless_told_otherwise(
    say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    (tmp_path / "kept").mkdir()
    file.write_text(json.dumps({"run": SAVES, "checkpoint": {"dir": "kept"}}))
    first = submitted(say, "-f", str(file))
    wait_for(say, first, "Succeeded")
    assert logged(say, "rerun", first)[1] == f"{first}\n"
    assert len(logged(say, "rerun", "--from-checkpoint", first)[1].split()) == 2
    assert logged(say, "rerun", "--fresh", first)[1] == "none\n"


@pytest.mark.long
def test_a_checkpoint_that_is_being_written_or_is_not_there_is_refused(say: Say) -> None:
    running = submitted(say, "--", "sleep", "60")
    wait_for(say, running, "Running")
    code, _, why = say("rerun", "--from-checkpoint", running)
    assert (code, "still writes" in why) == (2, True)
    say("cancel", running)
    wait_for(say, running, "Cancelled")
    code, _, why = say("rerun", "--from-checkpoint", running)
    assert (code, "has left no checkpoint" in why) == (2, True)
    assert say("rerun", "--from-checkpoint", "--fresh", running)[0] == 2
