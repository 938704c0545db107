"""The kit's checks, one for each seam."""

from __future__ import annotations

from pathlib import Path

from trickle import meter
from trickle.jobs import read
from trickle.place import SCORER
from trickle.power import SquareRoot
from trickle.report import slowest, words
from trickle.schedule import make

from wattherd.testing.conformance import (
    check_format,
    check_meter,
    check_power_policy,
    check_report,
    check_scheduler,
    check_scorer,
)


def test_the_scheduler_conforms() -> None:
    check_scheduler(make)


def test_the_scorer_conforms() -> None:
    check_scorer(SCORER)


def test_the_power_policy_conforms() -> None:
    check_power_policy(SquareRoot)


def test_the_meter_conforms(tmp_path: Path) -> None:
    (tmp_path / "watts").write_text("123.4\n")
    check_meter(meter, f"file://{tmp_path}/watts")


def test_the_format_conforms(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("resnet at 0 on 4 for 3600\n")
    bad.write_text("resnet whenever\n")
    check_format(read, good, bad)


def test_the_section_and_the_text_conform() -> None:
    check_report(slowest)
    check_report(words)
