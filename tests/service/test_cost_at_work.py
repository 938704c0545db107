"""Cost and emissions of a real service's jobs: everywhere where energy is shown, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.guarded import Guarded
from wattherd.cli.live_tables import bill_cells
from wattherd.server.auth.caller import Role
from wattherd.store.database import in_folder
from wattherd.store.store import ClusterStore

pytestmark = pytest.mark.long


def test_what_energy_costs_is_beside_it_and_outlives_a_restart(tmp_path: Path) -> None:
    rates = tmp_path / "rates.yaml"
    rates.write_text("currency: EUR\nrates: [{at: '00:00', price: 36.0, carbon: 3600}]\n")
    state = tmp_path / "state"
    guarded = Guarded(state, rates=str(rates), job_metrics=True)
    guarded.let_in("admin", Role.ADMIN)
    job = guarded.submit("admin", "sleep 4", gpus=1)

    def row() -> dict[str, object]:
        return dict(guarded.ask("GET", f"/api/v1/jobs/{job}", "admin").json)

    guarded.until(lambda: row()["state"] == "Succeeded")
    bill = row()["bill"]
    assert isinstance(bill, dict)
    assert bill["currency"] == "EUR"
    energy_j = float(str(row()["energy_j"]))
    assert bill["cost"] == pytest.approx(energy_j * 36.0 / 3.6e6)
    assert bill["co2e_kg"] == pytest.approx(energy_j * 3.6 / 3.6e6)
    power = guarded.ask("GET", "/api/v1/power", "admin").json
    assert power["rates"]["price_per_kwh"] == 36.0
    assert power["bill"]["cost"] > bill["cost"]
    metrics = guarded.ask("GET", "/metrics", "admin").text
    assert 'wattherd_energy_cost_total{currency="EUR",scope="site"}' in metrics
    assert "wattherd_rates_up 1.0" in metrics
    cookie = f"wattherd_token={guarded.tokens['admin']}"
    page = guarded.ask("GET", f"/jobs/{job}", accept="text/html", cookie=cookie).text
    assert "cost so far" in page
    assert "kgCO2e" in page
    over = guarded.ask("GET", "/queue?shown=ended", accept="text/html", cookie=cookie).text
    assert " EUR" in over
    guarded.close()

    store = ClusterStore.open(in_folder(state), sole=False)
    kept = store.projection.bills()
    store.close()
    assert json.loads(kept[job])[0] == "EUR"

    guarded = Guarded(state)  # without rates now: what was is kept
    guarded.let_in("again", Role.ADMIN)
    found = guarded.ask("GET", f"/api/v1/jobs/{job}", "again").json["bill"]
    assert found["cost"] == pytest.approx(bill["cost"])
    assert guarded.ask("GET", "/api/v1/power", "again").json["rates"] is None
    guarded.close()


def test_what_is_unknown_is_said_in_tables() -> None:
    whole = {"currency": "EUR", "cost": 1.0, "co2e_kg": None, "unpriced_j": 0.0, "unrated_j": 9.0}
    assert bill_cells(whole) == ["1.0000", "-"]
    assert bill_cells({**whole, "unpriced_j": 5.0}, named=True) == ["~1.0000 EUR", "-"]
    assert bill_cells(None) == ["-", "-"]
