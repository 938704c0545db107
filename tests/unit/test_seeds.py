"""Seeds and policies as spelled on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.cli.options import MAX_SEEDS, parse_policies, parse_seeds
from wattherd.errors import UserError


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", [0]),
        ("42", [42]),
        ("42..44", [42, 43, 44]),
        ("7..7", [7]),
        ("1,5,9", [1, 5, 9]),
        ("9,1,5", [9, 1, 5]),
        ("1,1,1", [1]),
        ("3..5,4..6,1", [3, 4, 5, 6, 1]),
        (" 1 , 2 .. 3 ", [1, 2, 3]),
        ("99999999999999999999", [99999999999999999999]),
        (f"0..{MAX_SEEDS - 1}", list(range(MAX_SEEDS))),
    ],
)
def test_good_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is no seed"),
        ("x", "'x' is no seed"),
        ("1.5", "'1.5' is no seed"),
        ("1,", "'' is no seed"),
        ("1...3", "'1...3' is no seed"),
        ("1..", "'1..' is no seed"),
        ("..3", "'..3' is no seed"),
        ("1-3", "'1-3' is no seed"),
        ("-1", "'-1' is empty or negative"),
        ("3..1", "'3..1' is empty or negative"),
        (f"0..{MAX_SEEDS}", f"more than {MAX_SEEDS} seeds"),
        ("0..9999999999999999", f"more than {MAX_SEEDS} seeds"),
        (f"1,2..{MAX_SEEDS + 1}", f"more than {MAX_SEEDS} seeds"),
    ],
)
def test_bad_seeds(text: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        parse_seeds(text)
    assert error.value.line() == f"--seed: {problem} (hint: write 42, 42..51 or 1,5,9)"


def seeds_or_complaint(text: str) -> list[int] | str:
    try:
        return parse_seeds(text)
    except UserError as error:
        return error.line()


@given(st.text(max_size=12))
def test_any_text_gives_seeds_or_one_line(text: str) -> None:
    found = seeds_or_complaint(text)
    if isinstance(found, str):
        assert len(found.splitlines()) == 1
    else:
        assert found
        assert min(found) >= 0
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fgd", ["fgd"]),
        ("fgd,pwr+fgd:0.1", ["fgd", "pwr+fgd:0.1"]),
        (" fgd , best-fit ,", ["fgd", "best-fit"]),
        ("b,a,b", ["b", "a"]),
    ],
)
def test_policy_lists(text: str, names: list[str]) -> None:
    assert parse_policies(text) == names


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_no_policy(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse_policies(text)
    assert error.value.line() == "--policy: no policy named (hint: see `wattherd policies`)"
