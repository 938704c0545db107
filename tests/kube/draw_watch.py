"""What nodes may draw, looked at every 0.2 s while their budget is cut and raised."""

from __future__ import annotations

import threading
from typing import Self

from kube_api import KubeApi
from kube_ledger import IDLE_W, RISE_W
from power_api import path_of

EVERY_S = 0.2


def drawn_w(api: KubeApi, namespace: str, empty_w: float) -> float:
    """What T4s may draw: bound pods at the highest cap that may be in force, else full."""
    found = float(empty_w)
    for pod in api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
        if not pod["spec"].get("nodeName"):
            continue
        notes = pod["metadata"].get("annotations", {})
        caps = [notes.get(f"wattherd.dev/{name}") for name in ("cap-w", "cap-applied-w")]
        found += max(float(cap) for cap in caps) - IDLE_W if all(caps) else RISE_W
    return found


class SampledDraw:
    """Never above the budget, but after a cut, and then less at every look."""

    def __init__(
        self, api: KubeApi, namespace: str, budget: str, *, rise_w: float, empty_w: float
    ) -> None:
        """`budget` is the name of the PowerBudget, which bears `rise_w` above the empty nodes."""
        self._api, self._namespace, self._budget = api, namespace, budget
        self.empty_w = empty_w
        self.budget_w = empty_w + rise_w
        self._before_w = 0.0
        self.looks = 0
        self.broken: list[tuple[float, float, float]] = []
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        while not self._over.wait(EVERY_S):
            with self._looking:
                self._look()

    def _look(self) -> None:
        now_w = self.drawn_w()
        if now_w > max(self.budget_w, self._before_w):
            self.broken.append((now_w, self.budget_w, self._before_w))
        self._before_w = now_w
        self.looks += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def drawn_w(self) -> float:
        return drawn_w(self._api, self._namespace, self.empty_w)

    def kept(self) -> bool:
        return self.drawn_w() <= self.budget_w

    def full(self) -> bool:
        return self.drawn_w() == self.budget_w

    def set(self, rise_w: float) -> None:
        """Change the budget; nobody waits who could still start under the old one."""
        spec = {"constant": f"{self.empty_w + rise_w:g}W"}
        with self._looking:
            self._look()
            self._api.merge(path_of("PowerBudget", self._budget), {"spec": spec})
            self.budget_w = self.empty_w + rise_w
