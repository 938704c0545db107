"""`wattherd docs`: the documentation that came with the package, in a terminal and offline."""

from __future__ import annotations

import textwrap
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wattherd.cli.output import prints, show
from wattherd.cli.tables import interactive
from wattherd.errors import UserError

if TYPE_CHECKING:
    from wattherd.library.documentation import PageSection

MOST_LINES = 40
"""Of a section that answers: a screen of it, and the page for the rest."""


@click.command("docs")
@click.argument("words", nargs=-1, metavar="[PAGE|WORDS]...")
@click.option("-n", "--limit", default=5, show_default=True, help="At most so many pages.")
@click.option("--all", "everything", is_flag=True, help="List all pages.")
@click.option("--browser", is_flag=True, help="Open the site that `make docs` has built.")
@prints
def docs(
    *, words: tuple[str, ...], limit: int, everything: bool, browser: bool, output: str
) -> None:
    """Read and search the documentation: `wattherd docs why is my job pending`.

    Without a word it lists pages by who reads them. A PAGE (guides/knobs) is shown whole; WORDS are
    searched, the best section is shown and other pages are named.
    """
    from wattherd.library.documentation import page_names, page_text, plain

    if browser:
        _open_site()
    elif not words:
        _list(everything=everything, output=output)
    elif words[0] in page_names() and len(words) == 1:
        document = {"schema": "wattherd.page/1", "name": words[0], "text": page_text(words[0])}
        show(document, output, lambda: click.echo(plain(str(document["text"]))))
    else:
        _search(" ".join(words), limit, output)


def _list(*, everything: bool, output: str) -> None:
    from wattherd.library.documentation import FIRST, page_names, readers

    rows = [
        {"name": page, "reader": reader, "about": about}
        for reader, links in readers().items()
        for about, page in links
    ]
    if everything:
        rows = [{"name": one, "reader": "", "about": ""} for one in page_names() if one != FIRST]
    show({"schema": "wattherd.pages/1", "pages": rows}, output, lambda: _print_list(rows))


def _print_list(rows: list[dict[str, str]]) -> None:
    reader = ""
    for row in rows:
        if row["reader"] != reader:
            reader = row["reader"]
            click.echo(click.style(f"\n{reader}", bold=True))
        click.echo(f"  {row['name']:34}{row['about']}".rstrip())
    if interactive():
        hint = "read one: wattherd docs PAGE; search: wattherd docs WORDS; all pages: --all"
        click.echo(f"\n{hint}", err=True)


def _search(question: str, limit: int, output: str) -> None:
    from wattherd.library.documentation import SectionRanking, all_sections

    found = SectionRanking(all_sections()).best(question)[: max(1, limit)]
    if not found:
        hint = "other words, or `wattherd docs` for a list"
        raise UserError(f"no page has a word of {question!r}", hint=hint)
    rows = [
        {"name": one.page, "section": one.title, "score": round(score, 3), "text": one.text}
        for score, one in found
    ]
    document = {"schema": "wattherd.docs/1", "question": question, "pages": rows}
    show(document, output, lambda: _print_found([one for _, one in found]))


def _print_found(found: list[PageSection]) -> None:
    from wattherd.library.documentation import plain

    best, *others = found
    click.echo(click.style(f"{best.page}: {best.title}", bold=True) + "\n")
    lines = plain(best.text).splitlines()
    click.echo("\n".join(lines[:MOST_LINES]))
    if len(lines) > MOST_LINES:
        click.echo(f"... `wattherd docs {best.page}` has the rest")
    if others:
        click.echo(click.style("\nalso", bold=True))
    for one in others:
        click.echo(f"  {one.page:34}{textwrap.shorten(one.title, 60)}")


def _open_site() -> None:
    """The site that was built in this folder or in the checkout.

    Raises:
        UserError: none was built, or no browser opens.
    """
    from wattherd.library.documentation import pages_folder

    built = Path("runs") / "docs" / "site" / "index.html"
    places = [top / built for top in (Path.cwd(), pages_folder().parent)]
    found = next((one for one in places if one.is_file()), None)
    if found is None:
        hint = "`make docs` in a checkout builds it; `wattherd docs` needs none"
        raise UserError("no site was built", where=str(places[0]), hint=hint)
    click.echo(found.as_uri())
    if not webbrowser.open(found.as_uri()):
        raise UserError("no browser can be opened", where=str(found), hint="open that file")
