"""`wattherd store`: what an operator does with the store of a service."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wattherd.cli.output import lists, printed, prints
from wattherd.errors import ClusterError, UserError
from wattherd.units import seconds

if TYPE_CHECKING:
    from wattherd.store.store import ClusterStore

DEFAULT_STATE = Path(".wattherd")
VERDICT, INFO = "wattherd.store-verdict/1", "wattherd.store-info/1"


@click.group()
def store() -> None:
    """Back up, check and restore a service's store."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--state",
        type=click.Path(path_type=Path),
        help="Folder of the service; beside --store, where its journal.head is.  [.wattherd]",
    )(command)
    return click.option("--store", "url", help="Database URL instead.")(command)


@contextlib.contextmanager
def _opened(
    state: Path | None, url: str | None, *, sole: bool, new: bool = False
) -> Iterator[ClusterStore]:
    """The store that is meant; what the database says against it is the user's to know."""
    try:
        from wattherd.store.database import in_folder
        from wattherd.store.store import ClusterStore
    except ImportError as missing:
        raise UserError(f"needs {missing.name}", hint='pip install "wattherd[server]"') from None
    folder = state or DEFAULT_STATE
    if url is None and not new and not (folder / "journal.sqlite").is_file():
        hint = "name the folder by --state, or a database by --store"
        raise UserError("there is no store", where=str(folder), hint=hint)
    if url is None and new:
        folder.mkdir(parents=True, exist_ok=True)
    opened = ClusterStore.open(url or in_folder(folder), sole=sole, state=state)
    try:
        yield opened
    except ClusterError as failure:
        raise UserError(str(failure), where=opened.database.url) from None
    finally:
        opened.close()


@store.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@_options
def export_(file: Path, state: Path | None, url: str | None) -> None:
    """Write the whole store to FILE (JSON lines, gzip); a service may be at work on it."""
    with _opened(state, url, sole=False) as opened:
        from wattherd.store.dump import export

        dumped = export(opened.database, file)
    click.echo(f"{file}: {dumped.rows['entries']} entries, digest {dumped.digest or '-'}")


@store.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@_options
def import_(files: tuple[Path, ...], state: Path | None, url: str | None) -> None:
    """Fill an empty store from an export; archives of compactions come first, in order."""
    with _opened(state, url, sole=True, new=True) as opened:
        from wattherd.store.dump import bring_in

        dumped = bring_in(opened.database, files)
    click.echo(f"{dumped.rows['entries']} entries, digest {dumped.digest or '-'}")


@store.command()
@click.option(
    "--rebuild", is_flag=True, help="If it is sound: make the list of jobs and the audit anew."
)
@click.option(
    "--head", metavar="DIGEST", help="Of an entry that must be there, as `store info` told it."
)
@_options
@prints
@click.pass_context
def verify(
    context: click.Context,
    *,
    rebuild: bool,
    head: str | None,
    state: Path | None,
    url: str | None,
    output: str,
) -> None:
    """Read everything, decide everything again, compare; exit code 1 if anything is wrong."""
    if head is not None and not re.fullmatch(r"[0-9a-f]{8,64}", head):
        hint = "8 to 64 hexadecimal digits, as `wattherd store info` shows"
        raise UserError(f"{head!r} is no digest", field="--head", hint=hint)
    with _opened(state, url, sole=rebuild) as opened:
        from wattherd.server.recovery import store_check as check

        verdict = check.verify(opened, head)
        rebuilt = rebuild and not verdict.problems
        if rebuilt:
            check.rebuild(opened)
    counts = {"entries": verdict.entries, "answers": verdict.answers}
    document = {
        "schema": VERDICT, **counts, "snapshots": verdict.snapshots, "rebuilt": rebuilt,
        "problems": verdict.problems, "notes": verdict.notes,
    }  # fmt: skip
    if not printed(document, output):
        click.echo(
            f"{verdict.entries} entries, {verdict.answers} answers and {verdict.snapshots} "
            f"snapshots compared{', list of jobs and audit made anew' if rebuilt else ''}"
        )
        for note in verdict.notes:
            click.echo(f"note: {note}")
        for problem in verdict.problems:
            click.echo(f"problem: {problem}")
        click.echo("not sound" if verdict.problems else "sound")
    context.exit(1 if verdict.problems else 0)


@store.command()
@click.option(
    "--archive", required=True, type=click.Path(path_type=Path), help="Export to this file first."
)
@click.option("--keep", default="7d", show_default=True, help="Entries younger than this stay.")
@_options
def compact(archive: Path, keep: str, state: Path | None, url: str | None) -> None:
    """Drop old entries, after everything was exported; the service must be stopped."""
    keep_s = seconds(keep, field="--keep")
    with _opened(state, url, sole=True) as opened:
        from wattherd.server.recovery.compaction import compact as drop

        before = opened.database.size_bytes()
        gone = drop(opened, archive, keep_s)
        after = opened.database.size_bytes()
    if gone:
        click.echo(f"{gone} entries are in {archive} only; {before:,} bytes became {after:,}")
    else:
        click.echo(f"no entry is older than {keep}: nothing was dropped, no archive was written")


@store.command()
@_options
@lists
def info(*, state: Path | None, url: str | None, output: str) -> None:
    """What a store holds; a service may be at work on it."""
    with _opened(state, url, sole=False) as opened:
        document = {"schema": INFO, **_info(opened)}
    if printed(document, output):
        return
    for name, value in document.items():
        if name != "schema":
            click.echo(f"{name:14} {_text(value)}")


def _info(opened: ClusterStore) -> dict[str, Any]:
    from wattherd.store.head import IDENTITY_FACT
    from wattherd.store.tables import SCHEMA

    journal = opened.journal
    snapshots = [
        {"entry": one.seq, "bytes": len(one.body), "version": one.version}
        for one in opened.snapshots.newest()
    ]
    return {
        "store": opened.database.url,
        "identity": journal.known_fact(IDENTITY_FACT),
        "tables": SCHEMA,
        "bytes": opened.database.size_bytes(),
        "first_entry": journal.base().seq if journal.last_seq else None,
        "last_entry": journal.last_seq or None,
        "digest": journal.digest(journal.last_seq) or None,
        "span_s": journal.last_s(),
        "jobs": opened.projection.counts(),
        "snapshots": snapshots,
    }


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(f"entry {one['entry']} ({one['bytes']:,} bytes)" for one in value) or "-"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)
