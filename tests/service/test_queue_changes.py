"""Queues, tenants' limits and search groups changed while the site is at work, and what is left."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

import yaml

from service.serving import Serving, until

pytestmark = pytest.mark.long

CONFIG = {
    "policy": "capacity",
    "queues": {
        "name": "root",
        "children": [
            {"name": "prod", "guaranteed_pct": 50, "user_limit_factor": 4},
            {"name": "dev", "guaranteed_pct": 50, "user_limit_factor": 4},
        ],
    },
}


LAB = (
    *("queues", "add", "lab", "--under", "root", "--guaranteed", "20", "--scale-others"),
    *("--user-limit-factor", "5"),
)


def begun(folder: Path) -> Iterator[Serving]:
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    serving = Serving(folder / "state", "--config", str(config), "--allow-root-jobs")
    serving.begin()
    serving.ready()
    yield serving
    serving.end()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """One that a test may kill."""
    yield from begun(tmp_path)


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    yield from begun(tmp_path_factory.mktemp("site"))


@pytest.fixture
def shared(one_for_all: Serving, tmp_path: Path) -> Serving:
    """One for several tests, with the queues that it began with."""
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(CONFIG))
    told(one_for_all, "queues", "apply", str(tmp_path / "first.yaml"))
    return one_for_all


def told(serving: Serving, *arguments: str) -> Any:
    done = serving.call(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(serving: Serving, *arguments: str) -> str:
    done = serving.call(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    return done.stderr


def shares(document: Any) -> dict[str, float]:
    return {one["name"]: one["guaranteed"] for one in document["queues"]}


def again(serving: Serving, queues: Any = None) -> None:
    """Killed and begun anew, perhaps with other queues in its configuration."""
    serving.kill()
    if queues is not None:
        path = serving.state.with_name("serve.yaml")
        path.write_text(yaml.safe_dump({**CONFIG, "queues": queues}))
    serving.begin()
    serving.ready()


def test_a_new_queue_runs_jobs_and_outlives_a_crash(serving: Serving) -> None:
    running = serving.submit("sleep 300", queue="prod")
    serving.wait_for(running, "Running")
    added = told(serving, *LAB)
    assert shares(added) == {"root": 1, "prod": 0.4, "dev": 0.4, "lab": 0.2}
    serving.wait_for(serving.submit("true", queue="lab"), "Succeeded")
    assert serving.state_of(running) == "Running"
    again(serving)
    assert shares(told(serving, "queues")) == shares(added)
    assert serving.ask(f"jobs/{running}")["attempts"] == 1  # nothing was begun anew
    assert serving.state_of(serving.submit("true", queue="lab")) != "Failed"
    refused = serving.ask("jobs", {"run": "true", "queue": "lap"})
    assert (refused["code"], refused["hint"]) == (400, "did you mean 'lab'?")
    exported = serving.call("queues", "export").stdout
    again(serving, yaml.safe_load(exported)["queues"])  # written down: the same queues
    assert serving.ask(f"jobs/{running}")["attempts"] == 1
    told(serving, "queues", "set", "lab", "--maximum", "30")
    again(serving)
    rows = {one["name"]: one for one in told(serving, "queues")["queues"]}
    assert rows["lab"]["maximum"] == 0.3
    told(serving, "queues", "set", "root", "--half-life", "12h")
    exported = serving.call("queues", "export").stdout
    assert yaml.safe_load(exported)["queues"]["half_life"] == 43200.0
    written = yaml.safe_load(exported)["queues"] | {"half_life": "12h"}
    again(serving, written)  # the same, in other words
    assert serving.ask(f"jobs/{running}")["attempts"] == 1
    serving.ask(f"jobs/{running}/cancel", {})
    assert serving.store("verify").returncode == 0
    again_simulated = serving.call("sim", "replay", str(serving.state), "-o", "json")
    assert again_simulated.returncode == 0, again_simulated.stderr


def test_a_configuration_that_changes_wins_over_what_was_changed_at_work(serving: Serving) -> None:
    told(serving, *LAB)
    children = [{"name": "a", "guaranteed_pct": 30}, {"name": "b", "guaranteed_pct": 70}]
    again(serving, {"name": "root", "children": children})
    assert shares(told(serving, "queues")) == {"root": 1, "a": 0.3, "b": 0.7}
    again(serving)
    assert shares(told(serving, "queues")) == {"root": 1, "a": 0.3, "b": 0.7}


@pytest.mark.parametrize("half_life", ["0s", "banana", "-1h", "12"])
def test_what_is_no_half_life_is_refused(shared: Serving, half_life: str) -> None:
    before = told(shared, "queues")
    error = refused(shared, "queues", "set", "root", "--half-life", half_life)
    assert "half_life" in error
    assert "hint:" in error
    assert told(shared, "queues") == before


def test_what_makes_no_sense_is_refused_and_changes_nothing(
    shared: Serving, tmp_path: Path
) -> None:
    before = told(shared, "queues")
    waiting = shared.submit("sleep 300", queue="dev")
    for arguments, words in {
        "set prod --guaranteed 60": "add up to 110 %",
        "set prod --guaranteed 60 --maximum 50 --scale-others": "below the guarantee",
        "set prod --order paint": "unknown order",
        "set prood --guaranteed 60": "did you mean 'prod'",
        "add prod --under root --guaranteed 1": "there is one already",
        "add lab --under rot --guaranteed 1": "did you mean 'root'",
        "add lab --under root": "a new queue needs one",
        "add l.b --under root --guaranteed 0": "no queue name",
        "add sub --under dev --guaranteed 100": "would be left without a queue",
        "remove dev --scale-others": "wattherd queues stop dev",
        "remove root": "the root stays",
    }.items():
        assert words in refused(shared, "queues", *arguments.split()), arguments
    assert shared.call("queues", "remove", "none").returncode == 3
    (tmp_path / "other.yaml").write_text("policy: capacity\n")
    assert "holds no queues" in refused(shared, "queues", "apply", str(tmp_path / "other.yaml"))
    assert told(shared, "queues")["tree"] == before["tree"]
    shared.ask(f"jobs/{waiting}/cancel", {})


def test_a_whole_tree_is_put_in_place_at_once(shared: Serving, tmp_path: Path) -> None:
    tree = yaml.safe_load(shared.call("queues", "export").stdout)
    prod, dev = tree["queues"]["children"]
    prod["guaranteed_pct"], dev["guaranteed_pct"] = 90, 10
    dev["children"] = [{"name": "nightly"}]
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump(tree))
    rows = told(shared, "queues", "apply", str(tmp_path / "tree.yaml"))
    assert shares(rows) == {"root": 1, "prod": 0.9, "dev": 0.1, "nightly": 0.1}
    table = shared.call("queues").stdout
    assert table.splitlines()[-1].split()[:3] == ["nightly", "10.0%", "100.0%"]
    told(shared, "queues", "stop", "nightly")
    assert told(shared, "queues")["queues"][-1]["stopped"]
    told(shared, "queues", "remove", "nightly")
    dev["children"] = [{"name": "nightly"}]
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump(tree))
    rows = told(shared, "queues", "apply", str(tmp_path / "tree.yaml"))
    assert not rows["queues"][-1]["stopped"]  # another queue than the one that was stopped


def test_a_policy_without_queues_says_so(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "state")
    serving.begin()
    try:
        serving.ready()
        words = "queues add lab --under root --guaranteed 20"
        assert "--policy capacity" in refused(serving, *words.split())
        assert "--policy capacity" in refused(serving, "queues", "export")
    finally:
        serving.end()


def test_a_tenant_waits_above_its_limit_and_goes_on_when_it_rises(serving: Serving) -> None:
    made = serving.call("token", "create", "--state", str(serving.state), "--user", "root",
                        "--role", "admin")  # fmt: skip
    admin = {"authorization": f"Bearer {made.stdout.strip()}"}
    made = serving.call("token", "create", "--state", str(serving.state), "--user", "ann",
                        "--tenant", "vision")  # fmt: skip
    ann = {"authorization": f"Bearer {made.stdout.strip()}"}
    bearer = admin["authorization"].partition(" ")[2]

    def call(*arguments: str) -> str:
        done = serving.call(*arguments, WATTHERD_TOKEN=bearer)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(call("tenants", "-o", "json"))["tenants"][0]["name"] == "vision"
    call("tenants", "set", "vision", "--gpus", "1")
    jobs = [
        serving.ask("jobs", {"run": "sleep 300", "queue": "dev"}, **ann)["id"] for _ in range(2)
    ]
    reason = until(lambda: serving.ask(f"jobs/{jobs[1]}", **ann)["reason"])
    until(lambda: serving.ask(f"jobs/{jobs[0]}", **ann)["state"] == "Running")
    until(lambda: serving.ask(f"jobs/{jobs[1]}", **ann)["reason"]["code"] == "QuotaExceeded")
    reason = serving.ask(f"jobs/{jobs[1]}", **ann)["reason"]
    assert (reason["in_use"], "tenant 'vision'" in reason["text"]) == (1, True)
    serving.kill()
    serving.begin()
    serving.ready()
    row = json.loads(call("tenants", "-o", "json"))["tenants"][0]
    assert (row["gpus"], row["waiting"], row["most_gpus"]) == (1, 1, 1)
    call("tenants", "set", "vision", "--gpus", "none")
    until(lambda: serving.ask(f"jobs/{jobs[1]}", **ann)["state"] == "Running")
    acts = json.loads(call("audit", "--about", "vision", "-o", "json"))["acts"]
    assert [(one["what"], one["detail"]["most_gpus"]) for one in acts] == [
        ("TenantLimited", None),
        ("TenantLimited", 1),
    ]
    for job in jobs:
        serving.ask(f"jobs/{job}/cancel", {}, **ann)


def test_a_search_is_looked_at_and_ended_as_one(shared: Serving) -> None:
    jobs = [shared.submit("sleep 300", queue="dev", group="lr") for _ in range(3)]
    row = told(shared, "search")["groups"][0]
    assert (row["name"], row["trials"], row["running"] + row["waiting"]) == ("lr", 3, 3)
    assert shared.call("search").stdout.splitlines()[1].split()[:2] == ["lr", "3"]
    told(shared, "search", "pause", "lr")
    for job in jobs:
        shared.wait_for(job, "Paused")
    told(shared, "search", "resume", "lr")
    assert [one["id"] for one in told(shared, "search", "show", "lr")["trials"]] == jobs
    told(shared, "search", "cancel", "lr")
    for job in jobs:
        shared.wait_for(job, "Cancelled")
    assert shared.call("search", "show", "none").returncode == 3


def test_the_audit_tells_who_did_what_since_when(shared: Serving) -> None:
    told(shared, "queues", "stop", "dev")
    told(shared, "queues", "set", "dev", "--maximum", "90")
    changes = ("audit", "--since", "1h", "--action", "QueuesChanged", "-n", "1")
    acts = told(shared, *changes)["acts"]
    assert [(one["by"], one["detail"]["cause"]) for one in acts] == [(getpass.getuser(), "set dev")]
    assert told(shared, "audit", "--since", "2999-01-01")["acts"] == []
    assert [one["what"] for one in told(shared, "audit", "-n", "2")["acts"]] == [
        "QueuesChanged",
        "QueueStopped",
    ]
    asked = told(shared, "audit", "--requests", "--action", "put", "-n", "1")["requests"]
    assert [(one["path"], one["result"]) for one in asked] == [("/api/v1/queues/dev", "done")]
    assert told(shared, "audit", "--refused")["requests"] == []
    assert "QueueStopped" in shared.call("audit").stdout
    assert "write 2h" in refused(shared, "audit", "--since", "yesterday")
