"""From what the core orders to what a supervisor is to run: tasks, their environment, limits."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattherd.engine.core.executor import RunOrder
from wattherd.errors import UserError
from wattherd.local import run_dir
from wattherd.local.accounts import FAIR_MEMORY, MOST_PROCESSES
from wattherd.local.apps import App, free_port
from wattherd.local.containers import (
    INPUTS,
    OUTPUTS,
    ContainerView,
    JobContainer,
    for_runner,
    volumes_of,
)
from wattherd.local.devices import Device, Machine
from wattherd.local.job_folders import Folders
from wattherd.local.rlimits import rlimits_of
from wattherd.local.staging import staged, staging_plan
from wattherd.model.allocation import Allocation
from wattherd.workload.counted_cpu import COUNTED

PASSWD = Path("/etc/passwd")
GOLDEN = (5**0.5 - 1) / 2
LOG_BYTES = 50 << 20
TRAINER = "KUBEFLOW_TRAINER_SERVER_"
"""Under such names Kubeflow's trainers (Transformers among them) expect where to report to."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Of the service's own environment, unless the job sets them; nothing else of it reaches a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusServer:
    """Where jobs may report over HTTP: the service's address, and the file of its certificate."""

    url: str
    ca_file: str = ""

    def environment(self, job_id: str, run: Path) -> dict[str, str]:
        """What a trainer of Kubeflow needs, the file with the run's token among it."""
        known = {
            f"{TRAINER}URL": f"{self.url}/api/v1/jobs/{job_id}/trainer-status",
            f"{TRAINER}TOKEN": str(run / run_dir.TOKEN),
        }
        return {**known, f"{TRAINER}CA_CERT": self.ca_file} if self.ca_file else known


def order_of(
    run: RunOrder,
    machine: Machine,
    folders: Folders,
    status: StatusServer | None = None,
    app: App | None = None,
) -> dict[str, Any]:
    """The document `order.json`."""
    paper, user = run.paper, user_of(run.paper)
    order = {
        "group": group_of(folders.run, run),
        "tasks": list(_tasks(run, machine, folders)),
        "env": {
            **_environment(run, folders),
            **(status.environment(run.spec.id, folders.run) if status else {}),
            **(app.environment() if app else {}),
        },
        "secrets": sorted({*paper.get("secrets", {}), *(app.secrets() if app else ())}),
        "limits": _limits(run, machine),
        "rlimits": rlimits_of(paper),
        "umask": paper.get("umask", "077"),
        "user": user,
        "stdin": bool(paper.get("stdin")),
        "log_bytes": int(paper.get("log_bytes", LOG_BYTES)),
        "afterwards": [],
    }
    if staging_plan(paper, folders) is not None:
        order = staged(order, paper, folders)
    container = JobContainer.of(paper)
    return order if container is None else _contained(order, container, run, folders)


def _contained(
    order: dict[str, Any], container: JobContainer, run: RunOrder, folders: Folders
) -> dict[str, Any]:
    """The same order, its tasks in containers: the runner is ours, the job's user is inside."""
    tasks: list[dict[str, Any]] = []
    users = {**run.paper.get("environment", {}), **run.paper.get("envs", {})}
    env, assigned = for_runner(order["env"], users, order["secrets"])
    volumes = {
        **{one: str(one) for one in (folders.run, folders.work, Path(_checkpoint(run, folders)))},
        **(volumes_of(folders) if "staging" in order else {}),
    }
    for task in order["tasks"]:
        shown, cwd = task["env"]["CUDA_VISIBLE_DEVICES"], Path(task["cwd"])
        inside = ContainerView(
            name=f"wattherd-{order['group']}-{task['rank']}",
            cwd=volumes.get(cwd, str(cwd)),
            volumes={cwd: str(cwd), **volumes},
            env=[*env, *task["env"], *order["secrets"], *assigned],
            uuids=shown.split(",") if shown else [],
            limits=order["limits"],
            rlimits=order["rlimits"],
            user=order["user"],
            stdin=order["stdin"] and not tasks,
        )
        entry = {"enter": container.enter(), "container": inside.name}
        tasks.append({**task, **entry, "argv": container.run(inside, task["argv"])})
        order["afterwards"].append(container.remove(inside.name))
    if "staging" in order:
        env = {**env, "WATTHERD_INPUTS": INPUTS, "WATTHERD_OUTPUTS": OUTPUTS}
    return {**order, "tasks": tasks, "env": env, "rlimits": {}, "user": None}


def _checkpoint(run: RunOrder, folders: Folders) -> str:
    return str(run.paper.get("checkpoint_dir") or folders.checkpoint)


def group_of(folder: Path, run: RunOrder) -> str:
    """Name of a run's control group: two services on one machine may both have a job j-1."""
    site = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"{run.spec.id}-{run.start.attempt}-{site}"


def _tasks(run: RunOrder, machine: Machine, folders: Folders) -> Iterator[dict[str, Any]]:
    """One process per task; where the job launches its own, one for all tasks of an allocation."""
    port = free_port()
    launches = run.paper.get("launch", "node") == "node"
    groups = [
        (one, gpus, len(gpus))
        for one in run.start.allocations
        for gpus in ([one.gpus] if launches else _split(one))
    ]
    for rank, (allocation, gpus, processes) in enumerate(groups):
        role = run.spec.roles[allocation.role]
        yield {
            "rank": rank,
            "role": role.name,
            "argv": list(role.command),
            "cwd": str(run.paper.get("workdir") or folders.work),
            "env": {
                **_visible([machine.devices[machine.number(allocation.node, gpu)] for gpu in gpus]),
                **_model(machine, allocation, gpus),
                **_ranks(rank, len(groups), processes, port),
            },
        }


def _visible(devices: list[Device]) -> dict[str, str]:
    """GPUs that CUDA, ROCm and container runtimes show; those of others stay hidden.

    ROCm knows GPUs by number: its UUIDs are others than those of the driver's library.
    """
    gpus = [one for one in devices if not one.cpus]
    shown = ",".join(one.uuid for one in gpus if one.uuid and one.maker != "amd")
    numbers = ",".join(str(one.number) for one in devices if one.maker == "amd")
    amd = {"ROCR_VISIBLE_DEVICES": numbers} if numbers else {}
    return {"CUDA_VISIBLE_DEVICES": shown, "NVIDIA_VISIBLE_DEVICES": shown or "void", **amd}


def _model(machine: Machine, allocation: Allocation, gpus: tuple[int, ...]) -> dict[str, str]:
    """Of which type a task's slots are, where there are several: who named them knows more."""
    if not machine.parts or not gpus:
        return {}
    return {"WATTHERD_DEVICE_TYPE": machine.parts[allocation.node].gpu_model}


def _split(allocation: Allocation) -> list[tuple[int, ...]]:
    """The GPUs of each task."""
    each = len(allocation.gpus) // allocation.tasks
    return [allocation.gpus[i * each : (i + 1) * each] for i in range(allocation.tasks)]


def _ranks(rank: int, tasks: int, processes: int, port: int) -> dict[str, str]:
    """For torchrun (PET_*) and for programs that are launched task by task."""
    return {
        "PET_NNODES": str(tasks),
        "PET_NPROC_PER_NODE": str(max(1, processes)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(tasks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _environment(run: RunOrder, folders: Folders) -> dict[str, str]:
    """The same for all tasks: a little of ours, the shell's, what the user set, where to find us.

    What makes an account, HOME and its kin, is never the shell's: such names are not in its paper.
    """
    gpus = sum(len(one.gpus) for one in run.start.allocations)
    return {
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        **run.paper.get("environment", {}),
        **_home(run.paper),
        **{str(name): str(value) for name, value in run.paper.get("envs", {}).items()},
        "WATTHERD_JOB_ID": run.spec.id,
        "WATTHERD_ATTEMPT": str(run.start.attempt),
        **_of_array(run),
        "WATTHERD_DEVICES": str(gpus),
        "WATTHERD_RUN_DIR": str(folders.run),
        "WATTHERD_CHECKPOINT_DIR": _checkpoint(run, folders),
        "WATTHERD_CHECKPOINT_PHASE": f"{checkpoint_phase(run.spec.id):.4f}",
        "WATTHERD_INPUTS": str(folders.inputs),
        "WATTHERD_OUTPUTS": str(folders.outputs),
        "WATTHERD_CONTROL": str(folders.run / run_dir.CONTROL),
        "WATTHERD_PROGRESS": str(folders.run / run_dir.PROGRESS),
    }


# Jobs that save at the same time make a site swing. Multiples of the golden ratio are spread over a
# period as evenly as anything that nobody has to keep count of, however many of the jobs go on at
# once (three-distance theorem).
def checkpoint_phase(job_id: str) -> float:
    """Where in each period of its checkpoints a job is to save, 0 to below 1, by its number."""
    numbers = re.findall(r"\d+", job_id)
    weighed = sum(int(one) * weight for one, weight in zip(numbers[-2:], (1, 7), strict=False))
    return int(weighed * GOLDEN % 1.0 * 1e4) / 1e4


def _of_array(run: RunOrder) -> dict[str, str]:
    """Which task of which array it is, and its values of a grid."""
    spec = run.spec
    if not spec.array:
        return {}
    values = (run.paper.get("array") or {}).get("values", {})
    return {
        "WATTHERD_ARRAY_ID": spec.array,
        "WATTHERD_ARRAY_INDEX": str(spec.array_index),
        "WATTHERD_ARRAY_COUNT": str(spec.array_count),
        **{f"WATTHERD_GRID_{axis.upper()}": value for axis, value in values.items()},
    }


def _home(paper: Mapping[str, Any]) -> dict[str, str]:
    """Of a job that runs as somebody: where their programs look for what they keep."""
    if paper.get("user") is None:
        return {}
    entry = pwd.getpwnam(paper["user"])  # `user_of` has found them
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def _limits(run: RunOrder, machine: Machine) -> dict[str, Any]:
    """What the allocations came with; slots bring their part of the processor."""
    allocations = run.start.allocations
    free = run.paper.get(COUNTED, ())
    asked = sum(one.request.cpu_milli for one in allocations if one.role not in free) / 1000
    slots = sum(machine.devices[number].cpus for number in machine.numbers(allocations))
    memory_mib = sum(one.request.memory_mib for one in allocations)
    if not memory_mib and run.paper.get(FAIR_MEMORY):
        held = max(1, sum(len(one.gpus) for one in allocations))
        memory_mib = machine.node.memory_mib * held // max(1, len(machine.devices))
    return {
        "cpus": asked or slots or None,
        "memory_bytes": memory_mib << 20 if memory_mib else None,
        "processes": int(run.paper.get("processes") or MOST_PROCESSES),
    }


def user_of(paper: Mapping[str, Any]) -> tuple[int, int] | None:
    """Numbers of the user a job runs as and of their group, None for our own.

    Raises:
        UserError: no such user, or we may not run anything as them.
        OSError: that cannot be told now.
    """
    name = paper.get("user")
    if name is None:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        PASSWD.read_bytes()  # `getpwnam` hides that it could not read what it looks into
        raise UserError(f"no user {name!r} on this machine", field="user") from None
    if os.geteuid() not in (0, entry.pw_uid):
        hint = "only root may run jobs as somebody else"
        raise UserError(f"cannot run as {name!r}", field="user", hint=hint)
    return entry.pw_uid, entry.pw_gid
