"""What pages are made from: a service at work, or what one has left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattherd.server.documents.documents import SiteView
from wattherd.server.hardware.device_use import GpuUse
from wattherd.server.journal.core_loop import CoreLoop
from wattherd.server.journal.timeline import SiteTimeline
from wattherd.server.limits.site_limits import SiteLevel
from wattherd.server.site.power_tree import TreeBook
from wattherd.server.site.site import LiveSite
from wattherd.store.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSource:
    """`look` asks something of the state between two turns; without `keeper` nothing changes.

    `runs` is where simulated runs are that may be compared.
    """

    look: Callable[[Callable[[SiteView], Any]], Any]
    now_s: Callable[[], float]
    chronicle: SiteTimeline
    projection: Projection
    state: Path
    runs: Path
    keeper: CoreLoop | None = None
    moves: bool = False
    """Whether things happen though nothing can be changed here."""
    use: Callable[[], Sequence[GpuUse]] = tuple
    """How busy devices are, in order; nothing where nobody can tell."""
    signals: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """What sources of limits from outside say; nothing where nobody listens."""
    levels: Callable[[], Sequence[SiteLevel]] = tuple
    """Levels above the machine, where any are watched."""
    tree: TreeBook = field(default_factory=TreeBook)
    """What is remembered of them, and of devices that are silent."""

    @property
    def live(self) -> bool:
        """Whether anything can still happen."""
        return self.moves or self.keeper is not None


def scene_of(site: LiveSite) -> PageSource:
    """A service at work."""
    return PageSource(
        look=site.look,
        now_s=site.clock.now_s,
        chronicle=site.chronicle,
        projection=site.store.projection,
        state=site.config.state,
        runs=site.config.runs,
        keeper=site.keeper,
        use=site.instruments.use,
        signals=lambda: site.signals.told()["signals"],
        levels=site.levels,
        tree=site.tree,
    )
