"""Commands of everyday use: hand jobs in, watch them, end them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from wattherd.cli.job_names import FINAL, array_called, job_called
from wattherd.cli.job_output import outcome, print_chunks, print_runs
from wattherd.cli.job_sessions import follow
from wattherd.cli.kube_what_if import POD, explain_pod, show_pod
from wattherd.cli.live_tables import (
    show_array,
    show_array_explanation,
    show_candidates,
    show_explanation,
    show_job,
    states_text,
)
from wattherd.cli.options import server_option
from wattherd.cli.output import lists, prints, show
from wattherd.cli.piped_job import is_piped, piped_job
from wattherd.cli.shell import tell_what_was_left, with_environment
from wattherd.cli.submission import Submission, check_job_file, other_document
from wattherd.errors import UserError
from wattherd.library.client import Client
from wattherd.units import counted
from wattherd.workload.job_array import at_a_time as tasks_at_a_time
from wattherd.workload.job_array import indices

NEXT_PLAN = "NextPlan"
"""The reason of a job that no plan has seen yet."""
APPS = ("jupyter", "vscode", "web")


def _job_options(command: Any) -> Any:
    for option in reversed(
        [
            click.option("-f", "--file", type=click.Path(path_type=Path), help="Job file (YAML)."),
            click.option("-g", "--gpus", metavar="N|MIN..MAX", help="Devices."),
            click.option("--gpu-type", multiple=True, metavar="MODEL", help="Any of these models."),
            click.option("-n", "--name", help="A name, for people."),
            click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help="For lists."),
            click.option("-q", "--queue", "queue_name", help="Queue."),
            click.option("-p", "--priority", help="low, normal, high, or a number."),
            click.option("-t", "--time", "limit", help="Time limit: 12h."),
            click.option("--restarts", type=int, help="How often it is tried again."),
            click.option("--after", multiple=True, metavar="JOB", help="Start after its success."),
            click.option("--after-any", multiple=True, metavar="JOB", help="Start after its end."),
            click.option("--after-notok", multiple=True, metavar="JOB", help="After its failure."),
            click.option("--singleton", is_flag=True, help="After earlier jobs of its name."),
            click.option("--begin", metavar="TIME", help="Not before: 18:00, or 'in 2h'."),
            click.option("--deadline", metavar="TIME", help="Wanted by: 08:00, or 'in 12h'."),
            click.option(
                "--defer",
                type=click.Choice(["cost", "carbon"]),
                help="Begin when energy is cheapest, or cleanest, before the deadline.",
            ),
            click.option("-a", "--array", metavar="0-9%3", help="A task each; %3: three at once."),
            click.option(
                "--grid", multiple=True, metavar="NAME=A,B", help="A task for each value."
            ),
            click.option("--app", type=click.Choice(APPS), help="It serves pages."),
            click.option("--notify", multiple=True, metavar="URL|ADDRESS", help="Tell them of it."),
            click.option("--notify-on", metavar="WHAT,...", help="started, failed, ..."),
            click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Environment."),
            click.option("-i", "--stdin", is_flag=True, help="Keep its input open, for `attach`."),
            click.option("--export", metavar="ALL|NONE|NAME,...", help="Of this shell's own."),
            click.argument("command", nargs=-1, type=click.UNPROCESSED),
        ]
    ):
        command = option(command)
    return command


def _document(file: Path | None, command: tuple[str, ...], changes: dict[str, Any]) -> Any:
    """The job as the file and the options describe it, checked here where the file is at hand."""
    from wattherd.workload.job_file import validated_job

    if file is not None:
        document = _of_file(file)
    elif command or changes["app"]:
        document = {"workdir": str(Path.cwd())}
    else:
        raise UserError("nothing to run", field="COMMAND", hint="wattherd submit -- python t.py")
    if command:
        document["run"] = list(command)
    times = {**(document.get("time") or {}), **changes["time"]}
    document |= {name: value for name, value in changes.items() if value not in (None, [], {})}
    document |= {"time": times} if times else {}
    return validated_job(document, str(file or "job")).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )


def _of_file(path: Path) -> Any:
    """What a job file says.

    Raises:
        UserError: it is no job file, or says what no job can be.
    """
    from wattherd.workload.job_file import read_job

    if is_piped(str(path)):
        return piped_job(path)
    check_job_file(path)
    try:
        job = read_job(path)
    except UserError as error:
        raise other_document(path) or error from None
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _named(client: Client, document: dict[str, Any]) -> dict[str, Any]:
    """The jobs that it waits for, by their ids; and what the shell has for it."""
    document = with_environment(document, client.server)
    if document.get("after"):
        document["after"] = _ids(client, document["after"])
    if document.get("begin"):
        document["begin"] = _begin(document["begin"])
    if (document.get("time") or {}).get("deadline"):
        document["time"]["deadline"] = _deadline(document["time"]["deadline"])
    return document


def _ids(client: Client, after: Any) -> Any:
    """The same dependencies by the ids of jobs."""
    if isinstance(after, dict):
        return {end: _ids(client, named) for end, named in after.items()}
    return [job_called(client, one, begins=False) for one in after]


def _begin(text: str, field: str = "begin") -> str:
    """A time of day in this machine's zone, which the service need not share."""
    from wattherd.workload.begin_time import begin_time

    try:
        return begin_time(text, datetime.now(UTC)).isoformat()
    except UserError as error:
        raise UserError(error.problem, field=field, hint=error.hint) from None


def _deadline(text: str) -> str:
    """The same for a date that the job file has."""
    from wattherd.workload.begin_time import moment

    try:
        return moment(datetime.fromisoformat(text)).isoformat()
    except OverflowError:
        raise UserError(f"{text} is out of range", field="time.deadline") from None


def _changes(
    *,
    gpus: str | None,
    gpu_type: tuple[str, ...],
    name: str | None,
    label: tuple[str, ...],
    queue_name: str | None,
    priority: str | None,
    limit: str | None,
    restarts: int | None,
    after: tuple[str, ...],
    after_any: tuple[str, ...],
    after_notok: tuple[str, ...],
    singleton: bool,
    begin: str | None,
    deadline: str | None,
    defer: str | None,
    array: str | None,
    grid: tuple[str, ...],
    app: str | None,
    notify: tuple[str, ...],
    notify_on: str | None,
    env: tuple[str, ...],
    stdin: bool,
    export: str | None,
) -> dict[str, Any]:
    return {
        "gpus": None if gpus is None else _width(gpus),
        "gpu_type": [one for many in gpu_type for one in many.split(",")],
        "name": name,
        "labels": dict(_pair(one, "--label") for one in label),
        "queue": queue_name,
        "priority": _number(priority),
        "time": _times(limit=limit, deadline=deadline, defer=defer),
        "restarts": restarts,
        "after": _after(after, after_any, after_notok),
        "singleton": singleton or None,
        "begin": begin,
        "array": array,
        "grid": _grid(grid),
        "app": app,
        "notify": _notify(notify, notify_on),
        "envs": dict(_pair(one, "--env") for one in env),
        "stdin": stdin or None,
        "export": export,
    }


def _times(**given: str | None) -> dict[str, str]:
    times = {name: value for name, value in given.items() if value}
    if "deadline" in times:
        times["deadline"] = _begin(times["deadline"], "--deadline")
    return times


def _grid(given: tuple[str, ...]) -> dict[str, str]:
    """Axes by name.

    Raises:
        UserError: one stands there twice.
    """
    axes: dict[str, str] = {}
    for name, values in (_pair(one, "--grid", "lr=0.1,0.01 or seed=1..5") for one in given):
        if name in axes:
            hint = f"--grid {name}={axes[name]},{values}"
            raise UserError(f"{name} is given twice", field="--grid", hint=hint)
        axes[name] = values
    return axes


def _after(ok: tuple[str, ...], ended: tuple[str, ...], notok: tuple[str, ...]) -> Any:
    if not (ended or notok):
        return list(ok)
    ends = {"ok": list(ok), "any": list(ended), "notok": list(notok)}
    return {end: jobs for end, jobs in ends.items() if jobs}


def _notify(who: tuple[str, ...], on: str | None) -> dict[str, Any]:
    """One webhook, one address.

    Raises:
        UserError: nobody is named, or two of a kind.
    """
    if not who:
        if on:
            hint = "--notify ann@example.org"
            raise UserError("needs somebody to tell", field="--notify-on", hint=hint)
        return {}
    told = ["webhook" if "://" in one else "email" for one in who]
    if len(set(told)) < len(told):
        raise UserError("one webhook and one address at most", field="--notify")
    named = dict(zip(told, who, strict=True))
    return {**named, **({"on": on.replace("-", "_").split(",")} if on else {})}


def _width(text: str) -> Any:
    low, dots, high = text.partition("..")
    try:
        return {"min": int(low), "max": int(high)} if dots else int(low)
    except ValueError:
        raise UserError(f"{text!r} is no number", field="--gpus", hint="4, or 2..8") from None


def _number(text: str | None) -> Any:
    return int(text) if text is not None and text.lstrip("-").isdigit() else text


def _pair(text: str, field: str, hint: str = "NAME=VALUE") -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"{text!r} is no setting", field=field, hint=hint)
    return name, value


@click.command(cls=Submission)
@_job_options
@click.option("--dry-run", is_flag=True, help="Only tell what would happen.")
@server_option
@prints
def submit(
    *,
    file: Path | None,
    command: tuple[str, ...],
    dry_run: bool,
    server: str | None,
    output: str,
    **options: Any,
) -> int | None:
    """Hand a job in: `wattherd submit job.yaml`, or `wattherd submit -g 4 -- python train.py`.

    Options of `submit` stand before the program, what follows is the program's. With --array or
    --grid it is many jobs, whose command may name {index} and the axes, as {lr}. `-` reads a job
    file or a script from standard input.
    """
    client = Client(server)
    document = _named(client, _document(file, command, _changes(**options)))
    if dry_run:
        tried = client.post("dry-run", document)
        show_candidates(tried, output)
        if tried.get("fits", True):
            return None
        click.echo("it could never start (hint: `wattherd gpus` lists what is there)", err=True)
        return 1
    if _is_array(document):
        array = client.post("arrays", document)
        show(array, output, lambda: click.echo(array["id"]))
        job = client.get(f"jobs/{array['tasks'][0]['id']}")
    else:
        job = client.post("jobs", document)
        show(job, output, lambda: click.echo(job["id"]))
    tell_what_was_left(job, document)
    heard = _heard(client, job)
    if heard["state"] != "Failed":
        _tell_if_set_aside(heard)
        return None
    click.echo(outcome(heard), err=True)
    return 1


def _is_array(document: Mapping[str, Any]) -> bool:
    return document.get("array") is not None or bool(document.get("grid"))


def _tell_if_set_aside(job: Mapping[str, Any]) -> None:
    """On stderr: the job is taken, and no budget in force lets it run; or limits do not hold."""
    for warning in job.get("unenforced", ()):
        click.echo(f"warning: {warning}", err=True)
    reason = job["reason"] or {}
    if reason.get("code") in ("NeverFits", "WaitingForBudgetRise"):
        click.echo(f"note: {job['id']} waits: {reason['text']}", err=True)


def _heard(client: Client, job: Any) -> Any:
    """What the core says to a new job; the answer to a submission does not always wait for that."""
    code = (job["reason"] or {}).get("code")
    return client.get(f"jobs/{job['id']}") if code == NEXT_PLAN else job


@click.command(cls=Submission)
@_job_options
@server_option
def run(
    *, file: Path | None, command: tuple[str, ...], server: str | None, **options: Any
) -> int | None:
    """Hand a job in and follow it; Ctrl-C detaches, the job goes on."""
    client = Client(server)
    document = _named(client, _document(file, command, _changes(**options)))
    if _is_array(document):
        hint = "`wattherd submit` takes it, `wattherd logs -f a-7[0]` follows a task"
        raise UserError("one job can be followed, not an array", field="--array", hint=hint)
    job = client.post("jobs", document)
    tell_what_was_left(job, document)
    job_id = job["id"]
    if job["spec"].get("stdin"):
        return follow(client, job_id, seen=0, eof=not sys.stdin.isatty())
    click.echo(
        f"{job_id} submitted (Ctrl-C detaches; `wattherd cancel {job_id}` ends it)", err=True
    )
    try:
        return _follow(client, job_id)
    except KeyboardInterrupt:
        click.echo(f"\ndetached; `wattherd logs -f {job_id}` looks on", err=True)
        return None


def _follow(client: Client, job_id: str) -> int:
    """Print what every run of it prints until it is over: 0 if it succeeded."""
    job = print_runs(client, job_id)
    click.echo(outcome(job), err=True)
    return 0 if job["state"] == "Succeeded" else 1


@click.command("show")
@click.argument("job")
@server_option
@lists
def show_command(*, job: str, server: str | None, output: str) -> None:
    """Everything about JOB, which may be an array."""
    client = Client(server)
    array = array_called(client, job)
    if array is not None:
        found = client.get(f"arrays/{array[0]}")
        if array[1]:
            chosen = set(indices(array[1]))
            found["tasks"] = [one for one in found["tasks"] if one["index"] in chosen]
        show(found, output, lambda: show_array(found))
        return
    document = client.get(f"jobs/{job_called(client, job)}")
    show(document, output, lambda: show_job(document, client.server))


@click.command("explain")
@click.argument("job")
@server_option
@lists
@click.option("-n", "--namespace", default="default", show_default=True, help="Of pod/NAME.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="As of kubectl; of pod/NAME.")
@click.option("--context", help="Context of the kubeconfig; of pod/NAME.")
@click.option("--budget", "budgets", multiple=True, help="Beside PowerBudgets; of pod/NAME.")
@click.option(
    "--policy", default="wattherd", show_default=True, help="Of the scheduler; of pod/NAME."
)
def explain(*, job: str, server: str | None, output: str, namespace: str, **of_pod: Any) -> None:
    """Why JOB waits, or what became of it; of an array (a-7) why its next task waits.

    pod/NAME is a pod of a Kubernetes cluster, of any scheduler: docs/guides/kubernetes-explain.md.
    """
    if job.startswith(POD):
        pod = explain_pod(job.removeprefix(POD), namespace, **of_pod)
        show(pod, output, lambda: show_pod(pod))
        return
    client = Client(server)
    array = array_called(client, job)
    if array is not None and not array[1]:
        whole = client.get(f"arrays/{array[0]}/explain")
        show(whole, output, lambda: show_array_explanation(whole))
        return
    document = client.get(f"jobs/{job_called(client, job)}/explain")
    show(document, output, lambda: show_explanation(document))


@click.command()
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until it is over, whatever its runs.")
@click.option("--rank", default=0, show_default=True, help="Task number.")
@click.option("--attempt", type=int, help="Only run number N.  [default: the last]", metavar="N")
@click.option("-n", "--lines", type=int, help="Only the last lines.")
@server_option
def logs(*, job: str, follow: bool, attempt: int | None, server: str | None, **query: Any) -> None:
    """What JOB printed."""
    client = Client(server)
    try:
        job_id = job_called(client, job)
        if follow and attempt is None:
            runs = client.get(f"jobs/{job_id}")["attempts"]
            print_runs(client, job_id, max(runs - 1, 0), **query)
        else:
            print_chunks(
                client.stream(f"jobs/{job_id}/logs", attempt=attempt, follow=follow, **query)
            )
    except KeyboardInterrupt:
        click.echo("", err=True)


def _action(name: str, help_text: str, done: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.argument("jobs", nargs=-1, required=True)
    @server_option
    def command(*, jobs: tuple[str, ...], server: str | None) -> int:
        client, code = Client(server), 0
        for job in jobs:
            array = array_called(client, job)
            if array is not None:
                code = max(code, _act_on_array(client, name, done, *array))
                continue
            job_id = job_called(client, job, begins=False)
            state = client.get(f"jobs/{job_id}")["state"]
            if state in FINAL:
                click.echo(f"{job_id} is over: {state}", err=True)
                code = 1
                continue
            client.post(f"jobs/{job_id}/{name}")
            click.echo(f"{job_id} {done}")
        return code

    return command


def _act_on_array(client: Client, name: str, done: str, array: str, tasks: str) -> int:
    """The same for those of its tasks that are not over, all at once."""
    chosen = set(indices(tasks)) if tasks else None
    before = [
        one["state"]
        for one in client.get(f"arrays/{array}")["tasks"]
        if chosen is None or one["index"] in chosen
    ]
    live = sum(state not in FINAL for state in before)
    called = f"{array}[{tasks}]" if tasks else array
    client.post(f"arrays/{array}/{name}", tasks=tasks)
    if not live:
        click.echo(f"{called} is over: {states_text(Counter(before))}", err=True)
        return 1
    click.echo(f"{called} {done}: {counted(live, 'task')}")
    return 0


_ARRAYS = "A job may be an array, or tasks of one: a-7, a-7[3], a-7[0-4]."
cancel = _action("cancel", f"End JOBS, running or not. {_ARRAYS}", "is being cancelled")
pause = _action(
    "pause", f"Stop JOBS after a checkpoint, until resumed. {_ARRAYS}", "is being paused"
)
resume = _action("resume", f"Let paused JOBS go on. {_ARRAYS}", "resumed")


@click.command()
@click.argument("job")
@click.option("-p", "--priority", help="low, normal, high, or a number.")
@click.option("-q", "--queue", "queue_name", help="Queue.")
@click.option("-t", "--time", "limit", help="Time limit: 12h.")
@click.option("-g", "--gpus", metavar="N|MIN..MAX", help="Devices.")
@click.option("--begin", metavar="TIME", help="Not before: 18:00, or 'in 2h'; 'in 0s' is at once.")
@click.option("--at-a-time", metavar="N|all", help="Of an array: tasks that may run at a time.")
@server_option
@prints
def edit(
    *,
    job: str,
    priority: str | None,
    queue_name: str | None,
    limit: str | None,
    gpus: str | None,
    begin: str | None,
    at_a_time: str | None,
    server: str | None,
    output: str,
) -> None:
    """Change what JOB asks for while it waits; of a running one the time limit may be lowered.

    Of an array, or of tasks of one (a-7, a-7[0-4]), all that wait are changed.
    """
    asked = {
        "priority": _number(priority),
        "queue": queue_name,
        "time": {"limit": limit} if limit else None,
        "gpus": None if gpus is None else _width(gpus),
        "begin": None if begin is None else _begin(begin),
        "most": None if at_a_time is None else tasks_at_a_time(at_a_time) or "all",
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    if not changes:
        hint = f"wattherd edit {job} --priority high"
        raise UserError("changes nothing", field="JOB", hint=hint)
    client = Client(server)
    array = array_called(client, job)
    if array is not None:
        found = client.patch(f"arrays/{array[0]}", changes, tasks=array[1])
        show(found, output, lambda: click.echo(f"{job} edited"))
        return
    if at_a_time is not None:
        raise UserError(
            "is for arrays", field="--at-a-time", hint="wattherd edit a-7 --at-a-time 3"
        )
    job_id = job_called(client, job, begins=False)
    document = client.patch(f"jobs/{job_id}", changes)
    show(document, output, lambda: click.echo(_last_edit(document)))


def _last_edit(job: Mapping[str, Any]) -> str:
    """The last edit, as the story of a live job tells it."""
    begins = "It was edited: "
    told = [one["what"] for one in job["story"] if one["what"].startswith(begins)]
    return (
        f"{job['id']} {told[-1].removeprefix('It ').rstrip('.')}"
        if told
        else f"{job['id']} stays as it was"
    )


@click.command()
@click.argument("job")
@click.option("--failed", is_flag=True, help="Of an array only tasks that failed.")
@click.option("--from-checkpoint", is_flag=True, help="Begin with a copy of its last checkpoint.")
@click.option("--fresh", is_flag=True, help="Begin without any, also where it named its folder.")
@server_option
@prints
def rerun(
    *,
    job: str,
    failed: bool,
    from_checkpoint: bool,
    fresh: bool,
    server: str | None,
    output: str,
) -> None:
    """Hand JOB in once more, as a new job: whether it is over or not, as it was asked for.

    It begins anew, with an empty checkpoint folder, unless its file named one.

    Of an array, or of tasks of one (a-7, a-7[0-4]), it makes a new array with the same indices.
    """
    if from_checkpoint and fresh:
        hint = "leave one of them out"
        raise UserError("is not with --fresh", field="--from-checkpoint", hint=hint)
    checkpoint = "last" if from_checkpoint else "fresh" if fresh else None
    client = Client(server)
    array = array_called(client, job)
    if array is not None and checkpoint:
        hint = "name one of its jobs: `wattherd queue` and `history` list them"
        raise UserError("is for single jobs", where=job, hint=hint)
    if array is not None:
        made = client.post(f"arrays/{array[0]}/rerun", tasks=array[1], failed=failed)
        show(made, output, lambda: click.echo(made["id"]))
        return
    if failed:
        raise UserError("is for arrays", field="--failed", hint=f"wattherd rerun {job}")
    job_id = job_called(client, job, begins=False)
    new = client.post(f"jobs/{job_id}/rerun", checkpoint=checkpoint)
    show(new, output, lambda: click.echo(new["id"]))
