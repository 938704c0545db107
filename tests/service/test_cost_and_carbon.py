"""Cost and emissions beside energy: simulated runs, their report, and metered records."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from wattherd.cli.main import main

JOBS = "id,submit_s,gpus,duration_s\na,0,8,3600\nb,0,4,7200\nc,1800,8,3600\n"
RATES = "at,price_eur_per_kwh,carbon\n0s,0.2,100\n1h,0.6,500\n3h,0.1,50\n9h,0.1,50\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text(JOBS)
    Path("rates.csv").write_text(RATES)


def ran(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert isinstance(end.value.code, int)
    return end.value.code


def simulated(*more: str) -> int:
    return ran("sim", "run", "--jobs", "jobs.csv", "--format", "native", "--preset", "none",
               "--cluster", "1x8:V100M16", "--policy", "fifo", *more)  # fmt: skip


def test_a_run_tells_cost_and_emissions_of_its_draw_at_the_rates_of_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated("--rates", "rates.csv", "--out", "run", "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)["policies"]
    # The same from the run's own history of watts: steps with their beginnings.
    with Path("run/power-fifo.csv").open() as stream:
        steps = [(float(one["time_s"]), float(one["draw_w"])) for one in csv.DictReader(stream)]
    begins = [at_s for at_s, _ in steps]
    ends = [*begins[1:], row["makespan_s"]]
    prices = [(0, 3600, 0.2, 100), (3600, 10_800, 0.6, 500), (10_800, 1e9, 0.1, 50)]
    cost = grams = 0.0
    for (from_s, watts), until_s in zip(steps, ends, strict=True):
        for start_s, end_s, price, carbon in prices:
            kwh = watts * max(0.0, min(until_s, end_s) - max(from_s, start_s)) / 3.6e6
            cost, grams = cost + kwh * price, grams + kwh * carbon
    assert row["cost"] == pytest.approx(cost, rel=2e-3)
    assert row["co2e_kg"] == pytest.approx(grams / 1e3, rel=2e-3)
    assert (row["currency"], row["unpriced_j"], row["unrated_j"]) == ("EUR", 0.0, 0.0)


def test_tables_and_report_have_the_columns_only_where_rates_are_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulated("--rates", "rates.csv", "--out", "with") == 0
    assert "COST EUR  kgCO2e" in capsys.readouterr().out
    assert simulated("--out", "without") == 0
    assert "COST" not in capsys.readouterr().out
    for folder in ("with", "without"):
        assert ran("report", folder) == 0
    assert "CO2e" in Path("with/report.html").read_text()
    assert "CO2e" not in Path("without/report.html").read_text()
    document = json.loads(Path("without/sim.json").read_text())
    assert "cost" not in document["policies"][0]
    assert "rates" not in document["scenario"]


def test_time_without_a_rate_is_told_and_not_free(capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.csv").write_text("at,price,carbon\n0s,0.2,\n30m,0.3,\n")
    assert simulated("--rates", "short.csv") == 0
    out, err = capsys.readouterr()
    assert "kWh were drawn at a time of unknown price" in err
    assert "carbon" not in err
    assert out.splitlines()[1].split()[-1] == "–"


def test_scenarios_name_rates_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sub").mkdir()
    for name in ("jobs.csv", "rates.csv"):
        Path(name).rename(f"sub/{name}")
    Path("sub/s.yaml").write_text(
        "cluster: 1x8:V100M16\npreset: none\npolicies: [fifo]\nrates: rates.csv\n"
        "jobs: {file: jobs.csv, format: native}\n"
    )
    assert ran("sim", "compare", "sub/s.yaml") == 0
    assert "COST EUR  kgCO2e" in capsys.readouterr().out


def test_a_meters_record_is_billed_by_day(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"2030-06-05T{hour:02}:00:00Z,1000" for hour in range(20, 24)]
    rows += [f"2030-06-06T{hour:02}:00:00Z,2000" for hour in range(3)]
    Path("meter.csv").write_text("time,watts\n" + "\n".join(rows) + "\n")
    Path("tariff.yaml").write_text(
        'currency: EUR\nrates: [{at: "00:00", price: 0.1, carbon: 200},'
        ' {at: "22:00", price: 0.5, carbon: 400}]\n'
    )
    words = ["power", "cost", "meter.csv", "--rates", "tariff.yaml"]
    assert ran(*words, "-o", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["period"], one["kwh"], one["cost"], one["co2e_kg"])
            for one in document["periods"]] == [
        ("2030-06-05", pytest.approx(4), pytest.approx(2 * 0.1 + 2 * 0.5), pytest.approx(1.2)),
        ("2030-06-06", pytest.approx(6), pytest.approx(6 * 0.1), pytest.approx(1.2)),
    ]  # fmt: skip
    assert ran(*words, "--by", "all") == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["total", "10.000", "1.800", "2.400"]
    Path("late.csv").write_text("at,price\n2031-01-01T00:00Z,1\n2031-01-01T01:00Z,1\n")
    assert ran("power", "cost", "meter.csv", "--rates", "late.csv") == 1


def test_what_a_service_has_measured_is_billed_by_job_and_by_day(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from wattherd.server.hardware.draw import DrawSample, sample_row
    from wattherd.store.database import in_folder
    from wattherd.store.projection import ProjectionBatch
    from wattherd.store.store import ClusterStore

    Path("state").mkdir()
    store = ClusterStore.open(in_folder(Path("state")))
    store.journal.set_fact("epoch", "1906912800")  # 2030-06-05T18:00:00Z
    batch = ProjectionBatch()
    for number in range(1, 13):  # half an hour each, six hours in all
        jobs = {"j-1": 300.0, "j-2": 100.0} if number <= 8 else {"j-2": 100.0}
        sample = DrawSample(
            at_s=1800.0 * number, draw_w=500.0, budget_w=None, by_job=jobs, stated=""
        )
        batch.samples.append(sample_row(sample, 1800.0))
    store.projection.write(batch)
    store.close()
    Path("tariff.yaml").write_text(
        'currency: EUR\nrates: [{at: "00:00", price: 0.1}, {at: "20:00", price: 0.5}]\n'
    )
    words = ["power", "cost", "--state", "state", "--rates", "tariff.yaml", "-o", "json"]
    assert ran(*words, "--by", "job") == 0
    document = json.loads(capsys.readouterr().out)
    # Two hours at 0.1 and then at 0.5: j-1 runs for four hours, j-2 for six.
    rows = {one["period"]: (one["kwh"], one["cost"]) for one in document["periods"]}
    assert rows == {
        "j-1": (pytest.approx(1.2), pytest.approx(0.6 * 0.1 + 0.6 * 0.5)),
        "j-2": (pytest.approx(0.6), pytest.approx(0.2 * 0.1 + 0.4 * 0.5)),
        "(idle)": (pytest.approx(1.2), pytest.approx(0.2 * 0.1 + 0.2 * 0.5 + 0.8 * 0.5)),
    }
    assert document["total"]["kwh"] == pytest.approx(3.0)
    assert document["total"]["co2e_kg"] is None
    assert ran(*words) == 0
    days = json.loads(capsys.readouterr().out)["periods"]
    assert [one["period"] for one in days] == ["2030-06-05"]
    assert days[0]["cost"] == pytest.approx(1.0 * 0.1 + 2.0 * 0.5)
    assert ran("power", "cost", "--state", ".", "--rates", "tariff.yaml") == 2
    assert "holds no store" in capsys.readouterr().err
