"""Words of other schedulers and shells, and what to type here instead.

`wattherd scancel 17` is answered with `wattherd cancel j-17`. Nothing of this is run by
itself: what ends or starts jobs is only suggested.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence

Words = Sequence[str]


def _jobs(words: Words) -> list[str]:
    """Names of jobs among words; numbers as other schedulers have them become ids."""
    plain = [word for word in words if not word.startswith("-")]
    return [f"j-{word}" if word.isdecimal() else word for word in plain]


def _to(*command: str) -> Callable[[Words], Words]:
    """The same whatever follows."""
    return lambda _: command


def _of_jobs(command: str, *, alone: Words = ("JOB",)) -> Callable[[Words], Words]:
    """A command about jobs; `alone` where none is named."""
    return lambda words: (command, *(_jobs(words) or alone))


def _jobs_or_one(words: Words) -> Words:
    """A list, or the one job that is named."""
    named = _jobs(words)
    return ("show", named[0]) if named and not words[0].startswith("-") else ("queue",)


def _handed_in(words: Words) -> Words:
    """`sbatch job.sh`, `qsub -l ... job.sh`, `apply -f job.yaml`."""
    files = [word for word in words if not word.startswith("-")]
    if not files or files[-1].endswith((".yaml", ".yml")):
        return ("submit", *(files[-1:] or ("job.yaml",)))
    return ("submit", "--", "bash", *files[-1:])


def _run(words: Words) -> Words:
    """`srun -n 1 python train.py`: options of theirs are left out."""
    rest = list(words)
    while rest and (rest[0].startswith("-") or "=" in rest[0] or rest[0].isdecimal()):
        del rest[0]
    return ("run", "--", *(rest or ("python", "train.py")))


def _got(words: Words) -> Words:
    """`get jobs`, `get nodes`, `describe job j-1`."""
    kinds = {"no": "nodes", "gp": "gpus", "qu": "queues", "ev": "watch", "te": "tenants"}
    return (kinds.get(words[0][:2], "queue") if words else "queue",)


def _explained(words: Words) -> Words:
    named = [word for word in _jobs(words) if word not in ("job", "jobs", "pod", "workload")]
    return ("explain", *(named[:1] or ("JOB",)))


def _controlled(words: Words) -> Words:
    """`scontrol VERB ...`."""
    verb, rest = (words[0], words[1:]) if words else ("", ())
    named = [word for word in _jobs(rest) if word.casefold() not in ("job", "jobid")]
    match verb:
        case "hold" | "suspend":
            return ("pause", *(named or ("JOB",)))
        case "release" | "resume":
            return ("resume", *(named or ("JOB",)))
        case "update":
            return ("edit", "JOB", "--priority", "high")
        case "show":
            return (
                ("nodes",)
                if rest and rest[0].startswith("node")
                else ("show", *(named or ("JOB",)))
            )
        case _:
            return ("--help",)


def _helped(words: Words) -> Words:
    return (*words[:1], "--help")


_LIST = ("ps", "jobs", "job", "list", "ls", "status", "stat", "squeue", "qstat", "bjobs")
_END = (
    *("kill", "stop", "delete", "del", "remove", "rm", "abort", "end", "terminate"),
    *("scancel", "qdel", "bkill", "canceljob"),
)
_HAND_IN = ("sbatch", "qsub", "bsub", "apply", "create", "launch", "sub", "add")

COMMANDS: Mapping[str, Callable[[Words], Words]] = {
    **dict.fromkeys(_LIST, _jobs_or_one),
    **dict.fromkeys(_END, _of_jobs("cancel")),
    **dict.fromkeys(_HAND_IN, _handed_in),
    **dict.fromkeys(("srun", "salloc", "sh", "execute"), _run),
    **dict.fromkeys(("sinfo", "pbsnodes", "bhosts", "node", "hosts", "cluster"), _to("nodes")),
    **dict.fromkeys(("gpu", "devices", "device", "nvidia-smi", "smi", "slots"), _to("gpus")),
    **dict.fromkeys(("sacct", "past", "last", "finished", "bhist", "qacct"), _to("history")),
    **dict.fromkeys(("sstat", "info", "inspect", "detail", "details"), _of_jobs("show")),
    **dict.fromkeys(("describe", "why", "reason"), _explained),
    **dict.fromkeys(("log", "tail", "output", "stdout", "cat"), _of_jobs("logs")),
    **dict.fromkeys(("sattach", "follow"), lambda words: ("attach", *_of_jobs("")(words)[1:])),
    **dict.fromkeys(("hold", "suspend", "freeze", "qhold"), _of_jobs("pause")),
    **dict.fromkeys(("release", "unsuspend", "activate", "continue", "qrls"), _of_jobs("resume")),
    "scontrol": _controlled,
    "get": _got,
    "sprio": _to("queue", "--sort=-priority"),
    **dict.fromkeys(("sshare", "shares", "partitions", "partition", "qmgr"), _to("queues")),
    **dict.fromkeys(("sacctmgr", "accounts", "tenant", "quota", "quotas"), _to("tenants")),
    **dict.fromkeys(("sreport", "reports"), _to("report", "--help")),
    **dict.fromkeys(("events", "event", "strigger"), _to("watch")),
    **dict.fromkeys(("monitor", "htop", "dashboard", "ui", "web", "smap", "sview"), _to("top")),
    **dict.fromkeys(("budget", "limit", "cap", "caps"), _to("power", "set", "40kW")),
    **dict.fromkeys(("draw", "watts", "energy", "usage"), _to("power")),
    **dict.fromkeys(("server", "daemon", "start", "up", "init"), _to("serve")),
    **dict.fromkeys(("simulate", "simulation"), _to("sim", "--help")),
    **dict.fromkeys(("backup", "restore"), _to("store", "--help")),
    **dict.fromkeys(("tokens", "users", "user"), _to("token", "list")),
    **dict.fromkeys(("policy", "schedulers"), _to("policies")),
    **dict.fromkeys(("trace", "data", "dataset", "datasets"), _to("traces", "list")),
    **dict.fromkeys(("contexts", "config", "whoami", "auth", "profile"), _to("context")),
    "logout": _to("context", "remove", "NAME"),
    "version": _to("--version"),
    **dict.fromkeys(("help", "man"), _helped),
}
"""What people type from habit, each with the words of a command that is there."""

OPTIONS: Mapping[str, str] = {
    "--partition": "-q QUEUE",
    **dict.fromkeys(
        ("--gres", "--gpus-per-node", "--gpus-per-task", "--gpu", "--num-gpus"), "-g N"
    ),
    "--constraint": "--gpu-type MODEL",
    **dict.fromkeys(("--accelerator", "--accelerators", "--gpu-model"), "--gpu-type MODEL"),
    "--job-name": "-n NAME",
    "--dependency": "--after JOB, --after-any JOB, --after-notok JOB or --singleton",
    **dict.fromkeys(("--start-time", "--not-before"), "--begin TIME"),
    "--requeue": "--restarts N",
    "--wrap": "-- sh -c 'COMMAND'",
    "--test-only": "--dry-run",
    **dict.fromkeys(("--nice", "--qos"), "-p low|normal|high"),
    **dict.fromkeys(
        ("--cpus-per-task", "--cpus", "--cpus-per-gpu"), "`cpus_per_gpu:` in a job file"
    ),
    **dict.fromkeys(("--mem", "--mem-per-gpu", "--memory"), "`memory_per_gpu:` in a job file"),
    **dict.fromkeys(("--chdir", "--workdir", "--cwd"), "`workdir:` in a job file"),
    **dict.fromkeys(("--signal", "--grace"), "`checkpoint: {grace: 120s}` in a job file"),
    **dict.fromkeys(("--image", "--container", "--container-image"), "`container:` in a job file"),
    **dict.fromkeys(("--power", "--max-slowdown"), "`power:` in a job file"),
    **dict.fromkeys(("--nodes", "--ntasks", "--ntasks-per-node"), "`taskRoles:` in a job file"),
    "--expected": "`time:` in a job file",
    **dict.fromkeys(("--error", "--out"), "`wattherd logs JOB`: what jobs print is kept"),
    **dict.fromkeys(("--account", "--uid"), "the token or account you use says whose job it is"),
}
"""Options of other schedulers for handing jobs in, and what does the same here."""


def meant(word: str, rest: Words) -> str:
    """The command line to type instead of `wattherd WORD REST`; empty if the word means nothing."""
    found = COMMANDS.get(word.casefold())
    return "" if found is None else shlex.join(["wattherd", *found(rest)])
