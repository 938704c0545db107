"""Pages get no harder to read: sentences, passives and pronouns, by scripts/readability.py."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def readability_module() -> ModuleType:
    path = ROOT / "scripts" / "readability.py"
    spec = importlib.util.spec_from_file_location("readability", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readability"] = module
    spec.loader.exec_module(module)
    return module


MEASURE = readability_module()
ROWS = {
    MEASURE.name_of(page): MEASURE.measured(MEASURE.sentences_of(page.read_text(encoding="utf-8")))
    for page in MEASURE.pages()
}
FIRST = [
    "README.md",
    *(f"docs/tutorials/{name}.md" for name in ("first-job", "budgets", "queues", "pytorch")),
    "docs/tutorials/from-slurm.md",
    "docs/guides/local.md",
    "docs/guides/kubernetes-install.md",
    "docs/concepts/placement-policy.md",
    "docs/concepts/power-allocation.md",
]
"""What most people read first: no exceptions."""


@pytest.mark.parametrize("page", ROWS)
def test_a_page_is_no_harder_to_read_than_it_may_be(page: str) -> None:
    hint = f"python scripts/readability.py --show {page} names the sentences"
    assert MEASURE.above(page, ROWS[page]) == [], hint


@pytest.mark.parametrize("page", FIRST)
def test_what_is_read_first_keeps_to_the_bar(page: str) -> None:
    assert MEASURE.allowed(page) == MEASURE.BAR


def test_an_exception_ends_once_its_page_is_better() -> None:
    """More than ten points better: python scripts/readability.py --hold."""
    loose = [
        (page, name)
        for page, most in json.loads(MEASURE.HELD.read_text()).items()
        for name, share in most.items()
        if page not in ROWS or share > max(getattr(ROWS[page], name) + 0.10, 0.0)
    ]
    assert loose == []


def test_the_page_with_figures_names_all_pages_and_its_sum_is_that_of_today() -> None:
    """To a percent: python scripts/readability.py --page."""
    text = MEASURE.MADE.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert {row[0].strip("`") for row in rows[2:]} == set(ROWS)
    today = MEASURE.measured(
        [
            sentence
            for page in MEASURE.pages()
            for sentence in MEASURE.sentences_of(page.read_text(encoding="utf-8"))
        ]
    )
    assert rows[1][0] == "**all pages**"
    for figure, cell in zip(MEASURE.BAR, rows[1][3:], strict=True):
        told = int(cell.partition("→ ")[2].rstrip("%"))
        assert abs(100 * getattr(today, figure) - told) <= 1.0, figure


def test_holding_allows_no_page_more_than_before() -> None:
    worse = MEASURE.Readability(
        sentences=10, median_words=9, p90_words=9, long=0.5, passive=0.61, pronoun=0.0
    )
    assert MEASURE.held({"a.md": worse}, {}) == {"a.md": {"long": 0.5, "passive": 0.65}}
    earlier = {"a.md": {"long": 0.3, "passive": 0.35}}
    assert MEASURE.held({"a.md": worse}, earlier) == {"a.md": {"long": 0.3}}
    assert MEASURE.held({"b.md": worse}, earlier) == {}


def test_only_prose_counts() -> None:
    text = """# A heading that says something here

    wattherd run -- this is code that counts nowhere

| a table | of words that count nowhere |

```sh
echo this is no prose. Neither is this one.
```
<!-- claim: state("one") == "Running" and so on -->

The first sentence goes over
two lines. The second has `some code in it` and [a link](to/some/place.md).

* An item is a paragraph
* Another item of four
"""
    assert MEASURE.sentences_of(text) == [
        "The first sentence goes over two lines.",
        "The second has `code` and a link.",
        "An item is a paragraph",
        "Another item of four",
    ]


@pytest.mark.parametrize(
    ("sentence", "passive"),
    [
        ("The budget is cut by a quarter.", True),
        ("Jobs are then slowly stopped.", True),
        ("The cap has been read back.", True),
        ("The guard refuses a start.", False),
        ("The job is red.", False),
        ("A watt is a joule a second.", False),
    ],
)
def test_a_passive_is_found(sentence: str, passive: bool) -> None:
    assert MEASURE.is_passive(sentence) is passive


@pytest.mark.parametrize(
    ("sentence", "pronoun"),
    [
        ("It waits for watts.", True),
        ("What waits has a reason.", True),
        ("This is so.", True),
        ("This page is short.", False),
        ("Who may do what?", False),
        ("The job waits.", False),
    ],
)
def test_a_pronoun_as_subject_is_found(sentence: str, pronoun: bool) -> None:
    assert MEASURE.begins_with_a_pronoun(sentence) is pronoun


def test_figures_are_those_counted_by_hand() -> None:
    told = [" ".join(["word"] * count) for count in (3, 5, 7, 9, 26)]
    one = MEASURE.measured(["It is cut now.", *told])
    assert (one.sentences, one.median_words, one.p90_words) == (6, 5, 26)
    assert (one.long, one.passive, one.pronoun) == (1 / 6, 1 / 6, 1 / 6)


def test_pages_are_measured_beside_those_of_an_earlier_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    (tmp_path / "a.md").write_text("The pod was bound by us. It is a pod of ours.\n")
    git("add", "a.md")
    git("commit", "--quiet", "-m", "then")
    (tmp_path / "a.md").write_text("The scheduler binds the pod.\n")
    (tmp_path / "b.md").write_text("There is a new page here.\n")
    monkeypatch.setattr(MEASURE, "REPOSITORY", tmp_path)
    MEASURE.compare("HEAD", [tmp_path / "a.md", tmp_path / "b.md"])
    head, one, other, both = capsys.readouterr().out.splitlines()
    assert head.split() == ["sentences", "median", "long", "passive", "pronoun"]
    assert " ".join(one.split()) == "2 > 1 6 > 5 0% > 0% 50% > 0% 50% > 0% a.md"
    assert " ".join(other.split()) == "- > 1 - > 6 - > 0% - > 0% - > 100% b.md"
    assert " ".join(both.split()) == "2 > 2 6 > 5 0% > 0% 50% > 0% 50% > 50% all"
