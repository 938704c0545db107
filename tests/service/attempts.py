# ruff: noqa: E501 - scripts are read as they stand
"""What one tenant may attempt against another, and against the service: a list, by what is wanted.

Scripts print WON where they succeed. `docs/guides/security.md` has the same list in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CGROUPS = "Control groups are root's"
FOLDERS = "Accounts: modes and owners of folders"
PROCESSES = "Accounts: the kernel"


@dataclass(frozen=True, slots=True)
class Attempt:
    """`works_for_root`: the same script succeeds for root, so that it fails for the right reason."""

    what: str
    refused_by: str
    script: str
    works_for_root: bool = True


def reads(what: str, path: str, refused_by: str = FOLDERS) -> Attempt:
    return Attempt(f"Read {what}", refused_by, f'[ -n "$(head -c 64 "{path}")" ] && echo WON')


def writes(what: str, path: str, refused_by: str = FOLDERS) -> Attempt:
    """Whether it may be opened for writing, which changes nothing."""
    return Attempt(what, refused_by, f'(: >> "{path}") && echo WON')


def python(code: str) -> str:
    return f"/usr/bin/python3 -c '{code}'"


SCRIPTS = {
    "files": [
        reads("the log of another tenant's job", "$V/run-1/logs/0.log"),
        reads("its checkpoint", "$V/checkpoint/w"),
        reads("its working files", "$V/work/file"),
        reads("its order: command and environment", "$V/run-1/order.json"),
        reads("what is wanted of it (`control.json`)", "$V/run-1/control.json"),
        reads("its token for reports", "$V/run-1/trainer-token"),
        reads("its app's secret (`app.json`)", "$V/run-1/app.json"),
        Attempt("List its folder", FOLDERS, 'ls "$V" && echo WON'),
        Attempt("List the folder of all jobs", FOLDERS, 'ls "$STATE/jobs" && echo WON'),
        writes("Report progress in its name", "$V/run-1/progress.jsonl"),
        writes("Order it to stop (`control.json`)", "$V/run-1/control.json"),
        writes("Say that it has ended (`exit.json`)", "$V/run-1/exit.tmp"),
        writes("Spoil its checkpoint", "$V/checkpoint/w"),
        reads("the hashes of tokens", "$STATE/tokens.json"),
        writes("Add a token of an admin", "$STATE/tokens.json"),
        reads("the journal", "$STATE/journal.sqlite"),
        writes("Change the journal", "$STATE/journal.sqlite"),
        reads("the audit", "$STATE/audit.jsonl"),
        Attempt("List the state folder", FOLDERS, 'ls "$STATE" && echo WON'),
        writes("Put a file into the state folder", "$STATE/planted"),
        Attempt("Put another folder in place of the state folder", FOLDERS,
                'mv "$STATE" "$STATE.old" && echo WON', works_for_root=False),
        reads("a secret of another tenant", "$SECRETS/victor/key"),
        reads("the passwords of the machine", "/etc/shadow"),
        Attempt("Remove its own order", "The run's folder is sticky, the order root's",
                'rm -f "$WATTHERD_RUN_DIR/order.json"; [ -e "$WATTHERD_RUN_DIR/order.json" ] || echo WON',
                works_for_root=False),
        Attempt("Put a link in place of its own logs", "The run's folder is sticky, the logs root's",
                'mv "$WATTHERD_RUN_DIR/logs" "$WATTHERD_RUN_DIR/l" && ln -s / "$WATTHERD_RUN_DIR/logs" && echo WON',
                works_for_root=False),
        Attempt("Find files of the service open in its own process", "Descriptors are not inherited",
                'for one in /proc/self/fd/*; do readlink "$one"; done | grep "$STATE/[^j]" && echo WON',
                works_for_root=False),
    ],
    "processes": [
        reads("the environment, with secrets, of another tenant's process", "/proc/$VPID/environ", PROCESSES),
        reads("the environment, with secrets, of its supervisor", "/proc/$SUPERVISOR/environ", PROCESSES),
        reads("the environment of the service", "/proc/$SERVICE/environ", PROCESSES),
        reads("the memory map of another tenant's process", "/proc/$VPID/maps", PROCESSES),
        Attempt("Look at its open files", PROCESSES, 'ls "/proc/$VPID/fd" && echo WON'),
        Attempt("Enter its working folder by /proc", PROCESSES, 'ls "/proc/$VPID/cwd/" && echo WON'),
        Attempt("Signal another tenant's process", PROCESSES, 'kill -0 "$VPID" && echo WON'),
        Attempt("Signal its supervisor", PROCESSES, 'kill -0 "$SUPERVISOR" && echo WON'),
        Attempt("Signal the service", PROCESSES, 'kill -0 "$SERVICE" && echo WON'),
        Attempt("Trace another tenant's process", PROCESSES, python(
            "import ctypes,os; c=ctypes.CDLL(None); p=int(os.environ[\"VPID\"]);"
            " r=c.ptrace(16,p,0,0); r==0 and (os.waitpid(p,0), c.ptrace(17,p,0,0), print(\"WON\"))")),
        Attempt("Slow another tenant's process down", PROCESSES, 'renice -n 0 -p "$VPID" && echo WON'),
        Attempt("Become root", PROCESSES, python("import os; os.setuid(0); print(\"WON\")")),
        Attempt("Join the groups of the service", PROCESSES,
                python("import os; 0 in os.getgroups() + [os.getgid()] and print(\"WON\")"), works_for_root=False),
        Attempt("Take a group of its own choice", PROCESSES, python("import os; os.setgroups([0]); print(\"WON\")")),
        Attempt("Run in real time, before everybody", PROCESSES, "chrt -f 50 true && echo WON"),
        Attempt("Be spared when memory runs out", PROCESSES,
                "(echo -500 > /proc/self/oom_score_adj) && echo WON", works_for_root=False),
        Attempt("Leave its control group", CGROUPS,
                'for one in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs;'
                ' do [ -w "$one" ] && echo WON && break; done'),
        Attempt("Raise its own limits", CGROUPS,
                'for one in /sys/fs/cgroup/*/wattherd/*/pids.max /sys/fs/cgroup/wattherd/*/pids.max;'
                ' do [ -w "$one" ] && echo WON && break; done'),
        Attempt("Freeze another tenant's job", CGROUPS,
                'for one in /sys/fs/cgroup/unified/wattherd/*/cgroup.freeze'
                ' /sys/fs/cgroup/wattherd/*/cgroup.freeze;'
                ' do [ -w "$one" ] && echo WON && break; done'),
        Attempt("Mount something over the jobs' folder", PROCESSES,
                'mount -t tmpfs none "$STATE/jobs" && echo WON', works_for_root=False),
        Attempt("Find the service's own environment in its own", "Only PATH, HOME, language and TMPDIR are passed on",
                "env | grep -e HIDDEN_PASSWORD -e WATTHERD_HELD && echo WON", works_for_root=False),
    ],
    "network": [
        Attempt("Ask the API from a job, without a token", "Tokens",
                'curl -fsS "$URL/api/v1/jobs" && echo WON', works_for_root=False),
        Attempt("Ask the API with its own token for reports", "That token is good for reports of that run alone",
                'curl -fsS -H "authorization: Bearer $(cat "$WATTHERD_RUN_DIR/trainer-token")" "$URL/api/v1/jobs"'
                " && echo WON", works_for_root=False),
        Attempt("Report progress for another tenant's job with its own token", "Each run has a token of its own",
                'curl -fsS -H "authorization: Bearer $(cat "$WATTHERD_RUN_DIR/trainer-token")"'
                ' -H "content-type: application/json" -d \'{"trainerStatus": {"progressPercentage": 99}}\''
                ' "$URL/api/v1/jobs/$VICTIM/trainer-status" && echo WON', works_for_root=False),
        Attempt("Ask another tenant's app at its port", "The app's secret, which the program asks for",
                'curl -fsS "http://127.0.0.1:$APP_PORT/" && echo WON', works_for_root=False),
        Attempt("Listen beside another tenant's app at its port", "A port is shared by one account only", python(
            "import os,socket; s=socket.socket(); s.setsockopt(1,15,1); s.setsockopt(1,2,1);"
            " s.bind((\"127.0.0.1\", int(os.environ[\"APP_PORT\"]))); s.listen(); print(\"WON\")"),
            works_for_root=False),
    ],
}  # fmt: skip
BOUNDS = "Numbers of job files have bounds"
CHECKED = "Addresses are checked when a job is handed in"
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "Run as root": ("No job chooses root", {"user": "root"}),
    "Run as another tenant's account": ("`tenants`: accounts of its own only", {"user": "VICTOR"}),
    "Run as an account of the system": ("`tenants`: accounts of its own only", {"user": "daemon"}),
    "Have a file of root's as a secret": ("`secret_dirs`", {"secrets": {"A": "file:/etc/shadow"}}),
    "Have a secret of another tenant's": (
        "`secret_dirs`", {"secrets": {"A": "file:SECRETS/victor/key"}}),
    "Get there by two dots": (
        "`secret_dirs`", {"secrets": {"A": "file:SECRETS/mallory/../victor/key"}}),
    "Have a variable of the service as a secret": (
        "`secret_env`", {"secrets": {"A": "env:HIDDEN_PASSWORD"}}),
    "Have a variable that is meant for other jobs": (
        "`secret_env`", {"secrets": {"A": "env:WATTHERD_SECRET_VICTOR"}}),
    "Use root's container engine": (
        "`containers` of the tenant, off unless set", {"container": {"image": "x", "tag_allowed": True}}),
    "Have so many processes that others have none": (
        "A quarter of the machine's at most", {"processes": 10_000_000}),
    "Have all files of the machine open": (
        "1,048,576 a process at most", {"ulimits": {"nofile": "unlimited"}}),
    "Wait for a job of another tenant, and so learn of it": (
        "Jobs of others are not there", {"after": ["VICTIM"]}),
    "Hand a job in for another tenant": ("The token says whose it is", {"tenant": "victor"}),
    "Hand a job in for another user": ("The token says whose it is", {"owner": "victor"}),
    "Have a path as a job's name": ("Names are letters, digits, `_ . -`", {"name": "../../tokens"}),
    "Wait for another tenant's array, and so learn of it": (
        "Jobs of others are not there", {"after": {"any": ["ARRAY"]}}),
    "Wait for one of its tasks": ("Jobs of others are not there", {"after": ["ARRAY[1]"]}),
    "Go before all others": ("`priority_ceiling` of its role", {"priority": 1}),
    "Stop the core by a number of 400 digits": (BOUNDS, {"gpus": 10**400}),
    "Stop it by a priority of 400 digits": (BOUNDS, {"priority": -(10**400)}),
    "Have a gang of a million processes without a device": (
        BOUNDS, {"run": None, "taskRoles": {"w": {"run": "true", "count": 1_000_001, "gpus": 0}}}),
    "Be stopped by nobody, for ever": ("`most_grace`", {"checkpoint": {"grace": "100d"}}),
    "Put a header into the mail that tells of it": (
        CHECKED, {"notify": {"email": "a@b.example\r\nBcc: c@d.example"}}),
    "Have many people be mailed": (CHECKED, {"notify": {"email": "a@b.example,c@d.example"}}),
    "Put a header into the request that tells of it": (
        CHECKED, {"notify": {"webhook": "http://hooks.example/\r\nX-Evil: 1"}}),
    "Have the service read a file as a webhook": (
        CHECKED, {"notify": {"webhook": "file:///etc/shadow"}}),
    "Fetch code by a program of its choice, before its account counts": (
        "Places are folders, `s3://` and git over https and ssh", {"code": "git+ext::sh -c id"}),
}  # fmt: skip
"""Job files that are refused when they are handed in."""
ARRAYS = {
    "Hand in an array of a billion tasks": {"array": "0-999999999"},
    "Hand in a grid of a billion tasks": {
        "grid": {"a": "1..1000", "b": "1..1000", "c": "1..1000"}},
    "Hand in ten thousand tasks of a megabyte each": {
        "run": f"true {'x' * 900_000}", "array": "0-9999"},
}  # fmt: skip
"""Job files that are refused where arrays are handed in."""
AS_ACCOUNT = "Data is brought and taken as the account"
FAILS: dict[str, tuple[str, dict[str, Any]]] = {
    "Read another secret through a link in its own folder": (
        "No part of a secret's path is a link",
        {"run": "echo WON", "secrets": {"A": "file:SECRETS/mallory/link"}}),
    "Begin in a folder within one that is closed": (
        "`workdir` is entered as the account", {"run": "cat note", "workdir": "ABOVE/closed/open"}),
    "Begin in another tenant's folder": (
        "`workdir` is entered as the account", {"run": "cat file", "workdir": "STATE/jobs/VICTIM/work"}),
    "Be brought what root may read": (
        AS_ACCOUNT, {"run": "cat $WATTHERD_INPUTS/x", "inputs": {"x": "/etc/shadow"}}),
    "Be brought another tenant's checkpoint": (
        AS_ACCOUNT,
        {"run": "cat $WATTHERD_INPUTS/x", "inputs": {"x": "STATE/jobs/VICTIM/checkpoint/w"}}),
    "Be brought code from within a closed folder": (
        AS_ACCOUNT, {"run": "cat note", "code": "ABOVE/closed/open"}),
    "Have results taken to where root may write": (
        AS_ACCOUNT, {"run": "echo WON > $WATTHERD_OUTPUTS/x", "outputs": {"x": "ABOVE/taken"}}),
    "Keep checkpoints in another tenant's folder": (
        FOLDERS, {"run": "cat $WATTHERD_CHECKPOINT_DIR/w",
                  "checkpoint": {"dir": "STATE/jobs/VICTIM/checkpoint"}}),
    "Begin with a copy of another tenant's checkpoint": (
        AS_ACCOUNT, {"run": "cat $WATTHERD_CHECKPOINT_DIR/w",
                     "checkpoint": {"from": "STATE/jobs/VICTIM/checkpoint"}}),
    "Put a result among another tenant's files": (
        AS_ACCOUNT, {"run": "echo WON > $WATTHERD_OUTPUTS/x",
                     "outputs": {"x": "STATE/jobs/VICTIM/work/planted"}}),
    "Have a closed file of root's as the keys of its store": (
        AS_ACCOUNT, {"run": "echo WON", "inputs": {"x": "s3://bucket/x"},
                     "s3": {"credentials": "ABOVE/closed/open/note", "tries": 1}}),
    "Have an environment that no process can have": (
        "The run fails, and says so", {"run": "echo WON", "envs": {"A=B": "c"}}),
}  # fmt: skip
"""Job files that are taken, and whose run fails."""
REPORTS = {
    "nests without end": "head -c 200000 /dev/zero | tr '\\0' '[' >> $WATTHERD_PROGRESS; echo >> $WATTHERD_PROGRESS",
    "is a number of 400 digits": '/usr/bin/python3 -c \'print("{\\"step\\": 1" + "0" * 400 + "}")\' >> $WATTHERD_PROGRESS',
    "is a hundred gigabytes long": "truncate -s 100G $WATTHERD_RUN_DIR/rank-0.json",
    "nests without end, of a rank": "head -c 60000 /dev/zero | tr '\\0' '[' > $WATTHERD_RUN_DIR/rank-0.json",
    "is a pipe": "rm -f $WATTHERD_PROGRESS; mkfifo $WATTHERD_PROGRESS $WATTHERD_RUN_DIR/rank-0.json",
    "is a link to a device": "ln -s /dev/zero $WATTHERD_RUN_DIR/rank-0.json",
}
"""Ways to stop who reads reports."""
OTHER = {
    "Load a library into root's supervisor by a secret called `LD_PRELOAD` or `PYTHONPATH`": "Secrets go by other names there",
    "Say that its run has ended, and compute on, uncounted (`exit.json`)": "Only root's files count",
    "Have root write through links that it put into its run's folder": "New files only, links not followed",
    "Hold the service up by a pipe in place of its token for reports": "Plain files only",
    "Take all memory without having asked for any": "Its devices' share of the memory is the limit",
    "Fork without end": "Control group: `processes`",
    "Fill the disk with what it prints": "Logs rotate at 50 MiB",
    **{
        f"Stop the service by a report that {how}": "Reports are read in part, as plain files, and doubted"
        for how in REPORTS
    },
}
"""Tests of their own in test_tenants.py."""


HIDDEN = "Jobs of others are not there: 404"
ROLES = "Roles: 403"
CALLS: dict[str, tuple[str, str, str, Any]] = {
    "Look at another tenant's job": (HIDDEN, "GET", "/api/v1/jobs/VICTIM", None),
    "Read its log by the API": (HIDDEN, "GET", "/api/v1/jobs/VICTIM/logs", None),
    "Ask why it waits": (HIDDEN, "GET", "/api/v1/jobs/VICTIM/explain", None),
    "Look at its page": (HIDDEN, "GET", "/jobs/VICTIM", None),
    "Open its app through the service": (HIDDEN, "GET", "/jobs/VICTIM/app/", None),
    "See who is inside it": (HIDDEN, "GET", "/api/v1/jobs/VICTIM/sessions", None),
    "Cancel it": (HIDDEN, "POST", "/api/v1/jobs/VICTIM/cancel", {}),
    "Pause it": (HIDDEN, "POST", "/api/v1/jobs/VICTIM/pause", {}),
    "Hand it in once more, with its command": (HIDDEN, "POST", "/api/v1/jobs/VICTIM/rerun", None),
    "Make it wait behind others": (HIDDEN, "PATCH", "/api/v1/jobs/VICTIM", {"priority": "low"}),
    "Look at another tenant's array": (HIDDEN, "GET", "/api/v1/arrays/ARRAY", None),
    "List its tasks": (HIDDEN, "GET", "/api/v1/jobs?array=ARRAY&over=true", None),
    "Look at one of them by its index": (HIDDEN, "GET", "/api/v1/jobs/ARRAY%5B1%5D", None),
    "Ask why its next task waits": (HIDDEN, "GET", "/api/v1/arrays/ARRAY/explain", None),
    "Look at the array's page": (HIDDEN, "GET", "/arrays/ARRAY", None),
    "Change how many of its tasks run at a time": (
        HIDDEN,
        "PATCH",
        "/api/v1/arrays/ARRAY",
        {"most": 1},
    ),
    "Cancel the array": (HIDDEN, "POST", "/api/v1/arrays/ARRAY/cancel", None),
    "Hand its tasks in once more": (HIDDEN, "POST", "/api/v1/arrays/ARRAY/rerun", None),
    "Look at another tenant's search group": (HIDDEN, "GET", "/api/v1/groups/of-victor", None),
    "Cancel its trials": (HIDDEN, "POST", "/api/v1/groups/of-victor/cancel", None),
    "Make an admin's token": (
        ROLES,
        "POST",
        "/api/v1/tokens",
        {"user": "mallory", "role": "admin"},
    ),
    "List tokens": (ROLES, "GET", "/api/v1/tokens", None),
    "Read what others asked for": (ROLES, "GET", "/api/v1/audit/requests", None),
    "Change the budget": (ROLES, "PUT", "/api/v1/power", {"budget": "1W"}),
    "Change the limits of a tenant": (ROLES, "PUT", "/api/v1/tenants/victor", {"most_gpus": 0}),
    "Stop a queue": (ROLES, "POST", "/api/v1/queues/default/stop", {}),
    "Drain a node": (ROLES, "POST", "/api/v1/nodes/any/drain", {}),
    "Drain a device": (ROLES, "POST", "/api/v1/gpus/any/drain", {}),
    "Announce another budget": (ROLES, "PUT", "/api/v1/power/schedule", {"limits": []}),
    "Have the budget follow an address of its own": (ROLES, "PUT", "/api/v1/power/signals", {}),
    "Part the queues anew": (ROLES, "PUT", "/api/v1/queues", {"name": "root"}),
    "Revoke a token": (ROLES, "DELETE", "/api/v1/tokens/any", None),
    "Read what was done to whose jobs": (ROLES, "GET", "/api/v1/audit", None),
}
"""Requests with mallory's token."""
LISTS = ("/api/v1/jobs?over=true", "/api/v1/jobs?tenant=victor&over=true", "/api/v1/decisions",
         "/api/v1/decisions?job=VICTIM", "/api/v1/events?follow=false", "/api/v1/nodes",
         "/api/v1/power", "/api/v1/power/tree", "/api/v1/groups", "/api/v1/tenants", "/metrics", "/",
         "/queue", "/cluster", "/power", "/timeline", "/decisions", "/compare",
         "/api/v1/jobs?over=true&label=paper", "/api/v1/jobs?over=true&user=victor",
         "/api/v1/jobs?over=true&text=of-victor", "/queue?label=paper", "/submit?from=VICTIM")  # fmt: skip
"""What shows many jobs at once."""
OTHER |= {
    "Run a command inside another tenant's job": HIDDEN,
    "Give another tenant's job input": HIDDEN,
    "Have a command inside its own job run as root": "A command has its run's account",
    "Get at the secrets of its own run's supervisor by a command inside": PROCESSES,
    "Leave something running when a command inside has ended": "A session ends what it has started",
    "Have a command inside outgrow the job's limits": CGROUPS,
    "Offer the supervisor a session of its own making": FOLDERS,
}
OTHER |= {
    "Have the service ask itself, the cloud's metadata or a closed network by a webhook": "`notify.allow`; the address that is connected to counts",
    "Get the answer to another tenant's `Idempotency-Key`": "Keys are kept by tenant and user",
    "Be called as a user of another tenant, in the audit and by its keys": "No two users have one name there",
    "Keep another tenant's singleton waiting by a job of its name": "Names count by tenant and user",
    "End another tenant's trials by splendid losses in a group of the same name": "Groups are by tenant",
    "Push another tenant's trials out of sight by a thousand of its own": "Trials are chosen by tenant first",
    "Learn whether a folder that only root can read holds anything (`rerun` from a checkpoint)": "Looked at as the account",
    "Keep the service busy for hours by a time of a million digits": "Times have 100 characters at most",
    "Stop the core by the end of a long chain of jobs": "Ends are seen through one after another",
    "Stop the core by failing a thousand times": "The wait before the next try has a bound",
    "Run any number of jobs without devices": "Each task counts as a twentieth of a processor",
    "Take all memory of the service by jobs of a megabyte each": "512 MiB of a user's jobs that are not over",
    "Take all sessions inside jobs, by many users": "A tenant's are as many as are still free, at most",
    "Keep the store busy by a request for 1,500 labels": "32 of one request",
}
OTHER["Find another tenant's jobs in lists, sums, pages, events and metrics"] = (
    "They are `others` there"
)


def rows() -> list[str]:
    """The table of the guide."""
    found = {one.what: one.refused_by for kind in SCRIPTS.values() for one in kind}
    found |= {what: refused_by for what, (refused_by, _) in {**REFUSED, **FAILS}.items()}
    found |= {what: by for what, (by, *_) in CALLS.items()}
    found |= dict.fromkeys(ARRAYS, "10,000 tasks of one array, 128 MiB of all of them")
    return [f"| {what} | {by} |" for what, by in {**found, **OTHER}.items()]
