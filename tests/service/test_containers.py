"""Jobs in containers: the command line, and a runner that keeps to it.

No container engine runs where these tests do. The runner here is a real program that notes how it
was called and runs the command on the host, with no more variables than it was told to take.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_site import MOST_S, Site, until

from wattherd.errors import UserError
from wattherd.local import run_dir, sessions
from wattherd.local.containers import ContainerView, JobContainer
from wattherd.local.orphans import end_stray
from wattherd.model.event import JobCancelled
from wattherd.testing.live import MemoryJournal
from wattherd.workload.job_file import validated_job

IMAGE = "registry.example/train@sha256:" + "a" * 64
ENTER = """
R=$0; mkdir $R; mount -t tmpfs none $R
for one in /*; do
    if [ -L $one ]; then cp -P $one $R/
    elif [ -d $one ] && mkdir $R$one; then mount --rbind $one $R$one; fi
done
BINDS
exec chroot $R sh -c 'cd "$0"; exec "$@"' "$@"
"""
RUNNER = """#!{python}
import json, os, sys
ENTER = {enter!r}
with open({log!r}, "a") as log:
    print(json.dumps(sys.argv[1:]), file=log)
if "rm" in sys.argv[1:2]:
    sys.exit()
if "exec" in sys.argv[1:2]:
    words = [one for one in sys.argv[2:] if not one.startswith("--")]
    os.execvp(words[1], words[1:])
args = sys.argv[sys.argv.index("run"):]
every = lambda flag: [args[n + 1] for n, one in enumerate(args) if one == flag]
at = args.index("--entrypoint")
command = [args[at + 1], *args[at + 3:]]
found = {{"PATH": os.environ["PATH"]}}
for name in every("--env"):
    found[name.split("=")[0]] = name.partition("=")[2] if "=" in name else os.environ[name]
moved = [one.split(":") for one in every("--volume") if one.split(":")[0] != one.split(":")[1]]
if moved:
    binds = "".join(f"mkdir -p $R{{to}}; mount --bind {{at}} $R{{to}}; " for at, to in moved)
    command = ["unshare", "--mount", "sh", "-euc", ENTER.replace("BINDS", binds), {root!r},
               every("--workdir")[0], *command]
else:
    os.chdir(every("--workdir")[0])
os.execvpe(command[0], command, found)
"""


def inside(**more: Any) -> ContainerView:
    usual = {
        "name": "wattherd-j-1-1-0", "cwd": "/work", "env": ["PATH", "KEY", "RANK"],
        "volumes": {Path("/run"): "/run", Path("/data"): "/wattherd/inputs"},
        "uuids": ["GPU-a", "GPU-b"], "user": (7, 8), "rlimits": {"RLIMIT_NOFILE": 1024},
        "limits": {"cpus": 1.5, "memory_bytes": 1 << 30, "processes": None},
    }  # fmt: skip
    return ContainerView(**{**usual, **more})


def test_the_command_line_of_docker() -> None:
    container = JobContainer(image=IMAGE, credentials="/etc/login/config.json", shm_bytes=4096)
    assert container.run(inside(), ["python3", "train.py"]) == [
        *("docker", "--config", "/etc/login"),
        *("run", "--rm", "--init", "--name", "wattherd-j-1-1-0", "--network", "host"),
        *("--volume", "/run:/run", "--volume", "/data:/wattherd/inputs", "--workdir", "/work"),
        *("--env", "KEY", "--env", "RANK", "--gpus", '"device=GPU-a,GPU-b"'),
        *("--cpus", "1.5", "--memory", str(1 << 30), "--ulimit", "nofile=1024"),
        *("--shm-size", "4096", "--user", "7:8"),
        *("--security-opt", "no-new-privileges", "--cap-drop", "ALL"),
        *("--entrypoint", "python3", IMAGE, "train.py"),
    ]


def test_podman_takes_devices_and_logins_in_its_own_way() -> None:
    line = JobContainer(image=IMAGE, runner="podman", credentials="/a.json").run(inside(), ["true"])
    assert line[0] == "podman"
    assert line[line.index("--authfile") + 1] == "/a.json"
    assert [line[n + 1] for n, one in enumerate(line) if one == "--device"] == [
        *("nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"),
    ]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    runner = tmp_path / "bin" / "docker"
    runner.parent.mkdir()
    runner.write_text(
        RUNNER.format(
            python=sys.executable,
            log=str(tmp_path / "calls"),
            enter=ENTER,
            root=str(tmp_path / "root"),
        )
    )
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


def needs_terminals() -> None:
    """Skip where nothing is mounted at /dev/pts."""
    try:
        for end in os.openpty():
            os.close(end)
    except OSError as missing:
        pytest.skip(f"no terminals here: {missing.strerror}")


@pytest.mark.long
@pytest.mark.parametrize("terminal", [None, {"rows": 5, "columns": 6, "name": "xterm"}])
def test_a_command_inside_is_run_by_the_runner(site: Site, terminal: Any) -> None:
    if terminal is not None:
        needs_terminals()
    job = site.submit("sleep 600", paper={**paper_of(), "stdin": True})
    site.wait(job, "Running")
    run = site.root / job / "run-1"
    listener = sessions.offer(run, "a-session")
    listener.settimeout(MOST_S)
    with listener, listener.accept()[0] as wire:
        wire.settimeout(MOST_S)
        words = ["sh", "-c", "echo within; exit 3"]
        wire.send(sessions.said(command=words, terminal=terminal))
        assert sessions.heard(wire.recv(4096)) == {"ready": True, "command": " ".join(words)}
        wire.send(sessions.said(go=True))
        assert wire.recv(4096).rstrip() == b"\1within"
        assert sessions.heard(wire.recv(4096)) == {"exit_code": 3}
    ran, entered = calls(site)
    assert "--interactive" in ran
    name = ran[ran.index("--name") + 1]
    options = ["--interactive", *(["--tty", "--env=TERM=xterm"] if terminal else [])]
    assert entered == ["exec", *options, name, *words]


@pytest.mark.long
def test_what_is_left_of_a_cancelled_job_is_removed(site: Site) -> None:
    job = site.submit("trap '' TERM; sleep 600", paper=paper_of(), grace_s=0.3)
    site.wait(job, "Running")
    until(lambda: calls(site))
    site.keeper.post(JobCancelled(at_s=0.0, job_id=job), by="ann").result(MOST_S)
    site.wait(job, "Cancelled")
    ran, removed = calls(site)
    assert removed == ["rm", "--force", ran[ran.index("--name") + 1]]


@pytest.mark.long
def test_data_code_and_results_are_at_the_same_paths_in_every_container(
    site: Site, tmp_path: Path
) -> None:
    """The runner here enters a name space of its own, in which volumes are where it was told."""
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("no mount name spaces for us")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("41")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.sh").write_text(
        "pwd; echo $WATTHERD_INPUTS $WATTHERD_OUTPUTS; ls /wattherd;"
        " echo $(($(cat /wattherd/inputs/set/x) + 1)) > /wattherd/outputs/y"
    )
    tmp_path.chmod(0o755)
    paper = validated_job(
        {
            "run": "true",
            "container": {"image": IMAGE},
            "inputs": {"set": f"{tmp_path}/data"},
            "outputs": {"y": f"{tmp_path}/y"},
            "code": f"{tmp_path}/code",
            "user": pwd.getpwuid(os.geteuid()).pw_name,
        },
        "test",
    ).paper()
    job = site.submit("sh train.sh", paper=paper)
    site.wait(job, "Succeeded")
    assert site.log(job).split() == [
        *("/wattherd/code", "/wattherd/inputs", "/wattherd/outputs", "code", "inputs", "outputs"),
    ]
    assert (tmp_path / "y").read_text() == "42\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="others bring what they may read themselves")
def test_root_brings_nothing_to_a_container_without_a_user(site: Site) -> None:
    paper = {**paper_of(), "inputs": {"x": "/etc/shadow"}}
    job = site.submit("true", paper=paper)
    site.wait(job, "Failed")
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert "a container with data needs a user" in end["why"]


@pytest.mark.long
@pytest.mark.parametrize("field", ["envs", "environment"])
def test_a_job_does_not_choose_the_runner_or_what_it_loads(
    field: str, site: Site, tmp_path: Path
) -> None:
    """Its PATH is for inside: the runner may be root's."""
    evil = tmp_path / "evil" / "docker"
    evil.parent.mkdir()
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    evil.chmod(0o755)
    envs = {"PATH": f"{evil.parent}:/usr/bin:/bin", "LD_DEBUG": "all", "A": "b"}
    job = site.submit("echo $A", paper={**paper_of(), field: envs})
    site.wait(job, "Succeeded")
    assert not (tmp_path / "was-run").exists()
    (ran, _) = calls(site)
    assert f"PATH={envs['PATH']}" in ran
    assert "LD_DEBUG=all" in ran
    assert "LD_DEBUG" not in run_dir.read(site.root / job / "run-1" / run_dir.ORDER)["env"]


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        ({"image": "train:latest"}, "no digest"),
        ({"image": "--privileged"}, "does not match"),
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
    assert JobContainer.of(paper) == JobContainer(image="train:latest", shm_bytes=1 << 30)
