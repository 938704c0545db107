"""`wattherd report`: a run directory as one page that explains itself."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Page to write.")
@click.option(
    "--format",
    "formats",
    type=click.Choice(["html", "svg", "png", "pdf"]),
    multiple=True,
    default=("html",),
    show_default=True,
    help="html is the page; the others write each plot to a file of its own.",
)
def report(*, directory: Path, out: Path | None, formats: tuple[str, ...]) -> None:
    """Turn DIRECTORY, written by `sim run` or `sim pack` --out, into one self-contained page."""
    from wattherd.report.page import write_report

    for path in write_report(directory, out=out, formats=formats):
        click.echo(path)
