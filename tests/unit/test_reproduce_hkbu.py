"""Every published figure of the DVFS work that is promised to hold does."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattherd.errors import UserError
from wattherd.experiments.published import aiturbo_hpdc21, hkbu_dvfs


@pytest.mark.long
@pytest.mark.data
def test_all_figures_hold(traces: Path) -> None:
    checks = list(hkbu_dvfs.compare(traces / "hkbu_dvfs"))
    assert [check for check in checks if not check.holds] == []
    promised = [check for check in checks if check.tolerance is not None]
    ratios = [check for check in promised if "run energy with DVFS / without" in check.quantity]
    assert len(ratios) == 4
    assert all(abs(check.ours - 0.663) <= 0.01 for check in ratios)
    assert len(promised) >= 12


@pytest.mark.parametrize("compare", [hkbu_dvfs.compare, aiturbo_hpdc21.compare])
def test_an_empty_folder_is_refused(tmp_path: Path, compare: object) -> None:
    with pytest.raises(UserError, match="no "):
        next(compare(tmp_path))  # type: ignore[operator]
