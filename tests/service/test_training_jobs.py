"""Real training under a real supervisor: paused, killed and slowed, it ends as if undisturbed."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_site import Site, until
from training_runs import ENVIRONMENT, EXAMPLES, STEP, final_loss, train, under_way, undisturbed

from wattherd.local import processes, run_dir
from wattherd.local.observation import certain
from wattherd.local.orphans import end_stray
from wattherd.testing.live import MemoryJournal
from wattherd.workload.job_file import read_job

PAUSES = 3


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site", MemoryJournal())
    yield site
    site.keeper.end()
    for folder in site.root.glob("*/run-*"):
        end_stray(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "steps"), [("mlp", 4000), ("cnn", 2500), ("attention", 2500)], ids=lambda v: str(v)
)
def test_paused_again_and_again_it_is_the_same_training(
    site: Site, tmp_path: Path, example: str, steps: int
) -> None:
    options = ("--steps", str(steps), "--every", "1000000")
    job = train(site, example, *options)
    for attempt in range(1, PAUSES + 1):
        under_way(site, job, attempt)
        site.hold(job)
        site.release(job)
    site.wait(job, "Succeeded")
    told = "".join(site.log(job, attempt) for attempt in range(1, PAUSES + 2))
    whole = undisturbed(tmp_path, example, *options)
    assert [int(step) for step, _ in STEP.findall(told)] == list(range(1, steps + 1))
    assert STEP.findall(told) == STEP.findall(whole)
    assert abs(final_loss(told) - final_loss(whole)) <= 1e-6


@pytest.mark.long
def test_killed_it_goes_on_from_its_last_checkpoint(site: Site, tmp_path: Path) -> None:
    options = ("--steps", "3000", "--every", "200")
    job = train(site, "mlp", *options, restarts=1)
    under_way(site, job, 1, 700)
    began = run_dir.read(site.root / job / "run-1" / run_dir.BEGUN)
    assert began is not None
    processes.signal_all(certain(processes.descendants(began["pid"])) or (), 9)
    site.wait(job, "Succeeded")
    first, second = (STEP.findall(site.log(job, attempt)) for attempt in (1, 2))
    assert int(second[0][0]) % 200 == 1
    assert int(second[0][0]) <= int(first[-1][0]) + 1
    whole = undisturbed(tmp_path, "mlp", *options)
    assert first[: int(second[0][0]) - 1] + second == STEP.findall(whole)


@pytest.mark.long
def test_smaller_micro_batches_change_rounding_only(site: Site, tmp_path: Path) -> None:
    options = ("--steps", "3000", "--every", "1000000")
    job = train(site, "mlp", *options)
    control = site.root / job / "run-1" / run_dir.CONTROL
    for part, micro_batch in enumerate((16, 5, 64, 23), start=1):
        under_way(site, job, 1, 500 * part)
        run_dir.write(control, {**(run_dir.read(control) or {}), "micro_batch": micro_batch})
    site.wait(job, "Succeeded")
    told, whole = site.log(job), undisturbed(tmp_path, "mlp", *options)
    assert [step for step, _ in STEP.findall(told)] == [step for step, _ in STEP.findall(whole)]
    assert told != whole
    assert math.isclose(final_loss(told), final_loss(whole), rel_tol=0.05)


@pytest.mark.long
def test_the_job_file_runs(site: Site) -> None:
    job = read_job(EXAMPLES / "mlp.yaml")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    paper = job.paper()
    paper |= {"envs": {**paper["envs"], **ENVIRONMENT, "PATH": path}}
    job_id = site.keeper.submit(job.spec(), paper, by="ann").result()
    site.wait(job_id, "Succeeded")
    assert [step for step, _ in STEP.findall(site.log(job_id))][-1] == "3000"


@pytest.mark.parametrize("example", ["mlp", "cnn", "attention"])
def test_gradients_are_what_differences_say(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partial derivative that was picked, against a difference of losses around it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module(example)
    rng = np.random.default_rng(4)
    data = {"mlp": "spirals", "cnn": "stripes", "attention": "lookups"}[example]
    x, y = getattr(module, data)(20, seed=5)
    weights = module.fresh(rng)
    _, gradient = module.gradient(weights, x, y)
    for name, value in weights.items():
        for place in rng.choice(value.size, min(8, value.size), replace=False):
            around = []
            for by in (1e-6, -1e-6):
                moved = value.copy()
                moved.flat[place] += by
                around.append(module.gradient({**weights, name: moved}, x, y)[0])
            slope = (around[0] - around[1]) / 2e-6
            assert math.isclose(slope, gradient[name].flat[place], rel_tol=1e-4, abs_tol=1e-7)


@pytest.mark.long
def test_what_it_reports_reaches_the_core(site: Site) -> None:
    job = train(site, "mlp", "--steps", "100000", "--every", "1000000")
    look = site.keeper.ask
    until(lambda: (look(lambda core: core.jobs[job].rate_per_s).result() or 0) > 10)
    assert 0 < look(lambda core: core.jobs[job].progress).result() < 100000
    assert look(lambda core: core.jobs[job].loss).result() is not None
    site.hold(job)


GANG = """
import os, pathlib, time, wattherd_train
folder, me = pathlib.Path(os.environ["WATTHERD_RUN_DIR"]), int(os.environ["RANK"])
def reached(rank):
    path = folder / f"reached-{rank}"
    return int(path.read_text()) if path.exists() else 0
def meet(step):
    # As ranks do to average gradients: none goes on before the other is there.
    if os.environ["WORLD_SIZE"] == "1":
        return
    (folder / f"fresh-{me}").write_text(str(step))
    (folder / f"fresh-{me}").replace(folder / f"reached-{me}")
    while reached(1 - me) < step:
        time.sleep(0.001)
with wattherd_train.current() as job:
    found = job.checkpoints.load()
    print("from", found.step if found else 0, flush=True)
    for step in range((found.step if found else 0) + 1, 1_000_000):
        time.sleep(0.005)
        meet(step)
        job.step(step)
        if job.should_stop():
            if job.world.leads:
                time.sleep(1.0)
                job.checkpoints.save(step, "state")
            print("stop", step, flush=True)
            job.exit_checkpointed()
"""


@pytest.mark.long
def test_ranks_stop_together_and_wait_for_the_one_that_saves(site: Site) -> None:
    paper = {"envs": ENVIRONMENT, "launch": "task"}
    job = site.submit([sys.executable, "-c", GANG], tasks=2, paper=paper, grace_s=20.0)
    until(lambda: all("from" in site.log(job, rank=rank) for rank in (0, 1)))
    site.hold(job)
    stops = [int(site.log(job, rank=rank).split()[-1]) for rank in (0, 1)]
    assert stops[0] == stops[1]
    site.release(job)
    until(lambda: f"from {stops[0]}\n" in site.log(job, attempt=2))
    site.hold(job)


@pytest.mark.long
def test_under_torchrun_a_checkpoint_is_no_success(site: Site) -> None:
    """There the code must be 0, and a file says what it means."""
    paper = {"envs": {**ENVIRONMENT, "TORCHELASTIC_RUN_ID": "x"}}
    job = site.submit([sys.executable, "-c", GANG], paper=paper, grace_s=20.0)
    until(lambda: "from" in site.log(job))
    site.hold(job)
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert (end["exit_code"], end["stopped"]) == (143, True)
