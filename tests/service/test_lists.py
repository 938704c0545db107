"""Every list in every form: the commands are found by walking the tree, none can be left out."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.guarded import Guarded
from wattherd.cli import output
from wattherd.cli.main import cli, main
from wattherd.server.auth.caller import Role
from wattherd.workload.scenario import QueueField

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
Say = Callable[..., tuple[int, str, str]]
QUEUES = QueueField(name="root", children=[QueueField(name="default")])
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "lab",
}
WORDS: dict[str, tuple[str, ...]] = {
    "show": ("j-1",),
    "explain": ("j-1",),
    "search show": ("lr",),
    "store info": ("--state", "{state}"),
    "kube clusters": ("--kubeconfig", "{folder}/kubeconfig", "--timeout", "2s"),
}
"""What a list cannot do without."""
FAILS = {"kube clusters": 1}
"""No cluster answers here; the list is printed all the same."""
NAMELESS = {"tenants", "knob probe", "meter probe", "context list"}
"""The only tenant has no name, a machine may have no devices, a user no contexts."""
OWN_FORMS = {"watch": ("text", "json")}
"""News, not a list."""


def commands(
    at: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), at
    if isinstance(at, click.Group):
        for name in at.list_commands(click.Context(at)):
            found = at.get_command(click.Context(at), name)
            assert found is not None
            yield from commands(found, (*path, name))


COMMANDS = dict(commands())
LISTS = sorted(name for name, one in COMMANDS.items() if getattr(one.callback, output.LISTS, False))


def options(command: click.Command) -> dict[str, click.Parameter]:
    return {name: one for one in command.params for name in one.opts}


def test_whatever_can_be_printed_can_be_printed_in_every_form() -> None:
    for name, command in COMMANDS.items():
        given = options(command)
        if "--output" not in given:
            continue
        forms = tuple(given["--output"].type.choices)  # type: ignore[attr-defined]
        assert forms == OWN_FORMS.get(name, output.FORMS), name
        assert ("--no-headers" in given) == (name not in OWN_FORMS), name


def test_whatever_is_called_a_list_is_one() -> None:
    known = {
        *("queue", "history", "nodes", "gpus", "queues", "tenants", "search", "audit", "power"),
        *("policies", "store info", "kube clusters", "knob probe", "meter probe", "show"),
    }
    named = {name for name in COMMANDS if name.endswith(" list")}
    assert known | named <= set(LISTS)
    for name in LISTS:
        assert {"--watch", "--every", "--no-headers", "-o"} <= options(COMMANDS[name]).keys()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    site = Guarded(tmp_path_factory.mktemp("site") / "state", policy="capacity", queues=QUEUES)
    site.let_in("admin", Role.ADMIN)
    site.submit("admin", "sleep 600", name="long", group="lr", gpus=2)
    for number in range(5):
        site.submit("admin", "true", name=f"next-{number}", gpus=2)
    site.until(lambda: site.ask("GET", "/api/v1/jobs/j-1", "admin").json["state"] == "Running")
    yield site
    for number in range(6):
        site.ask("POST", f"/api/v1/jobs/j-{number + 1}/cancel", "admin")
    site.close()


@pytest.fixture
def say(
    site: Guarded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Say:
    monkeypatch.setenv("WATTHERD_SERVER", site.url)
    monkeypatch.setenv("WATTHERD_TOKEN", site.tokens["admin"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(KUBECONFIG))
    if not (tmp_path / "state").exists():
        from wattherd.store.database import in_folder
        from wattherd.store.store import ClusterStore

        (tmp_path / "state").mkdir()
        ClusterStore.open(in_folder(tmp_path / "state")).close()

    def typed(*words: str) -> tuple[int, str, str]:
        known = {
            "{state}": str(tmp_path / "state"),
            "{folder}/kubeconfig": str(tmp_path / "kubeconfig"),
        }
        with pytest.raises(SystemExit) as left:
            main([known.get(word, word) for word in words])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return typed


def line_of(name: str) -> tuple[str, ...]:
    return (*name.split(), *WORDS.get(name, ()))


@pytest.mark.parametrize("name", LISTS)
def test_a_list_says_the_same_in_every_form(say: Say, name: str) -> None:
    fine = FAILS.get(name, 0)
    said: dict[str, str] = {}
    for form in output.FORMS:
        code, said[form], err = say(*line_of(name), "-o", form)
        assert (code, "Traceback" in err) == (fine, False), err
    document = json.loads(said["json"])
    assert document["schema"].startswith("wattherd.")
    assert yaml.safe_load(said["yaml"]).keys() == document.keys()
    names = said["name"].split("\n")[:-1]
    assert names or name in NAMELESS
    assert all(names)
    for table in (said["table"], said["wide"]):
        assert "\x1b" not in table
        assert "…" not in table


@pytest.mark.parametrize("name", LISTS)
def test_a_list_without_headers_is_its_rows(say: Say, name: str) -> None:
    """Only the lines of names are missing."""
    whole = say(*line_of(name))[1].split("\n")
    bare = say(*line_of(name), "--no-headers")[1].split("\n")
    heads = [line for line in whole if line and line == line.upper() and line[0].isalpha()]
    if name not in ("show", "explain", "power", "store info"):
        assert heads
        assert len(bare) == len(whole) - len(heads)
    assert not [line for line in bare if line in heads and line]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_can_be_watched(say: Say, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[float] = []

    def rest(span_s: float) -> None:
        rounds.append(span_s)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    real = time.sleep
    monkeypatch.setattr(output.time, "sleep", lambda s: rest(s) if s == 7.5 else real(s))
    code, said, _ = say(*line_of(name), "--watch", "--every", "7.5", "-o", "json")
    assert (code, rounds) == (130, [7.5, 7.5])
    assert len([json.loads(line) for line in said.splitlines()]) == 2


def test_what_cannot_be_watched_at_first_is_an_error(say: Say) -> None:
    assert say("show", "j-99", "--watch")[0] == 3
    assert say("queue", "--watch", "--every", "0")[0] == 2


DOCUMENTED = (REPOSITORY / "docs" / "reference" / "command-line.md").read_text()


@pytest.mark.parametrize("name", LISTS)
def test_documented_keys_are_those_that_are_printed(say: Say, name: str) -> None:
    document = json.loads(say(*line_of(name), "-o", "json")[1])
    keys = [key for key in document if key != "schema"]
    rows = [line for line in DOCUMENTED.splitlines() if line.startswith(f"| `{name}` | ")]
    assert len(rows) == 1, f"| `{name}` | `{document['schema']}` | `{'`, `'.join(keys)}` |"
    _, _, schema, told, _ = (cell.strip() for cell in rows[0].split("|"))
    assert schema.strip("`") == document["schema"]
    if "api.md" not in told:
        assert [key.strip("` ") for key in told.split(",")] == keys


# Pages ------------------------------------------------------------------------------------------


def test_pages_of_live_jobs_follow_each_other(site: Guarded) -> None:
    found: list[str] = []
    after: Any = 0
    while after is not None:
        page = site.ask("GET", f"/api/v1/jobs?limit=2&count=true&after={after}", "admin").json
        assert (len(page["jobs"]) <= 2, page["total"]) == (True, 6)
        found += [row["id"] for row in page["jobs"]]
        after = page["after"]
    assert found == [f"j-{number + 1}" for number in range(6)]
    positions = [row["position"] for row in page["jobs"]]
    assert positions == [4, 5]  # from the head of the queue, on whatever page


def test_a_page_says_how_to_go_on(say: Say) -> None:
    code, said, err = say("queue", "-n", "2", "--no-headers")
    assert (code, len(said.splitlines())) == (0, 2)
    assert err == "2 of 6 jobs; the next: --after j-2; all: --limit 0\n"
    _, said, err = say("queue", "--after", "j-4", "-o", "name")
    assert (said, err) == ("j-5\nj-6\n", "")
    _, said, err = say("history", "-n", "2", "-o", "name")
    assert (said, err) == (
        "j-5\nj-6\n",
        "2 of 6 jobs; those before: --before j-5; all: --limit 0\n",
    )
    _, said, err = say("history", "--before", "j-3", "-o", "name")
    assert (said, err) == ("j-1\nj-2\n", "")
    _, said, err = say("queue", "--sort=-id", "-n", "1", "-o", "name")
    assert (said, err) == ("j-6\n", "1 of 6 jobs; all: --limit 0\n")
    assert say("queue", "--after", "resnet")[0] == 2
    assert say("queue", "-A", "--after", "j-3")[0] == 2


def test_a_pipe_gets_all_pages_as_one(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    from wattherd.cli import site as module

    monkeypatch.setattr(module, "PAGE", 2)
    for command in (["queue"], ["history"], ["queue", "-A"], ["queue", "--state", "queued"]):
        _, said, err = say(*command, "-o", "name")
        ids = [f"j-{number + 1}" for number in range(6)]
        assert said.split() == (ids[1:] if "--state" in command else ids)
        assert err == ""
    document = json.loads(say("queue", "-o", "json")[1])
    assert (len(document["jobs"]), document["after"]) == (6, None)
    assert len(json.loads(say("queue", "-o", "json", "-n", "5")[1])["jobs"]) == 5


def test_a_terminal_gets_a_page_within_its_width(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    from wattherd.cli import site as module

    monkeypatch.setattr(module, "SCREEN", 3)
    seen = module.interactive
    from wattherd.cli import tables

    at = tables.terminal.set(True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    try:
        assert seen()
        _, said, err = say("queue")
    finally:
        tables.terminal.reset(at)
    assert max(map(len, said.splitlines())) <= 100
    assert "3 of 6 jobs; the next: --after j-3; all: --limit 0" in err
    assert [line.split()[0] for line in said.splitlines() if line.startswith("j-")] == [
        "j-1",
        "j-2",
        "j-3",
    ]


def test_a_real_pipe_is_never_shortened(site: Guarded) -> None:
    import os
    import sys

    found = subprocess.run(
        [sys.executable, "-m", "wattherd.cli.main", "queue"],
        env={
            **os.environ,
            "COLUMNS": "20",
            "WATTHERD_SERVER": site.url,
            "WATTHERD_TOKEN": site.tokens["admin"],
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert len(found.stdout.splitlines()) == 7
    assert found.stderr == ""
