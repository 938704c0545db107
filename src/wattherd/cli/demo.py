"""`wattherd demo`: a service of its own, real trainings, and a budget that is cut midway."""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wattherd.cli.examples import folder
from wattherd.cli.live_tables import where_or_why
from wattherd.cli.signals import on_signals
from wattherd.errors import UserError
from wattherd.library.client import Client

# --- The live picture of a demonstration in a terminal: draw against budget, and the jobs.

ROWS, COLUMNS = 8, 72
"""Of the picture; a column is a sample, the newest at the right."""
EIGHTHS = " ▁▂▃▄▅▆▇█"
STATES = {"Running": "green", "Succeeded": "bold green", "Queued": "yellow", "Failed": "bold red"}


def frame(
    power: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], top_w: float, news: Sequence[str]
) -> Group:
    """Everything, for `power` with its last samples and documents of jobs; `top_w` is the scale."""
    return Group(
        headline(power),
        chart(power["samples"], top_w),
        job_table(jobs),
        *(Text(line, style="cyan") for line in news[-4:]),
    )


def headline(power: Mapping[str, Any]) -> Text:
    """Draw and budget in one line."""
    budget_w, draw_w = power["budget_w"], power["draw_w"]
    text = Text("draw ", style="bold")
    text.append("-" if draw_w is None else f"{draw_w:.2f} W")
    text.append(f"   budget {'none' if budget_w is None else f'{budget_w:.2f} W'}", style="red")
    if power["stated"] == "model":
        text.append("   (watts estimated from processor time)", style="dim")
    return text


def chart(samples: Sequence[Mapping[str, Any]], top_w: float) -> Text:
    """Draw as columns, the budget as a line through them."""
    shown = samples[-COLUMNS:]
    picture = Text()
    for row in reversed(range(ROWS)):
        low_w, each_w = row * top_w / ROWS, top_w / ROWS
        label = f"{low_w + each_w:5.1f} W " if row % 2 else " " * 8
        picture.append(label, style="dim")
        for one in shown:
            picture.append(*_cell(one, low_w, each_w))
        picture.append("\n")
    return picture


def _cell(sample: Mapping[str, Any], low_w: float, each_w: float) -> tuple[str, str]:
    """One character: part of a column, or the budget above it."""
    budget_w, draw_w = sample["budget_w"], sample["draw_w"]
    part = min(max((draw_w - low_w) / each_w, 0.0), 1.0)
    here = budget_w is not None and low_w <= budget_w < low_w + each_w
    if here and part < 0.5:
        return "━", "red"
    over = budget_w is not None and draw_w > budget_w
    return EIGHTHS[round(8 * part)], "bold red" if over else "blue on red" if here else "blue"


def job_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """A line for every job."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("JOB", "STATE", "WATTS", "STEPS", "", "LOSS", "WHERE/WHY"):
        table.add_column(name, justify="right" if name in ("WATTS", "STEPS", "LOSS") else "left")
    for job in jobs:
        bar = ProgressBar(total=job["total"] or 1.0, completed=job["progress"], width=20)
        table.add_row(
            job["name"],
            Text(job["state"], style=STATES.get(job["state"], "")),
            "-" if job["watts"] is None else f"{job['watts']:.2f}",
            f"{job['progress']:,.0f}",
            bar,
            "-" if job["loss"] is None else f"{job['loss']:.4f}",
            Text(where_or_why(job), no_wrap=True, overflow="ellipsis"),
        )
    return table


PROCESSORS = 2
"""As many are used; a greater machine is asked for no more."""
START_S, END_S, LINE_S, TICK_S = 120.0, 30.0, 10.0, 1.0
SAMPLES = 7200
SDK = 'install the second wheel, too: pip install wheels/*.whl "wattherd[server]"'


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder of state and report; its earlier content is removed.",
)
@click.option("--port", type=int, default=0, help="Port of the service; 0 takes any that is free.")
@click.option("--programs", type=click.Path(path_type=Path), help="Folder of the trainings.")
@click.option("--scale", default=1.0, show_default=True, help="How much longer the trainings are.")
@click.option("--limit", default=600.0, show_default=True, help="Seconds after which to give up.")
@click.option("--stay", is_flag=True, help="Go on serving afterwards, until Ctrl-C.")
@click.option(
    "--adaptive",
    is_flag=True,
    help="Ten elastic trainings instead, under fifo, aiturbo and wattherd one after the other.",
)
def demo(
    *,
    out: Path,
    port: int,
    programs: Path | None,
    scale: float,
    limit: float,
    stay: bool,
    adaptive: bool,
) -> int:
    """Train six small models under a budget that is cut by a quarter midway and raised again.

    Exit code 1 if a training did not finish or the draw was above the budget.
    """
    try:
        from wattherd.server.web.past_page import write_state_report
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    from wattherd.server.demo import job_documents, problems

    on_signals(_interrupt, signal.SIGTERM)  # end as by Ctrl-C: nothing stays
    folder = str(_programs(programs))
    if adaptive:
        return _adaptive(out, folder, scale, limit)
    documents = job_documents(folder, sys.executable, _environment(), scale=scale)
    state = _cleared(out)
    with _service(state, out / "serve.log", port) as server:
        client = Client(server)
        click.echo(f"dashboard: {server}/", err=True)
        user = getpass.getuser()
        ids = [client.post("jobs", one, user=user)["id"] for one in documents]
        try:
            jobs = _look_on(client, ids, limit)
        except BaseException:
            _cancel(client, ids)
            raise
        samples = client.get("power", last=SAMPLES)["samples"]
        if stay:
            _serve_on(server)
        else:
            _cancel(client, [job["id"] for job in jobs if job["finished"] is None])
    for path in write_state_report(state, out / "report.html"):
        click.echo(path)
    found = list(problems(jobs, samples))
    for line in found:
        click.echo(f"wattherd: {line}", err=True)
    if not found:
        click.echo(f"all {len(jobs)} trainings finished, {_margin(samples)}", err=True)
    return 1 if found else 0


def _adaptive(out: Path, folder: str, scale: float, limit_s: float) -> int:
    """The ten trainings under one scheduler after the other."""
    from wattherd.server.adaptive_demo import POLICIES, SLOTS, Lived, job_documents, report
    from wattherd.server.demo import problems
    from wattherd.server.web.past_page import write_state_report

    documents = job_documents(folder, sys.executable, _environment(), scale=scale)
    runs, found = list[Lived](), list[str]()
    for policy in POLICIES:
        state, lived = _cleared(out / policy), Lived(policy, scale)
        options = ("--policy", policy, "--slots", str(SLOTS))
        with _service(state, out / policy / "serve.log", 0, options) as server:
            client = Client(server)
            click.echo(f"{policy}: {server}/", err=True)
            ids = [client.post("jobs", one, user=getpass.getuser())["id"] for one in documents]
            try:
                jobs = _look_on(client, ids, limit_s, lived.note)
            except BaseException:
                _cancel(client, ids)
                raise
            samples = client.get("power", last=SAMPLES)["samples"]
            _cancel(client, [job["id"] for job in jobs if job["finished"] is None])
        write_state_report(state, out / policy / "report.html")
        runs.append(lived)
        found += [f"{policy}: {line}" for line in problems(jobs, samples)]
    text = report(runs)
    (out / "report.md").write_text(text, encoding="utf-8")
    click.echo(text)
    for line in found:
        click.echo(f"wattherd: {line}", err=True)
    return 1 if found else 0


def _interrupt() -> None:
    raise KeyboardInterrupt


def _programs(given: Path | None) -> Path:
    """The folder of the trainings: the one asked for, or that of the examples."""
    place = given or folder() / "train"
    if not (place / "mlp.py").is_file():
        hint = "name the folder of mlp.py, cnn.py and attention.py"
        raise UserError("no trainings", where=str(place), field="--programs", hint=hint)
    return place.resolve()


def _environment() -> dict[str, str]:
    """For the trainings: one thread each, and where the SDK is that they report by."""
    found = importlib.util.find_spec("wattherd_train")
    if found is None or found.origin is None:
        raise UserError("the trainings need wattherd-train", hint=SDK)
    folder = Path(found.origin).resolve().parents[1]
    return {"PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1"}


def _cleared(out: Path) -> Path:
    """The state folder in `out`, empty; only what a demonstration left is removed."""
    state = out / "state"
    try:
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror}", where=str(state)) from None
    return state


@contextlib.contextmanager
def _service(
    state: Path, log: Path, port: int, options: Sequence[str] = ("--policy", "fifo-backfill")
) -> Iterator[str]:
    """`wattherd serve` on two processors: its address, until it is ended."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    command = [sys.executable, "-m", "wattherd.cli.main", "serve", "--state", str(state)]
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [*command, "--port", str(port), *options], stderr=stream
        )
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait(END_S)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        told = re.search(r"serves (http://\S+)", log.read_text(encoding="utf-8"))
        if told:
            return told[1]
        time.sleep(0.1)
    raise UserError(f"did not start: {log.read_text().strip()}", where="wattherd serve")


def _look_on(
    client: Client,
    ids: Sequence[str],
    limit_s: float,
    note: Callable[[list[Any]], object] = lambda _: None,
) -> list[Any]:
    """Show the jobs until all are over, and set the budgets when they are due."""
    from rich.console import Console
    from rich.live import Live

    from wattherd.cli.demo import COLUMNS, frame
    from wattherd.server.demo import FINAL, Course, full_w, part_done

    top_w = full_w(client.get("nodes"))
    course, news, console = Course(top_w), list[str](), Console(stderr=True)
    began_s = told_s = time.monotonic()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            jobs = [client.get(f"jobs/{one}") for one in ids]
            note(jobs)
            past_s = time.monotonic() - began_s
            due = course.due(part_done(jobs))
            if due:
                client.put("power", due.document)
                news.append(f"{past_s:5.0f} s  {due.words}: {due.budget_w:g} W")
            power = client.get("power", last=COLUMNS)
            if console.is_terminal:
                live.update(frame(power, jobs, top_w, news), refresh=True)
            elif due or time.monotonic() >= told_s + LINE_S:
                told_s = time.monotonic()
                click.echo(news[-1] if due else _line(past_s, power, jobs), err=True)
            if all(job["state"] in FINAL for job in jobs) or past_s > limit_s:
                return jobs
            time.sleep(TICK_S)


def _line(past_s: float, power: Any, jobs: Sequence[Any]) -> str:
    """How it stands, for logs."""
    from wattherd.server.demo import part_done

    running = sum(job["state"] == "Running" for job in jobs)
    draw = f"{power['draw_w'] or 0.0:.2f} of {power['budget_w'] or 0.0:g} W"
    return f"{past_s:5.0f} s  {draw}, {running} running, {part_done(jobs):.0%} of all steps"


def _margin(samples: Sequence[Any]) -> str:
    """How near the draw came to the budget."""
    shares = [one["draw_w"] / one["budget_w"] for one in samples if one["budget_w"]]
    mean = sum(shares) / max(len(shares), 1)
    most = max(shares, default=0.0)
    return f"the draw stayed under the budget (mean {mean:.0%} of it, at most {most:.0%})"


def _cancel(client: Client, ids: Sequence[str]) -> None:
    """Leave nothing running; what is over already stays as it is."""
    with contextlib.suppress(UserError):
        for one in ids:
            client.post(f"jobs/{one}/cancel", user=getpass.getuser())
        end_s = time.monotonic() + END_S
        while time.monotonic() < end_s:
            if all(client.get(f"jobs/{one}")["finished"] for one in ids):
                return
            time.sleep(TICK_S)


def _serve_on(server: str) -> None:
    click.echo(f"still serving {server}/ (Ctrl-C ends it)", err=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
