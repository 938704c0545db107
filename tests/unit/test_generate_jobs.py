"""Training jobs drawn from Philly's statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattherd.errors import UserError
from wattherd.workload.generate_jobs import JobMix, generate_jobs, jobs_csv
from wattherd.workload.native import read_jobs


@settings(max_examples=30)
@given(st.integers(2, 80), st.integers(1, 200), st.floats(0.1, 4.0), st.integers(0, 99))
def test_the_load_is_what_was_asked_for(jobs: int, gpus: int, load: float, seed: int) -> None:
    specs = generate_jobs(JobMix(jobs=jobs, gpus=gpus, load=load, widest=1), seed)
    asked_s = sum(one.gpus * (one.duration_s or 0.0) for one in specs)
    span_s = specs[-1].submit_s
    assert span_s * gpus * load == pytest.approx(asked_s, rel=0.01, abs=0.2 * gpus * load)
    assert [one.submit_s for one in specs] == sorted(one.submit_s for one in specs)


@pytest.mark.long
def test_run_times_and_widths_are_those_of_the_trace() -> None:
    specs = generate_jobs(JobMix(jobs=20_000, gpus=64, widest=32), 3)
    widths = np.array([one.gpus for one in specs])
    run_s = np.array([one.duration_s for one in specs])
    assert np.mean(widths == 1) == pytest.approx(0.9317, abs=0.01)
    # The longest 5 % are left out: the median of the rest is the trace's 47.5th percentile.
    middle = float(np.median(run_s[widths == 1]))
    assert 800 < middle < 1117
    assert run_s[widths == 1].max() <= 19_137


def test_the_file_reads_back_as_the_jobs(tmp_path: Path) -> None:
    specs = generate_jobs(JobMix(jobs=50, gpus=16), 7)
    path = tmp_path / "jobs.csv"
    path.write_text(jobs_csv(specs))
    assert read_jobs(path) == specs


def test_seeds_are_independent_and_repeatable() -> None:
    mix = JobMix(jobs=20, gpus=16)
    assert generate_jobs(mix, 1) == generate_jobs(mix, 1) != generate_jobs(mix, 2)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"jobs": 0}, "jobs"), ({"gpus": 0}, "gpus"), ({"load": 0.0}, "load"),
     ({"load": float("nan")}, "load"), ({"widest": 99}, "widest")],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(wrong: dict[str, float], field: str) -> None:
    with pytest.raises(UserError) as refused:
        JobMix(**{"jobs": 10, "gpus": 16, **wrong})  # type: ignore[arg-type]
    assert refused.value.field == field
