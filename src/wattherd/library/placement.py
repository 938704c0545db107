"""Placement policies on a cluster, from Python: what `wattherd sim pack` does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from wattherd.catalog.cpus import CPUS
from wattherd.catalog.gpus import GPUS
from wattherd.experiments.placement.pack import Experiment, MeasuredPack, document, run_all
from wattherd.experiments.placement.policies import place_policy
from wattherd.library.inputs import Source, input_file
from wattherd.library.plot import Plot, first_html, plots
from wattherd.library.table import Cell, Table
from wattherd.report.page import plots_as_svg, write_report
from wattherd.report.plugin_reports import MakeReport
from wattherd.store.run_dir import PACK_FILE, RunDir
from wattherd.workload.impossible_requests import never_fits
from wattherd.workload.openb import read_nodes, read_pods


def pack(
    nodes: Source,
    pods: Source,
    policies: str | Sequence[str] = ("wattherd", "fgd"),
    *,
    load: float | None = None,
    seeds: Sequence[int] = (42,),
    processes: int | None = 1,
) -> Packing:
    """Let the pods of a list arrive one by one, and see which find room under each policy.

    Args:
        nodes: a node list as a CSV file, a frame or rows (docs/reference/pack-json.md).
        pods: a pod list, likewise.
        policies: `wattherd policies` lists them.
        load: pods are drawn until they ask for so much of all GPUs (1.3 is 130 %); without it each
            arrives once.
        seeds: of the order of arrivals; each policy meets the same.
        processes: runs at a time; None is one for each processor.

    Raises:
        UserError: an input that cannot be used; names file, row or field.
    """
    names = [policies] if isinstance(policies, str) else list(policies)
    for name in names:
        place_policy(name)
    with input_file(nodes, "nodes") as nodes_file, input_file(pods, "pods") as pods_file:
        experiment = Experiment(
            cluster=read_nodes(nodes_file, known=GPUS, known_cpus=CPUS),
            pods=read_pods(pods_file, known=GPUS),
            load=load,
        )
        files = str(nodes_file), str(pods_file)
    at_a_time = processes or os.cpu_count() or 1
    found = dict(run_all(experiment, names, list(seeds), processes=at_a_time))
    runs = tuple(found[position] for position in sorted(found))
    return Packing(experiment=experiment, runs=runs, files=files)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Packing:
    """What each policy made of the same arrivals."""

    experiment: Experiment
    runs: tuple[MeasuredPack, ...]
    files: tuple[str, str]

    @property
    def summary(self) -> Table:
        """A row for each policy and seed: GPUs allocated, fragments, watts."""
        return Table.of_rows(_figures(run) for run in self.runs)

    @property
    def curves(self) -> Table:
        """Over arrived demand: what was allocated, was a fragment, and drew watts."""
        return Table.of_rows(row for run in self.runs for row in _curve(run))

    @property
    def document(self) -> dict[str, Any]:
        """All figures as `wattherd.pack/1`."""
        nodes_file, pods_file = self.files
        return document(
            self.experiment, self.runs, nodes_file=nodes_file, pods_file=pods_file,
            impossible=never_fits(self.experiment.pods, self.experiment.cluster),
            command="wattherd.pack",
        )  # fmt: skip

    def save(self, folder: Path | str) -> Path:
        """Write the run directory that `wattherd report` reads; its path.

        Raises:
            UserError: it cannot be written.
        """
        RunDir(Path(folder)).write_json(PACK_FILE, self.document)
        return Path(folder)

    def report(self, page: Path | str, *, sections: Sequence[str | MakeReport] = ()) -> Path:
        """Write one self-contained page with tables and plots; its path.

        Args:
            page: the file.
            sections: what the page has besides, as for a `Simulation`.

        Raises:
            UserError: it cannot be written, or a section is unknown.
        """
        with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
            return write_report(self.save(folder), out=Path(page), sections=sections)[0]

    @property
    def plots(self) -> dict[str, Plot]:
        """The plots of the report by name."""
        with tempfile.TemporaryDirectory(prefix="wattherd-") as folder:
            return plots(plots_as_svg(self.save(folder)))

    def __repr__(self) -> str:
        """The summary, as a table prints itself."""
        return repr(self.summary)

    def _repr_html_(self) -> str:
        """In a notebook: the figures, and the first plot of the report."""
        return self.summary._repr_html_() + first_html(self.plots)


def _figures(run: MeasuredPack) -> dict[str, Cell]:
    named = (one.name for one in fields(run) if one.name not in ("curve", "grid"))
    return {name: getattr(run, name) for name in named}


def _curve(run: MeasuredPack) -> list[dict[str, Cell]]:
    columns = {one.name: getattr(run.curve, one.name).tolist() for one in fields(run.curve)}
    return [
        {"policy": run.policy, "seed": run.seed, **dict(zip(columns, cells, strict=True))}
        for cells in zip(*columns.values(), strict=True)
    ]
