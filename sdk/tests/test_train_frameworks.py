"""With the real Lightning and Transformers: stopped and gone on, the weights are the same."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from train_runs import RunDir
from wattherd_train import current

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.filterwarnings("default")
STEPS = 24


def data() -> list[dict[str, object]]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * 4, 3, generator=source)
    return [{"x": row, "labels": row.sum()} for row in x]


def stop_at(run: RunDir, step: int):
    """Is given the trainer's step after each step."""

    def look(now: int) -> None:
        if now == step:
            run.stop()

    return look


# --- DataLoader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_reads_ahead_loses_nothing(workers: int) -> None:
    """Stopped within an epoch, with batches in flight; then on two ranks."""
    from wattherd_train import ResumableSampler

    rows = list(range(50))
    sampler = ResumableSampler(50, 8, seed=3)
    loader = torch.utils.data.DataLoader(rows, batch_sampler=sampler, num_workers=workers)
    seen: list[int] = []
    for batch in loader:
        seen += batch.tolist()
        sampler.commit()
        if len(seen) == 24:
            break
    for part in zip(*(ranked(rows, sampler.state_dict(), r, workers) for r in (0, 1)), strict=True):
        seen += [index for batch in part for index in batch.tolist()]
    assert sorted(seen[:50]) == rows
    assert seen == [index for step in list(ResumableSampler(50, 8, seed=3)) for index in step]


def ranked(rows: list[int], state: dict, rank: int, workers: int):
    from wattherd_train import ResumableSampler

    sampler = ResumableSampler(50, 8, seed=3, rank=rank, size=2)
    sampler.load_state_dict(state)
    return torch.utils.data.DataLoader(rows, batch_sampler=sampler, num_workers=workers)


# --- ranks ---------------------------------------------------------------------------------------

RANKS = """
import datetime, sys, torch, wattherd_train
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
job = wattherd_train.current()
job.agree_by(wattherd_train.any_rank)
for step in range(1, 100):
    job.step(step)
    if job.should_stop:
        sys.exit(step)
"""


def test_the_reduction_of_pytorch_reaches_all_ranks(run: RunDir, tmp_path: Path) -> None:
    """Only the second rank can read what is wanted; both leave after the same step."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    run.stop()
    ranks = []
    for rank in (0, 1):
        deaf = {"WATTHERD_CONTROL": ""} if rank == 0 else {}
        environ = run.environ(rank=rank, size=2, **address, **path, **deaf)
        ranks.append(subprocess.Popen([sys.executable, "-c", RANKS], env=environ))
    assert [rank.wait(120) for rank in ranks] == [1, 1]


# --- Lightning -----------------------------------------------------------------------------------


def lightning_run(folder: Path, run: RunDir | None, at: int) -> object:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    from wattherd_train import LightningCallback, ResumableSampler

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            return torch.nn.functional.mse_loss(self.layer(batch["x"])[:, 0], batch["labels"])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    class Stopper(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index) -> None:
            stop_at(run, at)(trainer.global_step + 1) if run else None

    rows = data()
    sampler = ResumableSampler(len(rows), 4, seed=5)
    callback = LightningCallback(current(run.environ() if run else {}), sampler=sampler)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[Stopper(), callback],
    )
    model = Model()
    loader = torch.utils.data.DataLoader(rows, batch_sampler=sampler)
    path = callback.ckpt_path if run else None
    trainer.fit(model, loader, ckpt_path=path)
    return model.layer.weight.detach().clone(), trainer.global_step


@pytest.mark.parametrize("at", [11, STEPS], ids=["within an epoch", "at its end"])
def test_lightning_goes_on_where_it_was_stopped(tmp_path: Path, run: RunDir, at: int) -> None:
    expected, steps = lightning_run(tmp_path, None, 0)
    with pytest.raises(SystemExit) as ended:
        lightning_run(tmp_path, run, at)
    assert ended.value.code == 143
    assert run.lines()[-1]["step"] == at
    assert run.lines()[-1]["total"] == 2 * STEPS
    run.want()
    found, again = lightning_run(tmp_path, run, -1)
    assert again == steps == 2 * STEPS
    assert torch.equal(found, expected)


# --- Transformers --------------------------------------------------------------------------------


def transformers_run(folder: Path, run: RunDir | None, at: int) -> object:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    from wattherd_train import HFCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x, labels=None):
            loss = torch.nn.functional.mse_loss(self.layer(x)[:, 0], labels)
            return {"loss": loss}

    class Stopper(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **more) -> None:
            stop_at(run, at)(state.global_step + 1) if run else None

    callback = HFCallback(current(run.environ() if run else {}))
    model = Model()
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            save_strategy="no",
            logging_steps=5,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=data(),
        callbacks=[Stopper(), callback],
    )
    trainer.train(resume_from_checkpoint=callback.last_checkpoint(folder) if run else None)
    return model.layer.weight.detach().clone(), trainer.state.global_step


def test_transformers_goes_on_where_it_was_stopped(tmp_path: Path, run: RunDir) -> None:
    expected, steps = transformers_run(tmp_path / "whole", None, 0)
    with pytest.raises(SystemExit) as ended:
        transformers_run(tmp_path / "parts", run, 11)
    assert ended.value.code == 143
    assert run.lines()[-1]["step"] == 11
    run.want()
    found, again = transformers_run(tmp_path / "parts", run, -1)
    assert again == steps == STEPS
    assert torch.allclose(found, expected, atol=1e-7)
