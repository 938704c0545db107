"""The pages of the documentation that come with the package, and their search.

Pages are the Markdown files of docs/, in the wheel below `wattherd/docs`. Headings cut a page into
sections; BM25 (Robertson and Walker, 1994: k1 1.2, b 0.75) ranks them for a question, with the
titles of section and page counted double. It needs neither a network nor an extra.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import wattherd
from wattherd.errors import UserError
from wattherd.spelling import hint_for

FIRST = "README"
"""The page that lists all others, by who reads them."""
TRANSLATED = ".zh"
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and as at between by do does did for from how i in is it its my of on or the to when"
        " with what which why me before instead own",
    )
)
_K1, _B = 1.2, 0.75
_HEADING = re.compile(r"(#{1,6}) +(.*?)(?: *\{#[\w-]+\})?$")
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """What stands below one heading; `page` is as in `guides/knobs`, `text` is Markdown."""

    page: str
    page_title: str
    title: str
    text: str


class SectionRanking:
    """BM25 over sections; a page counts as its best one."""

    def __init__(self, sections: Sequence[PageSection]) -> None:
        self.sections = sections
        self._counts = [
            Counter(words_of(f"{one.title} {one.title} {one.text}") + 2 * words_of(one.page_title))
            for one in sections
        ]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean = sum(self._lengths) / max(1, len(sections))
        self._within = Counter(word for counts in self._counts for word in counts)

    def best(self, question: str) -> list[tuple[float, PageSection]]:
        """The best section of each page that has a word of the question, best first."""
        asked = set(words_of(question))
        found: dict[str, tuple[float, PageSection]] = {}
        for section, counts, length in zip(self.sections, self._counts, self._lengths, strict=True):
            score = sum(self._weight(word, counts[word], length) for word in asked)
            if score > found.get(section.page, (0.0, section))[0]:
                found[section.page] = (score, section)
        return sorted(found.values(), key=lambda one: (-one[0], one[1].page))

    def _weight(self, word: str, often: int, length: int) -> float:
        within = self._within[word]
        rare = math.log(1 + (len(self.sections) - within + 0.5) / (within + 0.5))
        return rare * often * (_K1 + 1) / (often + _K1 * (1 - _B + _B * length / self._mean))


def words_of(text: str) -> list[str]:
    """In small letters, without marks, common words and the ends of plurals and verbs."""
    found = re.findall(r"[a-z0-9]+", html.unescape(re.sub(r"<[^>]+>", " ", text)).lower())
    return [re.sub(r"(ing|ed|es|s)$", "", one) or one for one in found if one not in _COMMON]


def pages_folder() -> Path:
    """Where the pages are: in the package, or in the checkout that it is imported from.

    Raises:
        UserError: they are in neither.
    """
    package = Path(wattherd.__file__).resolve().parent
    places = (package / "docs", package.parents[1] / "docs")
    for place in places:
        if (place / f"{FIRST}.md").is_file():
            return place
    raise UserError("the pages are missing", where=str(places[0]), hint="install wattherd anew")


def page_names() -> list[str]:
    """All pages, as in `guides/knobs`, in order of their names."""
    top = pages_folder()
    return sorted(str(one.relative_to(top).with_suffix("")) for one in top.rglob("*.md"))


def page_text(page: str) -> str:
    """A page in Markdown.

    Raises:
        UserError: there is none of that name.
    """
    known = page_names()
    name = page.removesuffix(".md").removeprefix("docs/")
    if name not in known:
        raise UserError(f"no page {page!r}", hint=hint_for(name, known))
    return (pages_folder() / f"{name}.md").read_text(encoding="utf-8")


def all_sections() -> list[PageSection]:
    """Of all pages but the list of pages and translations, whose few words are commands."""
    return [
        section
        for page in page_names()
        if page != FIRST and not page.endswith(TRANSLATED)
        for section in sections_of(page, page_text(page))
    ]


def sections_of(page: str, text: str) -> Iterator[PageSection]:
    """A page cut at its headings; comments are left out, what stands in code is no heading."""
    title, heading, gathered, fenced = page, "", list[str](), False
    for line in [*re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines(), "# "]:
        fenced ^= line.lstrip().startswith("```")
        begun = None if fenced else _HEADING.match(line)
        if begun is None:
            gathered.append(line)
            continue
        body = "\n".join(gathered).strip()
        if heading or body:
            yield PageSection(page=page, page_title=title, title=heading or title, text=body)
        if begun[1] == "#" and not heading:
            title = begun[2]
        heading, gathered = begun[2], []


def readers() -> dict[str, list[tuple[str, str]]]:
    """Who reads what: of each reader of the first page, words and the page that they lead to."""
    lines = page_text(FIRST).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    names, *rest = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for cells in rest[1:]:
        for name, cell in zip(names, cells, strict=True):
            found[name] += [
                (link[1].replace("`", ""), link[2].partition("#")[0].removesuffix(".md"))
                for link in _LINK.finditer(cell)
            ]
    return dict(found)


def plain(text: str) -> str:
    """Markdown for a terminal: links are their text, runs of empty lines are one."""
    without = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    return re.sub(r"\n{3,}", "\n\n", _LINK.sub(r"\1", without)).strip()
