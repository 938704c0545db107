"""Tiresias (Gu et al., NSDI'19), its simulator on the released trace of 60 jobs.

4 nodes of 4 GPUs, GPUs counted only, or placed by YARN's rule (`@yarn`); restarts are free.
`sjf` is the simulator's: fewest GPUs first. Published are the figures that the authors' simulator
prints, to one decimal. Its `shortest-gpu` keeps the order of the last event among jobs of equal
remaining service; here the order of submission decides, which moves the mean by half a percent.
"""

from __future__ import annotations

from wattherd.experiments.published.figures import PublishedFigure, Suite

ONE_DECIMAL = 4e-4
TIES = 6e-3


def _figure(policy: str, avg_jct_s: float, within: float = ONE_DECIMAL) -> PublishedFigure:
    return PublishedFigure(trace="60_job", policy=policy, avg_jct_s=avg_jct_s, within=within)


SUITE = Suite(
    preset="tiresias-nsdi19",
    kind="tiresias",
    cluster="4x4:V100M16",
    figures=(
        _figure("fifo", 200.8),
        _figure("tiresias", 190.7),
        _figure("srsf", 195.9, within=TIES),
        _figure("srtf", 192.1),
        _figure("sjf", 198.2),
        _figure("fifo@yarn", 219.2),
        _figure("tiresias@yarn", 190.7),
    ),
)
