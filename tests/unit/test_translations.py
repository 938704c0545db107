"""Translated pages say what their pages say: a change names the section that is stale."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("translations", ROOT / "scripts" / "translations.py")
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)

RUN = "```sh\n# not a heading\nwattherd run  # {}\n```\n"
PAGE = f"# A page\n\nText.\n\n## Run\n\n{RUN.format('now')}\n## End\n\nx\n"
CHINESE = f"# 页面\n\n文字。\n\n## 运行\n\n{RUN.format('现在')}"


def test_no_translation_is_stale() -> None:
    stamps = json.loads(script.STAMPS.read_text(encoding="utf-8"))
    names = [str(page.relative_to(ROOT)) for page in script.translations()]
    assert names == ["README.zh.md", "docs/tutorials/first-job.zh.md"]
    told = [line for page in script.translations() for line in script.stale(page, stamps)]
    hint = "translate what changed, then `python scripts/translations.py --stamp`"
    assert told == [], hint


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Text.", "Text!", ["section 'A page' of a.md has changed"]),
        ("## End\n\nx\n", "", ["section 'End' of a.md is gone"]),
        ("x\n", "x\n\n## More\n\ny\n", ["section 'More' of a.md came"]),
        ("# now", "# at once", ["section 'Run' of a.md has changed"]),
        (
            "wattherd run ",
            "wattherd submit ",
            ["section 'Run' of a.md has changed", "code block 1 is not that of a.md"],
        ),
        ("Text.", "Text.<!-- unseen -->", []),
    ],
)
def test_what_changed_is_named(tmp_path: Path, old: str, new: str, told: list[str]) -> None:
    page, translated = tmp_path / "a.md", tmp_path / "a.zh.md"
    page.write_text(PAGE, encoding="utf-8")
    translated.write_text(CHINESE, encoding="utf-8")
    stamps = script.stamped(tmp_path)
    assert script.stale(translated, stamps, tmp_path) == []
    assert old in PAGE
    page.write_text(PAGE.replace(old, new), encoding="utf-8")
    assert script.stale(translated, stamps, tmp_path) == [f"a.zh.md: {one}" for one in told]


def test_a_translation_of_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.zh.md").write_text(CHINESE, encoding="utf-8")
    told = script.stale(tmp_path / "a.zh.md", {}, tmp_path)
    assert told == ["a.zh.md: a.md, of which it is a translation, is gone"]
