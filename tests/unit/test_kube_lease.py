"""Two candidates, a record that is written by compare-and-set, clocks that disagree, lost answers.

The API server's part (a version for each write, 409 for a stale one) is a few lines here; the same
with processes that are stopped for real is in tests/kube.
"""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.kube.api.api_objects import Lease
from wattherd.kube.api.lease import Term, Times
from wattherd.kube.api.objects import ObjectMeta

TIMES = Times()
ABOUT = ObjectMeta(name="wattherd", namespace="kube-system")


class Record:
    """The server's copy of a lease."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._versions = itertools.count(1)

    def write(self, wish: Lease) -> Lease | None:
        """What is there now, or None for a conflict."""
        known = self.lease.metadata.resource_version if self.lease else ""
        if wish.metadata.resource_version != known:
            return None
        about = msgspec.structs.replace(wish.metadata, resource_version=str(next(self._versions)))
        self.lease = msgspec.structs.replace(wish, metadata=about)
        return self.lease


def a_term(identity: str) -> Term:
    return Term(about=ABOUT, identity=identity, times=TIMES)


def try_once(term: Term, record: Record, now_s: float, *, answered: bool = True) -> None:
    """As the elector does: look unless we lead, then write what we wish for."""
    if not term.holds(now_s):
        term.observe(record.lease, now_s)
    wish = term.wish(now_s, "2026-01-01T00:00:00.000000Z")
    if wish is None:
        return
    written = record.write(wish)
    if not answered:
        return
    if written is None:
        term.observe(record.lease, now_s)
    else:
        term.granted(written, now_s)


def test_a_holder_that_stops_renewing_loses_its_right_before_the_next_begins() -> None:
    record, one, two = Record(), a_term("one"), a_term("two")
    try_once(one, record, 0.0)
    assert one.holds(9.9)
    assert not one.holds(10.0)
    began_s = next(now_s for now_s in range(1, 100) if _leads(two, record, float(now_s)))
    assert began_s == 1 + TIMES.lease_s, "counted from when the record was first seen"
    assert (one.epoch, two.epoch) == (1, 2)


def _leads(term: Term, record: Record, now_s: float) -> bool:
    try_once(term, record, now_s)
    return term.holds(now_s)


def test_a_holder_that_wakes_late_begins_a_new_term_if_nobody_did() -> None:
    record, one = Record(), a_term("one")
    try_once(one, record, 0.0)
    assert not one.holds(60.0)
    try_once(one, record, 60.0)
    assert one.holds(60.0)
    assert one.epoch == 2


def test_a_holder_that_wakes_after_its_successor_began_learns_it_at_once() -> None:
    record, one, two = Record(), a_term("one"), a_term("two")
    try_once(one, record, 0.0)
    two.observe(record.lease, 0.0)
    try_once(two, record, 20.0)
    assert two.holds(20.0)
    try_once(one, record, 20.5)
    assert not one.holds(20.5)
    assert record.lease is not None
    assert record.lease.spec.holder_identity == "two"


def test_whoever_resigns_lets_the_next_begin_at_once() -> None:
    record, one, two = Record(), a_term("one"), a_term("two")
    try_once(one, record, 0.0)
    gone = one.resign()
    assert gone is not None
    assert record.write(gone) is not None
    assert not one.holds(0.1)
    try_once(two, record, 0.2)
    assert two.holds(0.2)
    assert a_term("three").resign() is None


def test_times_without_a_margin_are_refused() -> None:
    with pytest.raises(UserError, match="retry < renew < lease"):
        Times(lease_s=10, renew_s=10)


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.floats(0.1, 8.0), st.booleans()), max_size=120
)


@given(
    steps=STEPS,
    offsets_s=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    rates=st.tuples(st.floats(0.9, 1.1), st.floats(0.9, 1.1)),
)
def test_never_do_two_lead_whatever_is_late_or_lost(
    steps: list[tuple[int, float, bool]],
    offsets_s: tuple[float, float],
    rates: tuple[float, float],
) -> None:
    """Clocks run a tenth fast or slow and show any time; answers are lost, tries stay away."""
    record, terms = Record(), (a_term("one"), a_term("two"))
    now_s, epochs = 0.0, []

    def own_s(who: int) -> float:
        return offsets_s[who] + rates[who] * now_s

    for who, pause_s, answered in steps:
        now_s += pause_s
        was = terms[who].holds(own_s(who))
        try_once(terms[who], record, own_s(who), answered=answered)
        leaders = [each for each in (0, 1) if terms[each].holds(own_s(each))]
        assert len(leaders) < 2
        if terms[who].holds(own_s(who)) and not was:
            epochs.append(terms[who].epoch)
    assert epochs == sorted(set(epochs)), "each term has a higher number than all before"
