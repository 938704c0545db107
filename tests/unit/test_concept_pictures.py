"""Pictures of docs/concepts: drawn by the program they are about, up to date, and told in words."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONCEPTS = ROOT / "docs" / "concepts"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts/concept_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_what_the_program_does_now(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0


def test_every_picture_is_on_a_page_and_told_to_those_who_do_not_see_it(script: ModuleType) -> None:
    pages = "".join(page.read_text("utf-8") for page in CONCEPTS.glob("*.md"))
    shown = set(re.findall(r"img/concepts/([\w-]+\.svg)", pages))
    assert shown == set(script.pictures())
    for text in script.pictures().values():
        picture = ET.fromstring(text.partition("?>")[2])
        assert [one.tag.rpartition("}")[2] for one in picture[:2]] == ["title", "desc"]


def test_the_limit_and_the_books_are_kept_in_what_is_drawn(script: ModuleType) -> None:
    """What the words on the pages say of the pictures."""
    known = script.two_jobs()
    assert max(now["counted"] for _, now in known) <= script.LIMIT_W
    waits = [now for at_s, now in known if at_s == 1.0]
    assert [(now["planned"], now["held"], now["A"]) for now in waits] == [(2.0, 1.0, 400.0)]
    seen = script.a_cut_seen()
    assert max(seen["draw"][script.CUT_S + 3 :]) <= script.AFTER_W
    racks = {name: sum(caps.values()) for name, caps in script.shared_in_tree().items()}
    assert racks["rack-1"] <= 700.0
    assert sum(racks.values()) <= 1700.0
    assert racks["rack-2"] < 1200.0
    lost = list(script.unusable().values())
    assert lost == sorted(lost)
    assert lost[0] == 0.0


def test_a_picture_that_is_out_of_date_is_named(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "FOLDER", tmp_path / "concepts")
    assert script.main(["--check"]) == 1
    assert "a-cut.svg" in capsys.readouterr().out
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
