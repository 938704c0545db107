"""The book of what is free, against one that writes down who has what and counts it anew each time.

Bookings of whole devices, of parts, of processors alone, releases and devices taken out of use and
back come in any order; after each the two must say the same of every node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import times
from wattherd.engine.core.capacity import ENDLESS, Book
from wattherd.errors import Bug
from wattherd.model.allocation import Allocation
from wattherd.model.cluster import ClusterSpec, NodeSpec
from wattherd.model.job import Request, TaskRole

NODES = ((4, "T4"), (1, "A100"), (0, ""), (8, "T4"))
CPU_MILLI, MEMORY_MIB = 10_000, 40_000
CLUSTER = ClusterSpec(
    tuple(
        NodeSpec(
            name=f"n{number}", cpu_milli=CPU_MILLI, memory_mib=MEMORY_MIB, gpu_count=gpus,
            gpu_model=model,
        )
        for number, (gpus, model) in enumerate(NODES)
    )
)  # fmt: skip


@dataclass
class PlainBook:
    """Who has what; everything else is counted from that."""

    given: list[Allocation] = field(default_factory=list)
    out: set[tuple[int, int]] = field(default_factory=set)

    def free_milli(self, node: int) -> list[int]:
        """Of each GPU that may be given away; a device out of use has nothing free."""
        free = []
        for gpu in range(NODES[node][0]):
            held = sum(
                one.request.gpu_milli for one in self.given if one.node == node and gpu in one.gpus
            )
            free.append(0 if (node, gpu) in self.out else 1000 - held)
        return free

    def whole(self, node: int) -> int:
        return sum(milli == 1000 for milli in self.free_milli(node))

    def left(self, node: int) -> tuple[int, int]:
        mine = [one.request for one in self.given if one.node == node]
        cpu_milli = CPU_MILLI - sum(one.cpu_milli for one in mine)
        return cpu_milli, MEMORY_MIB - sum(one.memory_mib for one in mine)

    def fits(self, one: Allocation) -> bool:
        cpu_milli, memory_mib = self.left(one.node)
        free = self.free_milli(one.node)
        return (
            one.request.cpu_milli <= cpu_milli
            and one.request.memory_mib <= memory_mib
            and len(one.gpus) == one.request.gpu_count
            and all(free[gpu] >= one.request.gpu_milli for gpu in one.gpus)
        )

    def room(self, role: TaskRole, models: tuple[str, ...]) -> list[int]:
        found = []
        for node, (_, model) in enumerate(NODES):
            cpu_milli, memory_mib = self.left(node)
            gpus = sum(milli >= role.gpu_milli for milli in self.free_milli(node))
            most = ENDLESS
            for free, each in (
                (gpus, role.gpu_count), (cpu_milli, role.cpu_milli), (memory_mib, role.memory_mib)
            ):  # fmt: skip
                most = min(most, free // each) if each else most
            wrong = models and role.gpu_count and model not in models
            found.append(0 if wrong else most)
        return found


def same(book: Book, plain: PlainBook) -> None:
    for node in range(len(NODES)):
        assert book.gpu_free(node) == plain.free_milli(node)
        assert (int(book.cpu_free[node]), int(book.memory_free[node])) == plain.left(node)
    nodes = range(len(NODES))
    usable = [NODES[node][0] - sum(where == node for where, _ in plain.out) for node in nodes]
    assert book.whole.tolist() == [plain.whole(node) for node in nodes]
    assert book.whole_gpus == sum(plain.whole(node) for node in nodes)
    assert book.usable_gpus().tolist() == usable
    assert book.usable_gpu_total({3}) == sum(usable[:3])
    assert book.used_cpu_milli == sum(one.request.cpu_milli for one in plain.given)
    assert book.used_gpu_milli == sum(one.request.gpu_milli * len(one.gpus) for one in plain.given)
    for role, models in ASKED:
        assert book.room(role, models).tolist() == plain.room(role, models), (role, models)


ASKED = (
    (TaskRole(count=1), ()),
    (TaskRole(count=1, gpu_count=2), ("T4",)),
    (TaskRole(count=1, gpu_milli=400, cpu_milli=700), ()),
    (TaskRole(count=1, gpu_count=0), ("T4",)),
    (TaskRole(count=1, gpu_count=0, memory_mib=9_000), ()),
    (TaskRole(count=1, gpu_count=1, cpu_milli=3_000, memory_mib=5_000), ("A100", "none")),
)
REQUESTS = st.builds(
    lambda gpus, milli, cpu, memory: Request(
        cpu_milli=cpu, memory_mib=memory, gpu_count=gpus, gpu_milli=(1000 if gpus > 1 else milli)
        if gpus else 0,
    ),
    st.integers(0, 4), st.sampled_from([1000, 1000, 250, 400, 600]),
    st.sampled_from([0, 500, 4_000]), st.sampled_from([0, 1_000, 20_000]),
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(0, 3), REQUESTS, st.integers(0, 255)),
        st.tuples(st.just("give"), st.integers(0, 3), REQUESTS, st.integers(0, 255)),
        st.tuples(st.sampled_from(["take back", "again"]), st.integers(0, 40), st.none(),
                  st.just(0)),
        st.tuples(st.sampled_from(["out", "back"]), st.integers(0, 12), st.none(), st.just(0)),
    ),
    min_size=10, max_size=40,
)  # fmt: skip
GPUS = [(node, gpu) for node, (gpus, _) in enumerate(NODES) for gpu in range(gpus)]


@settings(max_examples=times(120), deadline=None)
@given(steps=STEPS)
def test_the_book_says_what_counting_says(
    steps: list[tuple[str, int, Request | None, int]],
) -> None:
    book, plain = Book(CLUSTER), PlainBook()
    same(book, plain)
    for what, number, request, bits in steps:
        if what == "give" and request is not None:
            give(book, plain, number, request, bits)
        elif what == "take back" and plain.given:
            book.release(plain.given.pop(number % len(plain.given)))
        elif what == "again" and plain.given:
            gone = plain.given.pop(number % len(plain.given))
            book.release(gone)
            check_double(book, plain, gone)
        elif what == "out":
            node, gpu = GPUS[number]
            book.take_out(node, gpu)
            plain.out.add((node, gpu))
        elif what == "back":
            # Mostly one that is out; twice the same news must change nothing.
            node, gpu = sorted(plain.out or GPUS)[number % len(plain.out or GPUS)]
            book.put_back(node, gpu)
            plain.out.discard((node, gpu))
        same(book, plain)


def give(book: Book, plain: PlainBook, node: int, request: Request, bits: int) -> None:
    """What the book chooses itself, or devices named by somebody."""
    among = tuple(gpu for gpu in range(NODES[node][0]) if bits >> gpu & 1)
    gpus = book.choose(request, node, among)
    roomy = [
        gpu
        for gpu, milli in enumerate(plain.free_milli(node))
        if milli >= request.gpu_milli and (not among or gpu in among)
    ]
    assert gpus == tuple(roomy[: request.gpu_count])  # the lowest numbers, always
    one = Allocation(node=node, gpus=gpus, request=request)
    assert book.fits(one) == plain.fits(one)
    if plain.fits(one):
        book.place(one)
        plain.given.append(one)
    else:
        with pytest.raises(Bug):
            book.place(one)
        kept = Allocation(node=2, gpus=(), request=Request(cpu_milli=1, gpu_count=0, gpu_milli=0))
        assert not book.place_all([kept, one])  # all or nothing: `same` sees the rest


def check_double(book: Book, plain: PlainBook, gone: Allocation) -> None:
    """A device that nobody has cannot be given back once more."""
    if not gone.gpus or gone.request.gpu_milli != 1000:
        return
    kept = Allocation(
        node=gone.node, gpus=gone.gpus,
        request=Request(cpu_milli=0, gpu_count=len(gone.gpus), gpu_milli=1000),
    )  # fmt: skip
    with pytest.raises(Bug, match="cannot release"):
        book.release(kept)
    same(book, plain)
