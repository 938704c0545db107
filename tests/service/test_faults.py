"""A device at fault: found in the kernel's log, its node drained, alerted, and back again."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from service.test_live_site import Service
from wattherd.errors import UserError
from wattherd.library.client import Client
from wattherd.local.gpu_faults import GpuFault, KernelLog, fault_of
from wattherd.local.orphans import end_stray

pytestmark = pytest.mark.long

FALLEN = (
    "3,1203,88712345,-;NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus."
)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (FALLEN, ("xid-79", "0000:3b:00")),
        ("NVRM: Xid (PCI:0000:05:00.0): 48, pid=7, Double Bit ECC Error", ("ecc", "0000:05:00.0")),
        ("NVRM: Xid (PCI:0000:05:00): 119", ("xid-119", "0000:05:00")),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", ("ecc", "")),
        ("NVRM: Xid (PCI:0000:05:00): 31, pid=9, name=python, MMU Fault", None),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", None),
        ("usb 1-1: new device", None),
    ],
)
def test_a_line_is_a_fault_of_the_device_or_none(line: str, fault: tuple[str, str] | None) -> None:
    found = fault_of(line)
    assert (None if found is None else (found.kind, found.gpu)) == fault
    assert found is None or (isinstance(found, GpuFault) and found.text)


def test_the_log_gives_what_is_new_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("old\n")
    log = KernelLog(path)
    with path.open("a") as stream:
        stream.write("one\ntw")
        stream.flush()
        assert log.new() == ["one"]
        stream.write("o\n")
    assert log.new() == ["two"]
    assert log.new() == []
    log.close()
    with pytest.raises(UserError, match="cannot be read"):
        KernelLog(tmp_path / "none")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Service, Path]]:
    kernel_log = tmp_path / "kmsg"
    kernel_log.write_text(f"{FALLEN}\n")  # of before: dealt with
    (tmp_path / "serve.yaml").write_text(f"kernel_log: {kernel_log}\n")
    service = Service.begin(tmp_path / "state", "--config", str(tmp_path / "serve.yaml"))
    yield service, kernel_log
    service.end()
    for folder in (tmp_path / "state").glob("jobs/*/run-*"):
        end_stray(folder)


def eventually(what: Any) -> Any:
    until_s = time.monotonic() + 60.0
    while not (found := what()):
        assert time.monotonic() < until_s
        time.sleep(0.2)
    return found


def metrics(service: Service) -> str:
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_a_gpu_that_fails_drains_its_node_within_thirty_seconds(site: tuple[Service, Path]) -> None:
    service, kernel_log = site
    client = Client(service.url)
    job_id = service.call("submit", "--", "sleep", "600").strip()
    service.until(job_id, "Running")
    begun_s = time.monotonic()
    with kernel_log.open("a") as stream:
        stream.write(f"{FALLEN}\n")
    service.until(job_id, "Queued")
    (node,) = client.get("nodes")["nodes"]
    assert node["state"] == "Lost"
    assert 'kind="xid-79",' in metrics(service)
    assert time.monotonic() - begun_s < 30.0
    told = service.job(job_id)["story"]
    assert any("lost" in line["cause"] for line in told)

    eventually(lambda: _is_returned(client, node["name"]))
    assert service.until(job_id, "Running")["attempts"] == 2
    service.call("cancel", job_id)


def _is_returned(client: Client, node: str) -> bool:
    try:
        client.post(f"nodes/{node}/return")
    except UserError as error:
        if "still being stopped" not in error.problem:
            raise
        return False
    return True


def test_an_operator_drains_and_returns_a_node(site: tuple[Service, Path]) -> None:
    service, _ = site
    name = Client(service.url).get("nodes")["nodes"][0]["name"]
    assert "Lost" in service.call("nodes", "--drain", name)
    assert 'wattherd_nodes{state="lost"} 1.0' in metrics(service)
    job_id = service.call("submit", "--", "true").strip()
    assert service.job(job_id)["state"] == "Queued"
    assert "Ready" in service.call("nodes", "--return", name)
    service.until(job_id, "Succeeded")
    assert "no node" in service.call("nodes", "--drain", "nowhere", code=3)
