"""Emerald's demand response in Phoenix beside ours: what is read, what is simulated, what holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.experiments.published.checks import FigureCheck
from wattherd.experiments.published.emerald_phoenix import DELAY_S, MARGIN, compare

DATA = Path(os.environ.get("WATTHERD_DATA", "../shared/data")) / "power/emerald_phoenix_2025"
with_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}; set WATTHERD_DATA")


@pytest.fixture(scope="module")
def checks() -> dict[str, FigureCheck]:
    return {check.quantity: check for check in compare(DATA)}


@with_data
@pytest.mark.data
def test_published_figures_are_those_of_their_files(checks: dict[str, FigureCheck]) -> None:
    assert checks["base draw, kW"].published == pytest.approx(93.5, abs=0.3)
    assert checks["minutes above the target while it holds"].published == 0
    shed = checks["shed beyond the target, points of the base"]
    assert shed.published == pytest.approx(6.6, abs=0.2)
    # The authors' own weighted mean, from their spreadsheet.
    assert checks["speed in the event, weighted mean"].published == pytest.approx(0.90788, abs=1e-4)


@with_data
@pytest.mark.data
def test_ours_keeps_to_the_signal_and_to_every_tier(checks: dict[str, FigureCheck]) -> None:
    assert [name for name, check in checks.items() if not check.holds] == []
    shed = checks["shed beyond the target, points of the base"].ours
    assert shed == pytest.approx(100 * 0.75 * MARGIN, abs=0.01)
    tiers = [name for name in checks if name.startswith("speed of ")]
    assert len(tiers) == 6
    assert DELAY_S > 0


def test_an_empty_folder_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no dvfs_sweep\.csv") as told:
        next(compare(tmp_path))
    assert "WATTHERD_DATA" in told.value.hint


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dvfs_sweep.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="lacks Workload"):
        next(compare(tmp_path))
