"""Two racks of T4s, each a power domain, and budgets told in GPUs that may be busy there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kube_api import KubeApi, a_node

IDLE_W, RISE_W = 10, 60
"""Of a T4 that is free, and what it adds in use, by the catalog."""


@dataclass(frozen=True, slots=True)
class Racks:
    """`nodes` nodes with `gpus` T4s each, in turns in the one rack and in the other."""

    prefix: str
    nodes: int
    gpus: int = 4

    @contextmanager
    def made(self, api: KubeApi) -> Iterator[dict[str, str]]:
        """The nodes are there; yields their domains by name."""
        product = {"nvidia.com/gpu.product": "Tesla-T4"}
        domains = {
            f"{self.prefix}-{row}": f"{self.prefix}-rack-{row % 2}" for row in range(self.nodes)
        }
        api.fleet(
            a_node(name, gpus=self.gpus, labels=product | {"wattherd.dev/power-domain": domain})
            for name, domain in domains.items()
        )
        try:
            yield domains
        finally:
            api.remove_nodes(domains)

    def budgets(self, first: int, second: int, together: int) -> tuple[str, str, str]:
        """Options that bear so many busy GPUs in each rack, and in both."""
        idle_w = self.nodes * self.gpus * IDLE_W
        return (
            f"--budget={self.prefix}-rack-0={idle_w // 2 + first * RISE_W}W",
            f"--budget={self.prefix}-rack-1={idle_w // 2 + second * RISE_W}W",
            f"--budget={idle_w + together * RISE_W}W",
        )
