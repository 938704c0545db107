"""How often the extender was asked and how long answers took, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

EDGES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Up to the time limit of a binding, which takes as long as the API server does (seconds)."""
_NAME = "wattherd_extender_answer_seconds"


@dataclass(slots=True)
class _Verb:
    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES_S) + 1))
    sum_s: float = 0.0


@dataclass(slots=True)
class ExtenderTally:
    """Counts since the start; `late` answers came after the deadline."""

    late: int = 0
    _verbs: dict[str, _Verb] = field(default_factory=dict)

    def answered(self, verb: str, took_s: float) -> None:
        """One answer was given."""
        one = self._verbs.setdefault(verb, _Verb())
        one.counts[bisect_left(EDGES_S, took_s)] += 1
        one.sum_s += took_s

    def text(self) -> str:
        """The exposition format, version 0.0.4."""
        lines = [
            "# HELP wattherd_extender_late_total Questions not answered within the deadline.",
            "# TYPE wattherd_extender_late_total counter",
            f"wattherd_extender_late_total {self.late}",
            f"# HELP {_NAME} Time from a question to its answer.",
            f"# TYPE {_NAME} histogram",
        ]
        for verb, one in sorted(self._verbs.items()):
            lines += _histogram(verb, one)
        return "\n".join(lines) + "\n"


def _histogram(verb: str, one: _Verb) -> list[str]:
    lines, below = [], 0
    for edge_s, count in zip(EDGES_S, one.counts, strict=False):
        below += count
        lines.append(f'{_NAME}_bucket{{verb="{verb}",le="{edge_s:g}"}} {below}')
    total = sum(one.counts)
    lines.append(f'{_NAME}_bucket{{verb="{verb}",le="+Inf"}} {total}')
    lines.append(f'{_NAME}_sum{{verb="{verb}"}} {one.sum_s:g}')
    lines.append(f'{_NAME}_count{{verb="{verb}"}} {total}')
    return lines
