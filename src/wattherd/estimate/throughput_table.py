"""Measured training speeds by worker type: the oracle of Gavel's experiments (OSDI'20).

A worker type is a kind of GPU (`v100`); a job kind is a model with its batch size, a scale the
number of GPUs it trains on. Rates are steps per second of the whole job, 0 where it does not run
(out of memory). A rate may also be given for a job whose GPUs sit on several servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from wattherd.errors import UserError
from wattherd.spelling import hint_for

Key = tuple[str, int]
"""Job kind and scale."""


@dataclass(frozen=True)
class ThroughputTable:
    """`rates[worker type][kind, scale]` with the GPUs together, `spread` with them apart."""

    rates: Mapping[str, Mapping[Key, float]]
    spread: Mapping[str, Mapping[Key, float]]

    @cached_property
    def types(self) -> tuple[str, ...]:
        """Worker types, fastest first: by the mean over what was measured on all of them."""
        shared = sorted(set.intersection(*(set(rates) for rates in self.rates.values())))
        speed = {name: sum(rates[key] for key in shared) for name, rates in self.rates.items()}
        return tuple(sorted(speed, key=lambda name: (-speed[name], name)))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Job kinds measured on any type."""
        return frozenset(kind for rates in self.rates.values() for kind, _ in rates)

    def scales(self, kind: str) -> tuple[int, ...]:
        """Numbers of GPUs at which a job kind was measured on any type."""
        found = {scale for rates in self.rates.values() for name, scale in rates if name == kind}
        return tuple(sorted(found))

    def rate(self, worker_type: str, kind: str, scale: int) -> float:
        """Steps per second; 0 where the job does not run or was not measured on this type."""
        return self.rates[worker_type].get((kind, scale), 0.0)

    def spread_rate(self, worker_type: str, kind: str, scale: int) -> float:
        """The same with the GPUs on several servers, as together where that was not measured."""
        apart = self.spread.get(worker_type, {})
        return apart.get((kind, scale), self.rate(worker_type, kind, scale))

    def type_of(self, gpu_model: str) -> str:
        """The worker type that stands for a GPU model: the longest name that the model begins with.

        Raises:
            UserError: none does.
        """
        name = gpu_model.casefold()
        fitting = [known for known in self.rates if name.startswith(known.casefold())]
        if not fitting:
            raise UserError(
                f"no throughputs were measured on GPU model {gpu_model!r}",
                hint=hint_for(gpu_model, self.rates),
            )
        return max(fitting, key=len)

    def check(self, kind: str, scale: int, *, where: str) -> None:
        """See that a job kind was measured at this scale, on some type.

        Raises:
            UserError: it was not; says what was.
        """
        if kind not in self.kinds:
            hint = hint_for(kind, self.kinds)
            raise UserError(f"unknown job type {kind!r}", where=where, field="job_type", hint=hint)
        if scale not in self.scales(kind):
            known = ", ".join(map(str, self.scales(kind)))
            raise UserError(
                f"no throughput of {kind!r} on {scale} GPUs",
                where=where,
                field="scale_factor",
                hint=f"measured on {known}",
            )


def whole_steps(rate_per_s: float, seconds: float, left: int | None) -> int:
    """Steps of a job that end within `seconds`, of the `left` ones."""
    steps = int(rate_per_s * seconds)
    return steps if left is None else min(steps, left)


def types_of(table: ThroughputTable, gpu_models: Iterable[str]) -> list[str]:
    """The worker type of each GPU model; empty where there is none (a node without GPUs)."""
    return [table.type_of(model) if model else "" for model in gpu_models]
