"""One cell of a placement grid: a policy that packs a pod list into a node list."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattherd.catalog.cpus import CPUS
from wattherd.catalog.gpus import GPUS
from wattherd.experiments.placement.pack import Experiment, run_once
from wattherd.experiments.sweep import fingerprint
from wattherd.experiments.sweep.cell import FileDigests, Place
from wattherd.plugins import announced
from wattherd.store.result_cache import key_of
from wattherd.workload.openb import read_nodes, read_pods

_FIGURES = ("pods", "placed", "allocated_pct", "grar", "frag_ratio_pct", "power_w")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCell:
    """Pods arrive until GPU demand is `load` times the capacity; the seed draws them."""

    kind = "placement"
    workload: str
    nodes: str
    pods: str
    policy: str
    load: float
    seed: int

    def place(self) -> dict[str, Place]:
        """Where in the grid it is."""
        return {"workload": self.workload, "policy": self.policy, "seed": self.seed}

    def key(self, files: FileDigests) -> str | None:
        """The name of its result; None where a file or a plug-in's code cannot be read.

        Any installed scorer may be a part of a policy, so all of them count.
        """
        inputs = [files.digest(path) for path in (self.nodes, self.pods)]
        code = {name: files.code("place", name) for name in announced("place")}
        if None in inputs or None in code.values():
            return None
        found = asdict(self) | {"nodes": inputs[0], "pods": inputs[1], "workload": ""}
        return key_of({"of": "placement/1", **found, "code": code, "by": fingerprint.made_by()})

    def compute(self) -> dict[str, Any]:
        """Pack, and what was allocated at the end, as plain JSON.

        Raises:
            UserError: a file or policy that cannot be used.
        """
        experiment = Experiment(
            cluster=read_nodes(Path(self.nodes), known=GPUS, known_cpus=CPUS),
            pods=read_pods(Path(self.pods), known=GPUS),
            load=self.load,
        )
        run = run_once(experiment, self.policy, self.seed)
        row = {name: getattr(run, name) for name in _FIGURES}
        plain: dict[str, Any] = json.loads(json.dumps({"row": row}, allow_nan=False, default=float))
        return plain

    def document(self) -> dict[str, Any]:
        """As JSON, for another process."""
        return asdict(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> PlacementCell:
        """The cell again."""
        return cls(**document)
