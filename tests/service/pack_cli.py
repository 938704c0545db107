"""What tests of `sim pack` from the outside share."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WATTHERD = (sys.executable, "-m", "wattherd.cli.main")
NODES = 24
PERCENT_CURVES = ("allocated_pct", "frag_ratio_pct", "frag_amount_pct")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Run = Callable[..., Outcome]


def pack(folder: Path, *more: object, policy: str = "fgd", seed: str = "1") -> list[object]:
    return [
        *("sim", "pack", "--nodes", folder / "nodes.csv", "--pods", folder / "pods.csv"),
        *("--policy", policy, "--seed", seed, "--processes", 1, "--load", 1.3, *more),
    ]


def a_table(path: Path) -> list[dict[str, str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def an_order(path: Path, pods: Sequence[int], nodes: Sequence[int], seed: int = 1) -> Path:
    content = json.dumps({"seeds": {str(seed): {"pods": list(pods), "nodes": list(nodes)}}})
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def content(name: str, raw: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(raw)

    return spoil


def one_line(result: Outcome, parts: Sequence[str]) -> None:
    assert result.code == 2
    assert result.out == ""
    errors = [line for line in result.err.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1, result.err
    assert errors[0].startswith("wattherd: error: ")
    for part in parts:
        assert part in errors[0]


def shell(*arguments: object, **environment: str) -> Outcome:
    done = subprocess.run(
        [*WATTHERD, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
