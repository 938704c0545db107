"""Which parts of a translated page are stale: `python scripts/translations.py [--stamp]`.

`NAME.zh.md` stands beside `NAME.md`. translations.json has, for each translation, every section of
the page it was made from, by heading, with the digest of that section's text at that time. A
section whose digest is another today is stale, as is one that came or went since. A page's code
blocks must be those of its translation, comments aside.

`--stamp` writes translations.json anew: do it once the translation says what the page says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAMPS = ROOT / "scripts" / "translations.json"
ENDING = ".zh.md"
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)
_UNSEEN = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def translations(root: Path = ROOT) -> list[Path]:
    """Every translated page of the repository."""
    return [*sorted(root.glob(f"*{ENDING}")), *sorted((root / "docs").rglob(f"*{ENDING}"))]


def original(page: Path) -> Path:
    """The page of which `page` is a translation."""
    return page.with_name(page.name.removesuffix(ENDING) + ".md")


def sections(text: str) -> dict[str, str]:
    """The digest of each section by heading; what readers do not see is left out."""
    blank = _FENCE.sub(lambda found: re.sub(r"[^\n]", "`", found[0]), seen := _UNSEEN.sub("", text))
    heads = [(found[1].strip(), found.start()) for found in _HEADING.finditer(blank)]
    ends = [start for _, start in heads[1:]] + [len(seen)]
    return {
        head: hashlib.sha256(seen[start:end].strip().encode()).hexdigest()[:16]
        for (head, start), end in zip(heads, ends, strict=True)
    }


def code(text: str) -> list[str]:
    """Code blocks without comments."""
    return [_COMMENT.sub("", found[0]) for found in _FENCE.finditer(text)]


def stale(page: Path, stamps: dict[str, dict[str, str]], root: Path = ROOT) -> list[str]:
    """What is no longer so in a translation: a line for each section or code block."""
    name, source = str(page.relative_to(root)), original(page)
    if not source.is_file():
        return [f"{name}: {source.name}, of which it is a translation, is gone"]
    text, then = source.read_text(encoding="utf-8"), stamps.get(name, {})
    now = sections(text)
    told = [
        f"{name}: section {head!r} of {source.name} "
        + ("has changed" if head in then and head in now else "came" if head in now else "is gone")
        for head in dict.fromkeys([*now, *then])
        if now.get(head) != then.get(head)
    ]
    theirs, ours = code(text), code(page.read_text(encoding="utf-8"))
    told += [
        f"{name}: code block {at + 1} is not that of {source.name}"
        for at in range(max(len(theirs), len(ours)))
        if theirs[at : at + 1] != ours[at : at + 1]
    ]
    return told


def stamped(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """What translations.json has to hold for pages that say the same today."""
    return {
        str(page.relative_to(root)): sections(original(page).read_text(encoding="utf-8"))
        for page in translations(root)
    }


def main() -> int:
    """Name what is stale; 1 if anything is."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stamp", action="store_true")
    if options.parse_args().stamp:
        text = json.dumps(stamped(), indent=1, ensure_ascii=False)
        STAMPS.write_text(text + "\n", encoding="utf-8")
    stamps = json.loads(STAMPS.read_text(encoding="utf-8"))
    found = [line for page in translations() for line in stale(page, stamps)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
