"""Who waits in which leaf of a tree of queues, by kind, kept from plan to plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.policy.contract import JobView, View
from wattherd.policy.queue.gang import GangShapes
from wattherd.policy.queue.order import ORDERS
from wattherd.policy.queue.tree import QueueTree
from wattherd.policy.queue.waiting import Entry, KindLines, Kinds, Standing


@dataclass(slots=True)
class LeafJobs:
    """Those who wait in a leaf, whose jobs call it by several `names`."""

    lines: KindLines
    names: list[str] = field(default_factory=list)

    def kinds(self) -> Kinds:
        """By kind."""
        found = [self.lines.lines[name] for name in self.names if name in self.lines.lines]
        if len(found) == 1:
            return found[0]
        return {kind: alike for kinds in found for kind, alike in kinds.items()}

    def jobs(self) -> list[JobView]:
        """All of them, in order of submission."""
        return self.lines.jobs(self.names)

    def entries(self, job_ids: Iterable[str]) -> dict[str, Entry]:
        """Where those of some jobs stand that wait here."""
        return self.lines.entries(job_ids, self.names)

    def get(self, job_id: str) -> JobView | None:
        """A job, if it waits here."""
        found = self.entries([job_id]).get(job_id)
        return None if found is None else found[2]

    def active(self) -> int:
        """How many users wait."""
        return len({kind[0] for kind in self.kinds()})

    def asked(self, shapes: GangShapes, known: Sequence[str]) -> dict[str, int]:
        """GPUs that users wait for; those `known` come first, as there are."""
        asked = dict.fromkeys(self.users(known), 0)
        for kind, alike in self.kinds().items():
            asked[kind[0]] += len(alike) * shapes[alike[0][2]][0].gpus
        return asked

    def users(self, known: Sequence[str]) -> list[str]:
        """Those `known`, then all others who wait, in the order of the first job of each."""
        kinds = self.kinds()
        others = [user for user in dict.fromkeys(kind[0] for kind in kinds) if user not in known]
        first = {
            user: min(entry[1] for kind in kinds if kind[0] == user for entry in kinds[kind])
            for user in (others if len(others) > 1 else ())
        }
        return [*known, *sorted(others, key=lambda user: first.get(user, 0))]


class LeafLines:
    """The lines of all queues that jobs name."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._tree: QueueTree | None = None
        """The queues in whose orders they stand."""
        self.lines = KindLines()

    def hear(self, view: View, tree: QueueTree, shapes: GangShapes) -> None:
        """See to all that changed since the last plan; to be called at every plan."""
        if self._tree is not tree:
            self._tree, self.lines = tree, KindLines()
        self.lines.hear(view, lambda job: _standing(job, view, tree, shapes))


def _standing(job: JobView, view: View, tree: QueueTree, shapes: GangShapes) -> Standing:
    """In the order of its leaf, if that stays as it is while jobs wait; else as submitted."""
    spec, kin = job.spec, shapes.kin(job, view.now_s)
    place = tree.leaf(spec.queue)
    order = None if place is None else ORDERS[place.queue.order]
    key = order.key(job, view.now_s) if order is not None and order.stays else ()
    if kin is None or job.active:  # as long as it stops, time makes another kind of job of it
        return Standing(spec.queue, (spec.user, job.id), key)
    return Standing(spec.queue, (spec.user, kin, *shapes.alike(job, view)), key)


def demand(
    tree: QueueTree,
    total: int,
    held: Mapping[tuple[str, str], int],
    waiting: Mapping[str, LeafJobs],
    shapes: GangShapes,
) -> dict[str, float]:
    """GPUs that every leaf holds or waits for, no user counting beyond what he may ever hold.

    `held` are GPUs by (leaf, user), of `total`.
    """
    asked = dict(held)
    for name, leaf in waiting.items():
        known = [user for at, user in held if at == name]
        for user, gpus in leaf.asked(shapes, known).items():
            asked[name, user] = asked.get((name, user), 0) + gpus
    found: dict[str, float] = {}
    for (name, _), gpus in asked.items():
        found[name] = found.get(name, 0.0) + min(gpus, tree[name].user_most(total))
    return found
