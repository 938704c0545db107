"""`wattherd examples`: job files, programs, notebooks and scenarios that come with the package."""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path

import click

from wattherd.cli.output import lists, show
from wattherd.cli.tables import print_table
from wattherd.errors import UserError
from wattherd.spelling import hint_for

KINDS = frozenset({".csv", ".ipynb", ".py", ".toml", ".yaml"})


@click.group()
def examples() -> None:
    """Job files, training programs and scenarios, to run and to change."""


@examples.command("list")
@lists
def list_command(output: str) -> None:
    """Name them all."""
    rows = [{"name": name, "about": _what(path)} for name, path in files().items()]
    table = [[row["name"], row["about"]] for row in rows]
    document = {"schema": "wattherd.examples/1", "examples": rows}
    show(document, output, lambda: print_table(["EXAMPLE", "WHAT IT IS"], table))


@examples.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=Path("examples"),
    show_default=True,
    help="Folder that they are copied into.",
)
def copy(*, names: tuple[str, ...], to: Path) -> None:
    """Copy those of that NAME, or all; a NAME may be that of a folder.

    A file that is there already and says something else is left as it is, and nothing is copied.
    """
    chosen = _chosen(names)
    changed = [one for one in chosen if _differs(to / one, files()[one])]
    if changed:
        hint = "name another folder by --to, or move yours away"
        raise UserError(
            "says something else than the example", where=str(to / changed[0]), hint=hint
        )
    for name in chosen:
        _copy(files()[name], to / name)
        click.echo(to / name)


def files() -> dict[str, Path]:
    """Every example by its name, which is its path in `folder()`."""
    top = folder()
    found = (one for one in top.rglob("*") if one.suffix in KINDS and one.is_file())
    return {str(one.relative_to(top)): one for one in sorted(found)}


def folder() -> Path:
    """Where the examples are: in the package, or in the checkout that it is imported from.

    Raises:
        UserError: they are in neither.
    """
    import wattherd

    package = Path(wattherd.__file__).resolve().parent
    places = (package / "examples", package.parents[1] / "examples")
    for place in places:
        if (place / "train" / "mlp.py").is_file():
            return place
    raise UserError("the examples are missing", where=str(places[0]), hint="install wattherd anew")


def _what(path: Path) -> str:
    """The first line that tells what it is, the title of a notebook, or the columns of a table."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    if path.suffix == ".csv":
        return f"A table: {first.replace(',', ', ')}"
    if path.suffix == ".ipynb":
        heading = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"][0]
        return str(heading).strip("# \n")
    return first.strip('"# ').removesuffix('"""')


def _chosen(names: tuple[str, ...]) -> list[str]:
    known = files()
    found: list[str] = []
    for name in names or ("",):
        below = f"{name.strip('/')}/" if name else ""
        of_name = [one for one in known if one == name or one.startswith(below)]
        if not of_name:
            raise UserError(f"no example {name!r}", field="NAME", hint=hint_for(name, known))
        found += [one for one in of_name if one not in found]
    return found


def _differs(there: Path, example: Path) -> bool:
    return there.exists() and not filecmp.cmp(there, example, shallow=False)


def _copy(example: Path, to: Path) -> None:
    if to.exists():
        return
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(example, to)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(to)) from None
