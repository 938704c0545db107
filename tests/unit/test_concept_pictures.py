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


def test_words_beside_scores_turns_goodput_and_curves_are_so(script: ModuleType) -> None:
    coarse = [script.score(gain, script.FGD["fgd"]) for gain in script.GAINS]
    assert coarse.count(max(coarse)) == 4
    assert script.winner(script.FGD["fgd"]) == coarse.index(max(coarse)) + 1 == 2
    assert script.winner(script.FGD["fgd@scale=1000"]) == 5
    assert max(script.GAINS) == script.GAINS[4]

    pays, does_not = (script.turns_taken(speeds) for speeds in script.PAIRS.values())
    assert [spans[-1][1] for spans in pays.values()] == [420.0, 450.0]
    assert [spans[-1][1] for spans in does_not.values()] == [582.0, 618.0]
    (a, b) = pays.values()
    assert a[0][1] == b[0][0] == 60.0  # a turn each
    assert a[1][0] == 120.0 < b[0][1]  # and then both at a time
    assert does_not["b"][0] == (60.0, 180.0)  # for one slice only

    early, late = (script.best_batches(scale) for scale in script.NOISE.values())
    assert early.goodput[4:].max() < 1.02 * early.goodput[:4].max()
    assert 9.0 <= late.goodput[-1] / late.goodput[0] < 9.5

    def worst_off(samples: int) -> float:
        points = script.curve_after(samples).points()
        return max(abs(one.rate / script.true_rate(one.cap_w) - 1.0) for one in points)

    assert worst_off(4) < 0.1 < worst_off(1)


def test_readers_of_dark_pages_get_a_dark_picture(script: ModuleType) -> None:
    """Every mark has a class, so that only the ground has the ground's colour."""
    for text in script.pictures().values():
        light, _, dark = text.partition("@media (prefers-color-scheme:dark)")
        assert dark, light
        assert "var(" not in text
        picture = ET.fromstring(text.partition("?>")[2])
        plain = [
            one for one in picture.iter() if one.tag.endswith("}rect") and "class" not in one.attrib
        ]
        assert [one.get("width") for one in plain] == ["100%"]


@pytest.mark.parametrize("page", sorted(CONCEPTS.glob("*.md")), ids=lambda page: page.stem)
def test_every_concept_has_a_picture(page: Path) -> None:
    """Drawn, or of letters."""
    text = page.read_text("utf-8")
    of_letters = [block for block in text.split("```")[1::2] if " -> " in block]
    assert re.search(r"!\[[^\]]+\]\(\.\./img/", text) or of_letters


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
