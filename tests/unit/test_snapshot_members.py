"""Snapshots written by every Python are read, and reach nothing but members of our enums."""

from __future__ import annotations

import io
import os
import pickle
from collections import namedtuple
from typing import Any, NamedTuple

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra `server`")

from wattherd.engine.core.core import Core
from wattherd.engine.jobs.lifecycle import State
from wattherd.server.journal.snapshot_codec import _attributes, _Reader


class Written:
    """Pickles as `getattr(owner, name)`, the way Python up to 3.11.3 wrote members of an Enum."""

    def __init__(self, owner: Any, name: str) -> None:
        self.said = getattr, (owner, name)

    def __reduce__(self) -> Any:
        return self.said


def read(owner: Any, name: str) -> object:
    nothing: Any = None
    return _Reader(io.BytesIO(pickle.dumps(Written(owner, name))), nothing).load()


def test_a_member_of_an_enum_is_read() -> None:
    member = next(iter(State))
    assert read(State, member.name) is member


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Core, "handle"), (State, "__class__"), (State, "mro"), (State, "NOBODY"), (os.path, "join")],
    ids=["method", "class", "mro", "no-member", "other-module"],
)
def test_nothing_else_is_reached(owner: Any, name: str) -> None:
    with pytest.raises((pickle.UnpicklingError, TypeError, ImportError)):
        read(owner, name)


class Told(NamedTuple):
    at_s: float
    cap_w: float = 0.0


def test_what_a_named_tuple_has_is_known_where_its_annotations_are_not_kept() -> None:
    """Python 3.14 computes them when they are asked for; `namedtuple` never has any."""
    Untold = namedtuple("Untold", ("at_s", "cap_w"))  # noqa: PYI024 - it is to have no annotations
    assert _attributes(Told) == _attributes(Untold) == ["at_s", "cap_w"]
