"""What must not get out of a service: secrets of jobs, and files behind links in their logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from guarded import Guarded
from starlette.routing import Route

V1 = "/api/v1"
SECRET = "open-sesame-7f3a"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("site") / "state").let_people_in()
    yield guarded
    guarded.close()


def log(guarded: Guarded, job: str, who: str) -> str:
    return guarded.ask("GET", f"{V1}/jobs/{job}/logs", who).text


def state(guarded: Guarded, job: str) -> str:
    return str(guarded.ask("GET", f"{V1}/jobs/{job}", "admin").json["state"])


def wait(guarded: Guarded, job: str, ends: str = "Succeeded") -> None:
    guarded.until(lambda: state(guarded, job) == ends)


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Guarded]:
    """A service whose operator names a folder and a variable of secrets."""
    (tmp_path / "keys").mkdir()
    named = {"secret_dirs": [tmp_path / "keys"], "secret_env": ["WATTHERD_SECRET_TOO"]}
    made = Guarded(tmp_path / "state", **named).let_people_in()
    yield made
    made.close()


@pytest.mark.long
def test_a_secret_is_in_no_answer_and_no_file(
    keeping: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job prints it in pieces and as a whole; everything that can be read is read."""
    guarded = keeping
    (tmp_path / "keys" / "key").write_text(SECRET + "\n")
    monkeypatch.setenv("WATTHERD_SECRET_TOO", SECRET[::-1])
    job = guarded.submit(
        "user",
        "echo got ${#KEY} ${#TOO}; echo $KEY; env; printf %s $TOO; ls $NONE-$KEY",
        secrets={"KEY": f"file:{tmp_path}/keys/key", "TOO": "env:WATTHERD_SECRET_TOO"},
    )
    wait(guarded, job, "Failed")
    assert "got 16 16" in log(guarded, job, "user")
    for route in guarded.app.routes:
        if isinstance(route, Route) and "GET" in (route.methods or ()):
            path = route.path.replace("{job_id}", job).replace("{name}", "none")
            if "{" in path or "follow" in path or path.endswith("/events"):
                continue
            told = guarded.ask("GET", path, "admin").text
            assert SECRET not in told, path
            assert SECRET[::-1] not in told, path
    for file in guarded.site.config.state.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file
            assert SECRET[::-1].encode() not in file.read_bytes(), file


def long(link: str) -> Any:
    return pytest.param(link, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "link",
    [
        "rm logs/0.log; ln -s {target} logs/0.log",
        long("mv logs own; ln -s {folder} logs"),
        long("cd ..; mv run-1 own; mkdir run-1; ln -s {folder} run-1/logs; cp own/* run-1 2>&-"),
        long("cd ../..; mv $WATTHERD_JOB_ID own; ln -s {job} $WATTHERD_JOB_ID"),
    ],
    ids=["the log", "its folder", "the run", "the job"],
)
def test_no_link_shows_another_tenants_log(guarded: Guarded, link: str) -> None:
    """Jobs without a user of their own can do this; the API does not show it all the same."""
    victim = guarded.submit("user", "echo private-words")
    wait(guarded, victim)
    jobs = guarded.site.config.state.absolute() / "jobs"
    folder = jobs / victim / "run-1" / "logs"
    put = link.format(target=folder / "0.log", folder=folder, job=jobs / victim)
    thief = guarded.submit("stranger", f"cd $WATTHERD_RUN_DIR && {put}; touch {jobs}/done-{victim}")
    # Who replaces his own run may be taken for dead before he is through, and killed.
    guarded.until(
        lambda: (
            (jobs / f"done-{victim}").exists() or state(guarded, thief) in ("Failed", "Succeeded")
        )
    )
    assert "private-words" not in log(guarded, thief, "stranger")
    assert "private-words" in log(guarded, victim, "user")


@pytest.mark.parametrize("query", ["rank=../../x", "rank=-1", "attempt=-1", "rank=1e3", "lines=x"])
def test_no_number_leaves_the_folder(guarded: Guarded, query: str) -> None:
    job = guarded.submit("stranger", "true")
    assert guarded.ask("GET", f"{V1}/jobs/{job}/logs?{query}", "stranger").status in (400, 422)
