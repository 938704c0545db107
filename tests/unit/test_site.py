"""The documentation site: whole, without foreign files, and found by what people ask.

Questions are ranked over the index that the site's search reads, by BM25 with titles counted
double: the search itself is Zensical's and runs in a browser, so that its order may differ.
"""

from __future__ import annotations

import html
import importlib.util
import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

pytest.importorskip("zensical", reason="needs the dependency group docs")

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "why is my GPU job pending": "reference/reasons",
    "why does my pod wait": "guides/kubernetes-explain",
    "how do I cap an H100": "guides/knobs",
    "set a power limit on an NVIDIA GPU": "guides/knobs",
    "does it work with Kueue": "guides/kubernetes-modes",
    "how do I install it with Helm": "guides/kubernetes-install",
    "sbatch and squeue equivalents": "tutorials/from-slurm",
    "how do I run a PyTorch job": "tutorials/pytorch",
    "torchrun on several GPUs": "guides/training-sdk",
    "resume training from a checkpoint": "guides/training-sdk",
    "which fields has a job file in YAML": "reference/job-yaml",
    "how do I change the power budget": "guides/settings",
    "limits from a schedule by time": "guides/demand-response",
    "OpenADR demand response": "guides/demand-response",
    "carbon intensity and price of a job": "guides/cost-and-carbon",
    "how much energy did my job use": "guides/cost-and-carbon",
    "Prometheus metrics and Grafana": "guides/monitoring",
    "which metrics does a service give Prometheus": "reference/metrics",
    "notify me when a job fails": "guides/notifications",
    "email or webhook when a job ends": "guides/notifications",
    "run a Jupyter notebook as a job": "guides/apps",
    "single sign-on with OpenID Connect": "guides/single-sign-on",
    "create a token for a user": "guides/security",
    "run jobs as the user's system account": "guides/security",
    "back up the store": "guides/store",
    "use PostgreSQL instead of SQLite": "guides/store",
    "share GPUs fairly between teams queues": "tutorials/queues",
    "borrowed GPUs and preemption between queues": "tutorials/queues",
    "compare schedulers on my own trace": "guides/simulate",
    "Philly trace simulation": "reference/job-files",
    "write my own scheduler": "guides/plugins",
    "write a placement policy": "guides/write-a-policy",
    "read power from a PDU by SNMP": "guides/meters",
    "RAPL and Redfish meters": "guides/meters",
    "rack and breaker limits power tree": "guides/power-tree",
    "import a power tree from NetBox": "guides/power-tree-import",
    "upgrade or kill the service while jobs run": "guides/local",
    "what happens when the node agent dies": "guides/kubernetes-failures",
    "power swings of synchronous training": "guides/swings",
    "exit codes of the command line": "reference/command-line",
    "predict the power of a job before it runs": "concepts/power-prediction",
    "gang scheduling on Kubernetes": "guides/kubernetes-schedulers",
}
FEW = 5
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and as at between by do does did for from how i in is it its my of on or the to when"
        " with what which why me before instead own",
    )
)


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
    built: Path = SITE.build(tmp_path_factory.mktemp("site"))
    return built


def words(text: str) -> list[str]:
    """Of a text, without marks, common words and the ends of plurals and verbs."""
    found = re.findall(r"[a-z0-9]+", html.unescape(re.sub(r"<[^>]+>", " ", text)).lower())
    return [re.sub(r"(ing|ed|es|s)$", "", one) or one for one in found if one not in _COMMON]


class Ranked:
    """BM25 over the sections of a search index; a page counts as its best section."""

    def __init__(self, items: list[dict[str, str]]) -> None:
        pages = {one["location"]: one["title"] for one in items if "#" not in one["location"]}
        self.pages = [one["location"].partition("#")[0].removesuffix(".html") for one in items]
        self.counts = [
            Counter(
                words(f"{one['title']} {one['title']} {one['text']}")
                + 2 * words(pages[one["location"].partition("#")[0]])
            )
            for one in items
        ]
        self.lengths = [sum(one.values()) for one in self.counts]
        self.mean = sum(self.lengths) / len(items)
        self.within = Counter(word for one in self.counts for word in one)

    def best(self, question: str) -> list[str]:
        scores: dict[str, float] = defaultdict(float)
        for page, counts, length in zip(self.pages, self.counts, self.lengths, strict=True):
            score = sum(self._weight(word, counts, length) for word in set(words(question)))
            scores[page] = max(scores[page], score)
        return sorted(scores, key=lambda page: (-scores[page], page))

    def _weight(self, word: str, counts: Counter[str], length: int) -> float:
        rare = math.log(
            1 + (len(self.counts) - self.within[word] + 0.5) / (self.within[word] + 0.5)
        )
        often = counts[word]
        return rare * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * length / self.mean))


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
