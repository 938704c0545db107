"""Jobs in containers: the command line, and a runner that keeps to it.

No container engine runs where these tests do. The runner here is a real program that notes how it
was called and runs the command on the host, with no more variables than it was told to take.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_site import MOST_S, Site, until

from wattherd.errors import UserError
from wattherd.model.event import JobCancelled
from wattherd.runtime.local.containers import Container, Inside
from wattherd.runtime.local.executor import end_stray
from wattherd.testing.live import MemoryJournal
from wattherd.workload.job_file import validated_job

IMAGE = "registry.example/train@sha256:" + "a" * 64
RUNNER = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
if "rm" in sys.argv[1:2]:
    sys.exit()
args = sys.argv[sys.argv.index("run"):]
names = [args[n + 1] for n, one in enumerate(args) if one == "--env"]
at = args.index("--entrypoint")
os.chdir(args[args.index("--workdir") + 1])
command = [args[at + 1], *args[at + 3:]]
found = {{name: os.environ[name] for name in ["PATH", *names]}}
os.execvpe(command[0], command, found)
"""


def inside(**more: Any) -> Inside:
    usual = {
        "name": "wattherd-j-1-1-0", "cwd": Path("/work"), "folders": [Path("/run"), Path("/work")],
        "names": ["PATH", "KEY", "RANK"], "uuids": ["GPU-a", "GPU-b"], "user": (7, 8),
        "limits": {"cpus": 1.5, "memory_bytes": 1 << 30, "processes": None},
    }  # fmt: skip
    return Inside(**{**usual, **more})


def test_the_command_line_of_docker() -> None:
    container = Container(image=IMAGE, credentials="/etc/login/config.json", shm_bytes=4096)
    assert container.run(inside(), ["python3", "train.py"]) == [
        *("docker", "--config", "/etc/login"),
        *("run", "--rm", "--init", "--name", "wattherd-j-1-1-0", "--network", "host"),
        *("--volume", "/run:/run", "--volume", "/work:/work", "--workdir", "/work"),
        *("--env", "KEY", "--env", "RANK", "--gpus", '"device=GPU-a,GPU-b"'),
        *("--cpus", "1.5", "--memory", str(1 << 30), "--shm-size", "4096", "--user", "7:8"),
        *("--entrypoint", "python3", IMAGE, "train.py"),
    ]


def test_podman_takes_devices_and_logins_in_its_own_way() -> None:
    line = Container(image=IMAGE, runner="podman", credentials="/a.json").run(inside(), ["true"])
    assert line[0] == "podman"
    assert line[line.index("--authfile") + 1] == "/a.json"
    assert [line[n + 1] for n, one in enumerate(line) if one == "--device"] == [
        *("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"),
    ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    runner = tmp_path / "bin" / "docker"
    runner.parent.mkdir()
    runner.write_text(RUNNER.format(python=sys.executable, log=str(tmp_path / "calls")))
    runner.chmod(0o755)
    monkeypatch.setenv("PATH", f"{runner.parent}:{os.environ['PATH']}")
    site = Site(tmp_path / "jobs", MemoryJournal())
    yield site
    site.keeper.end()
    for folder in site.root.glob("*/run-*"):
        end_stray(folder)


def calls(site: Site) -> list[list[str]]:
    path = site.root.parent / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def paper_of(**container: Any) -> dict[str, Any]:
    document = {"run": "true", "container": {"image": IMAGE, **container}}
    return validated_job(document, "test").paper()


def test_a_job_runs_in_its_container_and_secrets_stay_off_the_command_line(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE", "open-sesame")
    paper = {**paper_of(), "secrets": {"KEY": "env:SOURCE"}, "envs": {"A": "b"}}
    job = site.submit("echo $A ${#KEY} $WATTHERD_JOB_ID; pwd", paper=paper)
    site.wait(job, "Succeeded")
    assert site.log(job).split() == ["b", "11", job, str(site.root / job / "work")]
    ran, removed = calls(site)
    assert IMAGE in ran
    assert "open-sesame" not in json.dumps(ran)
    assert removed == ["rm", "--force", ran[ran.index("--name") + 1]]


def test_what_is_left_of_a_cancelled_job_is_removed(site: Site) -> None:
    job = site.submit("trap '' TERM; sleep 600", paper=paper_of(), grace_s=0.3)
    site.wait(job, "Running")
    until(lambda: calls(site))
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")
    ran, removed = calls(site)
    assert removed == ["rm", "--force", ran[ran.index("--name") + 1]]


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        ({"image": "train:latest"}, "no digest"),
        ({"image": "--privileged"}, "pattern"),
        ({"image": IMAGE, "credentials": "/etc/login.json"}, "config.json"),
        ({"image": IMAGE, "runner": "rkt"}, "docker"),
    ],
)
def test_containers_that_make_no_sense_are_refused(container: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        validated_job({"run": "true", "container": container}, "job.yaml")


def test_a_tag_is_taken_where_it_is_allowed() -> None:
    container = {"image": "train:latest", "tag_allowed": True, "shm": "1GiB"}
    paper = validated_job({"run": "true", "container": container}, "job.yaml").paper()
    assert Container.of(paper) == Container(image="train:latest", shm_bytes=1 << 30)
