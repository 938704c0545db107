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
        device = device_of(job.world)
        model = fresh().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        plan = job.batches(asked.global_batch, asked.micro_batch)
        sampler = wattherd_train.ResumableSampler(
            len(data[0]), asked.global_batch, seed=asked.seed, rank=job.world.rank,
            size=job.world.size,
        )  # fmt: skip
        step, loss = 0, float("nan")
        if found := job.checkpoints.load(lambda stream: torch.load(stream, map_location="cpu")):
            step, loss = found.step, found.state["loss"]
            model.load_state_dict(found.state["model"])
            optimizer.load_state_dict(found.state["optimizer"])
            sampler.load_state_dict(found.state["sampler"])
            torch.set_rng_state(found.state["random"])
        ranks = DistributedDataParallel(model) if job.world.size > 1 else model
        # A loader without a generator of its own draws from the one of the model whenever it is
        # begun, and so once more after each pause.
        own = torch.Generator().manual_seed(asked.seed)
        loader = DataLoader(
            TensorDataset(*data), batch_sampler=sampler, num_workers=asked.workers, generator=own
        )
        while step < asked.steps:
            for batch in loader:
                columns = tuple(column.to(device) for column in batch)
                loss = train_step(ranks, optimizer, plan, columns)
                sampler.commit()
                step += 1
                if job.world.leads:
                    print(f"step {step} loss {loss!r}", flush=True)
                job.step(step, loss=loss, samples=asked.global_batch, total=asked.steps)
                stop = bool(job.should_stop)
                if job.world.leads and (stop or step % asked.every == 0):
                    state = {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "sampler": sampler.state_dict(),
                        "random": torch.get_rng_state(),
                        "loss": loss,
                    }
                    job.checkpoints.save(step, state, torch.save)
                if stop:
                    job.exit_checkpointed()
                if step == asked.steps:
                    break
        if job.world.leads:
            print(f"final loss {loss!r}")


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
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
