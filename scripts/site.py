"""Build the documentation site: `make docs` puts it under runs/site.

Pages stay where they are read on a code host. They are staged in a folder of their own: links to
files outside docs/ lead to the staged page or to the code host, navigation is the list in
docs/README.md, and the Python reference is made of docstrings. Zensical builds the rest
(docs/decisions/011-site.md). A page that nothing lists, a dead link and any warning end the build.

With --releases FOLDER the site goes to FOLDER/VERSION, beside those of earlier versions. Pages that
were built so have a selector of versions in their head. Remove a version's folder to drop it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import wattherd

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
CODE_HOST = "https://github.com/wattherd/wattherd/blob/main/"
OUTSIDE = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SCOPE.md": "scope.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository that the site carries, and their names there."""
PYTHON = "reference/python-names.md"
TESTING = ("conformance", "builders", "oracle")
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(\.dev|a|b|rc)(\d+))?")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_SECTION = re.compile(r"^\*\*([^*]+)\*\*(.*?)(?=^\*\*|^A test holds|\Z)", re.MULTILINE | re.DOTALL)
SETTINGS = """[project]
site_name = "wattherd"
site_description = "Schedule deep-learning training under a power budget"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [
{nav}
]

[project.theme]
language = "en"
font = false
features = ["content.code.copy", "navigation.footer", "navigation.indexes", "navigation.path",
  "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}

[project.plugins.mkdocstrings.handlers.python]
paths = ["{source}"]

[project.plugins.mkdocstrings.handlers.python.options]
docstring_style = "google"
heading_level = 2
show_source = false
show_root_heading = true
separate_signature = true
"""
SELECTOR = """
[project.extra.version]
provider = "mike"
default = "latest"
"""
"""The theme then reads ../versions.json, in the form of mike, which is a program for MkDocs."""
TO_NEWEST = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={version}/index.html">
<title>wattherd</title>
</head>
<body><a href="{version}/index.html">wattherd {version}</a></body>
</html>
"""


def main() -> None:
    """Stage, build, check."""
    told = argparse.ArgumentParser(description=__doc__)
    told.add_argument("--out", type=Path, default=REPOSITORY / "runs" / "docs")
    told.add_argument("--to", type=Path, help="copy the site there, too")
    told.add_argument("--releases", type=Path, help="put it beside earlier versions there")
    given = told.parse_args()
    settings = SETTINGS + SELECTOR if given.releases else SETTINGS
    site = build(given.out.resolve(), settings)
    if given.releases:
        print(f"versions: {', '.join(add_release(site, given.releases, wattherd.__version__))}")
    if given.to:
        shutil.rmtree(given.to, ignore_errors=True)
        shutil.copytree(site, given.to)
    print(f"{given.to or site}: {len(list(site.rglob('*.html')))} pages")


def add_release(site: Path, releases: Path, version: str) -> list[str]:
    """Put a site beside those of earlier versions; all versions, the newest first.

    `versions.json` names them for the selector, and the start page of `releases` leads to the
    newest that is no pre-release. The sites of other versions are left as they are.
    """
    shutil.rmtree(releases / version, ignore_errors=True)
    shutil.copytree(site, releases / version)
    found = [one.parent.name for one in releases.glob("*/index.html")]
    versions = sorted(filter(_VERSION.fullmatch, found), key=_version_order, reverse=True)
    final = [one for one in versions if re.fullmatch(r"[\d.]+", one)]
    newest = (final or versions)[0]
    listed = [
        {"version": one, "title": one, "aliases": ["latest"] if one == newest else []}
        for one in versions
    ]
    text = json.dumps(listed, indent=1) + "\n"
    (releases / "versions.json").write_text(text, encoding="utf-8")
    start = TO_NEWEST.format(version=newest)
    (releases / "index.html").write_text(start, encoding="utf-8")
    return versions


def _version_order(version: str) -> tuple[int, int, int, bool, str, int]:
    """Numbers by size; 1.0.0.dev1, 1.0.0a1, 1.0.0b1 and 1.0.0rc1 come before 1.0.0."""
    found = _VERSION.fullmatch(version)
    assert found is not None
    major, minor, patch, kind, number = found.groups()
    return int(major), int(minor), int(patch), kind is None, kind or "", int(number or 0)


def build(folder: Path, settings: str = SETTINGS) -> Path:
    """The site's folder.

    Raises:
        SystemExit: a warning of Zensical, a page that nothing lists, a link that leads nowhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder, settings)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr))
    wrong = dead_links(folder / "site")
    if wrong:
        sys.exit("links that lead nowhere:\n" + "\n".join(wrong))
    return folder / "site"


def stage(folder: Path, settings: str = SETTINGS) -> None:
    """Pages and settings, as Zensical reads them."""
    pages = folder / "pages"
    shutil.copytree(DOCS, pages)
    for name, staged in OUTSIDE.items():
        shutil.copyfile(REPOSITORY / name, pages / staged)
    for page in sorted(DOCS.rglob("*.md")):
        staged_page = pages / page.relative_to(DOCS)
        text = _relinked(page, page.relative_to(DOCS))
        if page.match("*.zh.md"):
            # The index knows words by letters of English: what is left would be commands only.
            text = f"---\nsearch:\n  exclude: true\n---\n{text}"
        staged_page.write_text(text, encoding="utf-8")
    for name, staged in OUTSIDE.items():
        text = _relinked(REPOSITORY / name, Path(staged))
        (pages / staged).write_text(text, encoding="utf-8")
    (pages / "README.md").rename(pages / "index.md")
    (pages / PYTHON).write_text(python_names(), encoding="utf-8")
    lines = [
        f'  {{ "{section}" = {json.dumps(listed)} }},' for section, listed in navigation().items()
    ]
    nav = "\n".join(['  "index.md",', *lines])
    filled = settings.format(nav=nav, source=REPOSITORY / "src")
    (folder / "zensical.toml").write_text(filled, encoding="utf-8")


def navigation() -> dict[str, list[str]]:
    """Sections of docs/README.md with their pages, in its order; then what the site adds.

    Raises:
        SystemExit: a page of docs/ is in no section.
    """
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for section in _SECTION.finditer(text.partition("## All pages")[2]):
        targets = [link[2] for link in _LINK.finditer(section[2])]
        found[section[1]] = [one for one in dict.fromkeys(targets) if one.endswith(".md")]
    found["Reference"].insert(1, PYTHON)
    found["Decisions"] = [f"decisions/{one.name}" for one in sorted(DOCS.glob("decisions/*.md"))]
    found["About"] = list(OUTSIDE.values())
    listed = {one for section in found.values() for one in section}
    every = {str(one.relative_to(DOCS)) for one in DOCS.rglob("*.md")} - {"README.md"}
    if unlisted := sorted(every - listed):
        sys.exit(f"docs/README.md does not list {', '.join(unlisted)}")
    return found


def python_names() -> str:
    """A page that Zensical fills with signatures and docstrings."""
    told = (
        "Signatures and docstrings of what `import wattherd` offers; the [page before](python.md)"
        " tells how to use them."
    )
    parts = [f"# Python names\n\n{told}\n"]
    parts += [f"::: {one}\n" for one in sorted(homes())]
    parts += [f"::: wattherd.testing.{one}\n" for one in TESTING]
    return "\n".join(parts)


def homes() -> set[str]:
    """Where the names of `import wattherd` are made."""
    offered = [getattr(wattherd, name) for name in wattherd.__all__ if name != "__version__"]
    return {f"{one.__module__}.{one.__qualname__}" for one in offered}


def _relinked(page: Path, staged: Path) -> str:
    """The page's text with links as its staged copy needs them."""

    def link(found: re.Match[str]) -> str:
        target, hash_mark, anchor = found[2].partition("#")
        if not target or ":" in target:
            return found[0]
        meant = Path(os.path.normpath(page.parent / target)).relative_to(REPOSITORY)
        if str(meant) in OUTSIDE:
            where = Path(OUTSIDE[str(meant)])
        elif meant == Path("docs/README.md"):
            where = Path("index.md")
        elif meant.parts[0] == "docs":
            where = meant.relative_to("docs")
        else:
            return f"{found[1]}{CODE_HOST}{meant}{hash_mark}{anchor}{found[3]}"
        return f"{found[1]}{os.path.relpath(where, staged.parent)}{hash_mark}{anchor}{found[3]}"

    return _LINK.sub(link, page.read_text(encoding="utf-8"))


class Links(HTMLParser):
    """What a built page loads and leads to, and the places in it that can be led to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element: its id, its link, what the browser fetches for it."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name == "href" and value:
                (self.leads if tag == "a" else self.loads).append(value)
            elif name in ("src", "srcset", "poster", "data") and value:
                self.loads.append(value)


def dead_links(site: Path) -> list[str]:
    """Links within the site to files or places that are not there, as `PAGE: TARGET`."""
    pages = {page: Links(page) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}
    wrong = []
    for page, links in pages.items():
        for target in (*links.leads, *links.loads):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            name = unquote(parts.path)
            where = Path(os.path.normpath(page.parent / name)) if name else page
            where = where / "index.html" if where.is_dir() else where
            there = where.is_file()
            if there and parts.fragment and where in pages:
                there = unquote(parts.fragment) in pages[where].ids
            if not there:
                wrong.append(f"{page.relative_to(site)}: {target}")
    return wrong


if __name__ == "__main__":
    main()
