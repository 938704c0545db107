"""A package of somebody else's: used where ours are, and what it does wrong is a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="builds the package: of the development tools")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from plugin_packages import EXAMPLE, install, install_both
from service.serving import WATTHERD, Serving

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
            [*WATTHERD, *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip

    return called


def run(call: Call, folder: Path, policy: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "jobs.words").write_text(JOBS)
    asked = ("--jobs", "jobs.words", "--format", "words", "--preset", "none")
    return call("sim", "run", *asked, "--cluster", "1x4:T4", "--policy", policy, *more)


def test_its_own_tests_pass_by_the_kit(packages: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", str(EXAMPLE / "tests")],
        env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True,
        timeout=300, check=False, cwd=packages,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "4 passed" in done.stdout


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


def test_a_service_schedules_by_it(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(packages))
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


def test_a_service_lives_on_beside_a_scheduler_that_raises(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(packages))
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


@pytest.mark.parametrize("kind", ["scheduler", "power", "meter", "format"])
def test_what_new_writes_works(call: Call, tmp_path: Path, kind: str) -> None:
    done = call("new", kind, "my-own")
    assert done.returncode == 0, done.stderr
    there = tmp_path / "there"
    install(tmp_path / "my-own", there)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path / "my-own")],
        env={**os.environ, "PYTHONPATH": str(there)}, capture_output=True, text=True, timeout=180,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout[-2000:]
    assert call("new", kind, "my-own").returncode == 2
    assert "is no name" in call("new", kind, "My Own").stderr
