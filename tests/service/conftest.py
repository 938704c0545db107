"""Workloads and an entry point that several tests use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pack_cli import NODES, Outcome, Run

from wattherd.cli.main import main
from wattherd.workload.generate import generate_cluster, generate_pods, write_openb


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pages in a browser take seconds each."""
    for item in items:
        if isinstance(item, pytest.Function) and "browser" in item.fixturenames:
            item.add_marker(pytest.mark.long)


PLACEMENTS = [*"1234", *(f"{one}{two}" for one in "1234" for two in "1234")]


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up application in the Pollux files' form, and twelve jobs of it."""
    folder = tmp_path_factory.mktemp("suite")
    app = folder / "profiles" / "toy"
    app.mkdir(parents=True)
    rows = [
        f"{placement},{local},{0.05 + local / 1000 + 0.01 * len(placement)},{0.01 * len(placement)}"
        for placement in PLACEMENTS
        for local in (8, 64, 128)
    ]
    (app / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n" + "\n".join(rows) + "\n"
    )
    (app / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
        "2,8,8,0.2,0.1\n2,8,128,0.4,0.1\n4,16,8,0.3,0.2\n4,16,128,0.5,0.2\n"
    )
    for batch in (128, 512):
        epochs = [
            f"{(e + 1) * 2000},{(e + 1) * 2000 * 128 // batch},{e},1.0,400.0" for e in range(5)
        ]
        (app / f"validation-{batch}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n" + "\n".join(epochs) + "\n"
        )
    jobs = [f"job-{i},{i * 40},toy,{1 + i % 4},{(128, 256, 512)[i % 3]}" for i in range(12)]
    (folder / "jobs.csv").write_text(
        "name,time,application,num_replicas,batch_size\n" + "\n".join(jobs)
    )
    (folder / "scenario.yaml").write_text(
        "cluster: 2x4:T4\njobs: {file: jobs.csv, profiles: profiles}\n"
        "policies: [tiresias]\npower: [water-filling, pause]\nbudgets: [null, '0:560W,10m:490W']\n"
    )
    return folder


@pytest.fixture
def wattherd(capsys: pytest.CaptureFixture[str]) -> Run:
    """The entry point in this process."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small generated `nodes.csv` and `pods.csv`."""
    folder = tmp_path_factory.mktemp("given")
    cluster = generate_cluster(nodes=NODES, seed=2)
    pods = generate_pods(family="gpuspec25", seed=2, gpu_capacity_milli=cluster.gpu_milli, load=1.0)
    write_openb(cluster, pods, folder)
    return folder


@pytest.fixture
def folder(given: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    shutil.copytree(given, tmp_path / "input")
    return tmp_path / "input"
