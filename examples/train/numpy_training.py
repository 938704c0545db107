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
    asked = arguments()
    with wattherd_train.current() as job:
        plan = job.batches(asked.global_batch, asked.micro_batch)
        sampler = wattherd_train.ResumableSampler(len(x), asked.global_batch, seed=asked.seed)
        weights = model.fresh(np.random.default_rng(asked.seed))
        speed = {name: np.zeros_like(value) for name, value in weights.items()}
        step, loss = 0, np.nan
        if found := job.checkpoints.load():
            step, (weights, speed, loss, place) = found.step, found.state
            sampler.load_state_dict(place)
        while step < asked.steps:
            for rows in sampler:
                loss, gradient = whole_batch(model, weights, plan, x[rows], y[rows])
                for name in weights:
                    speed[name] = model.momentum * speed[name] - model.rate * gradient[name]
                    weights[name] = weights[name] + speed[name]
                sampler.commit()
                step += 1
                print(f"step {step} loss {loss!r}", flush=True)
                job.step(step, loss=loss, samples=len(rows), total=asked.steps)
                stop = bool(job.should_stop)
                if stop or step % asked.every == 0:
                    job.checkpoints.save(step, (weights, speed, loss, sampler.state_dict()))
                if stop:
                    job.exit_checkpointed()
                if step == asked.steps:
                    break
        print(f"final loss {loss!r}")


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
    return parser.parse_args()


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean loss over the batch, and its gradient by the logits (batch, classes)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    by_logits = np.exp(log_p)
    by_logits[np.arange(len(y)), y] -= 1
    return float(-log_p[np.arange(len(y)), y].mean()), by_logits / len(y)
