"""The training loop of the PyTorch examples: alone, or on any number of ranks under torchrun.

It reports each step, stops after a step when asked to, and goes on later as if nothing had been,
also with another number of ranks: weights, optimiser, randomness and the place in the data are in
the checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import wattherd_train

Tensors = tuple[torch.Tensor, torch.Tensor]


def train(fresh: type[nn.Module], data: Tensors, *, rate: float = 0.05) -> None:
    """Train as the command line says, from the newest checkpoint if there is one."""
    asked = arguments()
    with wattherd_train.current() as job, process_group(job.world):
        torch.manual_seed(asked.seed)
        model = fresh().to(device_of(job.world))
        if asked.dropout is not None:
            set_dropout(model, asked.dropout)
        training = Training(job, asked, model, data, rate)
        training.resume()
        training.run()


class Training:
    """What changes from step to step, and how it is kept."""

    def __init__(
        self,
        job: wattherd_train.Job,
        asked: argparse.Namespace,
        model: nn.Module,
        data: Tensors,
        rate: float,
    ) -> None:
        self.job, self.asked, self.model = job, asked, model
        self.step, self.loss = 0, float("nan")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        self.plan = job.batches(asked.global_batch, asked.micro_batch)
        self.sampler = wattherd_train.ResumableSampler(
            len(data[0]),
            asked.global_batch,
            seed=asked.seed,
            rank=job.world.rank,
            size=job.world.size,
        )
        # A loader without a generator of its own draws from the one of the model whenever it is
        # begun, and so once more after each pause.
        self.loader = DataLoader(
            TensorDataset(*data),
            batch_sampler=self.sampler,
            num_workers=asked.workers,
            generator=torch.Generator().manual_seed(asked.seed),
        )

    def resume(self) -> None:
        """Go on from the newest checkpoint."""
        found = self.job.checkpoints.load(lambda file: torch.load(file, map_location="cpu"))
        if found is not None:
            self.step, self.loss = found.step, found.state["loss"]
            self.model.load_state_dict(found.state["model"])
            self.optimizer.load_state_dict(found.state["optimizer"])
            self.sampler.load_state_dict(found.state["sampler"])
            torch.set_rng_state(found.state["random"])

    def save(self) -> None:
        """Write a checkpoint; what all ranks have alike, the first one writes."""
        if self.job.world.leads:
            state = {
                "loss": self.loss,
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "sampler": self.sampler.state_dict(),
                "random": torch.get_rng_state(),
            }
            self.job.checkpoints.save(self.step, state, torch.save)

    def run(self) -> None:
        """All steps that are left."""
        ranks = DistributedDataParallel(self.model) if self.job.world.size > 1 else self.model
        device = next(self.model.parameters()).device
        while self.step < self.asked.steps:
            for batch in self.loader:
                columns = tuple(column.to(device) for column in batch)
                self.loss = train_step(ranks, self.optimizer, self.plan, columns)
                self.sampler.commit()
                self.step += 1
                self.after_step()
                if self.step == self.asked.steps:
                    break
        if self.job.world.leads:
            print(f"final loss {self.loss!r}")

    def after_step(self) -> None:
        """Report, and stop if that is wanted."""
        if self.job.world.leads:
            print(f"step {self.step} loss {self.loss!r}", flush=True)
        samples, total = self.asked.global_batch, self.asked.steps
        self.job.step(self.step, loss=self.loss, samples=samples, total=total)
        stop = self.job.should_stop
        if stop or self.step % self.asked.every == 0:
            self.save()
        if stop:
            self.job.exit_checkpointed()


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: wattherd_train.BatchPlan,
    batch: tuple[torch.Tensor, ...],
) -> float:
    """One step on the global batch, of which a micro-batch is in memory; its mean loss."""
    optimizer.zero_grad()
    loss = torch.zeros((), device=batch[0].device)
    for part in plan.split(batch):
        x, y = part.items
        alone = isinstance(model, DistributedDataParallel) and not part.last
        with model.no_sync() if alone else contextlib.nullcontext():
            part_loss = part.weight * nn.functional.cross_entropy(model(x), y)
            part_loss.backward()
        loss += part_loss.detach()
    optimizer.step()
    if isinstance(model, DistributedDataParallel):
        torch.distributed.all_reduce(loss)
        loss /= torch.distributed.get_world_size()
    return loss.item()


def set_dropout(model: nn.Module, share: float) -> None:
    """Leave out another share of activations, in attention as well."""
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = share
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = share


@contextlib.contextmanager
def process_group(world: wattherd_train.World):
    """The ranks' means to average gradients, while it is needed."""
    if world.size == 1:
        yield
        return
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def device_of(world: wattherd_train.World) -> torch.device:
    """This rank's GPU, or the processor."""
    if torch.cuda.is_available():
        return torch.device("cuda", world.local_rank % torch.cuda.device_count())
    torch.set_num_threads(1)
    return torch.device("cpu")


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=64, help="most samples at once")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--dropout", type=float, help="share left out, instead of the model's own")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
