"""`wattherd new`: a package beside wattherd: a file to change, its entry point and its test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import click

from wattherd.errors import UserError

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What of the example package a template of this kind takes."""

    seam: str
    module: str
    entry: str
    imports: str
    test: str
    called: str = ""
    """What the example calls it in its text, where it does."""


KINDS = {
    "scheduler": _Kind(
        "schedule", "schedule", "PACKAGE.schedule:make", "from PACKAGE.schedule import make",
        "from wattherd.testing.conformance import check_scheduler\n\n\n"
        "def test_it_conforms() -> None:\n    check_scheduler(make)\n",
    ),
    "scorer": _Kind(
        "place", "place", "PACKAGE.place:SCORER", "from PACKAGE.place import SCORER",
        "from wattherd.testing.conformance import check_scorer\n\n\n"
        "def test_it_conforms() -> None:\n    check_scorer(SCORER)\n",
        called="busy-nodes-first",
    ),
    "power": _Kind(
        "power", "power", "PACKAGE.power:SquareRoot", "from PACKAGE.power import SquareRoot",
        "from wattherd.testing.conformance import check_power_policy\n\n\n"
        "def test_it_conforms() -> None:\n    check_power_policy(SquareRoot)\n",
    ),
    "meter": _Kind(
        "meters", "meter", "PACKAGE.meter", "from pathlib import Path\n\nfrom PACKAGE import meter",
        "from wattherd.testing.conformance import check_meter\n\n\n"
        "def test_it_conforms(tmp_path: Path) -> None:\n"
        '    (tmp_path / "watts").write_text("123.4\\n")\n'
        '    check_meter(meter, f"NAME://{tmp_path}/watts")\n',
    ),
    "format": _Kind(
        "workloads", "jobs", "PACKAGE.jobs:read",
        "from pathlib import Path\n\nfrom PACKAGE.jobs import read",
        "\ndef test_a_line_is_a_job(tmp_path: Path) -> None:\n"
        '    (tmp_path / "jobs").write_text("resnet at 0 on 4 for 3600\\n")\n'
        '    (job,) = read(tmp_path / "jobs")\n'
        '    assert (job.id, job.gpus, job.duration_s) == ("resnet", 4, 3600.0)\n',
    ),
    "report": _Kind(
        "reports", "report", "PACKAGE.report:slowest", "from PACKAGE.report import slowest",
        "from wattherd.testing.conformance import check_report\n\n\n"
        "def test_it_conforms() -> None:\n    check_report(slowest)\n",
    ),
}  # fmt: skip


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.option(
    "--to", type=click.Path(path_type=Path), help="Folder to make.  [default: one called NAME]"
)
def new(*, kind: str, name: str, to: Path | None) -> None:
    """Write a package with a working part, its announcement and its test.

    KIND is a scheduler, a placement scorer, a power policy, a meter, a job format or a report.
    NAME is what users will call it: `sim run --policy NAME`, `sim pack --policy NAME`,
    `--power NAME`, `NAME://...`, `--format NAME` or `report --section NAME`.
    docs/guides/plugins.md says what may be changed and how it is tested.
    """
    if not NAME.fullmatch(name):
        hint = "small letters, digits and hyphens, a letter first: short-names-first"
        raise UserError(f"{name!r} is no name", field="NAME", hint=hint)
    folder = to or Path(name)
    if folder.exists():
        raise UserError("is there already", where=str(folder), hint="name another by --to")
    for path, text in package(kind, name).items():
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", where=str(target)) from None
        click.echo(target)
    click.echo(f"next: pip install -e {folder} && pytest {folder}", err=True)


def package(kind: str, name: str) -> dict[str, str]:
    """The files of a package by their paths; the example of its kind under another name."""
    from wattherd.cli.examples import folder

    chosen, module = KINDS[kind], name.replace("-", "_")
    example = (folder() / "plugin" / "src" / "trickle" / f"{chosen.module}.py").read_text("utf-8")
    future = "from __future__ import annotations"
    head = f'"""What wattherd asks of it."""\n\n{future}\n\n{chosen.imports}\n'
    texts = {
        "pyproject.toml": _PYPROJECT,
        f"src/{module}/__init__.py": f'"""{name}: a package beside wattherd."""\n',
        f"src/{module}/{chosen.module}.py": example,
        f"tests/test_{module}.py": f"{head}\n{chosen.test}",
    }
    words = {"PACKAGE": module, "NAME": name, "SEAM": chosen.seam, "ENTRY": chosen.entry}
    if chosen.called:
        words[chosen.called] = name
    return {path: _filled(text, words) for path, text in texts.items()}


def _filled(text: str, words: dict[str, str]) -> str:
    for _ in range(2):  # an entry names its package
        for word, value in words.items():
            text = re.sub(rf"\b{word}\b", value, text)
    return text.replace("trickle", words["PACKAGE"])


_PYPROJECT = """[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "NAME"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["wattherd"]

[project.entry-points."wattherd.SEAM"]
NAME = "ENTRY"

[tool.hatch.build.targets.wheel]
packages = ["src/PACKAGE"]
"""
