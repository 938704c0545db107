"""Speeds learned from reports, with a reporter that is unkind.

A sound run does `pace` steps a second and reports now and then. What is unkind: counts that jump
and come back, counts that go back to a checkpoint, negative ones and ones that are no number,
pauses, a first minute that is slow, caps that change. The expected speed is the pace itself.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.estimate.job_kind import job_kind
from wattherd.estimate.job_rate import JobRates, RateSource
from wattherd.estimate.learned_rates import (
    LEAST_WINDOWS,
    MOST_JOBS,
    MOST_WINDOWS,
    WARM_UP,
    WINDOW_S,
    LearnedRates,
    WayRun,
)
from wattherd.model.job import JobSpec, TaskRole

FAST, SLOW = WayRun("fast", 1), WayRun("slow", 1)
SURE = LEAST_WINDOWS + WARM_UP + 1
"""Reports after which a run has a speed, where each ends a window."""


class Report(NamedTuple):
    """`progress` told at `at_s`."""

    at_s: float
    progress: float


def sound(pace: float, reports: int, *, gap_s: float = 2.0, begins_s: float = 0.0) -> list[Report]:
    return [Report(begins_s + n * gap_s, n * gap_s * pace) for n in range(reports)]


def tell(
    learned: LearnedRates, reports: list[Report], *, job: str = "a", kind: str = "k",
    way: WayRun = FAST, attempt: int = 1, relative: float = 1.0,
) -> None:  # fmt: skip
    for one in reports:
        learned.heard(job, kind, attempt, way, one.progress, one.at_s, relative=relative)


def pace_of(learned: LearnedRates, way: WayRun = FAST, job: str = "a") -> float | None:
    found = learned.of_job(job).get(way)
    return None if found is None else found.per_s


PACES = st.floats(0.01, 1e4)
GAPS = st.floats(1.5 * WINDOW_S, 600.0)


@given(PACES, GAPS, st.integers(SURE, 60))
def test_a_steady_run_has_its_pace(pace: float, gap_s: float, reports: int) -> None:
    learned = LearnedRates()
    tell(learned, sound(pace, reports, gap_s=gap_s))
    assert pace_of(learned) == pytest.approx(pace)


WRONG = st.one_of(
    st.floats(-1e12, 1e12),
    st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0]),
)


@given(PACES, st.dictionaries(st.integers(0, 59), WRONG, max_size=4))
def test_a_few_wrong_reports_do_not_move_a_speed(pace: float, wrong: dict[int, float]) -> None:
    """Each spoils the window that ends at it, and up to three after it (it begins anew)."""
    learned = LearnedRates()
    reports = sound(pace, 60)
    for at, progress in wrong.items():
        reports[at] = Report(reports[at].at_s, progress)
    tell(learned, reports)
    assert pace_of(learned) == pytest.approx(pace)


@given(PACES, st.lists(st.floats(1.0, 1e5), min_size=1, max_size=6), st.data())
def test_pauses_do_not_move_a_speed(pace: float, pauses: list[float], data: st.DataObject) -> None:
    learned = LearnedRates()
    at = sorted(data.draw(st.sets(st.integers(1, 39), min_size=len(pauses), max_size=len(pauses))))
    late_s, reports = 0.0, []
    for number, one in enumerate(sound(pace, 40)):
        late_s += dict(zip(at, pauses, strict=True)).get(number, 0.0)
        reports.append(Report(one.at_s + late_s, one.progress))
    tell(learned, reports)
    assert pace_of(learned) == pytest.approx(pace)


@given(PACES, st.integers(1, 10), st.integers(SURE, 20))
def test_a_count_from_a_checkpoint_is_no_pace(pace: float, back: int, reports: int) -> None:
    """The run goes on at its pace from an earlier step, then another attempt from a later one."""
    learned = LearnedRates()
    first = sound(pace, reports)
    again = [
        Report(
            first[-1].at_s + 2.0 + one.at_s, max(first[-1].progress - back * pace, 0) + one.progress
        )
        for one in first
    ]
    tell(learned, first + again)
    assert pace_of(learned) == pytest.approx(pace)
    resumed = [Report(1e6 + one.at_s, 1e7 * pace + one.progress) for one in first]
    tell(learned, resumed, attempt=2)
    assert pace_of(learned) == pytest.approx(pace)


@given(PACES, st.floats(0.001, 0.5), st.integers(0, WARM_UP))
def test_the_first_steps_of_a_run_are_no_pace(pace: float, slower: float, slow: int) -> None:
    learned = LearnedRates()
    done, reports = 0.0, []
    for number in range(SURE + 1):
        reports.append(Report(2.0 * number, done))
        done += 2.0 * pace * (slower if number < slow else 1.0)
    tell(learned, reports)
    assert pace_of(learned) == pytest.approx(pace)


@given(PACES, st.floats(0.2, 0.9), st.integers(SURE, 20))
def test_what_a_cap_takes_is_told_apart_and_put_back(
    pace: float, relative: float, reports: int
) -> None:
    """By turns without a cap and at half the watts, where the curve says `relative`."""
    capped = FAST._replace(cap_w=200.0)
    learned = LearnedRates()
    tell(learned, sound(pace * relative, reports), way=capped, relative=relative)
    (speed,) = learned.of_job("a").values()
    assert (speed.per_s, speed.full_per_s) == (
        pytest.approx(pace * relative), pytest.approx(pace),
    )  # fmt: skip
    later = [Report(1e5 + one.at_s, 1e9 * pace + one.progress) for one in sound(pace, reports)]
    tell(learned, later, way=FAST)
    assert pace_of(learned) == pytest.approx(pace)
    assert len(learned.of_job("a")) == 2


@given(st.lists(st.tuples(st.floats(0.0, 1e6), WRONG, st.sampled_from([FAST, SLOW])), max_size=80))
def test_whatever_is_reported_speeds_are_numbers_above_zero_and_lie_within_what_was_seen(
    reports: list[tuple[float, float, WayRun]],
) -> None:
    learned = LearnedRates()
    for at_s, progress, way in sorted(reports, key=lambda one: one[0]):
        learned.heard("a", "k", 1, way, progress, at_s)
    for speed in (*learned.of_job("a").values(), *learned.of_kind("k").values()):
        assert math.isfinite(speed.per_s)
        assert speed.per_s > 0


@given(PACES, st.integers(0, 4), st.floats(1e-6, 1e6))
def test_a_job_that_lies_throughout_is_one_voice_of_its_kind(
    pace: float, honest: int, lie: float
) -> None:
    """Nine runs of a liar, and `honest` + 2 others: the kind keeps their pace."""
    learned = LearnedRates()
    for number in range(honest + 2):
        tell(learned, sound(pace, SURE), job=f"honest-{number}")
    for attempt in range(1, 10):
        tell(
            learned,
            sound(pace * lie, 3 * SURE, begins_s=1e3 * attempt),
            job="liar",
            attempt=attempt,
        )
    assert learned.of_kind("k")[FAST].per_s == pytest.approx(pace)


@given(st.text(alphabet="ab\n", max_size=3), st.text(alphabet="ab\n", max_size=3), PACES)
def test_a_tenant_moves_nothing_of_anothers(name: str, label: str, pace: float) -> None:
    """However kinds are called: what another tenant's job reports leaves a job's rates alone."""
    rates = JobRates(models=("fast", "slow"), unknown_equal=True)

    def job(job_id: str, tenant: str, kind: str) -> JobSpec:
        labels = (("kind", kind),)
        return JobSpec(id=job_id, submit_s=0.0, roles=(TaskRole(),), tenant=tenant, labels=labels)

    learned = LearnedRates()
    for way, times in ((FAST, 1.0), (SLOW, 9.0)):
        other = job("theirs", "b", name)
        tell(learned, sound(pace * times, SURE), job="theirs", kind=job_kind(other), way=way)
    for tenant in ("a", ""):
        mine = job("mine", tenant, label)
        found = [learned.rates(rates).rate(mine, model) for model in ("fast", "slow")]
        assert [one.per_s for one in found] == [1.0, 1.0]
        assert not {one.source for one in found} & {RateSource.LEARNED_KIND, RateSource.LEARNED_JOB}


def test_old_jobs_of_a_kind_give_way_to_later_ones() -> None:
    learned = LearnedRates()
    for number in range(3 * MOST_JOBS):
        pace = 1.0 if number < 2 * MOST_JOBS else 5.0
        tell(learned, sound(pace, SURE), job=f"j-{number}")
    found = learned.of_kind("k")[FAST]
    assert (found.per_s, found.windows) == (5.0, MOST_JOBS)


def test_a_speed_that_changes_for_good_is_learned() -> None:
    learned = LearnedRates()
    tell(learned, sound(10.0, 60))
    end = sound(10.0, 60)[-1]
    tell(
        learned,
        [Report(end.at_s + one.at_s, end.progress + one.progress) for one in sound(2.0, 20)],
    )
    assert pace_of(learned) == pytest.approx(2.0)


def test_the_guide_tells_the_numbers_by_which_it_is_learned() -> None:
    guide = Path(__file__).parents[2].joinpath("docs", "guides", "learned-speed.md")
    page = " ".join(guide.read_text(encoding="utf-8").split())
    assert (LEAST_WINDOWS, WARM_UP) == (3, 2)
    for claim in (
        f"at least {WINDOW_S:g} s apart",
        f"median of its last {MOST_WINDOWS} windows",
        "three windows make one",
        "first two windows of a run",
        f"median of its last {MOST_JOBS} jobs",
    ):
        assert claim in page, claim


def test_no_speed_rests_on_the_first_windows_of_a_run() -> None:
    learned = LearnedRates()
    tell(learned, sound(10.0, SURE)[:-1])
    assert pace_of(learned) is None
    tell(learned, sound(10.0, SURE)[-1:])
    assert pace_of(learned) == pytest.approx(10.0)
