"""Gavel's programs: optima found by hand or by exhaustion, and every solver at the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from effort import times
from wattherd.errors import Bug, ClusterError, UserError
from wattherd.policy.schedule import gavel_solvers
from wattherd.policy.schedule.gavel_goals import GavelApplicant, IsolatedTime, fifo
from wattherd.policy.schedule.gavel_lp import GOALS, isolated_rates, solve
from wattherd.policy.schedule.gavel_solvers import CONIC, best_solver

pytest.importorskip("scipy")
pytest.importorskip("clarabel")

SOLVERS = ("clarabel", "highs")
TWO = {
    "rates": [[10.0, 40.0], [4.0, 12.0]],
    "scale": [1, 1],
    "weights": [1.0, 1.0],
    "gpus": [1, 1],
    "steps": [4000, 3000],
    "elapsed_s": [100.0, 0.0],
    "isolated_s": [260.0, 375.0],
}


def a_program(goal: str, **changes: Any) -> dict[str, Any]:
    return {**TWO, "goal": goal, **changes}


def every_split(count: int = 1000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Job 0 gets a of type 0 and b of type 1, job 1 the rest; nobody above all its time."""
    a, b = np.meshgrid(np.linspace(0, 1, count + 1), np.linspace(0, 1, count + 1))
    return a, b


def best_by_exhaustion(goal: str) -> float:
    a, b = every_split()
    x = [(a, b), (1 - a, 1 - b)]
    done = [TWO["rates"][i][0] * x[i][0] + TWO["rates"][i][1] * x[i][1] for i in range(2)]
    allowed = (a + b <= 1 + 1e-9) & (2 - a - b <= 1 + 1e-9)
    with np.errstate(divide="ignore"):
        if goal == "max-min":
            norm = [np.mean(TWO["rates"][i]) for i in range(2)]
            return float(
                np.where(allowed, np.minimum(*(done[i] / norm[i] for i in (0, 1))), 0).max()
            )
        left = [TWO["steps"][i] / done[i] for i in range(2)]
        if goal == "makespan":
            return float(np.where(allowed, np.maximum(*left), np.inf).min())
        ratio = [(TWO["elapsed_s"][i] + left[i]) / TWO["isolated_s"][i] for i in range(2)]
        return float(np.where(allowed, np.maximum(*ratio), np.inf).min())


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("goal", ["max-min", "makespan", "ftf"])
def test_two_jobs_on_two_types(goal: str, name: str) -> None:
    found = solve(a_program(goal), name)["objective"]
    assert found == pytest.approx(best_by_exhaustion(goal), rel=2e-3)


@pytest.mark.parametrize("name", SOLVERS)
def test_whoever_sees_no_speeds_shares_evenly(name: str) -> None:
    # Four single-GPU jobs on two GPUs: half of the time each, and on all types alike that is half
    # of what a job would get if it had all of them to itself.
    program = a_program(
        "max-min-agnostic", rates=[[9.0, 1.0]] * 4, scale=[1] * 4, weights=[1.0] * 4
    )
    found = solve(program, name)
    assert np.sum(found["shares"], axis=1) == pytest.approx([0.5] * 4, abs=1e-6)
    assert found["objective"] == pytest.approx(0.5, abs=1e-8)


@pytest.mark.parametrize("name", SOLVERS)
def test_weights_and_scales_divide_the_time(name: str) -> None:
    # One type of six GPUs, all of which are needed: weight 2 is owed twice, two GPUs half as long.
    program = {
        "goal": "max-min",
        "rates": [[1.0]] * 3,
        "scale": [6, 6, 3],
        "weights": [1.0, 2.0, 1.0],
        "gpus": [6],
    }
    shares = np.array(solve(program, name)["shares"])[:, 0]
    # x0 : x1 : x2 = 1 : 2 : 2, and 6 x0 + 6 x1 + 3 x2 = 6.
    assert shares == pytest.approx([0.25, 0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("goal", GOALS)
def test_a_type_without_gpus_has_no_part(goal: str, name: str) -> None:
    three = [[10.0, 7.0, 40.0], [4.0, 0.0, 12.0]]
    found = solve(a_program(goal, rates=three, gpus=[1, 0, 1]), name)
    expected = solve(a_program(goal), name)
    assert found["objective"] == expected["objective"]
    assert np.array(found["shares"])[:, [0, 2]].tolist() == expected["shares"]
    assert np.array(found["shares"])[:, 1].tolist() == [0.0, 0.0]


def test_finish_time_fairness_does_not_forget_the_past() -> None:
    late = solve(a_program("ftf", elapsed_s=[200.0, 0.0]), "highs")
    soon = solve(a_program("ftf", elapsed_s=[0.0, 0.0]), "highs")
    rate = [np.dot(TWO["rates"][0], found["shares"][0]) for found in (late, soon)]
    assert rate[0] > rate[1]


def test_isolated_jobs_get_an_nth_and_never_more_than_all_their_time() -> None:
    rates = np.array([[10.0, 20.0], [10.0, 20.0]])
    gpus = np.array([4.0, 8.0])
    # Scale 4: shares (4/2/4, 8/2/4) = (0.5, 1.0), cut to a sum of one: (1/3, 2/3).
    # Scale 8: shares (0.25, 0.5), as they are.
    expected = [10 / 3 + 40 / 3, 2.5 + 10.0]
    assert isolated_rates(rates, np.array([4.0, 8.0]), gpus) == pytest.approx(expected)


# --- solvers ---------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> dict[str, Any]:
    jobs, types = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    number = st.floats(0.5, 60.0)
    row = st.lists(st.one_of(number, st.just(0.0)), min_size=types, max_size=types)
    many = st.lists(row.filter(any), min_size=jobs, max_size=jobs)

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=jobs, max_size=jobs))

    return {
        "goal": draw(st.sampled_from(GOALS)),
        "rates": draw(many),
        "scale": each(st.sampled_from([1, 2, 4])),
        "weights": each(st.sampled_from([1.0, 5.0])),
        "gpus": draw(st.lists(st.integers(4, 24), min_size=types, max_size=types)),
        "steps": each(st.integers(1000, 10**6)),
        "elapsed_s": each(st.floats(0.0, 1e4)),
        "isolated_s": each(st.floats(5e3, 1e5)),
    }


@given(programs())
@settings(max_examples=times(60))
def test_all_solvers_reach_the_same_objective_within_the_limits(program: dict[str, Any]) -> None:
    found = [solve(program, name) for name in SOLVERS]
    scale, gpus = np.array(program["scale"]), np.array(program["gpus"])
    for one in found:
        shares = np.array(one["shares"])
        assert shares.min() >= 0.0
        assert (shares.sum(axis=1) <= 1 + 1e-6).all()
        assert ((shares * scale[:, None]).sum(axis=0) <= gpus * (1 + 1e-6) + 1e-6).all()
    # Clarabel stops at a gap of 1e-8, which of a small objective is more than a millionth.
    assert found[0]["objective"] == pytest.approx(found[1]["objective"], rel=1e-6, abs=2e-8)


def test_the_same_question_has_the_same_answer_bit_for_bit() -> None:
    for name in SOLVERS:
        assert solve(a_program("ftf"), name) == solve(a_program("ftf"), name)


def test_solvers_are_chosen_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"scipy", "clarabel"}
    monkeypatch.setattr(gavel_solvers, "find_spec", lambda name: name if name in there else None)
    assert (best_solver(), best_solver("highs")) == ("clarabel", "highs")
    with pytest.raises(UserError, match="solver ecos is not installed"):
        best_solver("ecos")
    with pytest.raises(UserError, match="no solver 'glpk'"):
        best_solver("glpk")
    there.remove("clarabel")
    assert best_solver() == "highs"
    there.clear()
    with pytest.raises(UserError, match=r"pip install 'wattherd\[lp\]'"):
        best_solver()


def test_a_program_without_solution_is_the_worlds_fault() -> None:
    nothing = np.array([[1.0]])
    with pytest.raises(ClusterError, match="gave up"):
        gavel_solvers.highs(nothing, np.array([1.0]), np.array([-1.0]))
    rows = gavel_solvers.Triplets()
    rows.add(np.array([0, 1]), np.array([0, 0]), np.array([1.0, -1.0]))
    rows.grow(2)
    cones = gavel_solvers.Cones(linear=2, triples=0)
    with pytest.raises(ClusterError, match="gave up"):
        CONIC["clarabel"](np.array([1.0]), rows, np.array([-1.0, -1.0]), cones)


def test_an_unknown_goal_is_a_bug() -> None:
    with pytest.raises(Bug, match="no Gavel goal"):
        solve(a_program("max-max"), "highs")


# --- without a solver ------------------------------------------------------------------------


def applicant(
    name: str, rates: tuple[float, ...], scale: int = 1, left: int = 100
) -> GavelApplicant:
    return GavelApplicant(
        job_id=name, rates=rates, scale=scale, weight=1.0, left=left, elapsed_s=0.0
    )


def test_fifo_takes_the_fastest_type_with_room_and_lets_nobody_overtake() -> None:
    queue = [
        applicant("a", (1.0, 9.0)),
        applicant("b", (1.0, 9.0)),
        applicant("c", (0.0, 9.0)),
        applicant("d", (1.0, 1.0)),
        applicant("e", (1.0, 9.0), scale=3),
        applicant("f", (1.0, 9.0)),
    ]
    shares = fifo(queue, [3, 1])
    # b finds only the slow type, c would crash on it and is passed, e does not fit: f must wait.
    assert shares == {
        "a": [0.0, 1.0],
        "b": [1.0, 0.0],
        "c": [0.0, 0.0],
        "d": [1.0, 0.0],
        "e": [0.0, 0.0],
        "f": [0.0, 0.0],
    }


def test_time_alone_is_summed_at_the_rate_of_each_stretch() -> None:
    alone = IsolatedTime()
    one, two = applicant("a", (10.0,)), applicant("b", (10.0,))
    assert alone.total_s([one], [1]) == [10.0]
    # 40 steps were done while there was one job, at 10 steps/s; now there are two, at 5 each.
    after = applicant("a", (10.0,), left=60)
    assert alone.total_s([after, two], [1]) == [4.0 + 12.0, 20.0]
    assert alone.total_s([two], [1]) == [10.0]
