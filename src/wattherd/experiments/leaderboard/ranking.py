"""Who is first: ranks on each problem and over all of them; what is no different is a tie.

A problem is a workload under a budget. Runs of several seeds count by their mean. A policy whose
score is within `TIE` of the first of a group is in that group, and all of it have one rank; the
next group's rank counts all before it. Over all problems the score is the geometric mean of how
far a policy is from the best of each: 1 is the best everywhere, 1.1 is a tenth worse in the mean
(ratios, not seconds, are averaged, so that no long workload outweighs the others; Fleming and
Wallace, CACM 29(3), 1986). Whoever was not through with a problem has no rank over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIE = 0.005
"""Part by which scores may differ and still be a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPolicy:
    """A policy's place: `rank` counts from 1 and is None where there is none, as `why` says."""

    policy: str
    score: float | None
    rank: int | None
    tied: bool = False
    why: str = ""

    def place(self) -> str:
        """`1`, `=2` for a tie, or a dash."""
        return "–" if self.rank is None else f"{'=' * self.tied}{self.rank}"


def ranked(
    scores: Mapping[str, float | None], *, lowest: bool, why: Mapping[str, str] | None = None
) -> list[RankedPolicy]:
    """Policies from the best on; those of None have no rank and come last, by name.

    Args:
        scores: by policy, above 0.
        lowest: whether less is better.
        why: what policies of None lack.
    """
    known = {name: score for name, score in scores.items() if score is not None}
    order = sorted(known, key=lambda name: (known[name] if lowest else -known[name], name))
    found: list[RankedPolicy] = []
    group: list[str] = []
    for name in order:
        if group and not _same(known[group[0]], known[name]):
            found += _group(group, known, len(found))
            group = []
        group.append(name)
    found += _group(group, known, len(found))
    reasons = why or {}
    last = (name for name in sorted(scores) if name not in known)
    return [
        *found,
        *(
            RankedPolicy(policy=one, score=None, rank=None, why=reasons.get(one, ""))
            for one in last
        ),
    ]


def _same(first: float, other: float) -> bool:
    return abs(first - other) <= TIE * min(abs(first), abs(other))


def _group(names: Sequence[str], scores: Mapping[str, float], before: int) -> list[RankedPolicy]:
    tied = len(names) > 1
    return [
        RankedPolicy(policy=name, score=scores[name], rank=before + 1, tied=tied)
        for name in sorted(names)
    ]


def overall(problems: Sequence[Mapping[str, float | None]], *, lowest: bool) -> list[RankedPolicy]:
    """Ranks over all problems, by the geometric mean of each score over the best score."""
    names = sorted({name for one in problems for name in one})
    scores: dict[str, float | None] = {}
    why: dict[str, str] = {}
    for name in names:
        ratios = [_behind(name, one, lowest=lowest) for one in problems]
        done = [ratio for ratio in ratios if ratio is not None]
        if len(done) == len(problems):
            scores[name] = math.exp(math.fsum(map(math.log, done)) / len(done))
        else:
            scores[name] = None
            why[name] = f"ranked on {len(done)} of {len(problems)} problems"
    return ranked(scores, lowest=True, why=why)


def _behind(name: str, scores: Mapping[str, float | None], *, lowest: bool) -> float | None:
    """How many times worse than the best; 1 is the best."""
    score = scores.get(name)
    if score is None:
        return None
    known = [one for one in scores.values() if one is not None]
    return score / min(known) if lowest else max(known) / score
