"""`wattherd docs`: pages by reader, by name and by a question, of the checkout and of the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import docs_commands
from questions import FEW, QUESTIONS
from wattherd.cli.main import cli
from wattherd.library.documentation import (
    PageSection,
    SectionRanking,
    all_sections,
    page_names,
    plain,
    readers,
    sections_of,
    words_of,
)

ROOT = docs_commands.REPOSITORY
EXTRAS = ("fastapi", "numba", "textual", "kubernetes", "pyarrow", "zensical", "matplotlib")


def wattherd(*words: str) -> Result:
    return CliRunner().invoke(cli, ["docs", *words])


@pytest.fixture(scope="module")
def ranking() -> SectionRanking:
    return SectionRanking(all_sections())


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_finds_the_page_that_answers_it(ranking: SectionRanking, question: str) -> None:
    found = [section.page for _, section in ranking.best(question)]
    assert QUESTIONS[question] in found[:FEW]


def test_the_best_section_is_shown_and_others_are_named() -> None:
    done = wattherd("why", "is", "my", "job", "pending")
    assert done.exit_code == 0
    assert done.stdout.startswith("reference/reasons: Why is my job pending?\n")
    assert "`wattherd explain JOB` prints the reason" in done.stdout
    others = done.stdout.partition("\nalso\n")[2].splitlines()
    assert len(others) == 4
    assert {line.split()[0] for line in others} <= set(page_names())


def test_a_question_as_json_has_sections_with_scores() -> None:
    document = json.loads(wattherd("-n", "2", "-o", "json", "cap an H100").stdout)
    assert document["schema"] == "wattherd.docs/1"
    assert document["pages"][0]["name"] == "guides/knobs"
    scores = [row["score"] for row in document["pages"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)


def test_words_that_no_page_has_are_told() -> None:
    done = wattherd("xyzzyq")
    assert isinstance(done.exception, Exception)
    assert "no page has a word of 'xyzzyq'" in str(done.exception)


def test_pages_are_listed_by_who_reads_them() -> None:
    first = readers()
    assert list(first) == [
        "I train models",
        "I run a cluster",
        "I come from Slurm",
        "I do research",
    ]
    assert {page for links in first.values() for _, page in links} <= set(page_names())
    listed = wattherd().stdout
    assert all(f"\n{reader}\n" in listed for reader in first)
    assert wattherd("-o", "name").stdout.split()[0] == "tutorials/first-job"


def test_all_pages_are_listed_on_demand() -> None:
    pages = {str(one.relative_to(ROOT / "docs"))[:-3] for one in (ROOT / "docs").rglob("*.md")}
    assert set(wattherd("--all").stdout.split()) == pages - {"README"}


def test_a_page_is_shown_whole() -> None:
    shown = wattherd("tutorials/budgets").stdout
    assert shown.startswith("# Budgets\n")
    assert "wattherd power set 5W --in 10s" in shown
    assert "<!-- claim" not in shown
    assert "](" not in shown


def test_a_site_that_was_not_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    monkeypatch.setattr("wattherd.library.documentation.pages_folder", lambda: tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    assert "no site was built" in str(wattherd("--browser").exception)
    site = tmp_path / "runs" / "docs" / "site" / "index.html"
    site.parent.mkdir(parents=True)
    site.write_text("<html>")
    assert wattherd("--browser").exit_code == 0
    assert opened == [site.as_uri()]


def test_a_page_is_cut_at_its_headings_and_not_in_code() -> None:
    text = "# T\n\nfirst\n\n## A\n\n```sh\n# no heading\n```\n<!-- hidden -->\n## B\nlast\n"
    found = [(one.page_title, one.title, one.text) for one in sections_of("p", text)]
    assert found == [
        ("T", "T", "first"),
        ("T", "A", "```sh\n# no heading\n```"),
        ("T", "B", "last"),
    ]


def test_a_rare_word_counts_more_and_a_title_twice() -> None:
    def section(page: str, title: str, text: str) -> PageSection:
        return PageSection(page=page, page_title="", title=title, text=text)

    ranking = SectionRanking(
        [
            section("a", "Jobs", "watts jobs"),
            section("b", "Watts", "jobs jobs"),
            section("c", "x", "y"),
        ]
    )
    assert [one.page for _, one in ranking.best("watts")] == ["b", "a"]
    assert ranking.best("zebra") == []


def test_words_lose_their_ends() -> None:
    assert words_of("The Jobs waited, waiting for GPUs") == ["job", "wait", "wait", "gpu"]
    assert plain("a [link](to/x.md)\n\n\n\nb") == "a link\n\nb"


@pytest.mark.long
def test_the_wheel_has_every_page_and_needs_no_extra(tmp_path: Path) -> None:
    """Built from what the source distribution has, and asked outside of the checkout."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True)
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as inside:
        inside.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    subprocess.run([*build, "wheel"], cwd=unpacked, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as inside:
        names = [one for one in inside.namelist() if one.startswith("wattherd/docs/")]
        size = sum(inside.getinfo(one).compress_size for one in names)
        inside.extractall(tmp_path / "installed")
    assert {one[len("wattherd/docs/") : -3] for one in names if one.endswith(".md")} == {
        str(one.relative_to(ROOT / "docs"))[:-3] for one in (ROOT / "docs").rglob("*.md")
    }
    assert size < 500_000
    asked = (
        "import sys; from wattherd.cli.main import cli\n"
        "try: cli(['docs', 'why is my job pending'])\n"
        f"finally: print(sorted(set({EXTRAS}) & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout.startswith("reference/reasons: Why is my job pending?"), done.stderr
    assert done.stdout.endswith("[]\n")
