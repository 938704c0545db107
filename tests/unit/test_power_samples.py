"""Recordings of power as people have them: logs of nvidia-smi, tables, runs of many nodes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from wattherd.errors import UserError
from wattherd.estimate.swing import swing
from wattherd.workload.power_samples import read_samples

DATA = Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "power"


def log(path: Path, ticks: int, gpus: int, *, stall_at: int = -1, lost: int = -1) -> Path:
    """As `nvidia-smi` writes it: rows of one tick follow within milliseconds."""
    lines = ["timestamp, power.draw [W], utilization.gpu [%]"]
    for tick in range(ticks):
        for gpu in range(gpus):
            if (tick, gpu) == (lost, 0):
                continue
            late = 0.08 if tick == stall_at and gpu else 0.0
            at_s = 0.1 * tick + 0.002 * gpu + late
            stamp = f"2026/11/23 10:{int(at_s // 60):02d}:{at_s % 60:06.3f}"
            lines.append(f"{stamp}, {100 * (gpu + 1) + tick:.2f} W, 5 %")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_gpus_of_a_log_without_names_are_added_up_tick_by_tick(tmp_path: Path) -> None:
    (found,) = read_samples(log(tmp_path / "smi.csv", 100, 4))
    assert found.parts == 4
    assert found.samples.watts.tolist() == [1_000 + 4 * tick for tick in range(100)]
    assert np.diff(found.samples.at_s) == pytest.approx(0.1, abs=1e-5)


def test_a_driver_that_stalls_within_a_tick_shifts_nobody(tmp_path: Path) -> None:
    (found,) = read_samples(log(tmp_path / "smi.csv", 100, 4, stall_at=50))
    assert found.samples.watts.tolist() == [1_000 + 4 * tick for tick in range(100)]


def test_a_lost_row_is_no_swing_but_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which rows belong together"):
        read_samples(log(tmp_path / "smi.csv", 100, 4, lost=20))


def test_gpus_with_names_may_come_in_any_order_and_may_miss_ticks(tmp_path: Path) -> None:
    lines = ["timestamp, index, power.draw.instant [W], power.draw [W]"]
    for tick in range(60):
        order = (1, 0) if tick % 2 else (0, 1)
        lines += [
            f"2026-11-23T10:00:{tick:02d}.{gpu}00, {gpu}, {100.0 * (gpu + 1)} W, 1 W"
            for gpu in order
            if not (tick == 30 and gpu)
        ]
    path = tmp_path / "smi.csv"
    path.write_text("\n".join(lines))
    (found,) = read_samples(path)
    assert (found.parts, set(found.samples.watts.tolist())) == (2, {300.0})


def test_a_packed_table_of_nodes_is_one_recording_a_run(tmp_path: Path) -> None:
    rows = ["run,node,time_ms,power_w"]
    rows += [f"r{run},n{node},{2_000 * at + node},{500 + at}" for run in (1, 2)
             for node in range(3) for at in range(40)]  # fmt: skip
    path = tmp_path / "nodes.csv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    found = read_samples(path)
    assert [(one.name, one.parts) for one in found] == [("r1", 3), ("r2", 3)]
    assert found[0].samples.watts[10] == pytest.approx(3 * 510, abs=4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column of power"),
        ("a,b\n1,2\n", "no column of power"),
        ("watts\n1\n", "no column of time"),
        ("time_s,watts\n", "has no row"),
        ("time_s,watts\n0,1\n1\n", r":3: 1 cells, not 2"),
        ("time_s,watts\n0,1\n1,[N/A]\n", r":3: watts: '\[N/A\]' is no number"),
        ("timestamp,watts\nyesterday,1\n", r":2: timestamp: 'yesterday' is no time"),
        ("timestamp,power.draw\n2026-01-01 10:00:01,1\n2026-01-01 10:00:00,1\n", "go back"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        read_samples(path)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no power data in {DATA}; set WATTHERD_DATA")
def test_published_traces_of_an_h100_node_are_read_whole() -> None:
    folder = DATA / "h100_8gpu_train_ckpt"
    (apart,) = read_samples(folder / "ckpt1000.csv.gz")
    (added,) = read_samples(folder / "aggregated_power_data_1000stepsync.csv.gz")
    assert apart.parts == 8
    # Its authors' own sums of the same log.
    ours, theirs = swing(apart.samples), swing(added.samples)
    assert ours.mean_w == pytest.approx(theirs.mean_w, rel=1e-3)
    assert ours.worst_swing_w == pytest.approx(theirs.worst_swing_w, rel=1e-2)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no power data in {DATA}; set WATTHERD_DATA")
def test_published_runs_of_64_nodes_ramp_by_tens_of_kilowatts_a_second() -> None:
    found = read_samples(DATA / "mlperf_train_v4.0_smc" / "node_power_2s.csv.gz")
    largest = {one.name.split("/")[1]: swing(one.samples) for one in found if one.parts == 64}
    assert set(largest) == {"gpt3", "llama2_70b_lora"}
    assert 30e3 < largest["gpt3"].ramp_up_w_s < 45e3
    assert largest["gpt3"].bands[2].rms_w is None
