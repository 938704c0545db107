"""The hour of operators: its minutes are enough, and what it says to read is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import docs_commands as docs

PAGE = docs.REPOSITORY / "docs" / "tutorials" / "operate-in-one-hour.md"
STEP = re.compile(r"^## \d+\. [^\n]*: (\d+) minutes\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
STEPS = [(int(minutes), text) for minutes, text in STEP.findall(PAGE.read_text("utf-8"))]
WORDS_A_MINUTE = 200
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)]*))?\)")


def words(text: str) -> int:
    """Of running text: commands are counted apart."""
    return len(re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL).split())


def section(page: Path, anchor: str) -> str:
    """The text below a heading up to the next of its level; the whole page without an anchor."""
    text = page.read_text("utf-8")
    if not anchor:
        return text
    for found in re.finditer(r"^(#+) (.*)$", text, re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-")
        if slug == anchor:
            rest = text[found.end() :]
            return re.split(rf"^#{{1,{len(found[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    raise AssertionError(f"{page.name} has no section {anchor!r}")


def test_its_minutes_are_an_hour() -> None:
    assert len(STEPS) == 8
    assert sum(minutes for minutes, _ in STEPS) == 60


@pytest.mark.parametrize(("minutes", "text"), STEPS, ids=range(1, len(STEPS) + 1))
def test_a_step_fits_its_minutes(minutes: int, text: str, tmp_path: Path) -> None:
    step = tmp_path / "step.md"
    step.write_text(text)
    _, read_mark, read = text.partition("\nRead: ")
    assert read_mark
    pages = [section((PAGE.parent / page).resolve(), anchor) for page, anchor in LINK.findall(read)]
    assert pages
    read_words = words(text) + sum(map(words, pages))
    commands = len(list(docs.commands(step)))
    assert commands + read_words / WORDS_A_MINUTE <= minutes


def test_operators_are_led_to_it_first() -> None:
    text = (docs.REPOSITORY / "docs" / "README.md").read_text("utf-8")
    heads, _, first = (line.split("|")[1:-1] for line in text.splitlines()[4:7])
    at = [head.strip() for head in heads].index("I run a cluster")
    assert first[at].strip() == "[operate in one hour](tutorials/operate-in-one-hour.md)"
