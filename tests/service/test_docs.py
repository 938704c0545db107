"""What README and docs tell people to type: every command exists, and what can be run is run.

A page is run from top to bottom in one folder, as a reader would. Commands that need a device or a
set-up are left out by name, with the reason and the test that runs them; those are still held to
the command line. Pages with commands that take minutes are followed with the same commands on less
data, and to the letter by the slow tests.
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
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import docs_commands as docs
from wattherd.cli.main import cli
from wattherd.local.orphans import end_stray

DATA = Path(os.environ.get("WATTHERD_DATA") or docs.REPOSITORY.parent / "shared" / "data")
LEFT_OUT = {
    r"nvml|bmc-1\d|pdu-3|meter read rapl:|^wattherd knob (probe|restore|switch)": (
        "needs devices; tests/servers/test_knobs_nvml.py, tests/servers/test_snmp.py and those"
        " beside them run the same on servers and drivers of their own"
    ),
    r"^make demo$|^make demo ": "run by tests/service/test_demo_run.py",
    r"^make demo-": "what it does is on the page, command by command",
    r"^make |^pip install \./sdk": "sets up or tests the repository itself",
    r'^pip install "wattherd\[': "adds an extra to what is installed; those here have all",
    r"^python3 -m venv|^\. |^pip install wheels|^jupyter execute": (
        "run by tests/service/test_first_minutes.py"
    ),
    r"^wattherd kube|^kube-scheduler|^helm |^kubectl |explain pod/|--snapshot|left-by-pools": (
        "needs a cluster; run by tests/kube"
    ),
    r"pytest .*tests/kube|benchmarks/kube": "needs a control plane; run by tests/kube",
    r"^wattherd view": "serves until Ctrl-C; run by tests/service/test_dashboard.py",
    r"^wattherd completion": "writes into the home folder; run by tests/service/test_completion.py",
    r"^wattherd login": "asks for a token; run by tests/service/test_contexts.py",
    r"--tls-cert|gpu1\.example": "needs certificates; run by tests/service/test_gate.py",
    r"postgresql|^createdb": "needs a server; run by tests/servers/test_store_service.py",
    r"store (export later|import archive)": (
        "wants a service that went on after a compaction; run by tests/servers/test_store_upkeep.py"
    ),
    r"/var/lib": "writes where services live; run on other folders by tests/service/test_kills.py",
    r"--app (jupyter|vscode)": "needs JupyterLab, code-server; run by tests/service/test_apps.py",
}
SHORTER = {
    r"^(wattherd reproduce) pollux-osdi21-policy .*": r"\1 --help",
    r"benchmarks/gandiva\.py": r"\g<0> --hours 2 --only fifo gandiva",
    r"benchmarks/search\.py": r"\g<0> --trials 9 --seeds 1",
    r"benchmarks/power_prediction\.py": r"\g<0> --seed 1 9 11",
    r"^(wattherd sim run --jobs) (workloads/workload-6\.csv)": (
        r"head -12 \2 > few.csv && \1 few.csv"
    ),
    r"--seed (\d+)\.\.\d+": r"--seed \1",
    r"--jobs [346]00 ": "--jobs 120 ",
    r"--duration 20s": "--duration 8s",
    r"(power fit .*)\{v100,a40,p100\}": r"\1v100",
    r"(power fit .*v100\S*) \S*rtx8000\S*": r"\1",
    r"--parts 0\.6,0\.7,0\.8": "--parts 0.7",
    r"^wattherd power train-rl.*": r"\g<0> --generations 1",
    r"^wattherd power judge-rl.*": r"\g<0> --episodes 2",
}
"""What long commands become where a page is not followed in full: the same on less data.

Only Pollux's own search takes minutes on the least there is: it is left to the slow tests.
"""
LIVED = {
    "docs/guides/monitoring.md": "wattherd run -- sleep 1",
    "docs/guides/store.md": "wattherd run -- true",
}
"""What has happened where a page asks about the past."""
LONG = {
    "docs/concepts/exactness.md",
    "docs/concepts/gandiva.md",
    "docs/concepts/placement-policy.md",
    "docs/concepts/pollux.md",
    "docs/concepts/power-allocation.md",
    "docs/concepts/power-prediction.md",
    "docs/guides/hold.md",
    "docs/guides/power-tree.md",
    "docs/guides/scenarios.md",
    "docs/guides/simulate.md",
    "docs/results.md",
    "docs/speed.md",
}
MINUTES = LONG - {"docs/concepts/gandiva.md"}
"""Also on less data: whole traces are placed, whole tables fitted."""
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
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]
BY_HAND_S = 7
"""Between two commands, for somebody who reads and types."""
MOST_S = 540
ENDS = (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""How jobs on these pages may end: well, or because they were told to."""


def left_out(command: docs.Command | docs.Claim) -> str:
    if isinstance(command, docs.Claim):
        return ""
    return next((why for what, why in LEFT_OUT.items() if re.search(what, command.text)), "")


def needs_data(page: str) -> bool:
    text = "\n".join(one.text for one in ALL if one.page == page)
    programs = {docs.REPOSITORY / name for name in re.findall(r"benchmarks/\w+\.py", text)}
    text += "".join(program.read_text(encoding="utf-8") for program in sorted(programs))
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


def test_no_command_is_shown_where_none_would_be_run() -> None:
    """In an indented block, that is: fence it, so that it is."""
    assert [f"{one.page}: {one.text}" for one in SHOWN] == []


def test_what_is_said_to_be_run_elsewhere_is() -> None:
    for why in LEFT_OUT.values():
        for test in re.findall(r"tests/\S+\.py", why):
            assert (docs.REPOSITORY / test).is_file(), why


def test_every_reason_and_every_shorter_command_is_of_use() -> None:
    texts = [one.text for one in ALL]
    for what in (*LEFT_OUT, *SHORTER):
        assert any(re.search(what, text) for text in texts), what


def shorter(text: str) -> str:
    """The same command on less data."""
    for long, short in SHORTER.items():
        text = re.sub(long, short, text)
    return text


def marked(page: str) -> object:
    return pytest.param(page, id=page, marks=[pytest.mark.slow] if page in MINUTES else [])


@pytest.mark.long
@pytest.mark.parametrize("page", [marked(docs.name_of(page)) for page in PAGES])
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path, shorter if page in LONG else str)


@pytest.mark.slow
@pytest.mark.parametrize("page", [docs.name_of(one) for one in TUTORIALS])
def test_a_tutorial_holds_for_somebody_who_types_slowly(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path, str, pace_s=BY_HAND_S)


@pytest.mark.parametrize("page", TUTORIALS, ids=docs.name_of)
def test_a_tutorial_says_what_comes_of_its_commands(page: Path) -> None:
    """From one service on, no block of commands stands without a claim right behind it."""
    silent, block = [], ""
    for one in docs.steps(page):
        if isinstance(one, docs.Claim):
            block = ""
        elif re.search(r"wattherd (submit|run|power set|queues (add|set|stop)|sim run)", one.text):
            block = one.text
    silent += [block] if block else []
    assert docs.claims(page)
    assert silent == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ('state("nap") == "Failed"', "it does not hold"),
        ('state("none") == "Failed"', "no job 'none'"),
        ('printed("good-bye")', "it does not hold"),
    ],
)
def test_a_claim_that_is_wrong_fails_its_page(claim: str, told: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nwattherd serve --slots 1\nwattherd run -n nap -- echo hello\n```\n"
        '<!-- claim: state("nap") == "Succeeded" and printed("hello") -->\n'
        f"<!-- claim: {claim} -->\n"
    )
    with pytest.raises(AssertionError, match=f"CLAIM {re.escape(claim)}: {told}"):
        follow(str(page), tmp_path, str)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", sorted(LONG))
def test_a_long_page_can_be_followed_to_the_letter(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path, str, most_s=3500)


def follow(
    page: str, tmp_path: Path, said: Callable[[str], str], most_s: float = MOST_S, pace_s: int = 0
) -> str:
    """Do what a page says, `pace_s` between commands, and see whether what it claims is so."""
    wanted = [one for one in docs.steps(docs.REPOSITORY / page) if not left_out(one)]
    if not any(isinstance(one, docs.Command) for one in wanted):
        pytest.skip("; ".join(sorted({left_out(one) for one in ALL if one.page == page})))
    if needs_data(page) and not DATA.is_dir():
        pytest.skip(f"no data in {DATA}; set WATTHERD_DATA")
    if "torch_" in "".join(one.text for one in wanted):
        pytest.importorskip("torch", reason="the page needs PyTorch")
    port = _free_port()
    lines = [
        _line(said(one.text), port, pace_s)
        if isinstance(one, docs.Command)
        else f"claim {one.most_s} {shlex.quote(one.text)}"
        for one in wanted
    ]
    if page in LIVED:
        lines.insert(1, LIVED[page])
    text = "\n".join(lines)
    here = _folder(tmp_path)
    for name, content in docs.files(docs.REPOSITORY / page).items():
        (here / name).write_text(content)
    printed = tmp_path / "printed.txt"
    with (
        printed.open("w", encoding="utf-8") as output,
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=here,
            env={**_environment(tmp_path, port), "DOCS_PRINTED": str(printed)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as shell,
    ):
        try:
            shell.wait(timeout=most_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
            for run in tmp_path.glob("here/**/jobs/*/run-*"):
                end_stray(run)
    told = printed.read_text(encoding="utf-8", errors="replace")
    assert shell.returncode == 0, told[-3000:]
    for ended in tmp_path.glob("here/**/exit.json"):
        assert json.loads(ended.read_text())["exit_code"] in ENDS, told[-3000:]
    return told


def _line(text: str, port: int, pace_s: int = 0) -> str:
    """As shown, on a free port; a service is left in the background until it answers."""
    if pace_s:
        return f"sleep {pace_s}\n{_line(text, port)}"
    shown = text.replace(":8700", f":{port}").replace("--port 8700", f"--port {port}")
    if os.geteuid() != 0:
        shown = shown.replace(" --default-account nobody", "")  # only root runs jobs as others
    shown = shown.replace("--keep 30d", "--keep 0s")  # nothing here is a month old
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
        "claim": f'exec {python} {shlex.quote(str(docs.REPOSITORY))}/tests/docs_claims.py "$@"',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(programs), os.environ["PATH"])),
        "HOME": str(tmp_path),
        # Kernels that earlier tests compiled are not compiled again for each page.
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
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
