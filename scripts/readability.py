"""Measure how easy the pages are to read: sentence length, passives, subjects that are pronouns.

    python scripts/readability.py [PAGE ...] [--json] [--show] [--before COMMIT] [--page]

Counted is prose only: no code blocks, tables, headings, comments; a list item is a paragraph. The
rules are rules of thumb and stay as they are, so that numbers of different days can be compared:

* a sentence ends at `.`, `!` or `?` before a space and a capital, a digit or a mark; one of fewer
  than three words is not counted;
* passive is a form of *be* or *get*, at most two adverbs, and a participle (`-ed`, or of a list);
* a pronoun is the subject where a sentence begins with It, They, What, Who, Whoever, There ..., or
  with This, That, These, Those before a verb. Questions are left out.

A page keeps to `BAR`, or to what readability.json allows it: pages that stood above the bar when
that file was written. `--hold` writes it anew, never to allow more; test_readability.py holds
every page to both.

`--before` measures the pages of an earlier commit beside those of today.

`--page` writes docs/reference/readability.md: all pages, before the first was rewritten and today.

`--show` prints the sentences that count as long, passive or begun by a pronoun.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LONG = 25
"""Words; a sentence of more is a long one."""
BAR = {"long": 0.20, "passive": 0.35, "pronoun": 0.12}
"""The most of a page's sentences."""
BEFORE = "3ef10828"
"""The commit before the first page was rewritten in plain English."""
MADE = REPOSITORY / "docs" / "reference" / "readability.md"
HELD = REPOSITORY / "scripts" / "readability.json"
_BLOCKS = re.compile(r"^( *)(```|~~~).*?^\1\2[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"^(#|\||    |>?\s*!\[|\s*$|[-=*]{3,}$|:::|<)")
_ITEM = re.compile(r"^\s*([-*+]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[A-Z0-9`\"'(*_\[])")
_NO_END = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|St|No)\.$")
_WORD = re.compile(r"[A-Za-z0-9][\w'’./%+-]*")
_BE = r"(?:is|are|was|were|be|been|being|isn't|aren't|wasn't|weren't|gets?|got)"
_IRREGULAR = """
    beaten begun bent bought bound bred brought built burnt caught chosen cut dealt done drawn
    driven eaten fed felt fought found given gone grown heard held hidden hit hung hurt kept
    known laid led left lent let lost made meant met paid put read rewritten run said seen
    sent set shed shown shut slept sold sought spent split spoken spread stolen stood struck
    sunk sworn swept taken taught thought thrown told understood undone upset woken won worn
    written
"""
_PASSIVE = re.compile(
    rf"\b{_BE}\s+(?:(?:not|never|also|only|then|still|always|again|at once|thus|\w+ly)\s+){{0,2}}"
    rf"(?:\w\w+ed|{'|'.join(_IRREGULAR.split())})\b",
    re.IGNORECASE,
)
_ALWAYS = frozenset(
    {
        "It",
        "They",
        "He",
        "She",
        "We",
        "What",
        "Who",
        "Whoever",
        "Whatever",
        "Which",
        "There",
        "Nobody",
        "Somebody",
    }
)
_BEFORE_A_VERB = frozenset({"This", "That", "These", "Those"})
_VERBS = frozenset(
    {
        "is",
        "are",
        "was",
        "were",
        "has",
        "have",
        "had",
        "does",
        "do",
        "did",
        "can",
        "could",
        "may",
        "might",
        "must",
        "shall",
        "should",
        "will",
        "would",
        "needs",
        "makes",
        "means",
        "holds",
        "shows",
        "says",
        "tells",
        "gives",
        "takes",
        "keeps",
        "lets",
        "leaves",
        "comes",
        "goes",
        "works",
        "counts",
        "who",
        "that",
        "which",
    }
)


Table = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readability:
    """Of one page, or of all: shares are of sentences, 0 to 1."""

    sentences: int
    median_words: float
    p90_words: float
    long: float
    passive: float
    pronoun: float


def measured(sentences: Sequence[str]) -> Readability:
    """The figures of some sentences."""
    lengths = sorted(len(words(one)) for one in sentences)
    count = max(1, len(sentences))
    return Readability(
        sentences=len(sentences),
        median_words=_quantile(lengths, 0.5),
        p90_words=_quantile(lengths, 0.9),
        long=sum(one > LONG for one in lengths) / count,
        passive=sum(map(is_passive, sentences)) / count,
        pronoun=sum(map(begins_with_a_pronoun, sentences)) / count,
    )


def _quantile(lengths: Sequence[int], share: float) -> float:
    """Nearest rank."""
    return float(lengths[max(0, math.ceil(share * len(lengths)) - 1)]) if lengths else 0.0


def sentences_of(text: str) -> list[str]:
    """Of a page in Markdown, without what is no prose."""
    found: list[str] = []
    for paragraph in _paragraphs(_BLOCKS.sub("\n", text)):
        begun = ""
        for part in _END.split(_plain(paragraph)):
            begun = f"{begun} {part}".strip()
            if not _NO_END.search(begun):
                found.append(begun)
                begun = ""
        found += [begun] if begun else []
    return [one for one in found if len(words(one)) >= 3]


def _paragraphs(text: str) -> Iterable[str]:
    gathered: list[str] = []
    for line in [*text.splitlines(), ""]:
        item = _ITEM.match(line)
        inside = gathered and line.startswith("    ") and line.strip()
        if (item or (_LEFT_OUT.match(line) and not inside)) and gathered:
            yield " ".join(gathered)
            gathered = []
        if item:
            gathered = [line[item.end() :]]
        elif inside or not _LEFT_OUT.match(line):
            gathered.append(line.strip())


def _plain(paragraph: str) -> str:
    """Links are their text, code is one word."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", paragraph)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]+`", "`code`", text).replace("**", "")


def words(sentence: str) -> list[str]:
    """In order; a term in code is one."""
    return _WORD.findall(sentence)


def is_passive(sentence: str) -> bool:
    """By the rule of thumb above."""
    return _PASSIVE.search(sentence) is not None


def begins_with_a_pronoun(sentence: str) -> bool:
    """By the rule of thumb above."""
    said = words(sentence)
    if sentence.endswith("?") or len(said) < 2:
        return False
    return said[0] in _ALWAYS or (said[0] in _BEFORE_A_VERB and said[1] in _VERBS)


def pages() -> list[Path]:
    """README and all of docs/, but what is made of other things."""
    docs = sorted((REPOSITORY / "docs").rglob("*.md"))
    every = [REPOSITORY / "README.md", *(one for one in docs if not one.match("*.zh.md"))]
    return [one for one in every if not is_made(one.read_text(encoding="utf-8"))]


def is_made(text: str) -> bool:
    """Whether a program writes the page: its words are those of fields and options."""
    return "This page is what `python" in text[:400] or "This page is made of" in text[:400]


def name_of(page: Path) -> str:
    """Relative to the repository."""
    return str(page.resolve().relative_to(REPOSITORY))


def allowed(page: str) -> dict[str, float]:
    """Shares that a page may have."""
    return BAR | json.loads(HELD.read_text(encoding="utf-8")).get(page, {})


def above(page: str, one: Readability) -> list[str]:
    """In which respects a page is worse than it may be; one sentence more is none."""
    most = allowed(page)
    return [
        f"{name} {getattr(one, name):.0%}, at most {most[name]:.0%}"
        for name in BAR
        if getattr(one, name) * one.sentences > most[name] * one.sentences + 1
    ]


def held(rows: dict[str, Readability], earlier: dict[str, dict[str, float]]) -> Table:
    """Pages above the bar with what they have, rounded up to 5 %, and never more than earlier.

    What was not above the bar `earlier` must not be so now; only a first table takes all as it is.
    """
    found: Table = {}
    for page, one in sorted(rows.items()):
        for name, bar in BAR.items():
            stands = math.ceil(getattr(one, name) * 20) / 20
            stands = min(stands, earlier.get(page, {}).get(name, bar if earlier else stands))
            if stands > bar:
                found.setdefault(page, {})[name] = stands
    return found


def main() -> None:
    """Print a table, the worst first, and the sum."""
    told = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    told.add_argument("pages", nargs="*", type=Path)
    told.add_argument("--json", action="store_true")
    told.add_argument("--show", action="store_true", help="sentences that count")
    told.add_argument("--hold", action="store_true", help="write readability.json")
    told.add_argument("--before", metavar="COMMIT", help="measure its pages beside today's")
    told.add_argument("--page", action="store_true", help=f"write {name_of(MADE)}")
    given = told.parse_args()
    if given.page:
        MADE.write_text(made_page(), encoding="utf-8")
        return
    if given.before:
        compare(given.before, given.pages or pages())
        return
    texts = {
        name_of(one): sentences_of(one.read_text(encoding="utf-8"))
        for one in given.pages or pages()
    }
    rows = {name: measured(one) for name, one in texts.items()}
    rows = dict(sorted(rows.items(), key=lambda row: (-weight(row[1]), row[0])))
    if given.hold:
        earlier = json.loads(HELD.read_text(encoding="utf-8")) if HELD.exists() else {}
        HELD.write_text(json.dumps(held(rows, earlier), indent=1) + "\n", encoding="utf-8")
    rows["all"] = measured([sentence for one in texts.values() for sentence in one])
    if given.json:
        print(json.dumps({name: asdict(one) for name, one in rows.items()}, indent=2))
        return
    print(f"{'sentences':>9} {'median':>6} {'p90':>4} {'long':>5} {'passive':>7} {'pronoun':>7}")
    for name, one in rows.items():
        print(
            f"{one.sentences:9} {one.median_words:6.0f} {one.p90_words:4.0f} {one.long:5.0%}"
            f" {one.passive:7.0%} {one.pronoun:7.0%}  {name}"
        )
    for name, sentences in texts.items() if given.show else ():
        for sentence in sentences:
            said = "L" * (len(words(sentence)) > LONG) + "P" * is_passive(sentence)
            said += "S" * begins_with_a_pronoun(sentence)
            if said:
                print(f"{name}: {said}: {sentence}")


def compare(commit: str, today: Sequence[Path]) -> None:
    """Print the pages of a commit beside those of today, and the sums of all.

    A page that was not there then, or was made by a program, has no figures of then.
    """
    gathered: tuple[list[str], list[str]] = ([], [])
    print(f"{'sentences':>11} {'median':>8} {'long':>11} {'passive':>11} {'pronoun':>11}")
    for page in today:
        text = _git_show(commit, name_of(page))
        then = sentences_of(text) if text and not is_made(text) else []
        now = sentences_of(page.read_text(encoding="utf-8"))
        gathered[0].extend(then)
        gathered[1].extend(now)
        print(_beside(then, now), name_of(page))
    print(_beside(*gathered), "all")


def made_page() -> str:
    """Every page with its figures of then and of now, the most read first, and the sums.

    Pages of then that have another name now, or are no more, count in the sum of then.
    """
    then = {
        name: sentences_of(text)
        for name in _names_at(BEFORE)
        if (text := _git_show(BEFORE, name)) and not is_made(text)
    }
    now = {name_of(one): sentences_of(one.read_text(encoding="utf-8")) for one in pages()}
    sums = [[one for told in part.values() for one in told] for part in (then, now)]
    rows = [_page_row("**all pages**", *sums)]
    rows += [_page_row(f"`{name}`", then.get(name, []), now[name]) for name in now]
    return _PAGE.format(before=BEFORE, pages=len(now), then=len(then), rows="\n".join(rows))


_PAGE = """\
# Readability, measured

This page is what `python scripts/readability.py --page` writes. It measures all pages by fixed
rules of thumb, which stand in that script: before the first page was rewritten in plain English
(commit {before}, 24 November 2026, {then} pages), and today ({pages} pages). Each cell has both.
Only prose counts, no tables and no code.

* **sentences**: how many, and the median of their words;
* **long**: the share of sentences with more than 25 words;
* **passive**: the share with a passive;
* **pronoun**: the share that begin with a pronoun as their subject.

A page may have at most 20 % long sentences, 35 % passives and 12 % pronouns, or what
`scripts/readability.json` allows it. A test holds every page to that, and the first row of this
table to what the script finds today.

| page | sentences | median | long | passive | pronoun |
|---|---|---|---|---|---|
{rows}
"""


def _page_row(name: str, then: Sequence[str], now: Sequence[str]) -> str:
    after = measured(now)
    before = measured(then) if then else None

    def both(figure: str, form: str) -> str:
        old = "-" if before is None else format(getattr(before, figure), form)
        return f"{old} → {format(getattr(after, figure), form)}"

    figures = ("sentences", "d"), ("median_words", ".0f"), *((one, ".0%") for one in BAR)
    return f"| {name} | {' | '.join(both(*one) for one in figures)} |"


def _names_at(commit: str) -> list[str]:
    """Pages of a commit, as `pages` finds those of today."""
    command = ["git", "-C", str(REPOSITORY), "ls-tree", "-r", "--name-only", commit, "--",
               "README.md", "docs"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    return [one for one in found if one.endswith(".md") and not one.endswith(".zh.md")]


def _git_show(commit: str, name: str) -> str:
    command = ["git", "-C", str(REPOSITORY), "show", f"{commit}:{name}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _beside(then: Sequence[str], now: Sequence[str]) -> str:
    before, after = measured(then), measured(now)
    none = not then

    def share(name: str) -> str:
        old = "-" if none else f"{getattr(before, name):.0%}"
        return f"{old} > {getattr(after, name):.0%}".rjust(11)

    counts = f"{'-' if none else before.sentences} > {after.sentences}".rjust(11)
    medians = f"{'-' if none else f'{before.median_words:.0f}'} > {after.median_words:.0f}"
    shares = " ".join(share(name) for name in ("long", "passive", "pronoun"))
    return f"{counts} {medians.rjust(8)} {shares} "


def weight(one: Readability) -> float:
    """How tiring a page is, to order them: the three shares as a sum."""
    return one.long + one.passive + one.pronoun


if __name__ == "__main__":
    main()
