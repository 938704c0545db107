"""Joules per job in power allocation: points that would use up too much are not offered."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.estimate.measured_curve import CountedWatts, JobCurve, MeasuredPoint
from wattherd.experiments.allocate.run import AllocationTerms, allocation
from wattherd.workload.curves import read_curves, with_joules

# Joules per unit of work: 2.5 at 100 W, 2.0 at 200 W, 2.4 at 300 W, 3.0 at 450 W.
POINTS = (
    MeasuredPoint(100.0, 100.0, 40.0),
    MeasuredPoint(200.0, 200.0, 100.0),
    MeasuredPoint(300.0, 300.0, 125.0),
    MeasuredPoint(400.0, 450.0, 150.0),
)


def job(budget_j: float | None, **more: object) -> JobCurve:
    return JobCurve(job="a", points=POINTS, work=1000.0, energy_budget_j=budget_j, **more)


@pytest.mark.parametrize(
    ("budget_j", "caps"),
    [
        (3000.0, [100, 200, 300, 400]),
        (2999.0, [100, 200, 300]),
        (2450.0, [200, 300]),
        (2000.0, [200]),
    ],
)
def test_what_would_use_up_too_much_is_not_offered(budget_j: float, caps: list[float]) -> None:
    """The lowest cap goes too: it is slow, and the idle watts of its hours count."""
    assert [
        one.point.cap_w for one in job(budget_j).choices(CountedWatts.DRAW) if one.point
    ] == caps


def test_a_budget_that_no_cap_keeps_is_refused_with_numbers() -> None:
    message = r"1\.9 kJ do not last: the 1000 units of work left need 2 kJ .*thriftiest cap, 200 W"
    with pytest.raises(UserError, match=message):
        job(1900.0)


def test_the_floor_may_rule_out_the_thriftiest_cap() -> None:
    with pytest.raises(UserError, match=r"need 2\.4 kJ under the thriftiest cap, 300 W"):
        job(2100.0, floor_w=250.0)


def test_a_budget_for_unknown_work_is_refused() -> None:
    with pytest.raises(UserError, match="work that is not known"):
        JobCurve(job="a", points=POINTS, energy_budget_j=5.0)


def test_a_floor_above_every_cap_is_refused() -> None:
    with pytest.raises(UserError, match="401 W is above the highest measured cap, 400 W"):
        JobCurve(job="a", points=POINTS, floor_w=401.0)


def test_ample_watts_do_not_lift_a_job_beyond_its_joules() -> None:
    document = allocation([job(2450.0)], AllocationTerms(budget_w=10_000.0), "water-filling")
    (row,) = document["jobs"]
    assert (row["cap_w"], row["energy_j"], row["energy_budget_j"]) == (300.0, 2400.0, 2450.0)
    assert row["relative_rate"] == pytest.approx(125 / 150)


def test_budgets_come_with_the_curves_or_from_a_file_of_their_own(tmp_path: Path) -> None:
    rows = [f"a,{p.cap_w},{p.power_w},{p.rate}" for p in POINTS]
    own = tmp_path / "own.csv"
    lines = ["job,cap_w,power_w,rate,work,energy_budget_j", *(f"{row},1000,2450" for row in rows)]
    own.write_text("\n".join(lines) + "\n")
    plain, joules = tmp_path / "plain.csv", tmp_path / "joules.csv"
    plain.write_text("\n".join(["job,cap_w,power_w,rate", *rows]) + "\n")
    joules.write_text("job,work,energy_budget_j\na,1000,2450\n")
    assert read_curves(own) == with_joules(read_curves(plain), joules)


def test_a_budget_for_an_unknown_job_names_file_and_line(tmp_path: Path) -> None:
    joules = tmp_path / "joules.csv"
    joules.write_text("job,work,energy_budget_j\nb,1000,2450\n")
    with pytest.raises(UserError, match=r"no curve of 'b'") as caught:
        with_joules([job(None)], joules)
    assert caught.value.where == f"{joules}:2"
