"""Quickly made dataclasses differ from the usual ones in nothing but time."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from wattherd.model.quick import maker, quick


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    at_s: float
    cause: str = ""


@quick
@dataclass(frozen=True, slots=True)
class Visit(Happening):
    guest: str
    nights: int = 1


@dataclass(frozen=True, slots=True)
class UsualVisit(Happening):
    guest: str
    nights: int = 1


make_visit = maker(Visit)


def test_what_a_maker_makes_is_what_the_class_makes() -> None:
    assert inspect.signature(make_visit).parameters == inspect.signature(Visit).parameters
    made, usual = make_visit("ada", 2, at_s=2.0), Visit("ada", 2, at_s=2.0)
    assert type(made) is Visit
    assert (made, hash(made), repr(made)) == (usual, hash(usual), repr(usual))
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == replace(made, nights=2)
    with pytest.raises(FrozenInstanceError):
        made.nights = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        make_visit(at_s=1.0)  # type: ignore[call-arg]


def test_arguments_and_defaults_are_those_of_the_usual_class() -> None:
    quick_one, usual = inspect.signature(Visit), inspect.signature(UsualVisit)
    assert quick_one == usual
    assert repr(Visit("ada", at_s=2.0)) == "Visit(at_s=2.0, cause='', guest='ada', nights=1)"
    assert Visit("ada", 1, at_s=2.0, cause="") == Visit(guest="ada", at_s=2.0)


@pytest.mark.parametrize(
    ("given", "named"),
    [((), {"at_s": 1.0}), (("ada",), {}), (("ada", 1, 2), {"at_s": 1.0}), (("ada",), {"day": 1})],
    ids=["guest missing", "time missing", "too many", "unknown"],
)
def test_wrong_arguments_are_refused(given: tuple[object, ...], named: dict[str, object]) -> None:
    for one in (Visit, UsualVisit):
        with pytest.raises(TypeError):
            one(*given, **named)  # type: ignore[arg-type]


def test_nothing_changes_after_it_was_made() -> None:
    visit = Visit("ada", at_s=2.0)
    with pytest.raises(FrozenInstanceError):
        visit.nights = 3  # type: ignore[misc]


def test_it_is_copied_pickled_replaced_and_hashed_by_value() -> None:
    visit = Visit("ada", 2, at_s=2.0, cause="fair")
    assert copy.deepcopy(visit) == visit == pickle.loads(pickle.dumps(visit))
    assert replace(visit, nights=3) == Visit("ada", 3, at_s=2.0, cause="fair")
    assert len({visit, replace(visit, nights=2), replace(visit, nights=3)}) == 2


def test_classes_that_do_more_than_keep_their_arguments_are_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Made:
        guests: list[str] = field(default_factory=list)

    @dataclass(frozen=True, slots=True)
    class Checked:
        guests: int = 0

        def __post_init__(self) -> None:
            assert self.guests >= 0

    for one in (Made, Checked):
        for shorter in (quick, maker):
            with pytest.raises(TypeError, match="needs the __init__ of dataclasses"):
                shorter(one)
