"""Where the inputs of the placement papers lie on disk, and which of them are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattherd.catalog.gpus import GPUS
from wattherd.errors import UserError
from wattherd.experiments.placement.pack import Experiment
from wattherd.workload.openb import read_nodes, read_pods
from wattherd.workload.published_curves import TRACE_PREFIX

NODE_LIST = "openb_node_list_gpu_node.csv"
ALL_SEEDS = tuple(range(42, 52))
"""The seeds of both papers' ten repetitions."""


@dataclass(frozen=True, slots=True)
class OpenbFiles:
    """The folder of the public files."""

    directory: Path

    def traces(self, asked: tuple[str, ...] = ()) -> list[str]:
        """The traces on disk, or those `asked` for.

        Raises:
            UserError: none is there, or one that was asked for is not.
        """
        found = sorted(
            path.stem.removeprefix(TRACE_PREFIX)
            for path in self.directory.glob(f"{TRACE_PREFIX}*.csv")
        )
        missing = [trace for trace in asked if trace not in found]
        if missing or not found:
            raise UserError(
                f"no pod list for {', '.join(missing) or 'any trace'}",
                where=str(self.directory),
                hint="set WATTHERD_DATA, or run `wattherd traces fetch`",
            )
        return list(asked) or found

    def result(self, name: str) -> Path:
        """A published result file, in `published/` or beside the traces."""
        nested = self.directory / "published" / name
        return nested if nested.exists() else self.directory / name

    def experiment(self, trace: str) -> Experiment:
        """The trace at 130 % load, with the authors' own orders where they are on disk."""
        order = self.directory / "orders" / f"{TRACE_PREFIX}{trace}.json.gz"
        return Experiment(
            cluster=read_nodes(self.directory / NODE_LIST, known=GPUS),
            pods=read_pods(self.directory / f"{TRACE_PREFIX}{trace}.csv", known=GPUS),
            order_file=order if order.exists() else None,
        )
