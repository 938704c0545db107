"""A package of somebody else's: used where ours are, and what it does wrong is a reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="builds the package: of the development tools")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from hold_site import end_watchdogs, eventually, holding, watched, write_site

from plugin_packages import EXAMPLE, install, install_both, python_path
from service.serving import WATTHERD, Serving, until
from unit.sim_runs import write_sim
from wattherd.testing.redfish_boards import Board, a_room

pytestmark = pytest.mark.long
JOBS = "\n".join(f"{'j' * (n % 3 + 1)}{n} at {n} on {1 + n % 2} for 600" for n in range(8)) + "\n"
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: the example, and one with everything wrong."""
    return install_both(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def call(packages: Path, tmp_path: Path) -> Call:
    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WATTHERD, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=180,
            env={**os.environ, "PYTHONPATH": python_path(packages)}, check=False,
        )  # fmt: skip

    return called


@pytest.fixture(scope="module")
def kept(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves behind."""
    folder = tmp_path_factory.mktemp("kept")
    return write_sim(folder / "run")


def run(call: Call, folder: Path, policy: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "jobs.words").write_text(JOBS)
    asked = ("--jobs", "jobs.words", "--format", "words", "--preset", "none")
    return call("sim", "run", *asked, "--cluster", "1x4:T4", "--policy", policy, *more)


def test_its_own_tests_pass_by_the_kit(packages: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", str(EXAMPLE / "tests")],
        env={**os.environ, "PYTHONPATH": python_path(packages)}, capture_output=True, text=True,
        timeout=300, check=False, cwd=packages,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "6 passed" in done.stdout


def test_it_is_listed_with_its_first_line(call: Call) -> None:
    found = json.loads(call("policies", "-o", "json").stdout)
    told = {one["name"]: one for one in (*found["schedulers"], *found["power"])}
    assert told["short-names-first"]["about"].startswith("Shortest id first")
    assert told["short-names-first"]["shells"] == ["sim", "local", "kube"]
    assert (
        told["square-root"]["about"]
        == "More for those with more range, but less than in proportion"
    )
    assert "has no attribute" in told["absent"]["about"]
    assert told["fifo"]["about"].startswith("first come")  # ours cannot be taken
    others = {(one["seam"], one["name"]): one["about"] for one in found["others"]}
    assert others["meters", "file"].startswith("A meter in a file")
    assert others["workloads", "words"] == "The jobs of a file"
    assert others["reports", "slowest"].startswith("The jobs with the longest completion times")
    placing = {one["name"]: one for one in found["place"]}
    assert placing["busy-nodes-first"]["options"] == ["cores=NUMBER"]
    assert placing["busy-nodes-first"]["about"].startswith("Nodes with the fewest GPUs")
    assert "is no Scorer" in placing["no-scorer"]["about"]
    assert "slowest" in call("policies").stdout


def test_scheduler_power_policy_and_format_in_the_simulator(call: Call, tmp_path: Path) -> None:
    done = run(call, tmp_path, "short-names-first,fifo", "--power", "square-root",
               "--budget", "260W", "--out", "run", "-o", "json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["policy"]: row for row in json.loads(done.stdout)["policies"]}
    assert rows["short-names-first"]["finished"] == 8
    assert rows["short-names-first"]["over_budget_s"] == 0.0
    replayed = call("sim", "replay", "run")
    assert replayed.returncode == 0, replayed.stdout
    assert "DIFFERENT" not in replayed.stdout


@pytest.mark.parametrize(("policy", "said"), [("raises", "KeyError: 'a"), ("midway", "halfway")])
def test_a_scheduler_that_raises_is_a_reason(
    call: Call, tmp_path: Path, policy: str, said: str
) -> None:
    done = run(call, tmp_path, policy)
    assert done.returncode == 1
    assert f"its scheduler '{policy}' to be mended: " in done.stderr
    assert said in done.stderr
    assert "8 of 8 jobs unfinished" in done.stderr


def test_a_power_policy_that_shares_too_much_is_answered_for(call: Call, tmp_path: Path) -> None:
    done = run(call, tmp_path, "fifo", "--power", "too-much", "--budget", "260W", "-o", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["policies"]
    assert (row["finished"], row["over_budget_s"]) == (8, 0.0)
    assert "power policy 'too-much' failed: ValueError: 280.000 W shared of 260" in done.stderr
    assert done.stderr.count("too-much") == 1
    assert "Traceback" not in done.stderr


def test_its_section_and_its_format_of_a_report(call: Call, tmp_path: Path) -> None:
    assert run(call, tmp_path, "fifo,srtf", "--out", "run").returncode == 0
    done = call("report", "run", "--section", "slowest", "--format", "html", "--format", "took")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["run/report.html", "run/report.txt"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<h2 id="h-added-1">Slowest jobs</h2>' in page
    assert "Under srtf the slowest job is " in page
    lines = (tmp_path / "run" / "report.txt").read_text().splitlines()
    assert len(lines) == 16
    assert lines[0].startswith("fifo: ")


def test_a_section_that_fails_is_a_reason_on_the_page(call: Call, kept: Path) -> None:
    broken = ("--section", "raises", "--section", "slowest", "--section", "no-section")
    done = call("report", str(kept), *broken)
    assert done.returncode == 0, done.stderr
    page = (kept / "report.html").read_text()
    assert "This section could not be made: KeyError: &#39;a" in page
    assert "a str is no ReportSection" in page
    assert "Slowest jobs" in page
    assert "report section 'raises' failed: KeyError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "raises"), "failed: KeyError"),
        (("--format", "no-section"), "gave a str, and no ReportFile"),
        (("--format", "slowest"), "hint: ask for it by --section slowest"),
        (("--format", "slowst"), "unknown format 'slowst'"),
        (("--section", "slowst"), "no package offers a report 'slowst'"),
    ],
)
def test_what_is_no_report_is_refused(
    call: Call, kept: Path, options: tuple[str, ...], said: str
) -> None:
    done = call("report", str(kept), *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("policy", "said"), [("nothing", "it has no `plan`"), ("absent", "has no attribute")]
)
def test_what_is_no_scheduler_is_refused(
    call: Call, tmp_path: Path, policy: str, said: str
) -> None:
    done = run(call, tmp_path, policy)
    assert done.returncode == 2
    assert said in done.stderr
    assert "docs/guides/plugins.md" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def pods(tmp_path: Path) -> tuple[str, ...]:
    """Two nodes with two GPUs each, and four pods that ask for half a GPU."""
    lines = ["sn,cpu_milli,memory_mib,gpu,model", "a,32000,65536,2,T4", "b,32000,65536,2,T4"]
    (tmp_path / "nodes.csv").write_text("\n".join(lines) + "\n")
    heads = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
    rows = [heads, *(f"p{number},1000,1,1,500" for number in range(4))]
    (tmp_path / "pods.csv").write_text("\n".join(rows) + "\n")
    return ("--nodes", "nodes.csv", "--pods", "pods.csv")


def test_its_scorer_places_pods(call: Call, tmp_path: Path, pods: tuple[str, ...]) -> None:
    policies = "busy-nodes-first,busy-nodes-first@cores=1"
    done = call("sim", "pack", *pods, "--policy", policies, "--out", "run", "-o", "json")
    assert done.returncode == 0, done.stderr
    placed = {one["policy"]: one["placed"] for one in json.loads(done.stdout)["runs"]}
    assert placed == dict.fromkeys(policies.split(","), 4)


@pytest.mark.parametrize(
    ("policy", "code", "said"),
    [
        ("no-keys", 2, "broken:SCORER: scorer 'no-keys' failed: KeyError: 'a"),
        ("no-scorer", 2, "entry point 'no-scorer' is no Scorer"),
        ("first-fit", 0, ""),
    ],
)
def test_a_scorer_that_is_wrong_is_named_and_no_matter_to_others(
    call: Call, pods: tuple[str, ...], policy: str, code: int, said: str
) -> None:
    done = call("sim", "pack", *pods, "--policy", policy)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_its_meter_is_read(call: Call, tmp_path: Path) -> None:
    (tmp_path / "watts").write_text("123.456\n")
    done = call("meter", "read", f"file://{tmp_path}/watts?decimals=1")
    assert done.returncode == 0, done.stderr
    assert "123.5" in done.stdout
    refused = call("meter", "read", f"file://{tmp_path}/watts?digits=1")
    assert refused.returncode == 2
    assert "no such option" in refused.stderr
    empty = call("meter", "read", "empty://there")
    assert empty.returncode == 2
    assert "has no `driver` and `OPTIONS`" in empty.stderr


def test_a_meter_that_raises_is_one_that_does_not_answer(call: Call) -> None:
    for host, said in (
        ("raises", "KeyError: 'no such register'"),
        ("word", "it answered with 'a word'"),
    ):
        done = call("meter", "read", f"faulty://{host}")
        assert done.returncode == 1
        assert f"the driver 'faulty' failed: {said}" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


@contextmanager
def shown(path: Path, watts: Callable[[], float]) -> Iterator[None]:
    """A file that tells watts, twenty times a second."""
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.wait(0.05):
            number += 1  # a meter of a real load never stands still
            path.with_suffix(".new").write_text(f"{watts() * (1.0 + 0.0005 * (number % 3))}\n")
            path.with_suffix(".new").replace(path)

    thread = threading.Thread(target=write)
    path.write_text(f"{watts()}\n")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_power_hold_holds_a_feed_by_its_meter_and_lives_on_beside_one_that_raises(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(packages))
    watts = tmp_path / "watts"
    with a_room(Board(), Board(), Board()) as room, shown(watts, room.draw_w):
        site = write_site(
            tmp_path / "site.yaml", room, "0:1800W,3s:1300W",
            each={"node-0": {"meter": "faulty://raises"}},
            feeds={"row": {"meter": f"file://{watts}"}},
        )  # fmt: skip
        try:
            with holding(site) as loop:
                eventually(lambda: loop.said("cycle")[-1]["limit_w"][-1] == 1300.0)
                eventually(lambda: room.draw_w() <= 1300.0)
                # Of the feed it knows by our meter alone, and of node-0 nothing at all.
                eventually(lambda: abs(loop.said("cycle")[-1]["feed_w"][0] - room.draw_w()) < 20.0)
                assert loop.said("cycle")[-1]["unread"] == ["node-0"]
                assert max(watched(room, 2.0)) <= 1300.0
                assert loop.end() == 0
                assert loop.process.stderr is not None
                told = str(loop.process.stderr.read())
            assert told.count("driver 'faulty' failed: KeyError") == 1  # of all those cycles
        finally:
            end_watchdogs(site)


def test_a_service_holds_its_feed_by_its_meter(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(packages))
    watts, others_w = tmp_path / "watts", [40.0]
    config = tmp_path / "serve.yaml"
    feeds = {"rack-1": {"limit": 100.0, "meter": f"file://{watts}"}}
    site = {"feeds": feeds, "feed": "rack-1", "meter": "faulty://raises"}
    config.write_text(json.dumps({"site": site}))
    serving = Serving(tmp_path / "state", "--config", str(config))

    def told(level: str) -> str:
        notes = (serving.ask("power") or {}).get("notes", [])
        return "".join(note for note in notes if note.startswith(f"{level}: "))

    with shown(watts, lambda: others_w[0]):
        try:
            serving.begin()
            serving.ready()
            until(lambda: " 40.0 W" in told("rack-1"), 60.0)
            others_w[0] = 70.0
            until(lambda: " 70.0 W" in told("rack-1"), 60.0)
            assert "unknown" in told("site")  # whose meter raises: nothing else is the worse for it
            job = serving.submit("true")
            serving.wait_for(job, "Succeeded")
        finally:
            serving.end()
    assert "driver 'faulty' failed: KeyError" in serving.errors.read_text()


def test_a_service_schedules_by_it_and_its_report_tells_of_the_stopped_service(
    call: Call, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(packages))
    options = ("--policy", "short-names-first", "--power", "square-root", "--slots", "1")
    serving = Serving(tmp_path / "state", *options)
    try:
        serving.begin()
        serving.ready()
        jobs = [serving.submit("sleep 0.2") for _ in range(3)]
        for job in jobs:
            serving.wait_for(job, "Succeeded")
    finally:
        serving.end()
    past = ("report", "--state", "state", "--section")
    done = call(*past, "slowest", "--section", "raises", "--format", "html", "--format", "svg")
    assert done.returncode == 0, done.stderr
    assert "state/report.html" in done.stdout.split()
    assert "state/report-plots/runs.svg" in done.stdout.split()
    page = (tmp_path / "state" / "report.html").read_text()
    assert "Slowest jobs" in page
    assert "The slowest job is j-" in page
    assert "This section could not be made: KeyError: &#39;a" in page
    refused = call(*past, "slowst")
    assert refused.returncode == 2
    assert "no package offers a report 'slowst' (hint: did you mean 'slowest'?)" in refused.stderr
    silent = call("report", "--state", "state", "--format", "took")
    assert silent.returncode == 2
    assert "has nothing to tell of this run" in silent.stderr


def test_a_service_lives_on_beside_a_scheduler_that_raises(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(packages))
    serving = Serving(tmp_path / "state", "--policy", "raises")
    try:
        serving.begin()
        serving.ready()
        job = serving.submit("true")
        found = serving.ask(f"jobs/{job}")
        assert found["state"] == "Queued"
        assert "to be mended: KeyError" in found["reason"]["text"]
        assert serving.ask("health") is not None
    finally:
        serving.end()


def test_a_service_says_which_scheduler_does_not_return_ends_and_goes_on_when_it_is_mended(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(packages))
    monkeypatch.setenv("BROKEN_IS_MENDED", str(tmp_path / "mended"))
    serving = Serving(tmp_path / "state", "--policy", "never", "--budget", "9W")
    try:
        serving.begin()
        serving.ready()
        runs = [serving.submit("sleep 300") for _ in range(2)]
        for job in runs:
            serving.wait_for(job, "Running")
        waits = serving.submit("true")  # acknowledged, however long the core thinks
        assert serving.ask("health")["ok"]
        until(lambda: not (serving.ask("health") or {"ok": True})["ok"], 60.0)
        said = serving.ask("health")
        assert said["code"] == 503
        assert "scheduler 'never' has not returned for" in said["problem"]
        assert "broken.py:" in said["problem"]
        assert serving.submit("true") == "j-4"  # on disk
        end_s = time.monotonic() + 40.0
        serving.process.terminate()  # type: ignore[union-attr]
        serving.process.wait(40)  # type: ignore[union-attr]
        assert time.monotonic() < end_s
        errors = serving.errors.read_text()
        assert errors.count("scheduler 'never' has not returned for") == 2  # and left behind
        assert "left behind: scheduler 'never'" in errors
        assert all(any(serving.state.glob(f"jobs/{job}/run-*")) for job in runs)

        (tmp_path / "mended").touch()
        serving.begin()
        serving.ready()
        jobs = {one["id"]: one["state"] for one in serving.ask("jobs")["jobs"]}
        assert {job: jobs[job] for job in runs} == dict.fromkeys(runs, "Running")
        assert all(len(list(serving.state.glob(f"jobs/{job}/run-*"))) == 1 for job in runs)
        for job in runs:
            serving.ask(f"jobs/{job}/cancel", {})
        serving.wait_for(waits, "Succeeded")
    finally:
        serving.end()


def test_a_simulation_says_which_scheduler_does_not_return_and_is_interrupted(
    packages: Path, tmp_path: Path
) -> None:
    (tmp_path / "jobs.words").write_text(JOBS)
    asked = ("--jobs", "jobs.words", "--format", "words", "--preset", "none")
    with (tmp_path / "errors").open("wb") as errors:
        running = subprocess.Popen(
            [*WATTHERD, "sim", "run", *asked, "--cluster", "1x4:T4", "--policy", "never"],
            cwd=tmp_path, stderr=errors, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": python_path(packages)},
        )  # fmt: skip
        try:
            until(lambda: "has not returned" in (tmp_path / "errors").read_text(), 60.0)
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 130
        finally:
            running.kill()
            running.wait()
    said = (tmp_path / "errors").read_text()
    assert "scheduler 'never' has not returned for" in said
    assert "broken.py:" in said
    assert "in search" in said
    assert "interrupted" in said


def test_what_does_not_return_is_said_with_its_line_and_is_interrupted(
    packages: Path, tmp_path: Path, kept: Path, pods: tuple[str, ...]
) -> None:
    """All side by side: each is told of after ten seconds."""
    (tmp_path / "jobs.slow").write_text(JOBS)
    jobs = ("--jobs", "jobs.slow", "--format", "slow", "--cluster", "1x4:T4", "--preset", "none")
    asked = {
        "scorer 'slow-keys'": ("sim", "pack", *pods, "--policy", "slow-keys"),
        "format 'slow'": ("sim", "run", *jobs, "--policy", "fifo"),
        "driver 'faulty'": ("meter", "read", "faulty://never"),
        "report section 'slow'": ("report", str(kept), "--section", "slow", "-o", "page.html"),
        "report format 'slow'": ("report", str(kept), "--format", "slow", "-o", "page-2.html"),
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    errors = {what: tmp_path / f"errors-{number}" for number, what in enumerate(asked)}
    try:
        for what, command in asked.items():
            with errors[what].open("wb") as stream:
                running[what] = subprocess.Popen(
                    [*WATTHERD, *command], cwd=tmp_path, stderr=stream, stdout=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": python_path(packages)},
                )  # fmt: skip
        for what, process in running.items():
            until(lambda what=what: "has not returned" in errors[what].read_text(), 120.0)  # type: ignore[misc]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130, what
            said = errors[what].read_text()
            assert f"{what} has not returned for" in said
            assert "faulty.py:" in said if what == "driver 'faulty'" else "broken.py:" in said
            assert "Traceback" not in said
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def test_a_service_lives_on_beside_a_meter_and_a_signal_that_do_not_return(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(packages))
    config = tmp_path / "serve.yaml"
    feeds = {"rack-1": {"limit": 100.0, "meter": "faulty://never"}}
    config.write_text(json.dumps({"site": {"feeds": feeds, "feed": "rack-1"}}))
    serving = Serving(tmp_path / "state", "--config", str(config), "--signal", "faulty://there")
    try:
        serving.begin()
        serving.ready()
        until(lambda: "has not returned" in serving.ask("health")["problem"], 60.0)
        said = serving.ask("health")
        assert said["ok"], said  # it decides, and jobs run
        assert "driver 'faulty' has not returned for" in said["problem"]
        assert "faulty.py:" in said["problem"]
        told = serving.ask("power")["signals"][0]
        assert told["contact"] == "lost"
        assert "an earlier call still hangs" in told["note"]
        serving.wait_for(serving.submit("true"), "Succeeded")
        end_s = time.monotonic() + 40.0
        serving.process.terminate()  # type: ignore[union-attr]
        serving.process.wait(40)  # type: ignore[union-attr]
        assert time.monotonic() < end_s
    finally:
        serving.end()


@pytest.mark.parametrize("kind", ["scheduler", "scorer", "power", "meter", "format", "report"])
def test_what_new_writes_works(call: Call, tmp_path: Path, kind: str) -> None:
    done = call("new", kind, "my-own")
    assert done.returncode == 0, done.stderr
    there = tmp_path / "there"
    install(tmp_path / "my-own", there)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path / "my-own")],
        env={**os.environ, "PYTHONPATH": python_path(there)}, capture_output=True, text=True,
        timeout=180, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout[-2000:]
    assert call("new", kind, "my-own").returncode == 2
    assert "is no name" in call("new", kind, "My Own").stderr
