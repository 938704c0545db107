"""`wattherd report`: a run directory, or a live site's past, as one page that explains itself."""

from __future__ import annotations

from pathlib import Path

import click

from wattherd.errors import UserError


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--state", type=click.Path(path_type=Path), help="State folder of a service instead.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Page to write.")
@click.option(
    "--format",
    "formats",
    metavar="[html|svg|png|pdf|NAME]",
    multiple=True,
    default=("html",),
    show_default=True,
    help="html is the page; svg, png and pdf write each plot to a file of its own, and the NAME of "
    "a package's format writes a file beside the page.",
)
@click.option(
    "--section",
    "sections",
    metavar="NAME",
    multiple=True,
    help="Add a package's section to the page; `wattherd policies` lists those that are installed.",
)
def report(
    *,
    directory: Path | None,
    state: Path | None,
    out: Path | None,
    formats: tuple[str, ...],
    sections: tuple[str, ...],
) -> None:
    """Turn DIRECTORY, written by `sim run` or `sim pack` --out, into one self-contained page.

    With --state it is what a service has seen: its draw under its budget, and all its jobs. The
    service may be stopped or at work.
    """
    if (directory is None) == (state is None):
        raise UserError("give either DIRECTORY or --state", field="DIRECTORY")
    if state is not None:
        _report_state(state, out, formats, sections)
        return
    from wattherd.report.page import write_report

    assert directory is not None  # noqa: S101 - one of both
    for path in write_report(directory, out=out, formats=formats, sections=sections):
        click.echo(path)


def _report_state(
    state: Path, out: Path | None, formats: tuple[str, ...], sections: tuple[str, ...]
) -> None:
    try:
        from wattherd.server.web.past_page import write_state_report
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    for path in write_state_report(state, out, formats=formats, sections=sections):
        click.echo(path)
