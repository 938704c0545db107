"""What the comparison shows, as a few plain sentences for the head of a report.

Each sentence states a figure of the table; nothing is concluded that the table does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from wattherd.report.compare import CompareRow, pareto_front, power_and_gpus
from wattherd.report.svg import tick_label


def findings(rows: Sequence[CompareRow]) -> list[str]:
    """Sentences on one trace: most GPUs, least power, and who is on the Pareto front."""
    if len(rows) < 2:
        return [_alone(rows[0])] if rows else []
    sentences = [_most_gpus(rows)]
    saver = _best_saver(rows)
    if saver:
        sentences.append(_least_power(saver))
    return sentences + _front(rows)


def _alone(row: CompareRow) -> str:
    held = f"{row.allocated_pct.mean:.2f} % of all GPUs ({_gpus(row.allocated_gpus.mean)})"
    return f"{row.policy} allocated {held}; nothing to compare it with."


def _most_gpus(rows: Sequence[CompareRow]) -> str:
    best = max(rows, key=lambda row: row.allocated_pct.mean)
    share = f"{best.allocated_pct.mean:.2f} %"
    text = f"{best.policy} allocates the most GPUs: {share} at the end"
    base = next(row for row in rows if row.policy == row.baseline)
    if best is base:
        others = (row for row in rows if row is not best)
        second = max(others, key=lambda row: row.allocated_pct.mean)
        ahead = _gpus(best.allocated_gpus.mean - second.allocated_gpus.mean)
        return f"{text}, {ahead} more than {second.policy}, the next."
    ahead = _gpus(best.allocated_gpus.mean - base.allocated_gpus.mean)
    return f"{text}, {ahead} more than {base.policy}."


def _best_saver(rows: Sequence[CompareRow]) -> CompareRow | None:
    known = [row for row in rows if row.mean_saving_pct and row.mean_saving_pct.mean > 0]
    return max(
        known,
        key=lambda row: row.mean_saving_pct.mean if row.mean_saving_pct else 0.0,
        default=None,
    )


def _least_power(row: CompareRow) -> str:
    saved = row.mean_saving_pct.mean if row.mean_saving_pct else 0.0
    return (
        f"{row.policy} draws the least power at equal load: {saved:.1f} % less than "
        f"{row.baseline}, mean over 20 to 80 % arrived."
    )


def _front(rows: Sequence[CompareRow]) -> list[str]:
    points = power_and_gpus(rows)
    front = pareto_front(points)
    if len(points) < 2:
        return []
    if len(front) == 1:
        return [f"No other policy is better than {front[0]} in GPUs or in power saved."]
    names = f"{', '.join(front[:-1])} and {front[-1]}"
    return [f"No policy beats {names} in both GPUs and power saved; each is a different trade."]


def _gpus(count: float) -> str:
    amount = tick_label(count, 0 if count >= 10 else 1)
    return f"{amount} GPUs" if amount != "1" else "1 GPU"
