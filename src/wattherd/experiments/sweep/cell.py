"""One cell of a grid: a scheduler on a workload under a budget, told so that it can be kept.

A cell is a scenario with one policy, one budget and one way of sharing it. Its name is made of what
it depends on (`identity`); its result is plain JSON, the same whether computed or kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from wattherd.experiments.schedule.run import ComparedRun, simulate
from wattherd.experiments.schedule.setup import setting_of
from wattherd.experiments.schedule.workloads import FORMATS
from wattherd.experiments.sweep import fingerprint
from wattherd.plugins import announced
from wattherd.store.result_cache import key_of
from wattherd.workload.scenario import JobsFile, Scenario

Place = str | int | float | None
CELL_COLUMNS = ("workload", "cluster", "policy", "power", "budget", "seed")


class FileDigests:
    """Digests of files and of plug-ins' code, each read once."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._known: dict[str, str | None] = {}
        self._code: dict[tuple[str, str], str | None] = {}

    def digest(self, path: str) -> str | None:
        """Of a file or folder; None if it cannot be read."""
        if path not in self._known:
            self._known[path] = fingerprint.of_file(Path(path))
        return self._known[path]

    def code(self, seam: str, name: str) -> str | None:
        """Of a plug-in; None if its source is not found."""
        if (seam, name) not in self._code:
            self._code[seam, name] = fingerprint.of_plugin(seam, name)
        return self._code[seam, name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCell:
    """A simulation of a grid; `workload` is what users call its jobs."""

    kind = "schedule"
    workload: str
    scenario: Scenario

    @property
    def policy(self) -> str:
        """Its scheduler."""
        return self.scenario.policies[0]

    @property
    def shared(self) -> bool:
        """Whether watts are shared at all."""
        return self.scenario.budgets[0] is not None or self.scenario.power_tree is not None

    def place(self) -> dict[str, Place]:
        """Where in the grid it is; without a budget there is no way of sharing it."""
        one = self.scenario
        power = one.power[0] if self.shared else None
        places = (self.workload, one.cluster, self.policy, power, one.budgets[0], one.seed)
        return dict(zip(CELL_COLUMNS, places, strict=True))

    def key(self, files: FileDigests) -> str | None:
        """The name of its result; None where not everything that it depends on can be named.

        That is so of rates from a web address, of a plug-in whose code is not found, and of a
        plug-in's file format, whose files may refer to others.
        """
        inputs, code = self._inputs(files), self._code(files)
        if inputs is None or code is None:
            return None
        identity = {"of": "schedule/1", "scenario": inputs, "code": code}
        return key_of({**identity, "by": fingerprint.made_by()})

    def _inputs(self, files: FileDigests) -> dict[str, Any] | None:
        """The scenario with files as their digests; None if one cannot be read."""
        scenario = self.scenario
        if scenario.jobs.format not in FORMATS:
            return None
        stated = scenario.stated()
        paths = {
            "file": scenario.jobs.file,
            "profiles": scenario.jobs.profiles,
            "power_profiles": scenario.jobs.power_profiles,
            "power_tree": scenario.power_tree if isinstance(scenario.power_tree, str) else None,
            "rates": scenario.rates,
            "table": scenario.speed.table if scenario.speed is not None else None,
        }
        digests = {name: files.digest(path) for name, path in paths.items() if path is not None}
        if None in digests.values():
            return None
        for name, digest in digests.items():
            of_speed = stated["speed"] if name == "table" else stated
            group = stated["jobs"] if name in JobsFile.model_fields else of_speed
            group[name] = digest
        return stated

    def _code(self, files: FileDigests) -> dict[str, str] | None:
        """Code of plug-ins that it runs; None if that is not found."""
        found: dict[str, str] = {}
        for seam, name in (("schedule", self.policy), ("power", self.scenario.power[0])):
            if name in announced(seam):
                digest = files.code(seam, name)
                if digest is None:
                    return None
                found[f"{seam}:{name}"] = digest
        return found

    def compute(self) -> dict[str, Any]:
        """Simulate: figures, and who was left unfinished, as plain JSON.

        Raises:
            UserError: something that cannot be used.
        """
        one = self.scenario
        setting = setting_of(one, budget=one.budgets[0], power=one.power[0])
        run = simulate(setting, self.policy)
        found = {"row": run.row, "unfinished": unfinished_by_reason(run)}
        plain: dict[str, Any] = json.loads(json.dumps(found, allow_nan=False))
        return plain

    def document(self) -> dict[str, Any]:
        """As JSON, for another process."""
        return {"workload": self.workload, "scenario": self.scenario.model_dump(mode="json")}

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> ScheduleCell:
        """The cell again."""
        scenario = Scenario.model_validate(document["scenario"])
        return cls(workload=document["workload"], scenario=scenario)


def grid(
    workload: str, scenario: Scenario, seeds: Iterable[int] | None = None
) -> list[ScheduleCell]:
    """Every policy, budget, way of sharing and seed of a scenario, in this order.

    Without a budget nothing is shared: one cell stands for every way of sharing.
    """
    cells = []
    ways = product(
        scenario.policies, scenario.budgets, scenario.power, seeds or (scenario.seed,)
    )  # fmt: skip
    for policy, budget, power, seed in ways:
        one = {"policies": [policy], "budgets": [budget], "power": [power], "seed": seed}
        cell = ScheduleCell(workload=workload, scenario=scenario.model_copy(update=one))
        if cell.shared or power == scenario.power[0]:
            cells.append(cell)
    return cells


def unfinished_by_reason(run: ComparedRun) -> list[dict[str, Any]]:
    """How many jobs were not over at the end, by why, each reason with its first job."""
    found: dict[str, dict[str, Any]] = {}
    for job, why in run.unfinished:
        one = found.setdefault(why.partition(":")[0], {"jobs": 0, "first": job, "why": why})
        one["jobs"] += 1
    return list(found.values())
