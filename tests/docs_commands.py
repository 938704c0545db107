"""The shell commands that README and docs show, block by block, and what they claim of them.

A claim is a comment that readers do not see, right behind the commands that it is about:

    <!-- claim within 20 s: state("train") == "Succeeded" -->

Without a time it must hold at once. `docs_claims` has its words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    REPOSITORY / "README.md",
    # Translations have the commands of their pages: tests/unit/test_translations.py.
    *sorted(one for one in (REPOSITORY / "docs").rglob("*.md") if not one.match("*.zh.md")),
]
SHELLS = ("", "sh", "bash", "console")
PROGRAMS = [
    "wattherd",
    "make",
    "python",
    "pip",
    "printf",
    "mkdir",
    "cat",
    "curl",
    "export",
    "cd",
    "torchrun",
]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_STEP = re.compile(
    _FENCE.pattern + r"|^<!-- claim(?: within (\d+) s)?: (.*?) -->$", re.MULTILINE | re.DOTALL
)
_INDENTED = re.compile(r"^    (wattherd .*)$", re.MULTILINE)
_NAMED = re.compile(r"# ([\w-]+\.ya?ml)\n")
_INLINE = re.compile(r"`wattherd ([a-z][^`]*)`")
_SETTING = re.compile(r"^[A-Z_]+=\S*\s+")


@dataclass(frozen=True)
class Command:
    """One command with its here-document; `page` is relative to the repository."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of the command alone, without what is piped, redirected or put in the background."""
        first = self.text.split("\n", 1)[0]
        first = re.sub(r"^\w+=\$\((wattherd .*)\)$", r"\1", first)
        words = shlex.split(_SETTING.sub("", first), comments=True)
        ends = (at for at, word in enumerate(words) if word in ("|", "&", "&&", ">", ">>"))
        return words[: next(ends, len(words))]


@dataclass(frozen=True)
class Claim:
    """What holds `most_s` seconds after the commands before it, at the latest."""

    page: str
    text: str
    most_s: int


def indented(page: Path) -> Iterator[Command]:
    """Commands of wattherd in indented blocks, which are shown but belong to no script."""
    for text in _INDENTED.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
        yield Command(name_of(page), text)


def files(page: Path) -> dict[str, str]:
    """Files that a page shows: blocks whose first line is `# NAME.yaml`."""
    blocks = (text for _, text in _FENCE.findall(page.read_text(encoding="utf-8")))
    return {found[1]: text for text in blocks if (found := _NAMED.match(text))}


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY) if page.is_relative_to(REPOSITORY) else page)


def steps(page: Path) -> Iterator[Command | Claim]:
    """Every shell command and every claim of a page, in order."""
    for language, text, most_s, claim in _STEP.findall(page.read_text(encoding="utf-8")):
        if claim:
            yield Claim(name_of(page), " ".join(claim.split()), int(most_s or 0))
        elif language in SHELLS and (language or _is_shell(text)):
            for one in _split(text):
                yield Command(name_of(page), one)


def commands(page: Path) -> Iterator[Command]:
    """Every shell command of a page, in order."""
    return (one for one in steps(page) if isinstance(one, Command))


def claims(page: Path) -> list[Claim]:
    """Every claim of a page, in order."""
    return [one for one in steps(page) if isinstance(one, Claim)]


def inline(page: Path) -> Iterator[list[str]]:
    """Words after `wattherd` where running text names a command."""
    for text in _INLINE.findall(page.read_text(encoding="utf-8")):
        yield text.split()


def _is_shell(text: str) -> bool:
    first = _SETTING.sub("", text.lstrip("$ ").split("\n", 1)[0])
    return first.split(" ", 1)[0] in PROGRAMS


def _split(text: str) -> Iterator[str]:
    """Logical lines; a here-document belongs to its command."""
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        command = line.removeprefix("$ ").strip()
        if not command or command.startswith("#"):
            continue
        if here := re.search(r"<<'?(\w+)'?", command):
            body = [command]
            for more in lines:
                body.append(more)
                if more.strip() == here[1]:
                    break
            command = "\n".join(body)
        yield command
