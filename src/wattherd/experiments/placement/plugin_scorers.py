"""Placement scorers of other packages: what they do wrong is a reason, not a crash.

Their answers are checked before an array is filled with them. In a study a scorer that raises, or
answers with no keys, ends the run with an error that names it: numbers of another policy would be
no answer. A live scheduler goes on instead: `answered_for` lets all nodes count alike where a
scorer failed, which is first fit, and logs the failure once. One that does not return holds all
up, and is told of (`plugin_watch`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wattherd.errors import UserError
from wattherd.plugin_watch import PluginWatch
from wattherd.plugins import announced, loaded
from wattherd.policy.place.contract import INFEASIBLE, Ints, Rows, ScoredWorld, Scorer
from wattherd.policy.place.registry import BUILT_IN, PlacePolicy
from wattherd.policy.place.within_node import best_fit_rows

GUIDE = "see docs/guides/write-a-policy.md"
MOST_WORDS = 200
_log = logging.getLogger(__name__)


def wrong_answer(answer: object, world: ScoredWorld, shape: int, rows: Ints) -> str:
    """What is wrong with a scorer's answer of `rows` (R,); empty if nothing is.

    Args:
        answer: what `Rows` returned: keys (R,) and, for a request of a part of a GPU, GPUs (R,).
        world: what it was asked about.
        shape: the request's number.
        rows: nodes on which the request fits.
    """
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"a {type(answer).__name__} is no pair of keys and GPUs"
    keys, gpus = answer
    problem = _no_integers("keys", keys, rows)
    if problem:
        return problem
    if keys.min(initial=0) <= INFEASIBLE:
        node = int(rows[np.argmin(keys)])
        return f"key {keys.min()} of node {node} means that it has no room, and it has"
    return _wrong_gpus(gpus, world, shape, rows)


def _no_integers(what: str, found: object, rows: Ints) -> str:
    if not isinstance(found, np.ndarray):
        return f"{what} are a {type(found).__name__} and no array"
    if found.shape != (len(rows),):
        return f"{what} have the shape {found.shape} for {len(rows)} nodes"
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        at = int(np.argmin(np.isfinite(found)))
        return f"{what}: {found[at]} for node {int(rows[at])}"
    if found.dtype.kind not in "iu":
        return f"{what} are {found.dtype} and no integers"
    return ""


def _wrong_gpus(gpus: object, world: ScoredWorld, shape: int, rows: Ints) -> str:
    """Only a part of a GPU needs a number: whole ones are the first with room."""
    if not world.shapes.sharing[shape]:
        return ""
    problem = _no_integers("GPUs", gpus, rows)
    if problem:
        return problem
    named = np.asarray(gpus)
    width = world.nodes.gpu_free.shape[1]
    there = (named >= 0) & (named < width)
    free = np.where(there, world.nodes.gpu_free[rows, np.where(there, named, 0)], -1)
    short = np.flatnonzero(free < world.shapes.gpu_milli[shape])
    if not len(short):
        return ""
    return f"GPU {named[short[0]]} of node {int(rows[short[0]])} has no room for the request"


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Rows of a package: an answer that is none is an error with the scorer's name."""

    name: str
    rows: Rows
    where: str = ""
    """Where the package announces it."""
    watch: PluginWatch = field(default_factory=lambda: PluginWatch("a scorer"), compare=False)

    def __call__(
        self, world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
    ) -> tuple[Ints, Ints]:
        """Keys and GPUs as `Rows` has them.

        Raises:
            UserError: the scorer raised, or gave something else.
        """
        try:
            with self.watch:
                answer = self.rows(world, shape, rows, options)
        except (Exception, SystemExit) as error:
            told = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_WORDS]
            raise self._failed(told) from error
        problem = wrong_answer(answer, world, shape, rows)
        if problem:
            raise self._failed(problem)
        return answer

    def _failed(self, told: str) -> UserError:
        return UserError(f"scorer {self.name!r} failed: {told}", where=self.where, hint=GUIDE)


@dataclass(frozen=True, slots=True)
class AnsweredRows:
    """Rows of a package for a live scheduler: where they fail, all nodes count alike."""

    checked: CheckedRows
    _said: set[str] = field(default_factory=set)

    def __call__(
        self, world: ScoredWorld, shape: int, rows: Ints, options: NDArray[np.float64]
    ) -> tuple[Ints, Ints]:
        """As the scorer says, or equal keys and the GPU that fits best."""
        try:
            return self.checked(world, shape, rows, options)
        except UserError as error:
            told = error.line()
            if told not in self._said and len(self._said) < MOST_WORDS:
                self._said.add(told)
                _log.error("%s", told)
                _log.debug("scorer %r failed", self.checked.name, exc_info=error)
            return np.zeros(len(rows), dtype=np.int64), best_fit_rows(world, shape, rows)


class KnownScorers(Mapping[str, Scorer]):
    """Ours and those of installed packages, which are imported when they are asked for."""

    def __init__(self) -> None:
        """Names are read once."""
        self._announced = {
            name: entry for name, entry in announced("place").items() if name not in BUILT_IN
        }
        self._found = dict(BUILT_IN)

    def __getitem__(self, name: str) -> Scorer:
        """The scorer that users call by this name.

        Raises:
            KeyError: nobody has one.
            UserError: it cannot be imported, or is no scorer.
        """
        if name not in self._found:
            self._found[name] = _plugged(name, self._announced[name].value)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is one of this name; nothing is imported."""
        return name in BUILT_IN or name in self._announced

    def __iter__(self) -> Iterator[str]:
        """All names, ours first; nothing is imported."""
        yield from (*BUILT_IN, *self._announced)

    def __len__(self) -> int:
        """How many there are."""
        return len(BUILT_IN) + len(self._announced)


def _plugged(name: str, where: str) -> Scorer:
    scorer = loaded("place", name)
    if not isinstance(scorer, Scorer):
        raise UserError(f"entry point {name!r} is no Scorer", where=where, hint=GUIDE)
    # Kernels are ours: a number of a package's would be that of another policy.
    rows = CheckedRows(name, scorer.rows, where, PluginWatch(f"scorer {name!r}"))
    return replace(scorer, name=name, rows=rows, kernel_id=None)


def answered_for(policy: PlacePolicy) -> PlacePolicy:
    """The policy for a scheduler that must go on where a package's scorer fails."""
    parts = tuple(
        replace(part, scorer=replace(part.scorer, rows=AnsweredRows(part.scorer.rows)))
        if isinstance(part.scorer.rows, CheckedRows)
        else part
        for part in policy.parts
    )
    return replace(policy, parts=parts)
