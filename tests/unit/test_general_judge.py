"""The judge that is there from the first job on is the one that its module says it is."""

from __future__ import annotations

import pytest

from wattherd.estimate.curve_judge import GENERAL_JUDGE
from wattherd.sim.ps_plant import REPORT_S
from wattherd.workload.ps_jobs import PsMix
from wattherd.workload.ps_profile import judge_of_the_past


@pytest.mark.slow
def test_it_was_taught_by_the_past_that_it_names() -> None:
    taught = judge_of_the_past(PsMix(), 1000, REPORT_S)
    assert GENERAL_JUDGE.weights == pytest.approx(taught.weights, rel=1e-6)
    assert GENERAL_JUDGE.means == pytest.approx(taught.means, rel=1e-6)
    assert GENERAL_JUDGE.scales == pytest.approx(taught.scales, rel=1e-6)
