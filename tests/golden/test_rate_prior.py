"""What the catalogue's prior of speed is worth, against 1-GPU measurements that others published.

Sia's profiles (SOSP'23): step times of seven applications on six kinds of GPU. Gavel's table
(OSDI'20): steps a second of 26 kinds of jobs on K80, P100 and V100.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from wattherd.estimate.job_rate import SERIAL_SHARE, prior_speed
from wattherd.workload.gavel import read_throughputs

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("WATTHERD_DATA") or REPOSITORY.parent / "shared" / "data") / "traces"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}; set WATTHERD_DATA")
SIA = {"azure": "V100-SXM2", "dgx": "A100", "quad": "RTX6000", "rtx": "RTX2080Ti"}
GAVEL = {"p100": "P100-SXM2", "v100": "V100-SXM2"}


def best_samples_s(path: Path) -> float:
    """Samples a second on one GPU, at the batch at which they are most."""
    with path.open() as stream:
        alone = [row for row in csv.DictReader(stream) if row["placement"] == "1"]
    return max(float(row["local_bsz"]) / float(row["step_time"]) for row in alone)


def sia_errors(gpu: str) -> Iterator[float]:
    """Measured over predicted speed, relative to a T4, by application."""
    ratio = prior_speed(SIA[gpu]) / prior_speed("T4")
    for folder in sorted((DATA / "sia" / "profiles").iterdir()):
        here, there = (folder / f"placements-{one}.csv" for one in (gpu, "aws"))
        if here.exists() and there.exists():
            yield best_samples_s(here) / best_samples_s(there) / ratio


def gavel_errors(gpu: str) -> Iterator[float]:
    table = read_throughputs(DATA / "gavel" / "physical_cluster_throughputs.json.gz")
    ratio = prior_speed(GAVEL[gpu]) / prior_speed("K80")
    for kind in sorted(table.kinds):
        here, there = table.rate(gpu, kind, 1), table.rate("k80", kind, 1)
        if here and there:
            yield here / there / ratio


def test_half_of_all_measured_ratios_are_within_a_factor_of_1_3_and_nine_in_ten_of_2_6() -> None:
    found = [one for gpu in SIA for one in sia_errors(gpu)]
    found += [one for gpu in GAVEL for one in gavel_errors(gpu)]
    assert len(found) == 74
    factors = sorted(math.exp(abs(math.log(one))) for one in found)
    assert median(factors) <= 1.3
    assert factors[int(0.9 * len(factors))] <= 2.6


@pytest.mark.parametrize("gpu", SIA)
def test_no_model_of_sias_is_systematically_off_by_more_than_a_third(gpu: str) -> None:
    assert abs(math.log(median(sia_errors(gpu)))) <= math.log(4 / 3)


@pytest.mark.parametrize("gpu", GAVEL)
def test_no_model_of_gavels_is_systematically_off_by_more_than_a_third(gpu: str) -> None:
    assert abs(math.log(median(gavel_errors(gpu)))) <= math.log(4 / 3)


def test_the_prior_is_nearer_to_measurements_than_taking_all_models_for_equal() -> None:
    for gpu, name in SIA.items():
        ratio = prior_speed(name) / prior_speed("T4")
        ours = [abs(math.log(one)) for one in sia_errors(gpu)]
        equal = [abs(math.log(one * ratio)) for one in sia_errors(gpu)]
        assert median(ours) < median(equal)


def serial_shares(path: Path) -> Iterator[float]:
    """Of a step on one GPU, what 2 and 4 on the same node did not shorten, at the largest batch."""
    step_s: dict[int, dict[int, float]] = {}
    with path.open() as stream:
        for row in csv.DictReader(stream):
            if len(row["placement"]) == 1:
                widths = step_s.setdefault(int(row["placement"]), {})
                widths[int(row["local_bsz"])] = float(row["step_time"])
    for width in (2, 4):
        alike = [one for one in step_s.get(1, {}) if one // width in step_s.get(width, {})]
        if alike:
            speedup = step_s[1][max(alike)] / step_s[width][max(alike) // width]
            yield (width / speedup - 1) / (width - 1)


def test_the_share_of_a_step_that_width_does_not_shorten_is_the_median_of_what_was_measured() -> (
    None
):
    paths = [*(DATA / "pollux").rglob("placements.csv"), *(DATA / "sia").rglob("placements-*.csv")]
    found = sorted(share for path in paths for share in serial_shares(path))
    assert len(found) == 78
    assert median(found) == pytest.approx(SERIAL_SHARE, abs=0.03)
    assert found[len(found) // 10] == pytest.approx(0.06, abs=0.01)
    assert found[9 * len(found) // 10] == pytest.approx(1.05, abs=0.01)
