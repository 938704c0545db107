"""Tasks in containers: the command line of a runner, docker or podman, that is installed here.

Values of variables are not on the command line, where everybody could read them: the runner takes
them from its own environment. Folders of the run lie inside where they lie outside; data, code and
results also at paths that are the same for every job. GPUs are passed in by UUID (docker's
`--gpus`, podman's CDI devices), and the host's network is used, so that the tasks of a gang find
each other. Limits are the runner's to keep: a container is no child of ours.
For the same reason a supervisor that is done has the runner remove what may be left.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.errors import UserError
from wattherd.local.job_folders import Folders
from wattherd.local.rlimits import docker_flags

INPUTS, OUTPUTS, CODE = "/wattherd/inputs", "/wattherd/outputs", "/wattherd/code"
"""Where a container finds what was brought, and leaves its results."""
RUNNERS = ("LD_", "DOCKER_", "CONTAINER", "_CONTAINER", "STORAGE_", "BUILDAH_", "PODMAN_", "GO",
           "REGISTRY_", "XDG_", "DBUS_", "NETAVARK", "PATH", "HOME", "TMPDIR")  # fmt: skip
"""How names begin of variables that change what the runner itself does, which is not the job."""
HOST_ONLY = frozenset({"PATH", "HOME", "TMPDIR", "NVIDIA_VISIBLE_DEVICES"})
"""Variables that mean nothing, or something else, inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContainer:
    """What users say of it: `credentials` is a registry's login file, `shm_bytes` shared memory."""

    image: str
    runner: str = "docker"
    credentials: str | None = None
    shm_bytes: int | None = None

    @classmethod
    def of(cls, paper: Mapping[str, Any]) -> JobContainer | None:
        """The container of a job, if it has one."""
        found = paper.get("container")
        return None if found is None else cls(**found)

    def run(self, inside: ContainerView, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` inside."""
        return [
            *self._runner(),
            *("run", "--rm", "--init", "--name", inside.name, "--network", "host"),
            *(["--interactive"] if inside.stdin else []),
            *self._login(),
            *(part for at, to in inside.volumes.items() for part in ("--volume", f"{at}:{to}")),
            *("--workdir", inside.cwd),
            *(part for name in sorted(set(inside.env) - HOST_ONLY) for part in ("--env", name)),
            *self._devices(inside.uuids),
            *self._limits(inside.limits),
            *docker_flags(inside.rlimits),
            *(("--shm-size", str(self.shm_bytes)) if self.shm_bytes is not None else ()),
            *(_as_user(inside.user) if inside.user else ()),
            *("--entrypoint", argv[0], self.image, *argv[1:]),
        ]

    def enter(self) -> list[str]:
        """How a command line begins that runs another command in a container of ours.

        Options, the container's name and the command follow. Account, folder, environment and
        limits are the container's.
        """
        return [*self._runner(), "exec", "--interactive"]

    def remove(self, name: str) -> list[str]:
        """The command line that ends a container, whatever it does."""
        return [self.runner, "rm", "--force", name]

    def _runner(self) -> list[str]:
        """Docker takes the folder of its login file, and takes it before its command."""
        if self.credentials is None or self.runner != "docker":
            return [self.runner]
        return ["docker", "--config", str(Path(self.credentials).parent)]

    def _login(self) -> list[str]:
        if self.credentials is None or self.runner == "docker":
            return []
        return ["--authfile", self.credentials]

    def _devices(self, uuids: Sequence[str]) -> list[str]:
        if not uuids:
            return []
        if self.runner == "docker":  # the quotes are docker's: it splits the value at commas
            return ["--gpus", f'"device={",".join(uuids)}"']
        return [part for uuid in uuids for part in ("--device", f"nvidia.com/gpu={uuid}")]

    def _limits(self, limits: Mapping[str, Any]) -> list[str]:
        flags = {"cpus": "--cpus", "memory_bytes": "--memory", "processes": "--pids-limit"}
        return [
            part
            for name, flag in flags.items()
            if limits.get(name) is not None
            for part in (flag, str(limits[name]))
        ]


def _as_user(user: tuple[int, int]) -> Iterable[str]:
    """The account inside, with no way to more rights.

    An image may hold programs of root's (setuid); what they leave in the job's folders is outside.
    """
    rights = ("--security-opt", "no-new-privileges", "--cap-drop", "ALL")
    return ("--user", f"{user[0]}:{user[1]}", *rights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerView:
    """What a task finds in its container: `volumes` are paths inside by those outside.

    `env` are names of variables, or assignments; `user` user and group.
    """

    name: str
    cwd: str
    volumes: Mapping[Path, str]
    env: Iterable[str]
    uuids: Sequence[str]
    limits: Mapping[str, Any]
    rlimits: Mapping[str, int]
    user: tuple[int, int] | None
    stdin: bool = False


def volumes_of(folders: Folders) -> dict[Path, str]:
    """Where what is staged lies inside."""
    return {folders.inputs: INPUTS, folders.outputs: OUTPUTS, folders.code: CODE}


def for_runner(
    env: Mapping[str, str], users: Mapping[str, str], secrets: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """The environment of the runner, and the assignments that it is told by word instead.

    The runner may be root's; a user's `PATH` or `LD_PRELOAD` is for inside.

    Raises:
        UserError: a secret under such a name, as words can be read by everybody.
    """
    for name in secrets:
        if name.startswith(RUNNERS):
            raise UserError("no secret can have this name in a container", field=f"secrets.{name}")
    apart = [name for name in users if name.startswith(RUNNERS)]
    own = {name: value for name, value in env.items() if name not in apart}
    kept = {name: os.environ[name] for name in apart if name in ("PATH", "HOME", "TMPDIR")
            and name in os.environ}  # fmt: skip
    return {**own, **kept}, [f"{name}={users[name]}" for name in apart]
