"""Trials of a search: rules on written curves, and groups on a simulated cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.estimate.steps import LossCurve
from wattherd.experiments.schedule.ordered import OrderedTerms, in_turn
from wattherd.model.job import JobSpec
from wattherd.policy.contract import Planner
from wattherd.policy.schedule.gandiva import Gandiva
from wattherd.policy.schedule.ordered import Discipline
from wattherd.policy.schedule.priorities import Fifo
from wattherd.policy.schedule.search import (
    MedianStopping,
    Search,
    SearchTrial,
    SuccessiveHalving,
    TrialVerdict,
)
from wattherd.sim.duration_plant import DurationPlant
from wattherd.testing.timed_world import Story, t4_nodes, timed

GO, PAUSE, END = TrialVerdict.GO, TrialVerdict.PAUSE, TrialVerdict.END
FIFO = in_turn(OrderedTerms(), Fifo(), Discipline.STRICT)


def trials(*curves: list[tuple[float, float]]) -> list[SearchTrial]:
    return [SearchTrial(f"t{n}", n, list(points)) for n, points in enumerate(curves)]


def verdicts(
    rule: SuccessiveHalving | MedianStopping, made: list[SearchTrial]
) -> list[TrialVerdict]:
    judged = rule.judge(made)
    return [judged[one.job_id] for one in made if not one.over]


HALVING = SuccessiveHalving(first=10.0, eta=2, rungs=2)
ASHA = SuccessiveHalving(first=10.0, eta=2, rungs=2, asynchronous=True)


def test_on_a_rung_all_wait_for_all() -> None:
    made = trials([(10, 3.0)], [(11, 2.0)], [(12, 1.0)], [(5, 9.0)])
    assert verdicts(HALVING, made) == [PAUSE, PAUSE, PAUSE, GO]


def test_the_better_half_goes_on_and_the_others_end() -> None:
    made = trials([(10, 3.0)], [(11, 2.0)], [(12, 1.0)], [(15, 9.0)])
    assert verdicts(HALVING, made) == [END, GO, GO, END]


def test_the_next_rung_is_for_those_who_passed() -> None:
    made = trials([(10, 3.0)], [(11, 2.0), (20, 0.5)], [(12, 1.0), (21, 0.9)], [(15, 9.0)])
    assert verdicts(HALVING, made) == [END, GO, END, END]


def test_asynchronously_the_best_so_far_goes_on_at_once() -> None:
    made = trials([(10, 3.0)], [(11, 2.0)], [(5, 1.0)], [(5, 9.0)])
    assert verdicts(ASHA, made) == [PAUSE, GO, GO, GO]
    assert verdicts(ASHA, trials([(10, 3.0)], [(5, 1.0)])) == [PAUSE, GO]


def test_who_passed_a_rung_is_not_called_back() -> None:
    made = trials([(10, 3.0)], [(11, 2.0)], [(5, 1.0)], [(5, 9.0)])
    ASHA.judge(made)
    for one in made[2:]:
        one.see(10.0, 1.0)
    assert verdicts(ASHA, made) == [END, GO, GO, GO]  # t2 and t3 overtook t1, which goes on


def test_a_trial_that_is_over_still_counts_where_it_had_come() -> None:
    made = trials([(10, 1.0)], [(11, 2.0)], [(12, 3.0)])
    made[0].over = True
    assert verdicts(HALVING, made) == [GO, END]


def test_a_report_without_progress_is_no_news() -> None:
    trial = SearchTrial("a", 0)
    for point in [(1.0, 5.0), (1.0, 4.0), (0.5, 3.0), (2.0, 2.0)]:
        trial.see(*point)
    assert trial.points == [(1.0, 5.0), (2.0, 2.0)]


def test_median_stopping_ends_who_is_worse_than_the_median_of_running_averages() -> None:
    """At 10 the others' running averages are 2, 3 and 4; the trial's best is 3.5."""
    others = [[(1.0, 3.0), (10.0, 1.0)], [(1.0, 4.0), (10.0, 2.0)], [(1.0, 5.0), (10.0, 3.0)]]
    rule = MedianStopping(grace=10.0)
    assert verdicts(rule, trials([(1.0, 9.0), (10.0, 3.5)], *others))[0] is END
    assert verdicts(rule, trials([(1.0, 9.0), (10.0, 2.9)], *others))[0] is GO
    assert verdicts(rule, trials([(9.0, 9.0)], *others))[0] is GO
    assert verdicts(rule, trials([(1.0, 9.0), (10.0, 3.5)], *others[:2]))[0] is GO


CURVES = st.lists(
    st.lists(st.floats(0.0, 10.0), min_size=0, max_size=6).map(
        lambda losses: [(10.0 * (n + 1), loss) for n, loss in enumerate(losses)]
    ),
    min_size=1,
    max_size=12,
)


@given(CURVES, st.booleans(), st.integers(2, 4))
def test_somebody_always_goes_on_or_is_through(
    curves: list[list[tuple[float, float]]], asynchronous: bool, eta: int
) -> None:
    """Otherwise a group could wait for itself for ever."""
    rule = SuccessiveHalving(first=10.0, eta=eta, rungs=3, asynchronous=asynchronous)
    made = trials(*curves)
    judged = rule.judge(made)
    assert set(judged) == {one.job_id for one in made}
    assert GO in judged.values()
    best = min((one for one in made if one.points), key=lambda one: one.points[0][1], default=None)
    assert best is None or judged[best.job_id] is not END or len(best.points) > 1
    assert rule.judge(made) == judged


# --- on a cluster -----------------------------------------------------------------------------


def curve_of(number: int) -> LossCurve:
    """The higher the number, the lower the loss at any time."""
    return LossCurve(b0=0.01 * (number + 1), b1=0.1, b2=1.0 - 0.05 * number, error=0.0)


def searched(planner: Planner, count: int = 8, gpus: int = 2) -> Story:
    order = [5 * n % count for n in range(count)]
    jobs = [timed(f"t{n}", lasts_s=1_000.0, group="g") for n in order]
    curves = {job.id: curve_of(n) for n, job in zip(order, jobs, strict=True)}

    def loss_at(spec: JobSpec, work_s: float) -> float:
        return curves[spec.id].loss(work_s)

    plant = DurationPlant(report_s=10.0, loss_at=loss_at)
    return Story(planner, t4_nodes(gpus), jobs, plant=plant)


def states(story: Story) -> dict[str, str]:
    return {name: str(state) for name, state in sorted(story.core.finished.items())}


@pytest.mark.parametrize("inner", [FIFO, Gandiva(quantum_s=50.0)], ids=["fifo", "gandiva"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["halving", "asha"])
def test_the_best_trial_is_found_long_before_all_are_through(
    inner: Planner, asynchronous: bool
) -> None:
    rule = SuccessiveHalving(first=100.0, eta=2, rungs=3, asynchronous=asynchronous)
    story = searched(Search(planner=inner, rule=rule, look_s=10.0))
    found = states(story)
    assert found["t7"] == "Succeeded"
    assert list(found.values()).count("Cancelled") >= 5
    whole = searched(inner)
    assert set(states(whole).values()) == {"Succeeded"}
    last_s = max(whole.ended(name) for name in found)
    assert max(story.ended(name) for name in found) < last_s / 1.5


def test_synchronous_halving_by_the_numbers() -> None:
    """Eight trials on two GPUs: four times 100 s; then four 100 s more each, two 200 s, one 600 s.

    Looks every 10 s see a rung at once. Rung 1 ends at 400 s, rung 2 at 600 s, rung 3 at 800 s.
    """
    rule = SuccessiveHalving(first=100.0, eta=2, rungs=3)
    story = searched(Search(planner=FIFO, rule=rule, look_s=10.0))
    assert [story.ended(f"t{n}") for n in range(4)] == [400.0] * 4
    assert [story.ended(f"t{n}") for n in (4, 5)] == [600.0] * 2
    assert story.ended("t6") == 800.0
    assert story.ended("t7") == 1_400.0


def test_median_stopping_on_a_cluster() -> None:
    search = Search(planner=Gandiva(quantum_s=50.0), rule=MedianStopping(grace=50.0), look_s=10.0)
    found = states(searched(search))
    assert found["t7"] == "Succeeded"
    assert "Cancelled" in found.values()


def test_jobs_of_no_group_are_none_of_its_business() -> None:
    rule = SuccessiveHalving(first=10.0, eta=2, rungs=1)
    jobs = [timed(f"j{n}", lasts_s=100.0) for n in range(4)]
    plant = DurationPlant(report_s=10.0, loss_at=lambda spec, work_s: 1.0)
    story = Story(Search(planner=FIFO, rule=rule), t4_nodes(2), jobs, plant=plant)
    assert set(states(story).values()) == {"Succeeded"}
    assert max(story.ended(job.id) for job in jobs) == 200.0


def test_groups_are_judged_one_by_one() -> None:
    rule = SuccessiveHalving(first=10.0, eta=2, rungs=1)
    jobs = [timed(f"{g}{n}", lasts_s=100.0, group=g) for g in "ab" for n in range(2)]
    plant = DurationPlant(
        report_s=10.0, loss_at=lambda spec, work_s: 1.0 + (spec.id[1] == "1") + (spec.id[0] == "a")
    )
    story = Story(Search(planner=FIFO, rule=rule, look_s=10.0), t4_nodes(4), jobs, plant=plant)
    expected = {"a0": "Succeeded", "a1": "Cancelled", "b0": "Succeeded", "b1": "Cancelled"}
    assert states(story) == expected


def test_trials_of_another_tenant_judge_nobody_whatever_their_group_is_called() -> None:
    """A tenant who reports splendid losses under that name ends no trial but its own."""
    rule = SuccessiveHalving(first=10.0, eta=2, rungs=1)
    jobs = [
        timed(f"{tenant}{n}", lasts_s=100.0, group="lr", tenant=tenant)
        for tenant in ("mallory", "victor")
        for n in range(2)
    ]
    plant = DurationPlant(
        report_s=10.0,
        loss_at=lambda spec, work_s: (spec.tenant == "victor") * 10.0 + (spec.id[-1] == "1"),
    )
    story = Story(Search(planner=FIFO, rule=rule, look_s=10.0), t4_nodes(4), jobs, plant=plant)
    assert states(story) == {
        "mallory0": "Succeeded",
        "mallory1": "Cancelled",
        "victor0": "Succeeded",
        "victor1": "Cancelled",
    }
