"""The page Cluster: a cell for every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wattherd.report.charts import Chart
from wattherd.report.gpu_grid import GpuCell, GridNode, draw_grid
from wattherd.server.auth.caller import Caller
from wattherd.server.documents.documents import SiteView
from wattherd.server.documents.privacy import OTHERS
from wattherd.server.hardware.device_use import NOT_KNOWN, GpuUse
from wattherd.server.web.page_source import PageSource
from wattherd.server.web.paging import Paged, paged
from wattherd.server.web.picture import LOW, picture
from wattherd.server.web.render import NOTHING, show_w
from wattherd.units import show_bytes

CELLS = 512
"""GPUs on one page; more could neither be told apart nor be drawn in time."""


def cluster_view(scene: PageSource, caller: Caller, page: int) -> dict[str, Any]:
    """All that the page shows."""
    use = scene.use()
    rows, cut, counts = scene.look(lambda look: _cluster(look, caller, page, use))
    chart = Chart(
        key="grid",
        title="GPUs",
        caption="The darker a cell, the closer its draw to its cap; the lightest are idle.",
        draw=lambda frame, key: draw_grid(rows, frame, key),
    )
    return {"picture": picture(chart, LOW), "cut": cut, "total": summed(use), **counts}


def summed(use: Sequence[GpuUse]) -> GpuUse:
    """Of several devices: the mean part that is busy, and bytes in sum; of those that tell."""
    busy = [one.busy for one in use if one.busy is not None]
    used = [one.memory_used_bytes for one in use if one.memory_used_bytes is not None]
    whole = [one.memory_bytes for one in use if one.memory_bytes is not None]
    return GpuUse(
        busy=sum(busy) / len(busy) if busy else None,
        memory_used_bytes=sum(used) if used else None,
        memory_bytes=sum(whole) if whole else None,
    )


def _cluster(
    look: SiteView, caller: Caller, page: int, use: Sequence[GpuUse]
) -> tuple[list[GridNode], Paged[Any], dict[str, Any]]:
    devices = [
        (number, gpu)
        for number, node in enumerate(look.core.config.cluster.nodes)
        for gpu in range(node.gpu_count)
    ]
    cut = paged(devices, page, CELLS)
    holders = _holders(look)
    rows: list[GridNode] = []
    for node in dict.fromkeys(number for number, _ in cut.items):
        cells = [
            _with_use(_cell(look, caller, node, gpu, holders), gpu, use)
            for n, gpu in cut.items
            if n == node
        ]
        rows.append(GridNode(name=_node_name(look, node), cells=cells))
    counts = {
        "gpus": len(devices),
        "busy": len(holders),
        "nodes": len(look.core.config.cluster.nodes),
        "lost": len(look.core.lost),
        "estimated": look.stated == "model",
        "model": look.machine.gpu.name,
        "most_w": look.machine.gpu.max_w,
    }
    return rows, cut, counts


def _with_use(cell: GpuCell, gpu: int, use: Sequence[GpuUse]) -> GpuCell:
    """The same cell; its text says how busy the device is, where that is known."""
    if cell.lost or gpu >= len(use) or use[gpu] == NOT_KNOWN:
        return cell
    return replace(cell, tip=f"{cell.tip}, {use_text(use[gpu])}")


def use_text(use: GpuUse) -> str:
    """How busy, and how much memory, in words."""
    busy = NOTHING if use.busy is None else f"{use.busy:.0%}"
    used, whole = use.memory_used_bytes, use.memory_bytes
    if used is None or whole is None:
        return f"{busy} busy"
    return f"{busy} busy, {show_bytes(used)} of {show_bytes(whole)} memory"


def _holders(look: SiteView) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for record in look.core.jobs.values():
        for one in record.allocations:
            for gpu in one.gpus:
                found.setdefault((one.node, gpu), []).append(record.id)
    return found


def _node_name(look: SiteView, node: int) -> str:
    spec = look.core.config.cluster.nodes[node]
    lost = ", lost" if node in look.core.lost else ""
    return f"{spec.name}: {spec.gpu_count} x {spec.gpu_model}{lost}"


def _cell(
    look: SiteView, caller: Caller, node: int, gpu: int, holders: dict[tuple[int, int], list[str]]
) -> GpuCell:
    where = f"GPU {gpu}"
    if node in look.core.lost:
        return GpuCell(number=gpu, share=None, tip=f"{where}: lost with its node", lost=True)
    jobs = holders.get((node, gpu), [])
    drained = look.core.drained.out.get((node, gpu))
    if drained is not None:
        return GpuCell(number=gpu, share=None, tip=f"{where}: drained ({drained.cause})", lost=True)
    if not jobs:
        return GpuCell(number=gpu, share=None, tip=f"{where}: idle")
    last = look.book.samples[-1].by_job if look.book.samples else {}
    records = [look.core.jobs[job_id] for job_id in jobs]
    draw_w = sum(last.get(one.id, 0.0) / max(one.gpus, 1) for one in records)
    caps = [one.cap_w for one in records if one.cap_w is not None]
    cap_w = min(caps) if caps else look.machine.gpu.max_w
    names = [one.id if caller.sees(one.spec) else OTHERS for one in records]
    watts = f"{show_w(draw_w)} of {show_w(cap_w)}{'' if caps else ' (no cap)'}"
    return GpuCell(
        number=gpu,
        share=draw_w / cap_w if cap_w else 1.0,
        tip=f"{where}: {', '.join(names)}, {watts}",
        link="" if names[0] == OTHERS else f"/jobs/{names[0]}",
    )
