"""From the name a user writes to the scorers that decide.

Grammar: `NAME[@OPTION...][+NAME[@OPTION...]]...[:WEIGHT...]`. An option is a word of the scorer
(`fgd@exact`) or `name=number` (`fgd@scale=1000`). Blends weigh their parts: `pwr+fgd:0.1` gives
the first 100 and the last the remaining 900 of 1000 points, as the PWR paper's alpha does.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.policy.place import (
    best_fit,
    dot_product,
    fgd,
    first_fit,
    gpu_clustering,
    gpu_packing,
    pwr,
    pwr_expected,
    random,
    wattherd,
)
from wattherd.policy.place.contract import Normalise, Scorer

BUILT_IN: Mapping[str, Scorer] = {
    module.SCORER.name: module.SCORER
    for module in (
        random,
        first_fit,
        best_fit,
        dot_product,
        gpu_packing,
        gpu_clustering,
        fgd,
        pwr,
        pwr_expected,
        wattherd,
    )
}
TOTAL_WEIGHT = 1000
_LEAST_OPTION, _MOST_OPTION = 1e-12, 1e12


@dataclass(frozen=True, slots=True)
class ScorerPart:
    """One scorer of a policy with its options and its weight."""

    scorer: Scorer
    options: NDArray[np.float64]
    weight: int


@dataclass(frozen=True, slots=True)
class PlacePolicy:
    """A parsed policy; `name` is the user's own spelling. The last part names the GPU."""

    name: str
    parts: tuple[ScorerPart, ...]

    @property
    def random_ties(self) -> bool:
        """Whether the policy itself draws among equally good nodes."""
        return self.parts[-1].scorer.random_ties

    @property
    def random_gpu(self) -> bool:
        """Whether it draws the GPU too."""
        return self.parts[-1].scorer.random_gpu

    @property
    def direct(self) -> bool:
        """Whether the raw key alone orders the nodes."""
        return len(self.parts) == 1 and self.parts[0].scorer.normalise is Normalise.NONE

    @property
    def looks_ahead(self) -> bool:
        """Whether a part needs the outlook of the target workload."""
        return any(part.scorer.looks_ahead for part in self.parts)

    @property
    def compiled(self) -> bool:
        """Whether every part has a kernel."""
        return all(part.scorer.kernel_id is not None for part in self.parts)


def parse_policy(text: str, known: Mapping[str, Scorer] = BUILT_IN) -> PlacePolicy:
    """Read one policy, of the scorers `known`.

    Raises:
        UserError: unknown policy or option, weights that do not fit the parts, or a blend with a
            policy that cannot be blended.
    """
    body, *weights = text.split(":")
    names = body.split("+")
    found = [_scorer(name, text, known) for name in names]
    if len(found) > 1:
        for scorer, _ in found:
            if not scorer.blendable:
                raise UserError(f"{scorer.name!r} cannot be part of a blend", where=_where(text))
    shares = _shares(weights, len(found), text)
    parts = zip(found, shares, strict=True)
    return PlacePolicy(
        text, tuple(ScorerPart(scorer, opts, share) for (scorer, opts), share in parts)
    )


def _where(text: str) -> str:
    return f"policy {text!r}"


def _scorer(
    text: str, policy: str, known: Mapping[str, Scorer]
) -> tuple[Scorer, NDArray[np.float64]]:
    name, *words = text.split("@")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(sorted(known))}"
        raise UserError(f"unknown placement policy {name!r}", where=_where(policy), hint=hint)
    options = dict(known[name].options)
    for word in words:
        options.update(_option(word, known[name], policy))
    return known[name], np.array(list(options.values()), dtype=np.float64)


def _option(word: str, scorer: Scorer, policy: str) -> Mapping[str, float]:
    if word in scorer.tokens:
        return scorer.tokens[word]
    key, _, value = word.partition("=")
    if key in scorer.options:
        return {key: _number(value, key, policy)}
    allowed = [*scorer.tokens, *(f"{option}=NUMBER" for option in scorer.options)]
    hint = f"one of {', '.join(allowed)}" if allowed else f"{scorer.name} has no options"
    raise UserError(f"unknown option {word!r}", where=_where(policy), hint=hint)


def _number(value: str, option: str, policy: str) -> float:
    """0, or a number of a size that integer keys made with it can bear."""
    try:
        number = float(value)
    except ValueError:
        problem = f"{value!r} is not a number"
        raise UserError(problem, where=_where(policy), field=option) from None
    if number and not _LEAST_OPTION <= abs(number) <= _MOST_OPTION:
        hint = f"0, or a number between {_LEAST_OPTION:g} and {_MOST_OPTION:g} in size"
        raise UserError(f"{value!r} cannot be used", where=_where(policy), field=option, hint=hint)
    return number


def _shares(weights: list[str], parts: int, policy: str) -> list[int]:
    """Points of 1000 for each part; the last part gets what the named ones leave."""
    if not weights:
        return [TOTAL_WEIGHT // parts] * parts
    try:
        points = [round(float(weight) * TOTAL_WEIGHT) for weight in weights]
    except (ValueError, OverflowError):
        points = []
    if len(points) != parts - 1 or min(points, default=0) <= 0 or sum(points) >= TOTAL_WEIGHT:
        raise UserError(
            f"weights {':'.join(weights)!r} do not fit {parts} part(s)",
            where=_where(policy),
            hint="one number between 0 and 1 for each part but the last, as in pwr+fgd:0.1",
        )
    return [*points, TOTAL_WEIGHT - sum(points)]
