"""What pages are made from: a service at work, or what one has left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattherd.service.live.chronicle import Chronicle
from wattherd.service.live.device_use import Use
from wattherd.service.live.documents import Look
from wattherd.service.live.keeper import Keeper
from wattherd.service.live.site import Site
from wattherd.service.live.site_limits import Level
from wattherd.service.live.site_tree import TreeBook
from wattherd.store.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`look` asks something of the state between two turns; without `keeper` nothing changes.

    `runs` is where simulated runs are that may be compared.
    """

    look: Callable[[Callable[[Look], Any]], Any]
    now_s: Callable[[], float]
    chronicle: Chronicle
    projection: Projection
    state: Path
    runs: Path
    keeper: Keeper | None = None
    moves: bool = False
    """Whether things happen though nothing can be changed here."""
    use: Callable[[], Sequence[Use]] = tuple
    """How busy devices are, in order; nothing where nobody can tell."""
    signals: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """What sources of limits from outside say; nothing where nobody listens."""
    levels: Callable[[], Sequence[Level]] = tuple
    """Levels above the machine, where any are watched."""
    tree: TreeBook = field(default_factory=TreeBook)
    """What is remembered of them, and of devices that are silent."""

    @property
    def live(self) -> bool:
        """Whether anything can still happen."""
        return self.moves or self.keeper is not None


def scene_of(site: Site) -> Scene:
    """A service at work."""
    return Scene(
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
