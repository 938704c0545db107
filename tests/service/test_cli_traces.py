"""`wattherd traces` from the outside: what it prints where, and how it refuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wattherd.catalog.gpus import GPUS
from wattherd.cli.traces import traces
from wattherd.errors import UserError
from wattherd.workload import public_files
from wattherd.workload.openb import read_nodes, read_pods
from wattherd.workload.public_files import PublicFile

NODES = b"sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1024,2,T4\n"
PODS = b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,10,1,500\np1,1000,10,0,0\n"


def a_public_file(name: str, kind: str, content: bytes, *, known: bool) -> PublicFile:
    digest = hashlib.sha256(content).hexdigest() if known else None
    return PublicFile(
        name=name, kind=kind, file=f"{name}.csv", size_bytes=len(content), sha256=digest
    )


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory, and a registry of three small files."""
    entries = (
        a_public_file("machines", "nodes", NODES, known=True),
        a_public_file("small", "pods", PODS, known=True),
        a_public_file("unknown", "pods", PODS, known=False),
    )
    monkeypatch.setattr(public_files, "PUBLIC_FILES", {entry.name: entry for entry in entries})
    monkeypatch.setenv("WATTHERD_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("WATTHERD_TRACE_URL", raising=False)
    return tmp_path / "data" / "openb"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of these three files."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = tmp_path / "served"
    served.mkdir()
    for name, content in {"machines": NODES, "small": PODS, "unknown": PODS}.items():
        (served / f"{name}.csv").write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(traces, arguments)


def refusal(*arguments: str) -> str:
    """The one line with which a command refuses."""
    result = run(*arguments)
    assert isinstance(result.exception, UserError), result.output
    assert "\n" not in result.exception.line()
    return result.exception.line()


def test_list_says_what_is_on_disk(data: Path) -> None:
    data.mkdir(parents=True)
    (data / "small.csv").write_bytes(PODS)
    (data / "machines.csv").write_bytes(b"damaged")
    result = run("list")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:3] == ["NAME", "KIND", "BYTES"]
    assert [(line[0], line[4]) for line in lines[1:]] == [
        ("machines", "differs"),
        ("small", "verified"),
        ("unknown", "missing"),
    ]
    assert str(data) in result.stderr


def test_list_as_json_is_nothing_but_json(data: Path) -> None:
    result = run("list", "-o", "json")
    document = json.loads(result.stdout)
    assert document["schema"] == "wattherd.traces/1"
    assert [entry["name"] for entry in document["traces"]] == ["machines", "small", "unknown"]
    assert result.stderr == ""


def test_fetch_prints_paths_to_stdout_and_talks_on_stderr(data: Path, url: str) -> None:
    result = run("fetch", "small", "machines.csv", "--base-url", url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [str(data / "small.csv"), str(data / "machines.csv")]
    assert result.stderr.splitlines() == ["small: fetched", "machines: fetched"]
    assert "here already" in run("fetch", "small").stderr


def test_fetch_takes_the_address_from_the_environment(
    data: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATTHERD_TRACE_URL", url)
    assert run("fetch", "small").exit_code == 0


def test_fetch_puts_files_where_it_is_told(data: Path, url: str, tmp_path: Path) -> None:
    run("fetch", "small", "--base-url", url, "--to", str(tmp_path / "there"))
    assert (tmp_path / "there" / "small.csv").read_bytes() == PODS
    assert not data.exists()


def test_fetch_all_leaves_out_what_cannot_be_checked_and_says_so(data: Path, url: str) -> None:
    line = refusal("fetch", "--all", "--base-url", url)
    assert "unknown" in line
    assert "--unverified" in line
    assert sorted(path.name for path in data.iterdir()) == ["machines.csv", "small.csv"]


def test_fetch_all_unverified_takes_everything(data: Path, url: str) -> None:
    result = run("fetch", "--all", "--unverified", "--base-url", url)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3
    assert "locked" in run("list").stdout
    assert run("fetch", "--all", "--base-url", url).exit_code == 0, "it is recorded by now"


@pytest.mark.parametrize(
    ("story", "arguments", "said"),
    [
        ("nothing named", ["fetch"], "--all"),
        ("both", ["fetch", "small", "--all"], "--all"),
        ("misspelt", ["fetch", "smal"], "did you mean 'small'"),
        ("no checksum", ["fetch", "unknown"], "--unverified"),
        ("no web address", ["fetch", "small", "--base-url", "here"], "not an http"),
        ("not on disk", ["inspect", "small"], "wattherd traces fetch small"),
        ("no such file", ["inspect", "nowhere.csv"], "no such file"),
        ("unknown family", ["generate", "--family", "defalt", "--out", "x"], "'default'"),
        ("two sizes", ["generate", "--pods", "5", "--load", "1", "--out", "x"], "one of them"),
        ("no node", ["generate", "--nodes", "0", "--out", "x"], "between 1 and"),
        ("negative seed", ["generate", "--seed", "-1", "--out", "x"], "negative"),
    ],
)
def test_misuse_is_one_line(story: str, arguments: list[str], said: str, data: Path) -> None:
    assert said in refusal(*arguments), story


def test_generate_writes_two_files_that_can_be_read(tmp_path: Path) -> None:
    out = tmp_path / "made"
    result = run("generate", "--nodes", "50", "--load", "1.1", "--seed", "7", "--out", str(out))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [str(out / "nodes.csv"), str(out / "pods.csv")]
    assert "50 nodes" in result.stderr
    cluster = read_nodes(out / "nodes.csv", known=GPUS)
    pods = read_pods(out / "pods.csv", known=GPUS)
    asked = sum(pod.request.total_gpu_milli for pod in pods)
    assert asked / cluster.gpu_milli == pytest.approx(1.1, abs=0.05)


def test_generate_makes_as_many_pods_per_node_as_published(tmp_path: Path) -> None:
    run("generate", "--nodes", "1213", "--out", str(tmp_path))
    assert len((tmp_path / "pods.csv").read_text().splitlines()) == 8153


def test_generate_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("generate", "--nodes", "40", "--family", "gpuspec33", "--out", str(tmp_path / name))
    for name in ("nodes.csv", "pods.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_generate_overwrites_only_when_told(tmp_path: Path) -> None:
    arguments = ["generate", "--nodes", "3", "--pods", "4", "--out", str(tmp_path)]
    assert run(*arguments).exit_code == 0
    assert "--force" in refusal(*arguments)
    assert run(*arguments, "--force").exit_code == 0


def test_inspect_knows_a_node_list_from_a_pod_list(tmp_path: Path) -> None:
    run("generate", "--nodes", "30", "--pods", "200", "--out", str(tmp_path))
    nodes = run("inspect", str(tmp_path / "nodes.csv"))
    pods = run("inspect", str(tmp_path / "pods.csv"))
    assert nodes.stdout.startswith("nodes")
    assert pods.stdout.startswith("pods")
    assert (nodes.stderr, pods.stderr) == ("", "")


def test_inspect_as_json_carries_the_numbers(data: Path) -> None:
    data.mkdir(parents=True)
    (data / "small.csv").write_bytes(PODS)
    document = json.loads(run("inspect", "small", "-o", "json").stdout)
    assert document["schema"] == "wattherd.inspect/1"
    assert (document["kind"], document["pods"], document["gpus"]) == ("pods", 2, 0.5)


def test_inspect_names_the_line_of_a_damaged_list(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_bytes(PODS.replace(b"500", b"-5"))
    assert f"{path}:2" in refusal("inspect", str(path))


def test_the_commands_import_nothing_heavy_until_they_run() -> None:
    code = "import sys, wattherd.cli.traces as t; print([m for m in sys.modules])"
    path = os.pathsep.join(path for path in sys.path if path)
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not [name for name in ("numpy", "pooch", "requests", "rich") if f"'{name}'" in loaded]
