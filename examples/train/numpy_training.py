"""The training loop of the NumPy examples: what a job has to do to be paused, moved and slowed.

It reports each step, stops after a step when asked to, and goes on later as if nothing had been:
weights, momentum and the place in the data are in the checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import wattherd_train

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """Fresh weights from a generator, and mean loss and its gradient for a batch (x, y)."""

    fresh: Callable[[np.random.Generator], Arrays]
    gradient: Callable[[Arrays, np.ndarray, np.ndarray], tuple[float, Arrays]]
    rate: float = 0.1
    momentum: float = 0.9


def train(model: Model, x: np.ndarray, y: np.ndarray) -> None:
    """Train as the command line says, from the newest checkpoint if there is one."""
    with wattherd_train.current() as job:
        training = Training(job, arguments(), model, len(x))
        training.resume()
        training.run(x, y)


class Training:
    """What changes from step to step, and how it is kept."""

    def __init__(
        self, job: wattherd_train.Job, asked: argparse.Namespace, model: Model, samples: int
    ) -> None:
        self.job, self.asked, self.model = job, asked, model
        self.plan = job.batches(asked.global_batch, asked.micro_batch)
        self.sampler = wattherd_train.ResumableSampler(samples, asked.global_batch, seed=asked.seed)
        self.step, self.loss = 0, float("nan")
        self.weights = model.fresh(np.random.default_rng(asked.seed))
        self.speed = {name: np.zeros_like(value) for name, value in self.weights.items()}

    def resume(self) -> None:
        """Go on from the newest checkpoint."""
        found = self.job.checkpoints.load()
        if found is not None:
            self.step, (self.loss, self.weights, self.speed, place) = found.step, found.state
            self.sampler.load_state_dict(place)

    def save(self) -> None:
        """Write a checkpoint."""
        state = (self.loss, self.weights, self.speed, self.sampler.state_dict())
        self.job.checkpoints.save(self.step, state)

    def run(self, x: np.ndarray, y: np.ndarray) -> None:
        """All steps that are left."""
        while self.step < self.asked.steps:
            for rows in self.sampler:
                self.update(x[rows], y[rows])
                self.sampler.commit()
                self.step += 1
                self.after_step()
                if self.step == self.asked.steps:
                    break
        print(f"final loss {self.loss!r}")

    def update(self, x: np.ndarray, y: np.ndarray) -> None:
        """One step of gradient descent with momentum."""
        self.loss, gradient = whole_batch(self.model, self.weights, self.plan, x, y)
        for name, slope in gradient.items():
            self.speed[name] = self.model.momentum * self.speed[name] - self.model.rate * slope
            self.weights[name] = self.weights[name] + self.speed[name]

    def after_step(self) -> None:
        """Report, and stop if that is wanted."""
        print(f"step {self.step} loss {self.loss!r}", flush=True)
        samples = self.asked.global_batch
        total = None if self.asked.open_ended else self.asked.steps
        self.job.step(self.step, loss=self.loss, samples=samples, total=total)
        stop = self.job.should_stop
        if stop or self.step % self.asked.every == 0:
            self.save()
        if stop:
            self.job.exit_checkpointed()


def whole_batch(
    model: Model, weights: Arrays, plan: wattherd_train.BatchPlan, x: np.ndarray, y: np.ndarray
) -> tuple[float, Arrays]:
    """Loss and gradient of a whole batch, of which only a micro-batch is computed at once."""
    loss, total = 0.0, {name: np.zeros_like(value) for name, value in weights.items()}
    for part in plan.split((x, y)):
        part_loss, gradient = model.gradient(weights, *part.items)
        loss += part.weight * part_loss
        for name, value in gradient.items():
            total[name] += part.weight * value
    return float(loss), total


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=64, help="most samples at once")
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--open-ended", action="store_true", help="do not report the last step")
    return parser.parse_args()


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean loss over the batch, and its gradient by the logits (batch, classes)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    by_logits = np.exp(log_p)
    by_logits[np.arange(len(y)), y] -= 1
    return float(-log_p[np.arange(len(y)), y].mean()), by_logits / len(y)
