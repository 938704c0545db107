"""What README and docs tell people to type: every command exists, and what can be run is run.

A page is run from top to bottom in one folder, as a reader would. Commands that need a device, a
set-up or an hour are left out by name, with the reason; those are still held to the command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

import docs_commands as docs
from wattherd.cli.main import cli
from wattherd.runtime.local.executor import end_stray

DATA = Path(os.environ.get("WATTHERD_DATA") or docs.REPOSITORY.parent / "shared" / "data")
LEFT_OUT = {
    r"nvml|bmc-1\d|pdu-3|meter read rapl:|^wattherd knob (probe|restore|switch)": "needs devices",
    r"^make |^pip install": "sets up or tests the repository itself",
    r"\.\.\.": "says itself that it is a part only",
    r"^wattherd top": "needs a terminal; tests/service/test_demo_run.py shows the same data",
    r"prometheus --config": "serves until Ctrl-C; run by tests/servers/test_prometheus.py",
    r"^wattherd kube|^kube-scheduler": "needs a cluster; run by tests/kube",
    r"^wattherd view": "serves until Ctrl-C; run by tests/service/test_dashboard.py",
    r"--return NODE": "stands for a node that was lost",
    r"^wattherd demo": "run by tests/service/test_demo_run.py",
    r"^wattherd completion": "writes into the home folder; run by tests/service/test_completion.py",
}
LIVED = {"docs/guides/monitoring.md": "wattherd run -- sleep 1"}
"""What has happened where a page asks about the past."""
SLOW = {
    "README.md",
    "docs/concepts/exactness.md",
    "docs/concepts/gandiva.md",
    "docs/concepts/placement-policy.md",
    "docs/concepts/pollux.md",
    "docs/concepts/power-allocation.md",
    "docs/concepts/power-prediction.md",
    "docs/guides/hold.md",
    "docs/guides/power-tree.md",
    "docs/guides/scenarios.md",
}
GIVEN = {
    "NODES.csv": "openb/openb_node_list_gpu_node.csv",
    "PODS.csv": "openb/openb_pod_list_default.csv",
    "openb_node_list_gpu_node.csv": "openb/openb_node_list_gpu_node.csv",
    "openb_pod_list_default.csv": "openb/openb_pod_list_default.csv",
    "openb_pod_list_default.json.gz": "openb/orders/openb_pod_list_default.json.gz",
    "workloads": "traces/pollux/workloads",
    "profiles": "traces/pollux/profiles",
    "summary_power_a40.csv": "power/zeus_nsdi23/summary_power_a40.csv",
    "summary_train.csv": "power/zeus_nsdi23/summary_train.csv",
}
FOLDERS = {"Z": "power/zeus_nsdi23", "H": "power/hkbu_gpu_dvfs"}
ALL = [command for page in docs.PAGES for command in docs.commands(page)]
SHOWN = [command for page in docs.PAGES for command in docs.indented(page)]
PAGES = [page for page in docs.PAGES if any(docs.commands(page))]
MOST_S = 540
ENDS = (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""How jobs on these pages may end: well, or because they were told to."""


def left_out(command: docs.Command) -> str:
    return next((why for what, why in LEFT_OUT.items() if re.search(what, command.text)), "")


def needs_data(page: str) -> bool:
    text = "\n".join(one.text for one in ALL if one.page == page)
    return any(name in text for name in (*GIVEN, "$Z", "$H", "WATTHERD_DATA", "reproduce"))


def chosen(words: list[str]) -> click.Context:
    """The command that `words` call, its options read.

    Raises:
        click.UsageError: there is no such command or option.
    """
    context = cli.make_context("wattherd", list(words))
    command: click.Command = cli
    while isinstance(command, click.Group):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest and command.invoke_without_command:
            break
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize(
    "command",
    [one for one in (*ALL, *SHOWN) if one.words[0] == "wattherd" and "..." not in one.text],
    ids=lambda one: f"{one.page}: {one.text[:60]}",
)
def test_a_command_that_is_shown_is_one(command: docs.Command) -> None:
    assert chosen(command.words[1:]).command.callback is not None


@pytest.mark.parametrize("page", docs.PAGES, ids=docs.name_of)
def test_commands_named_in_the_text_exist(page: Path) -> None:
    for words in docs.inline(page):
        with click.Context(cli) as context:
            found = cli.get_command(context, words[0])
            assert found is not None, words
            if isinstance(found, click.Group) and len(words) > 1 and re.match(r"[a-z]", words[1]):
                assert found.get_command(context, words[1].rstrip(",")) is not None, words


def marked(page: str) -> object:
    return pytest.param(page, id=page, marks=[pytest.mark.slow] if page in SLOW else [])


@pytest.mark.parametrize("page", [marked(docs.name_of(page)) for page in PAGES])
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    wanted = [one for one in ALL if one.page == page and not left_out(one)]
    if not wanted:
        pytest.skip("; ".join(sorted({left_out(one) for one in ALL if one.page == page})))
    if needs_data(page) and not DATA.is_dir():
        pytest.skip(f"no data in {DATA}; set WATTHERD_DATA")
    if "torch_" in "".join(one.text for one in wanted):
        pytest.importorskip("torch", reason="the page needs PyTorch")
    port = _free_port()
    lines = [_line(one.text, port) for one in wanted]
    if page in LIVED:
        lines.insert(1, LIVED[page])
    text = "\n".join(lines)
    here = _folder(tmp_path)
    for name, content in docs.files(docs.REPOSITORY / page).items():
        (here / name).write_text(content)
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=here,
        env=_environment(tmp_path, port),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            told, _ = shell.communicate(timeout=MOST_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
            for run in tmp_path.glob("here/**/jobs/*/run-*"):
                end_stray(run)
    assert shell.returncode == 0, told[-3000:]
    for ended in tmp_path.glob("here/**/exit.json"):
        assert json.loads(ended.read_text())["exit_code"] in ENDS, told[-3000:]


def _line(text: str, port: int) -> str:
    """As shown, on a free port; a service is left in the background until it answers."""
    shown = text.replace(":8700", f":{port}").replace("--port 8700", f"--port {port}")
    if text.startswith("wattherd serve"):
        plain = shown.split("#")[0].rstrip(" &")
        return f"{plain} --port {port} >serve.log 2>&1 &\nanswers {port}"
    if shown.rstrip().split("#")[0].rstrip().endswith("&"):
        return f"{shown.split('#')[0].rstrip(' &')} >background.log 2>&1 &\nanswers {port}"
    return shown


def _folder(tmp_path: Path) -> Path:
    """What a reader has at hand: the repository's folders, and published data."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("examples", "benchmarks", "sdk"):
        (here / name).symlink_to(docs.REPOSITORY / name)
    for name, where in GIVEN.items():
        if (DATA / where).exists():
            (here / name).symlink_to(DATA / where)
    return here


def _environment(tmp_path: Path, port: int) -> dict[str, str]:
    """With `wattherd`, `python` and `answers PORT` (waits for a server) on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    source = [str(docs.REPOSITORY / "src"), str(docs.REPOSITORY / "sdk" / "src")]
    path = os.pathsep.join((*source, os.environ.get("PYTHONPATH", "")))
    python = f"env PYTHONPATH={shlex.quote(path)} {shlex.quote(sys.executable)}"
    scripts = {
        "python": f'exec {python} "$@"',
        "wattherd": f'exec {python} -m wattherd.cli.main "$@"',
        "answers": f"exec {python} -c {shlex.quote(WAIT)} $1",
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(programs), os.environ["PATH"])),
        "HOME": str(tmp_path),
        "WATTHERD_SERVER": f"http://127.0.0.1:{port}",
        "WATTHERD_DATA": str(DATA),
        **{name: str(DATA / where) for name, where in FOLDERS.items()},
    }


WAIT = """
import socket, sys, time
for _ in range(600):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        sys.exit()
    except OSError:
        time.sleep(0.1)
sys.exit("nobody answers")
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
