"""Figures of published simulators whose jobs have known durations: one run for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.schedule.run import ComparisonSetup, simulate
from wattherd.experiments.schedule.scheduler_context import SchedulerContext
from wattherd.experiments.schedule.simulators import preset
from wattherd.experiments.schedule.workloads import read_workload
from wattherd.workload.cluster_text import parse_cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """What `policy` is published to reach on a trace: mean completion time and, if known, makespan.

    `within` is the permitted difference as a part of the published figure.
    """

    trace: str
    policy: str
    avg_jct_s: float
    makespan_s: float | None = None
    within: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The figures of one simulator and how it was run; traces have the format `kind`."""

    preset: str
    kind: str
    cluster: str
    figures: Sequence[PublishedFigure]

    def compare(self, directory: Path) -> Iterator[FigureCheck]:
        """Every figure beside ours.

        Raises:
            UserError: the traces are not in `directory`.
        """
        for figure in self.figures:
            yield from self._checks(figure, _file(directory, figure.trace))

    def _checks(self, figure: PublishedFigure, path: Path) -> Iterator[FigureCheck]:
        cluster = parse_cluster(self.cluster, known=GPUS)
        given = SchedulerContext(jobs=read_workload(self.kind, path, None), cluster=cluster)
        row = simulate(ComparisonSetup(preset=preset(self.preset), given=given), figure.policy).row
        for key, quantity, published in (
            ("avg_jct_s", "mean completion time (s)", figure.avg_jct_s),
            ("makespan_s", "makespan (s)", figure.makespan_s),
        ):
            if published is not None:
                yield FigureCheck(
                    trace=figure.trace,
                    policy=figure.policy,
                    quantity=quantity,
                    published=published,
                    ours=float(str(row[key])),
                    tolerance=published * figure.within,
                )


def _file(directory: Path, name: str) -> Path:
    for path in (directory / f"{name}.csv", directory / f"{name}.csv.gz"):
        if path.exists():
            return path
    hint = "set WATTHERD_DATA, or name the folder of the traces with --data"
    raise UserError(f"no {name}.csv", where=str(directory), hint=hint)
