"""What Prometheus is told of a node's loop, as text."""

from __future__ import annotations

from wattherd.kube.decide.node_loop import NodePower

_GAUGES = {
    "wattherd_node_limit_watts": "What the node may draw, the lowest of its limits.",
    "wattherd_node_counted_watts": "What it may draw at worst: its GPUs' caps and other load.",
    "wattherd_node_draw_watts": "What its own meter shows.",
    "wattherd_node_other_load_watts": "What it draws beside its GPUs, as it is believed.",
    "wattherd_node_safe_mode": "Whether readings are missing and GPUs go to their floors.",
}


def power_metrics(power: NodePower | None) -> str:
    """Gauges; none before the first round, and of limit and draw none where there are none."""
    if power is None:
        return ""
    values = dict(zip(_GAUGES, (power.limit_w, power.counted_w, power.draw_w, power.base_w,
                                float(power.safe_mode)), strict=True))  # fmt: skip
    lines: list[str] = []
    for name, value in values.items():
        if value is not None:
            lines += [*_head(name, _GAUGES[name]), f"{name} {value:g}"]
    if power.kinds:
        name = "wattherd_node_notes"
        lines += _head(name, "What the loop notices now, by kind.")
        lines += [f'{name}{{kind="{kind}"}} {count}' for kind, count in sorted(power.kinds.items())]
    if power.gpus_w:
        name = "wattherd_node_gpu_counted_watts"
        lines += _head(name, "What each GPU that is held counts at.")
        lines += [f'{name}{{gpu="{uuid}"}} {watts:g}'
                  for uuid, watts in sorted(power.gpus_w.items())]  # fmt: skip
    return "\n".join(lines) + "\n"


def _head(name: str, help_: str) -> list[str]:
    return [f"# HELP {name} {help_}", f"# TYPE {name} gauge"]
