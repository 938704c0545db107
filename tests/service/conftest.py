"""A made-up workload that several tests simulate."""

from __future__ import annotations

from pathlib import Path

import pytest

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
