"""The documentation site: whole, without foreign files, and found by what people ask.

Questions are ranked over the index that the site's search reads, by BM25 with titles counted
double: the search itself is Zensical's and runs in a browser, so that its order may differ.
"""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

pytest.importorskip("zensical", reason="needs the dependency group docs")

from questions import FEW, QUESTIONS
from service.dashboard_site import a_browser
from wattherd.library.documentation import PageSection, SectionRanking

ROOT = Path(__file__).resolve().parents[2]


def site_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "scripts" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SITE = site_module()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; a warning or a dead link ends it."""
    built: Path = SITE.build(tmp_path_factory.mktemp("site"), SITE.SETTINGS + SITE.SELECTOR)
    return built


class Ranked:
    """The site's search index, ranked as `wattherd docs` ranks its sections."""

    def __init__(self, items: list[dict[str, str]]) -> None:
        pages = {one["location"]: one["title"] for one in items if "#" not in one["location"]}
        self.ranking = SectionRanking(
            [
                PageSection(
                    page=one["location"].partition("#")[0].removesuffix(".html"),
                    page_title=pages[one["location"].partition("#")[0]],
                    title=one["title"],
                    text=one["text"],
                )
                for one in items
            ]
        )

    def best(self, question: str) -> list[str]:
        return [one.page for _, one in self.ranking.best(question)]


@pytest.fixture(scope="module")
def ranked(site: Path) -> Ranked:
    return Ranked(json.loads((site / "search.json").read_text())["items"])


@pytest.mark.long
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_leads_to_the_page_that_answers_it(ranked: Ranked, question: str) -> None:
    assert QUESTIONS[question] in ranked.best(question)[:FEW]


@pytest.mark.long
def test_a_question_about_something_else_leads_elsewhere(ranked: Ranked) -> None:
    assert QUESTIONS["back up the store"] not in ranked.best("gang scheduling on Kubernetes")[:FEW]


@pytest.mark.long
def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    foreign = {
        (page.name, target)
        for page in site.rglob("*.html")
        for target in SITE.Links(page).loads
        if urlsplit(target).netloc
    }
    assert foreign == set()
    diagrams = [one for one in site.rglob("*.html") if 'class="mermaid"' in one.read_text()]
    assert diagrams == []  # the theme's script fetches what draws them from a CDN
    sheets = "".join(one.read_text() for one in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//", sheets) == []


@pytest.mark.long
def test_every_public_name_of_python_is_on_the_site(site: Path) -> None:
    ids = SITE.Links(site / SITE.PYTHON.replace(".md", ".html")).ids
    assert len(SITE.homes()) >= 14
    assert SITE.homes() <= ids
    assert "wattherd.testing.conformance.check_scheduler" in ids


def test_navigation_leads_to_every_page() -> None:
    listed = [one for section in SITE.navigation().values() for one in section]
    pages = {str(one.relative_to(SITE.DOCS)) for one in SITE.DOCS.rglob("*.md")}
    assert pages - {"README.md"} <= set(listed)
    assert len(listed) == len(set(listed))


def test_a_page_that_nothing_lists_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    (docs / "guides").mkdir(parents=True)
    (docs / "README.md").write_text("## All pages\n\n**Reference**: [a](guides/a.md)\n")
    (docs / "guides" / "a.md").write_text("# A\n")
    (docs / "guides" / "lost.md").write_text("# Lost\n")
    monkeypatch.setattr(SITE, "DOCS", docs)
    with pytest.raises(SystemExit, match=r"does not list guides/lost\.md"):
        SITE.navigation()


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="b.html#gone">2</a>')
    (tmp_path / "b.html").write_text('<p id="there"></p><img src="lost.png"><a href="https://x.y">')
    assert SITE.dead_links(tmp_path) == ["a.html: b.html#gone", "b.html: lost.png"]


def test_versions_are_in_order() -> None:
    order = ["0.9.0", "0.10.0", "1.0.0.dev2", "1.0.0a1", "1.0.0rc9", "1.0.0rc10", "1.0.0"]
    assert sorted(set(order), key=SITE._version_order) == order


def a_site(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "index.html").write_text(text)
    return folder


def test_a_released_site_stands_beside_earlier_versions(tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    for version in ("0.9.0", "0.10.0", "1.0.0rc1"):
        SITE.add_release(a_site(tmp_path / version, version), releases, version)
    (releases / "notes").mkdir()
    (releases / "notes" / "index.html").write_text("no version")
    again = a_site(tmp_path / "again", "0.9.0 again")
    assert SITE.add_release(again, releases, "0.9.0") == ["1.0.0rc1", "0.10.0", "0.9.0"]
    assert (releases / "0.9.0" / "index.html").read_text() == "0.9.0 again"
    assert (releases / "0.10.0" / "index.html").read_text() == "0.10.0"
    listed = json.loads((releases / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["1.0.0rc1", "0.10.0", "0.9.0"]
    assert [one["aliases"] for one in listed] == [[], ["latest"], []]
    assert 'url=0.10.0/index.html"' in (releases / "index.html").read_text()


@pytest.mark.long
def test_a_reader_changes_the_version_in_the_head_of_a_page(site: Path, tmp_path: Path) -> None:
    for version in ("0.1.0", "0.2.0"):
        SITE.add_release(site, tmp_path, version)
    with served(tmp_path) as address, a_browser() as browser:
        page = browser.new_page()
        page.goto(f"{address}/")
        page.wait_for_url(f"{address}/0.2.0/index.html")
        page.goto(f"{address}/0.2.0/guides/hold.html")
        chosen = page.locator(".md-version__current")
        chosen.wait_for()
        assert chosen.inner_text() == "0.2.0"
        entries = page.locator(".md-version__link")
        assert entries.all_inner_texts() == ["0.2.0", "0.1.0"]
        chosen.focus()  # opens the list, as a pointer above it does
        entries.nth(1).click()
        page.wait_for_url(f"{address}/0.1.0/**")
        chosen.wait_for()
        assert chosen.inner_text() == "0.1.0"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of these files."""
    handler = partial(QuietFiles, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass
