"""A real service and its command line: a job waits for cheap energy, until its user says now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.serving import Serving

pytestmark = pytest.mark.long


def test_a_job_waits_for_the_cheap_hour_until_its_user_says_now(tmp_path: Path) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = [f"{(hour + timedelta(hours=n)).isoformat()},{0.1 if n >= 3 else 0.5}" for n in range(8)]
    rates = tmp_path / "rates.csv"
    rates.write_text("\n".join(["at,price", *rows]) + "\n")
    file = tmp_path / "job.yaml"
    file.write_text("name: nightly\nrun: 'true'\ntime: {expected: 20m, limit: 9h}\n")
    serving = Serving(tmp_path / "state", "--rates", str(rates), "--slots", "1")
    try:
        serving.begin()
        serving.ready()
        asked = ("submit", "-f", str(file), "-t", "1h", "--defer", "cost", "--deadline", "in 6h")
        done = serving.call(*asked)
        assert done.returncode == 0, done.stderr
        found = serving.ask("jobs/j-1")
        assert found["spec"]["time_limit_s"] == 3600.0
        assert found["spec"]["expected_s"] == 1200.0  # of the file, beside the option
        assert found["spec"]["defer"] == "cost"
        late = datetime.fromisoformat(found["spec"]["begin"]) - (hour + timedelta(hours=3))
        assert timedelta(0) <= late < timedelta(seconds=30), late  # its submission took so long
        assert found["reason"]["code"] == "NotBefore"
        assert "energy: 0.1 a kWh then, 0.5 now" in found["reason"]["text"]
        done = serving.call("edit", "j-1", "--begin", "in 0s")
        assert done.returncode == 0, done.stderr
        serving.wait_for("j-1", "Succeeded")
        assert serving.ask("jobs/j-1")["spec"]["defer"] is None
    finally:
        serving.end()


def test_where_nobody_knows_what_energy_costs_it_is_refused(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "state", "--slots", "1")
    try:
        serving.begin()
        serving.ready()
        done = serving.call(
            "submit", "--defer", "carbon", "--deadline", "in 6h", "-t", "1h", "--", "true"
        )
        assert done.returncode == 2
        assert "this service knows no rates" in done.stderr
        assert "hint:" in done.stderr
    finally:
        serving.end()
