"""The same question has the same answer: whatever the hash seed, processes or order of policies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from wattherd.policy.place.registry import BUILT_IN
from wattherd.testing.builders import spellings
from wattherd.workload.generate import generate_cluster, generate_pods, write_openb

POLICIES = [*BUILT_IN, "pwr+fgd:0.1", "fgd@exact"]


@dataclass(frozen=True)
class Left:
    """What a run directory holds that must not vary: runs without timings, and files."""

    runs: list[object]
    files: dict[str, bytes]


def packed(
    folder: Path,
    out: str,
    *,
    hash_seed: str = "1",
    processes: int = 1,
    policies: list[str] = POLICIES,
    ties: str = "order",
) -> Left:
    command = [
        *(sys.executable, "-m", "wattherd.cli.main", "sim", "pack", "--decisions", "--load", "1.3"),
        *("--nodes", folder / "nodes.csv", "--pods", folder / "pods.csv", "--seed", "3,1"),
        *("--policy", ",".join(policies), "--processes", processes, "--ties", ties),
        *("--out", folder / out),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run(
        [str(word) for word in command], env=environment, check=True, capture_output=True
    )
    runs = json.loads((folder / out / "pack.json").read_text(encoding="utf-8"))["runs"]
    for run in runs:
        del run["cpu_s"]
    files = {path.name: path.read_bytes() for path in (folder / out).glob("*.csv.gz")}
    return Left(sorted(runs, key=lambda run: (run["policy"], run["seed"])), files)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small generated cluster with constrained pods, so that model lists matter too."""
    folder = tmp_path_factory.mktemp("independence")
    cluster = generate_cluster(nodes=25, seed=4)
    pods = generate_pods(family="gpuspec25", seed=4, gpu_capacity_milli=cluster.gpu_milli, load=0.9)
    write_openb(cluster, pods, folder)
    return folder


@pytest.fixture(scope="module")
def first(folder: Path) -> Left:
    return packed(folder, "first")


@pytest.mark.long
def test_every_run_left_its_files(first: Left) -> None:
    assert len(first.runs) == 2 * len(POLICIES)
    assert len(first.files) == 2 * 2 * len(POLICIES)


@pytest.mark.long
def test_results_do_not_depend_on_the_hash_seed(folder: Path, first: Left) -> None:
    assert packed(folder, "hash", hash_seed="2") == first


@pytest.mark.long
def test_results_do_not_depend_on_the_number_of_processes(folder: Path, first: Left) -> None:
    assert packed(folder, "processes", processes=2) == first


@pytest.mark.long
def test_results_do_not_depend_on_the_order_of_policies(folder: Path, first: Left) -> None:
    assert packed(folder, "order", policies=POLICIES[::-1]) == first


@pytest.mark.long
def test_results_do_not_depend_on_the_company(folder: Path, first: Left) -> None:
    alone = packed(folder, "alone", policies=["random"])
    assert alone.files == {name: text for name, text in first.files.items() if "-random-" in name}


@pytest.mark.long
def test_random_ties_are_reproducible_and_differ_from_the_order(folder: Path, first: Left) -> None:
    one, other = (
        packed(folder, f"ties{seed}", hash_seed=seed, ties="random", policies=["fgd", "pwr"])
        for seed in ("1", "2")
    )
    assert one == other
    assert one.files["decisions-fgd-1.csv.gz"] != first.files["decisions-fgd-1.csv.gz"]


def test_every_spelling_has_a_file_name_of_its_own() -> None:
    from wattherd.store.run_dir import file_stem

    names = {file_stem(spelling, 1) for spelling in spellings()}
    assert len(names) == len(spellings())
    assert not any(set(name) & set("/\\:+") for name in names)
