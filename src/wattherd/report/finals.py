"""Which final clusters a report shows: one per policy, of the lowest seed that was kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattherd.report.charts import Chart
from wattherd.report.cluster import read_final
from wattherd.report.compare import trace_rows
from wattherd.report.heatmap import READING, Panel, draw_map, panels
from wattherd.report.runs import PackRun, TraceRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCluster:
    """The cluster at the end of `run`, by GPU model; `used` is the share of GPUs in use."""

    run: PackRun
    panels: tuple[Panel, ...]

    @property
    def used(self) -> float:
        """Used share of all GPUs."""
        gpus = sum(panel.gpus for panel in self.panels)
        return sum(panel.used * panel.gpus for panel in self.panels) / gpus

    def chart(self) -> Chart:
        """The map as one picture."""
        title = f"The cluster at the end: {self.run.policy}, seed {self.run.seed}"
        return Chart(
            key="cluster",
            title=title,
            caption=READING,
            draw=lambda frame, key: draw_map(self.panels, title, frame, key),
        )


def final_clusters(trace: TraceRuns) -> list[FinalCluster]:
    """Final clusters of one trace, the policy that allocates most first."""
    by_merit = sorted(trace_rows(trace), key=lambda row: -row.allocated_pct.mean)
    kept = (_kept(trace, row.policy) for row in by_merit)
    found = (_final(*each) for each in kept if each)
    return [final for final in found if final.panels]


def _kept(trace: TraceRuns, policy: str) -> tuple[PackRun, Path] | None:
    for run in trace.of(policy):
        for source in trace.sources:
            if run in source.pack.runs and source.final_file(run).is_file():
                return run, source.final_file(run)
    return None


def _final(run: PackRun, file: Path) -> FinalCluster:
    return FinalCluster(run=run, panels=tuple(panels(read_final(file))))
