"""How `wattherd sim pack` refuses bad input: one line that names the place, for any shell."""

from __future__ import annotations

import csv
import gzip
import json
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pack_cli import NODES, Run, an_order, content, one_line, pack, shell

# --- bad input -------------------------------------------------------------------------------


def change(name: str, line: int, old: str, new: str) -> Callable[[Path], None]:
    """Replace `old` in one line (counted from 1) of a file."""

    def spoil(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        assert old in lines[line - 1]
        lines[line - 1] = lines[line - 1].replace(old, new, 1)
        (folder / name).write_text("".join(lines))

    return spoil


def cell(name: str, line: int, column: str, value: str) -> Callable[[Path], None]:
    """Set one cell."""

    def spoil(folder: Path) -> None:
        with (folder / name).open(newline="") as stream:
            rows = list(csv.reader(stream))
        rows[line - 1][rows[0].index(column)] = value
        with (folder / name).open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(rows)

    return spoil


def cut_gzip(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        packed = gzip.compress((folder / name).read_bytes())
        (folder / name).write_bytes(packed[: len(packed) // 2])

    return spoil


def repeat_line(name: str, line: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join([*lines, lines[line - 1]]))

    return spoil


def swap(folder: Path) -> None:
    (folder / "nodes.csv").rename(folder / "other")
    (folder / "pods.csv").rename(folder / "nodes.csv")
    (folder / "other").rename(folder / "pods.csv")


def ten_million_rows(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        block = b"p,1,1,1,1\n" * 100_000
        with (folder / name).open("wb") as stream:
            stream.write(b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n")
            for _ in range(100):
                stream.write(block)

    return spoil


# What was done to the input, and what the one line must hold.
BAD_FILES: dict[str, tuple[Callable[[Path], None], Sequence[str]]] = {
    "missing node column": (
        change("nodes.csv", 1, "cpu_milli", "cpu_mili"),
        ["nodes.csv:1", "no column cpu_milli", "hint: rename column 'cpu_mili'"],
    ),
    "missing pod column": (
        change("pods.csv", 1, "num_gpu,", "gpus,"),
        ["pods.csv:1", "no column num_gpu", "hint:"],
    ),
    "negative CPU": (
        cell("pods.csv", 3, "cpu_milli", "-4"),
        ["pods.csv:3", "cpu_milli", "'-4' is negative", "hint: milli-vCPU"],
    ),
    "fractional GPU count": (
        cell("pods.csv", 4, "num_gpu", "0.5"),
        ["pods.csv:4", "num_gpu", "'0.5' is not a whole number", "hint:"],
    ),
    "words for memory": (
        cell("nodes.csv", 2, "memory_mib", "64GiB"),
        ["nodes.csv:2", "memory_mib", "'64GiB' is not a whole number", "hint: MiB"],
    ),
    "empty cell": (
        cell("pods.csv", 2, "gpu_milli", ""),
        ["pods.csv:2", "gpu_milli", "is empty", "hint:"],
    ),
    "unknown GPU model of a node": (
        cell("nodes.csv", 5, "model", "G22"),
        ["nodes.csv:5", "model", "unknown GPU model 'G22'", "hint: did you mean"],
    ),
    "unknown GPU model of a pod": (
        cell("pods.csv", 6, "gpu_spec", "T4|V100M64"),
        ["pods.csv:6", "gpu_spec", "unknown GPU model 'V100M64'", "hint: did you mean"],
    ),
    "duplicate node": (
        repeat_line("nodes.csv", 4),
        [f"nodes.csv:{NODES + 2}", "sn", "appears twice", "hint: first in line 4"],
    ),
    "duplicate pod": (
        repeat_line("pods.csv", 2),
        ["pods.csv:", "name", "appears twice", "hint: first in line 2"],
    ),
    "share of several GPUs": (
        lambda folder: (cell("pods.csv", 2, "num_gpu", "2")(folder),
                        cell("pods.csv", 2, "gpu_milli", "500")(folder))[0],
        ["pods.csv:2", "gpu_milli", "is 500 with num_gpu 2", "hint:"],
    ),
    "empty file": (content("pods.csv", b""), ["pods.csv", "is empty", "hint:"]),
    "header only": (
        content("nodes.csv", b"sn,cpu_milli,memory_mib,gpu,model\n"),
        ["nodes.csv", "no rows", "hint:"],
    ),
    "binary": (
        content("nodes.csv", bytes(range(128, 256))),
        ["nodes.csv:1", "not UTF-8", "hint:"],
    ),
    "truncated gzip": (cut_gzip("pods.csv"), ["pods.csv", "truncated gzip", "hint:"]),
    "swapped files": (swap, ["nodes.csv:1", "hint: this is a pod list"]),
    "ten million rows": (
        ten_million_rows("pods.csv"),
        ["pods.csv", "more than 2,000,000 rows", "hint: is this the right file?"],
    ),
    "no such file": (
        lambda folder: (folder / "pods.csv").rename(folder / "pod.csv") and None,
        ["pods.csv", "no such file", "hint: did you mean"],
    ),
    "a node of 64 GPUs": (
        cell("nodes.csv", 2, "gpu", "64"),
        ["node-", "gpu", "64 GPUs", "hint:"],
    ),
    "no GPU in the cluster": (
        content("nodes.csv", b"sn,cpu_milli,memory_mib,gpu,model\nn,1000,1,0,\n"),
        ["the cluster has no GPU", "hint:"],
    ),
    "no GPU asked for": (
        content("pods.csv", b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n"),
        ["no pod asks for a GPU", "hint:"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_FILES)
def test_bad_files_are_one_line(folder: Path, wattherd: Run, what: str) -> None:
    spoil, parts = BAD_FILES[what]
    spoil(folder)
    one_line(wattherd(*pack(folder)), parts)


@pytest.mark.long
@pytest.mark.parametrize("what", ["truncated gzip", "duplicate node", "unknown GPU model of a pod"])
def test_bad_files_are_one_line_for_a_shell_too(folder: Path, what: str) -> None:
    spoil, parts = BAD_FILES[what]
    spoil(folder)
    one_line(shell(*pack(folder)), parts)


@pytest.mark.long
def test_ten_million_rows_fail_fast(folder: Path) -> None:
    """Given up long before it is read: no more than a start of the program and a count of lines."""
    ten_million_rows("pods.csv")(folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    result = shell(*pack(folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (folder / "pods.csv").unlink()
    one_line(result, ["more than 2,000,000 rows"])
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
    assert time.monotonic() - began < 30


BAD_OPTIONS: dict[str, tuple[Sequence[object], Sequence[str]]] = {
    "unknown policy": (["--policy", "fdg"], ["policy 'fdg'", "hint: did you mean 'fgd'?"]),
    "second policy of three": (["--policy", "fgd,pwr+fgd:2,pwr"], ["policy 'pwr+fgd:2'", "hint:"]),
    "policy that ends too early": (["--policy", "fgd:"], ["policy 'fgd:'", "hint:"]),
    "infinite weight": (["--policy", "pwr+fgd:inf"], ["policy 'pwr+fgd:inf'", "hint:"]),
    "no policy": (["--policy", ","], ["--policy", "no policy named", "hint:"]),
    "bad seed": (["--seed", "4..1"], ["--seed", "'4..1'", "hint:"]),
    "zero load": (["--load", "0"], ["load 0.0", "hint:"]),
    "negative load": (["--load", "-1"], ["load -1.0", "hint:"]),
    "no number for a load": (["--load", "nan"], ["load nan", "hint:"]),
    "huge load": (["--load", "1e6"], ["load 1000000.0", "hint:"]),
    "load too small for any pod": (["--load", "1e-6"], ["load 1e-06", "--load", "hint:"]),
    "decisions without a place": (["--decisions"], ["--decisions needs --out", "hint:"]),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_bad_options_are_one_line(folder: Path, wattherd: Run, what: str) -> None:
    options, parts = BAD_OPTIONS[what]
    if what == "load too small for any pod":
        content(
            "pods.csv", b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,9\nb,1,1,8,1000\n"
        )(folder)
    one_line(wattherd(*pack(folder, *options)), parts)


ROWS = list(range(NODES))
BAD_ORDERS: dict[str, tuple[object, Sequence[str]]] = {
    "another seed": ({"seeds": {"7": {"pods": ROWS, "nodes": ROWS}}}, ["no seed 1", "hint: seeds"]),
    "no seeds": ({}, ["no object 'seeds'", "hint:"]),
    "no pods": ({"seeds": {"1": {"nodes": ROWS}}}, ["seeds.1.pods", "no list of rows"]),
    "an empty list": ({"seeds": {"1": {"pods": [], "nodes": ROWS}}}, ["seeds.1.pods"]),
    "a row too many": (
        {"seeds": {"1": {"pods": [0, 10**6], "nodes": ROWS}}},
        ["seeds.1.pods", "entry 1 is row 1000000", "hint:"],
    ),
    "half a row": ({"seeds": {"1": {"pods": [0.5], "nodes": ROWS}}}, ["seeds.1.pods", "entry 0"]),
    "a node twice": (
        {"seeds": {"1": {"pods": [0], "nodes": [*ROWS[:-1], 0]}}},
        ["seeds.1.nodes", f"{NODES - 1} of them distinct", "hint:"],
    ),
    "nodes left out": ({"seeds": {"1": {"pods": [0], "nodes": ROWS[:-1]}}}, ["seeds.1.nodes"]),
}


@pytest.mark.parametrize("what", BAD_ORDERS)
def test_bad_orders_are_one_line(given: Path, tmp_path: Path, wattherd: Run, what: str) -> None:
    order, parts = BAD_ORDERS[what]
    path = tmp_path / "order.json.gz"
    path.write_bytes(gzip.compress(json.dumps(order).encode()))
    one_line(wattherd(*pack(given, "--order", path)), ["order.json.gz", *parts])


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"", "not JSON"),
        (b"{]", "not JSON"),
        (gzip.compress(b'{"seeds": {}}' * 99, mtime=0)[:40], "truncated gzip"),
        (b"\xff\xfe\xff", "not"),
    ],
)
def test_broken_order_files_are_one_line(
    given: Path, tmp_path: Path, wattherd: Run, raw: bytes, part: str
) -> None:
    path = tmp_path / "order.json.gz"
    path.write_bytes(raw)
    one_line(wattherd(*pack(given, "--order", path)), ["order.json.gz", part])


def test_an_order_for_a_cluster_without_gpus(folder: Path, wattherd: Run) -> None:
    content("nodes.csv", b"sn,cpu_milli,memory_mib,gpu,model\nn,1000,1,0,\n")(folder)
    order = an_order(folder / "order.json", [0, 1], [0])
    one_line(wattherd(*pack(folder, "--order", order)), ["the cluster has no GPU"])


def test_an_output_directory_in_the_way_is_one_line(
    given: Path, tmp_path: Path, wattherd: Run
) -> None:
    (tmp_path / "taken").write_text("a file")
    one_line(wattherd(*pack(given, "--out", tmp_path / "taken")), ["taken", "cannot write", "hint"])


@pytest.mark.long
def test_an_error_in_a_worker_process_is_one_line_too(given: Path, tmp_path: Path) -> None:
    order = an_order(tmp_path / "order.json", [0], range(NODES))
    one_line(
        shell(*pack(given, "--order", order, seed="1,2"), "--processes", 2),
        ["order.json", "no seed 2", "hint: seeds present: 1"],
    )


@pytest.mark.parametrize(
    "arguments",
    [["sim", "pack"], ["sim", "pack", "--nope"], ["nope"], ["sim", "pack", "--load", "much"],
     ["sim", "pack", "--ties", "maybe"], ["sim", "pack", "--processes", "0"]],
)  # fmt: skip
def test_wrong_usage_shows_the_usage(wattherd: Run, arguments: list[str]) -> None:
    result = wattherd(*arguments)
    assert (result.code, result.out) == (2, "")
    usage, error = result.err.splitlines()
    assert usage.startswith("Usage: wattherd")
    assert error.startswith("wattherd: error: ")


@pytest.mark.parametrize("arguments", [[], ["sim"]])
def test_without_a_command_the_help_is_shown_once(wattherd: Run, arguments: list[str]) -> None:
    result = wattherd(*arguments)
    shown = result.out + result.err
    assert shown.count("Usage: wattherd") == 1
    assert "Commands:" in shown
    assert "error" not in shown
