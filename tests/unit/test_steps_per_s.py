"""Steps a second by width, and where each number comes from."""

from __future__ import annotations

import pytest

from wattherd.estimate.job_rate import (
    SERIAL_SHARE,
    JobRates,
    RatePoint,
    RateSource,
    RateTable,
    step_s_at,
)
from wattherd.model.job import JobSpec, TaskRole

SPEC = JobSpec(
    id="a", submit_s=0.0, roles=(TaskRole(count=4, command=("train",)),), min_width=1, profile="k"
)


def rates(own: dict[int, float] | None = None, kind: dict[int, float] | None = None) -> JobRates:
    return JobRates(
        models=("T4",),
        learned_jobs={"a": table("a", own)} if own else {},
        learned_kinds=table("k", kind or {}),
    )


def table(kind: str, known: dict[int, float], model: str = "T4") -> RateTable:
    return RateTable(
        RatePoint(kind=kind, gpu_model=model, gpus=gpus, per_s=per_s, nodes=1)
        for gpus, per_s in known.items()
    )


def test_nothing_learned_is_no_number() -> None:
    assert rates().steps_per_s(SPEC, "T4", 2) is None


@pytest.mark.parametrize(
    ("own", "kind", "per_s", "source"),
    [
        pytest.param({2: 5.0}, {2: 9.0}, 5.0, RateSource.LEARNED_JOB, id="its own first"),
        pytest.param({1: 5.0}, {2: 9.0}, 9.0, RateSource.LEARNED_KIND, id="then its kind's"),
        pytest.param({1: 5.0}, {1: 10.0, 2: 16.0}, 8.0, RateSource.LEARNED_KIND, id="at its pace"),
        pytest.param({1: 4.0, 4: 16.0}, None, 8.0, RateSource.FITTED, id="on the line of two"),
        pytest.param({1: 4.0, 4: 4.0}, None, 4.0, RateSource.FITTED, id="no width helps"),
    ],
)
def test_the_nearest_word_counts(
    own: dict[int, float] | None, kind: dict[int, float] | None, per_s: float, source: RateSource
) -> None:
    found = rates(own, kind).steps_per_s(SPEC, "T4", 2)
    assert found is not None
    assert found.source is source
    assert found.per_s == pytest.approx(per_s)


def test_where_width_hurts_no_width_is_believed_to_help() -> None:
    known = {1: 4.0, 3: 2.0}
    assert step_s_at(known, 2) == pytest.approx(step_s_at(known, 8))
    assert 1 / 4.0 < step_s_at(known, 2) < 1 / 2.0


def test_one_width_leaves_the_others_to_a_prior() -> None:
    found = rates({1: 10.0}).steps_per_s(SPEC, "T4", 2)
    assert found is not None
    assert found.source is RateSource.PRIOR
    assert found.per_s == pytest.approx(10.0 / (SERIAL_SHARE + (1 - SERIAL_SHARE) / 2))
    assert step_s_at({4: 10.0}, 4) == pytest.approx(0.1)


def test_another_model_is_a_ratio_of_the_catalogue_away() -> None:
    known = JobRates(models=("T4", "A100"), learned_jobs={"a": table("a", {1: 10.0})})
    found = known.steps_per_s(SPEC, "A100", 1)
    assert found is not None
    assert found.source is RateSource.PRIOR
    assert found.per_s > 20.0


def test_a_batch_of_another_size_is_another_job() -> None:
    points = [
        RatePoint(kind="a", gpu_model="T4", gpus=1, per_s=7.0, nodes=1, batch=batch)
        for batch in (32, 64)
    ]
    known = JobRates(models=("T4",), learned_jobs={"a": RateTable(points[:1])})
    big = JobSpec(id="a", submit_s=0.0, batch_size=64)
    assert known.steps_per_s(big, "T4", 1) is None


def test_no_gpus_do_no_steps() -> None:
    assert rates({1: 10.0}).steps_per_s(SPEC, "T4", 0) is None
