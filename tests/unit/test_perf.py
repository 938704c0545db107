"""Counters of the kernel's perf events: real ones where allowed, refusals, and what counts mean."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattherd.cli.main import main
from wattherd.devices.meters import perf
from wattherd.devices.meters.perf import CpuCounts, PerfCounters
from wattherd.devices.wire.clock import Clock
from wattherd.devices.wire.device_errors import DeviceError, DeviceErrorKind


def real() -> PerfCounters:
    """This kernel's counters, or a skip that says why."""
    counters = PerfCounters()
    try:
        counters.counts(0.01)
    except DeviceError as error:
        counters.close()
        pytest.skip(f"no perf events here: {error}")
    return counters


def test_time_spent_working_is_counted_and_time_asleep_is_not() -> None:
    real().close()
    busy = PerfCounters(clock=Clock(time.time, time.monotonic, _spin))
    idle = PerfCounters()
    try:
        worked, slept = busy.counts(0.3), idle.counts(0.3)
    finally:
        busy.close()
        idle.close()
    assert worked.busy is not None
    assert slept.busy is not None
    assert worked.busy > 5 * slept.busy
    if worked.instructions_hz is not None:  # a machine with hardware counters
        assert worked.instructions_hz > 1e7


def _spin(seconds: float) -> None:
    until = time.process_time() + seconds / 2
    end = time.monotonic() + 20 * seconds
    while time.process_time() < until and time.monotonic() < end:
        pass


def test_another_process_is_counted() -> None:
    real().close()
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    counters = PerfCounters(child.pid)
    try:
        found = counters.counts(0.5)
    finally:
        counters.close()
        child.kill()
        child.wait()
    assert found.busy is not None
    assert found.busy > 0.05


def test_a_process_that_is_gone_is_absent() -> None:
    real().close()
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        counters = PerfCounters(child.pid)
        with pytest.raises(DeviceError) as caught:
            counters.counts(0.01)
        counters.close()
    assert caught.value.trouble is DeviceErrorKind.ABSENT


@pytest.mark.parametrize(
    ("code", "trouble", "words"),
    [
        (errno.EACCES, DeviceErrorKind.REFUSED, "perf_event_paranoid"),
        (errno.EPERM, DeviceErrorKind.REFUSED, "CAP_PERFMON"),
        (errno.ENOENT, DeviceErrorKind.ABSENT, "tells of no counter"),
        (errno.ENOSYS, DeviceErrorKind.ABSENT, "no perf events"),
    ],
)
def test_why_nothing_can_be_counted_is_told(
    monkeypatch: pytest.MonkeyPatch, code: int, trouble: DeviceErrorKind, words: str
) -> None:
    def refuse(*_: object) -> perf._Event:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(perf, "_opened", refuse)
    with pytest.raises(DeviceError, match=words) as caught:
        PerfCounters().counts(0.01)
    assert caught.value.trouble is trouble


def test_counts_are_scaled_to_enabled_time_and_become_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A counter that ran half of the time stands for twice what it saw."""
    ends = {0: 100, 1: 4000, 2: 1000, 3: 250}

    def opened(kind: int, number: int, *_: object) -> perf._Event:
        if kind == perf.SOFTWARE:
            raise OSError(errno.ENOENT, "none")
        read_end, write_end = os.pipe()
        os.write(write_end, struct.pack("QQQ", 0, 10, 10))
        os.write(write_end, struct.pack("QQQ", ends[number], 20, 10))
        os.close(write_end)
        return perf._Event(read_end)

    monkeypatch.setattr(perf, "_opened", opened)
    monkeypatch.setattr(perf, "_memory_events", list)
    monkeypatch.setattr(PerfCounters, "_threads", lambda _: [0])
    now = iter([10.0, 12.0])
    counters = PerfCounters(clock=Clock(time.time, lambda: next(now), lambda _: None))
    found = counters.counts(2.0)
    counters.close()
    assert found == CpuCounts(
        seconds=2.0, instructions_hz=4000.0, cycles_hz=100.0, cache_hits=0.75, busy=None,
        memory_bytes_hz=None,
    )  # fmt: skip
    assert found.features() == {"cpu_instructions_hz": 4000.0, "cpu_cache_hits": 0.75}


def test_memory_controllers_are_read_as_the_kernel_spells_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "uncore_imc_0" / "events"
    folder.mkdir(parents=True)
    (folder.parent / "type").write_text("17\n")
    (folder.parent / "cpumask").write_text("0,18\n")
    (folder / "cas_count_read").write_text("event=0x04,umask=0x03\n")
    asked: list[tuple[int, int, int, int]] = []

    def opened(kind: int, config: int, pid: int, cpu: int, _flags: int) -> perf._Event:
        asked.append((kind, config, pid, cpu))
        return perf._Event(-1)

    monkeypatch.setattr(perf, "_opened", opened)
    assert len(perf._memory_events(tmp_path)) == 2
    assert asked == [(17, 0x0304, -1, 0), (17, 0x0304, -1, 18)]


def test_the_command_prints_features_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    real().close()
    with pytest.raises(SystemExit) as done:
        main(["meter", "counters", "--window", "0.05s", "-o", "json"])
    assert not done.value.code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "wattherd.counters/1"
    assert "cpu_busy" in document["features"]
