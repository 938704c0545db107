"""`wattherd kube manifests|crds|chart|dashboards`: files for a cluster that came with the package.

A user of the wheel has no checkout: these commands print, or write, what lies in `deploy/`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from wattherd.errors import UserError
from wattherd.spelling import hint_for


@click.command()
@click.argument("name", required=False)
def manifests(name: str | None) -> None:
    """Print plain manifests for clusters without Helm; without a NAME list them.

    `wattherd kube manifests scheduler | kubectl apply -f -`; set the image and --budget first.
    """
    _print_one(_named("kubernetes", ".yaml"), name, "manifests")


@click.command()
@click.argument("name", required=False)
def dashboards(name: str | None) -> None:
    """Print a Grafana dashboard (JSON); without a NAME list them."""
    _print_one(_named("grafana", ".json"), name, "dashboards")


@click.command()
def crds() -> None:
    """Print the custom resource definitions: `wattherd kube crds | kubectl apply -f -`."""
    click.echo("---\n".join(_text(file) for file in _named("kubernetes/crds", ".yaml").values()))


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    default=Path("wattherd-chart"),
    show_default=True,
    help="Folder to write, which must not exist.",
)
def chart(*, out: Path) -> None:
    """Write the Helm chart: `helm install wattherd wattherd-chart`."""
    source = deploy_folder() / "kubernetes" / "chart"
    try:
        shutil.copytree(source, out, ignore=shutil.ignore_patterns("__pycache__"))
    except FileExistsError:
        hint = "name another folder by --out, or remove this one"
        raise UserError("already exists", where=str(out), hint=hint) from None
    except shutil.Error as problem:
        hint = "is there room, and may you write there?"
        many = f"{len(problem.args[0])} of its files cannot be written"
        raise UserError(many, where=str(out), hint=hint) from None
    except OSError as problem:
        raise UserError(f"cannot be written: {problem.strerror}", where=str(out)) from None
    click.echo(out)


def deploy_folder() -> Path:
    """Where the files are: in the package, or in the checkout that it is imported from.

    Raises:
        UserError: they are in neither.
    """
    import wattherd

    package = Path(wattherd.__file__).resolve().parent
    places = (package / "deploy", package.parents[1] / "deploy")
    for place in places:
        if (place / "kubernetes" / "chart" / "Chart.yaml").is_file():
            return place
    raise UserError("the files are missing", where=str(places[0]), hint="install wattherd anew")


def _named(folder: str, kind: str) -> dict[str, Path]:
    """Files of one kind right in a folder of `deploy/`, by name without the ending."""
    return {file.stem: file for file in sorted((deploy_folder() / folder).glob(f"*{kind}"))}


def _print_one(files: dict[str, Path], name: str | None, command: str) -> None:
    if name is None:
        click.echo("\n".join(files))
        click.echo(f"print one: wattherd kube {command} NAME", err=True)
        return
    if name not in files:
        raise UserError(f"none is called {name!r}", field="NAME", hint=hint_for(name, files))
    click.echo(_text(files[name]), nl=False)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
