"""A live site on a processor that has meters and limits: RAPL, on a tree of files like sysfs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from service.serving import until as within
from service.test_live_site import Service
from wattherd.library.client import Client
from wattherd.local.devices import slots
from wattherd.local.orphans import end_stray
from wattherd.server.hardware.discovery import found
from wattherd.server.settings.config import ServeConfig

until = partial(within, most_s=60.0)
TDP_W, DRAW_W = 100.0, 30.0


class Processor:
    """Two packages of 100 W that draw 30 W each as long as this runs."""

    def __init__(self, root: Path) -> None:
        self.zones = [root / f"intel-rapl:{number}" for number in range(2)]
        for number, zone in enumerate(self.zones):
            zone.mkdir(parents=True)
            for name, value in {
                "name": f"package-{number}",
                "energy_uj": 0,
                "max_energy_range_uj": 10**15,
                "enabled": 1,
                "constraint_0_power_limit_uw": 95_000_000,
                "constraint_0_max_power_uw": round(TDP_W * 1e6),
            }.items():
                (zone / name).write_text(f"{value}\n")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._over.wait(0.005):
            energy_uj = round((time.monotonic() - began_s) * DRAW_W * 1e6)
            for zone in self.zones:
                fresh = zone / ".energy"
                fresh.write_text(f"{energy_uj}\n")
                fresh.replace(zone / "energy_uj")

    def limits_w(self) -> list[float]:
        files = [zone / "constraint_0_power_limit_uw" for zone in self.zones]
        return [int(file.read_text()) / 1e6 for file in files]

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[Processor]:
    processor = Processor(tmp_path / "powercap")
    yield processor
    processor.end()


@pytest.fixture
def service(processor: Processor, tmp_path: Path) -> Iterator[Service]:
    service = Service.begin(tmp_path / "state", "--powercap", str(tmp_path / "powercap"))
    yield service
    if service.process.poll() is None:
        service.end()
    for folder in (tmp_path / "state").glob("jobs/*/run-*"):
        end_stray(folder)


@pytest.mark.long
def test_the_processor_s_own_meters_tell_the_site_s_draw(service: Service) -> None:
    client = Client(service.url)
    job = service.call("submit", "--", "sh", "-c", "while :; do :; done").strip()
    service.until(job, "Running")
    power = until(lambda: (p := client.get("power"))["draw_w"] and p["stated"] == "measured" and p)
    until(lambda: client.get("power")["draw_w"] == pytest.approx(2 * DRAW_W, rel=0.2))
    assert {row["watts"] for row in power["instruments"][:2]} == {"shared out"}
    by_job = until(lambda: client.get("power")["samples"][-1]["by_job"].get(job))
    assert by_job < 2 * DRAW_W * 1.2
    shown = service.call("power")
    assert "(estimated)" not in shown
    assert "watts shared out" in shown
    assert "limited by duty" in shown
    assert "~" not in service.call("gpus")
    service.call("cancel", job)


@pytest.mark.long
def test_the_packages_keep_the_budget_and_get_their_limits_back(
    service: Service, processor: Processor
) -> None:
    service.call("power", "set", "120W")
    until(lambda: processor.limits_w() == [60.0, 60.0])
    service.call("power", "set", "none")
    until(lambda: processor.limits_w() == [95.0, 95.0])
    service.call("power", "set", "80W")
    until(lambda: processor.limits_w() == [40.0, 40.0])
    service.end()
    assert processor.limits_w() == [95.0, 95.0]


def test_slots_draw_what_the_packages_may_at_most(processor: Processor, tmp_path: Path) -> None:
    config = ServeConfig(state=tmp_path, slots=4, powercap=tmp_path / "powercap")
    here = found(config)
    assert here.machine.gpu.max_w == 2 * TDP_W / 4
    assert here.machine.stated == "measured"
    assert "measured by rapl" in here.notes[0]


def test_without_meters_watts_are_an_estimate_and_said_to_be(tmp_path: Path) -> None:
    here = found(ServeConfig(state=tmp_path, slots=2))
    assert here.machine == slots(here.machine.node.name, 2)
    assert "estimated" in here.notes[0]
    assert {row["watts"] for row in here.instruments.rows()} == {"estimated"}


def test_meters_that_may_not_be_read_are_told_of_and_not_used(
    processor: Processor, tmp_path: Path
) -> None:
    processor.end()
    for zone in processor.zones:
        (zone / "energy_uj").write_text("nonsense\n")
    here = found(ServeConfig(state=tmp_path, slots=2, powercap=tmp_path / "powercap"))
    assert here.machine.stated == "model"
    assert any("are not used" in note for note in here.notes)
