"""PyTorch jobs under a real supervisor, alone and on ranks under torchrun."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import local_site
import pytest
from local_site import Site
from training_runs import (
    ENVIRONMENT,
    EXAMPLES,
    STEP,
    final_loss,
    train,
    under_way,
    undisturbed,
)

from wattherd.local import run_dir
from wattherd.local.orphans import end_stray
from wattherd.testing.live import MemoryJournal

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(local_site, "MOST_S", 300.0)  # importing PyTorch takes its time
    site = Site(tmp_path / "site", MemoryJournal())
    yield site
    site.keeper.end()
    for folder in site.root.glob("*/run-*"):
        end_stray(folder)


@pytest.mark.parametrize(
    ("example", "steps"), [("torch_mlp", 4000), ("torch_cnn", 2500), ("torch_transformer", 1200)]
)
def test_paused_again_and_again_it_is_the_same_training(
    site: Site, tmp_path: Path, example: str, steps: int
) -> None:
    options = ("--steps", str(steps), "--every", "1000000")
    job = train(site, example, *options)
    for attempt in (1, 2, 3):
        under_way(site, job, attempt)
        site.hold(job)
        site.release(job)
    site.wait(job, "Succeeded")
    told = "".join(site.log(job, attempt) for attempt in (1, 2, 3, 4))
    whole = undisturbed(tmp_path, example, *options)
    assert [int(step) for step, _ in STEP.findall(told)] == list(range(1, steps + 1))
    assert STEP.findall(told) == STEP.findall(whole)
    assert abs(final_loss(told) - final_loss(whole)) <= 1e-6


def in_other_parts(site: Site, example: str, steps: int, *options: str) -> str:
    """What a job prints whose micro-batch is changed three times on its way."""
    options = ("--steps", str(steps), "--every", "1000000", *options)
    job = train(site, example, *options)
    control = site.root / job / "run-1" / run_dir.CONTROL
    for part, micro_batch in enumerate((16, 5, 23), start=1):
        under_way(site, job, 1, steps * part // 5)
        run_dir.write(control, {**(run_dir.read(control) or {}), "micro_batch": micro_batch})
    site.wait(job, "Succeeded")
    return site.log(job)


def losses(text: str) -> list[float]:
    return [float(loss) for _, loss in STEP.findall(text)]


@pytest.mark.parametrize(
    ("example", "options"),
    [
        ("torch_mlp", ()),
        ("torch_cnn", ("--dropout", "0")),
        ("torch_transformer", ("--dropout", "0")),
    ],
    ids=["mlp", "cnn", "transformer"],
)
def test_smaller_micro_batches_change_rounding_only(
    site: Site, tmp_path: Path, example: str, options: tuple[str, ...]
) -> None:
    """Without dropout: the last loss within 5 % or 0.001, the mean of all steps within 0.1 %."""
    steps = 600
    told = in_other_parts(site, example, steps, *options)
    whole = undisturbed(tmp_path, example, "--steps", str(steps), "--every", "1000000", *options)
    assert [step for step, _ in STEP.findall(told)] == [str(n) for n in range(1, steps + 1)]
    assert told != whole
    assert math.isclose(final_loss(told), final_loss(whole), rel_tol=0.05, abs_tol=1e-3)
    assert math.isclose(fmean(losses(told)), fmean(losses(whole)), rel_tol=1e-3)


@pytest.mark.parametrize(
    ("example", "seed"),
    [("torch_cnn", 0), ("torch_transformer", 0), ("torch_transformer", 1)],
    ids=["cnn", "transformer", "transformer, another seed"],
)
def test_with_dropout_other_micro_batches_train_as_well(
    site: Site, tmp_path: Path, example: str, seed: int
) -> None:
    """Where a batch comes in other parts, dropout leaves out others: another draw, nothing else.

    The mean loss of all steps is within 5 % of that of the same seed, undisturbed.
    """
    options = ("--seed", str(seed))
    told = losses(in_other_parts(site, example, 600, *options))
    whole = losses(undisturbed(tmp_path, example, "--steps", "600", "--every", "1000000", *options))
    assert len(told) == len(whole) == 600
    assert math.isclose(fmean(told), fmean(whole), rel_tol=0.05)
    assert fmean(told[-100:]) < fmean(told[:100]) / 20


def test_under_torchrun_it_goes_on_with_another_number_of_ranks(site: Site, tmp_path: Path) -> None:
    """Two ranks, then three: the losses of each step are those of one process on the same data."""
    options = ("--steps", "120", "--global-batch", "60", "--micro-batch", "11", "--every", "1000")
    program = " ".join([str(EXAMPLES / "torch_mlp.py"), *options])
    torchrun = f"{sys.executable} -m torch.distributed.run --nproc-per-node"
    command = f"exec {torchrun} $((1 + WATTHERD_ATTEMPT)) {program}"
    job = site.submit(command, paper={"envs": ENVIRONMENT}, grace_s=60.0)
    under_way(site, job, 1, 20)
    site.hold(job)
    end = run_dir.read(site.root / job / "run-1" / run_dir.EXIT)
    assert end is not None
    assert (end["exit_code"], end["stopped"]) == (143, True)
    site.release(job)
    site.wait(job, "Succeeded")
    told = [STEP.findall(site.log(job, attempt)) for attempt in (1, 2)]
    assert 20 <= len(told[0]) < 120
    whole = STEP.findall(undisturbed(tmp_path, "torch_mlp", *options))
    for (step, loss), (expected_step, expected) in zip(told[0] + told[1], whole, strict=True):
        assert step == expected_step
        assert math.isclose(float(loss), float(expected), rel_tol=1e-3, abs_tol=1e-5)
