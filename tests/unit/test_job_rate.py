"""How fast a job is on which devices, and where every number comes from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattherd.catalog.gpus import GPUS, RATES, rates
from wattherd.errors import UserError
from wattherd.estimate.job_rate import (
    ALIKE,
    JobRates,
    RatePoint,
    RateSource,
    RateTable,
    prior_speed,
)
from wattherd.estimate.power_curve import PowerCurve
from wattherd.model.job import JobSpec, TaskRole
from wattherd.workload.speed_table import read_speeds

MODELS = ("A100", "H100-SXM", "T4")
A100_TO_T4 = math.sqrt(19.5 * 1555 / (8.1 * 320))
"""By the data sheets: 1e12 operations and 1e9 bytes a second of an A100 and of a T4."""
H100_TO_A100 = math.sqrt(67 * 3350 / (19.5 * 1555))


def a_job(gpus: int = 4, **fields: object) -> JobSpec:
    given = {"id": "a", "submit_s": 0.0, "duration_s": 100.0, "profile": "bert", **fields}
    return JobSpec(roles=(TaskRole(count=gpus),), **given)  # type: ignore[arg-type]


def point(model: str, gpus: int, per_s: float, **where: int) -> RatePoint:
    return RatePoint(kind="bert", gpu_model=model, gpus=gpus, per_s=per_s, **where)


def test_a_job_that_was_never_measured_has_the_catalogues_ratio_as_a_prior() -> None:
    one = JobRates(models=MODELS)
    slow, fast = one.rate(a_job(), "T4"), one.rate(a_job(), "A100")
    assert (slow.per_s, slow.source) == (1.0, RateSource.STATED)
    assert fast.source is RateSource.PRIOR
    assert fast.per_s == pytest.approx(A100_TO_T4)
    assert fast.per_s == pytest.approx(3.42, abs=0.01)


def test_durations_hold_where_it_is_said_that_they_do() -> None:
    one = JobRates(models=("T4",), durations_on="A100")
    assert one.rate(a_job(), "T4").per_s == pytest.approx(1 / A100_TO_T4)
    assert one.rate(a_job(), "A100").per_s == 1.0


def test_by_default_no_job_lasts_longer_than_it_states() -> None:
    one = JobRates(models=MODELS)
    only_fast = a_job(gpu_models=("A100", "H100-SXM"))
    assert one.holds_on(a_job()) == "T4"
    assert one.holds_on(only_fast) == "A100"
    assert all(one.rate(only_fast, model).per_s >= 1 for model in only_fast.gpu_models)


@given(st.sampled_from(sorted(set(GPUS) & set(RATES))), st.integers(1, 64))
def test_where_there_is_one_model_every_job_runs_as_it_states(model: str, gpus: int) -> None:
    found = JobRates(models=(model,)).rate(a_job(gpus), model)
    assert (found.per_s, found.source) == (1.0, RateSource.STATED)


def test_a_measured_table_goes_before_the_prior() -> None:
    table = RateTable([point("T4", 4, 10.0), point("A100", 4, 25.0)])
    found = JobRates(models=MODELS, measured=table).rate(a_job(), "A100")
    assert (found.per_s, found.source) == (2.5, RateSource.MEASURED)


def test_a_model_that_was_not_measured_is_reached_from_the_nearest_that_was() -> None:
    table = RateTable([point("T4", 4, 10.0), point("A100", 4, 25.0)])
    found = JobRates(models=MODELS, measured=table).rate(a_job(), "H100-SXM")
    assert found.source is RateSource.PRIOR
    assert found.per_s == pytest.approx(2.5 * H100_TO_A100)


def test_what_this_job_taught_goes_before_what_its_kind_did() -> None:
    own = RateTable(
        RatePoint(kind="a", gpu_model=model, gpus=4, per_s=per_s)
        for model, per_s in (("T4", 1.0), ("A100", 2.0))
    )
    kind = RateTable([point("T4", 4, 1.0), point("A100", 4, 3.0)])
    one = JobRates(models=MODELS, learned_jobs={"a": own}, learned_kinds=kind)
    mine, other = one.rate(a_job(), "A100"), one.rate(a_job(id="b"), "A100")
    assert (mine.per_s, mine.source) == (2.0, RateSource.LEARNED_JOB)
    assert (other.per_s, other.source) == (3.0, RateSource.LEARNED_KIND)


def test_between_measured_widths_rates_are_on_the_line_and_nothing_is_told_beyond() -> None:
    table = RateTable([point("T4", 2, 10.0), point("T4", 8, 22.0)])
    one = JobRates(models=("T4",), measured=table)
    assert one.rate(a_job(2), "T4", gpus=4).per_s == pytest.approx(1.4)
    assert one.rate(a_job(2), "T4", gpus=4).source is RateSource.MEASURED
    beyond = one.rate(a_job(2), "T4", gpus=16)
    assert (beyond.per_s, beyond.source) == (1.0, RateSource.PRIOR)


def test_fewer_gpus_than_asked_for_are_slower_in_proportion_until_measured() -> None:
    one = JobRates(models=("T4",))
    assert one.rate(a_job(4), "T4", gpus=1).per_s == 0.25
    assert one.rate(a_job(4), "T4", gpus=1).source is RateSource.PRIOR


def test_batch_nodes_and_accumulation_matter_where_they_were_told_apart() -> None:
    table = RateTable(
        [
            point("T4", 4, 10.0, nodes=1, batch=32),
            point("T4", 4, 6.0, nodes=2, batch=32),
            point("T4", 4, 8.0, nodes=1, batch=64),
            point("T4", 4, 7.0, nodes=1, batch=64, accumulation=1),
        ]
    )
    one = JobRates(models=("T4",), measured=table)
    job = a_job(4, batch_size=32)
    assert one.rate(job, "T4", nodes=2).per_s == pytest.approx(0.6)
    assert one.rate(job, "T4", batch=64, accumulation=0).per_s == pytest.approx(0.8)
    assert one.rate(job, "T4", batch=64, accumulation=1).per_s == pytest.approx(0.7)


def test_a_cap_slows_by_the_jobs_curve_on_that_model() -> None:
    curves = {"T4": PowerCurve((35.0, 70.0), (0.5, 1.0)), "A100": PowerCurve((100.0,), (1.0,))}
    one = JobRates(models=("A100", "T4"), curve_of=lambda _, model: curves[model])
    assert one.rate(a_job(), "T4", cap_w=35.0).per_s == 0.5
    assert one.rate(a_job(), "A100", cap_w=100.0).per_s == pytest.approx(A100_TO_T4)


def test_equal_models_are_equal_only_because_somebody_said_so() -> None:
    assert ALIKE.rate(a_job(), "A100").source is RateSource.EQUAL
    one = JobRates(models=MODELS, equal=True)
    assert {one.rate(a_job(), model).per_s for model in MODELS} == {1.0}


def test_a_model_of_unknown_speed_is_refused_where_there_are_several() -> None:
    with pytest.raises(UserError, match="nothing is known of the speed of 'Gaudi3'"):
        JobRates(models=("A100", "Gaudi3"))
    assert JobRates(models=("Gaudi3",)).rate(a_job(), "Gaudi3").per_s == 1.0
    assert not JobRates(models=("A100", "Gaudi3"), equal=True).differs


@given(st.permutations(sorted(set(RATES))))
def test_priors_are_ratios_of_one_number_per_model(names: list[str]) -> None:
    one, two, three = names[:3]
    direct = prior_speed(one) / prior_speed(three)
    by_way = prior_speed(one) / prior_speed(two) * (prior_speed(two) / prior_speed(three))
    assert direct == pytest.approx(by_way)
    found = rates(one)
    assert found is not None
    assert 1e11 < found.memory_b_s < 1e13


def test_a_table_is_read_with_what_it_tells_apart(tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"
    path.write_text(
        "kind,gpu_model,gpus,rate,batch\nbert,T4,4,10,32\nbert,A100,4,30,32\nbert,A100,4,20,\n"
    )
    one = JobRates(models=MODELS, measured=read_speeds(path, known=GPUS), durations_on="T4")
    assert one.rate(a_job(batch_size=32), "A100").per_s == 3.0
    other = one.rate(a_job(batch_size=64), "A100")
    assert other.source is RateSource.PRIOR  # there is no T4 at this batch to compare with


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("bert,T5,4,10", "unknown GPU 'T5'"),
        ("bert,T4,0,10", "0 GPUs are none"),
        ("bert,T4,4,-1", "-1 is not above zero"),
        (",T4,4,1", "is empty"),
        ("bert,T4,4,1\nbert,T4,4,2", "appears twice"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_with_its_line(
    tmp_path: Path, row: str, told: str
) -> None:
    path = tmp_path / "speeds.csv"
    path.write_text(f"kind,gpu_model,gpus,rate\n{row}\n")
    with pytest.raises(UserError, match=told) as error:
        read_speeds(path, known=GPUS)
    assert "speeds.csv:" in str(error.value.where)
