"""The page on troubleshooting has every word that objects may bear, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from wattherd.kube.decide.budget_status import READY, WITHIN
from wattherd.kube.facts.power_plan import Word
from wattherd.kube.facts.refusal import RefusalToken
from wattherd.model.reason import ReasonCode, StopReason

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "kubernetes-troubleshoot.md"
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "src/wattherd/kube").rglob("*.py")))


def words(heading: str) -> list[str]:
    """First cells of the table below a heading."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", section, flags=re.MULTILINE)


def named(kind: str) -> set[str]:
    return set(re.findall(rf"\b{kind}\.([A-Z_]+)\b", SOURCE))


def test_every_reason_for_waiting_is_there_once() -> None:
    codes = {str(ReasonCode[name]) for name in named("ReasonCode")}
    assert sorted(words("Words of pods")) == sorted({*map(str, RefusalToken), *codes})


def test_every_reason_for_ending_is_there_once() -> None:
    stops = {str(StopReason[name]) for name in named("StopReason")}
    assert sorted(words("Words of pods that were ended")) == sorted({*stops, "GangUndone"})
    assert '"GangUndone"' in SOURCE


def test_every_word_of_a_budget_is_there_once() -> None:
    not_so = {str(word) for word in Word} - {"InForce"}
    assert sorted(words("Words of budgets")) == sorted({*not_so, "OverBudget"})
    assert 'reason="OverBudget"' in SOURCE
    assert {READY, WITHIN} <= set(re.findall(r"`(\w+)`", PAGE.read_text()))
