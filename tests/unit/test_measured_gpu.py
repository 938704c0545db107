"""What documents say of a measured GPU is what its kept files say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wattherd.catalog.gpus import GPUS, rates
from wattherd.devices.meters.recording import NVML_MODES
from wattherd.local.devices import PAUSED_PART

REPOSITORY = Path(__file__).resolve().parents[2]
MEASURED = REPOSITORY / "benchmarks" / "measured" / "h100-2026-11-26"
NUMBERS = re.compile(r"^\| (samples|instant|average|gpt2-small|resnet18|\d+(?: W)?) \|.*\d")


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "benchmarks_gpu_judge", REPOSITORY / "benchmarks/gpu_judge.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def first(judge: ModuleType) -> Any:
    return judge.Run(MEASURED / "run-1")


@pytest.fixture(scope="module")
def second(judge: ModuleType) -> Any:
    return judge.Run(MEASURED / "run-2")


def section(page: str, title: str) -> str:
    """From a heading to the next one of its level."""
    text = (REPOSITORY / "docs" / page).read_text()
    assert title in text
    after = text.split(title, 1)[1]
    level = title.partition(" ")[0]
    return re.split(rf"\n{level} ", after, maxsplit=1)[0]


@pytest.mark.parametrize(
    ("page", "title", "least"),
    [
        ("guides/swings.md", "## What NVML tells", 3),
        ("guides/learned-speed.md", "## Held against one H100", 12),
        ("concepts/power-prediction.md", "### One H100, measured", 18),
    ],
)
def test_rows_of_tables_are_what_the_command_prints(
    judge: ModuleType, page: str, title: str, least: int
) -> None:
    printed = set("\n".join(judge.tables(MEASURED)).splitlines())
    shown = section(page, title).split("says of it:")[0]  # what follows needs Zeus' measurements
    rows = [line for line in shown.splitlines() if NUMBERS.match(line)]
    assert len(rows) >= least
    assert [row for row in rows if row not in printed] == []


def test_budgets_are_kept_within_what_is_said(judge: ModuleType, second: Any) -> None:
    third = judge.Run(MEASURED / "run-3")
    for one in (*second.service()["budgets"], *third.plain()):
        assert one["at_last_w"] < one["watts"] < one["budget_w"]
        assert one["most_w_of_1s"] < 1.055 * one["budget_w"]


def test_a_quota_of_the_processor_kept_no_budget(first: Any) -> None:
    assert all(one["watts"] > 1.4 * one["budget_w"] for one in first.service()["budgets"])


def test_energy_and_speeds_of_the_service_are_within_what_is_said(first: Any, second: Any) -> None:
    for run, off in ((first, 0.002), (second, -0.004)):
        found = run.service()
        assert found["energy_j"] / found["counter_j"] - 1 == pytest.approx(off, abs=0.0006)
    apart = {(one["micro"], one["accumulation"]): 64 / one["per_s"]
             for one in first.points() if one["model"] == "gpt2-small"}  # fmt: skip
    for run in (first, second):
        for one in run.service()["speeds"][:3]:
            known_s = apart[(one["micro"], 64 // one["micro"])]
            assert one["learned_s"] == pytest.approx(known_s, rel=0.075)
    said = [round(apart[key], 3) for key in ((64, 1), (16, 4), (4, 16))]
    assert said == [0.106, 0.13, 0.464]


def test_what_the_catalogue_and_meters_take_for_granted_of_an_h100(first: Any) -> None:
    model, card = GPUS["H100-SXM"], first.found["card"]
    assert [model.min_cap_w, model.max_w] == [limit * 1e-3 for limit in card["limits_mw"]]
    idle = first.found["idle"]
    idle_w = first.watts(idle["from_s"], idle["until_s"])
    assert model.idle_w == pytest.approx(idle_w, rel=0.05)
    known = rates("H100-SXM")
    assert known is not None
    # A context without work, before the training of the service began to compute.
    began_s = first.found["service"]["own"][0]["from_s"]
    context_w = first.watts(began_s - 8.0, began_s - 3.0)
    assert idle_w + PAUSED_PART * (model.max_w - idle_w) == pytest.approx(context_w, rel=0.1)
    renewed = first.renewed_s()
    stated = {mode: renewed_s for mode, renewed_s, _ in NVML_MODES}
    assert renewed["instant"] == pytest.approx(stated["instant"], rel=0.05)
    assert renewed["average"] == pytest.approx(stated["average"], rel=0.05)
    assert renewed["samples"] == pytest.approx(0.02, rel=0.05)
    # A mean over a second is half way up after half of it, and hides 1 Hz.
    late = first.delays_s()["average"]
    assert (late["half_s"], late["nine_tenths_s"]) == pytest.approx((0.5, 0.9), abs=0.06)
    assert first.squares()["1 Hz"]["average"] < 0.03 * first.squares()["1 Hz"]["samples"]


def test_the_page_of_the_files_names_no_more_than_there_is() -> None:
    size = sum(one.stat().st_size for one in MEASURED.rglob("*") if one.is_file())
    assert size < 300_000
    text = (MEASURED / "run-1" / "found.json").read_text() + (MEASURED / "README.md").read_text()
    assert "GPU-" not in text
    assert "/root/" not in text
