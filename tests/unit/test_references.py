"""The generated references are fresh and whole: every setting, option and chart value is told."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml
from pydantic import BaseModel

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from wattherd.cli.main import COMMANDS
from wattherd.cli.schema import KINDS
from wattherd.kube.api import names
from wattherd.server.settings.config import ServeConfig

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
CHART = ROOT / "deploy" / "kubernetes" / "chart"


def references_module() -> ModuleType:
    path = ROOT / "scripts" / "references.py"
    spec = importlib.util.spec_from_file_location("references", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["references"] = module
    spec.loader.exec_module(module)
    return module


MADE = references_module()
ELSEWHERE = {
    "wattherd.dev/v",  # v1alpha1, of our own kinds
    "wattherd.dev/configuration",
}
"""What begins so and is no label."""
MODELS: list[tuple[str, type[BaseModel]]] = [("", ServeConfig), *MADE.nested(ServeConfig)]
COMMAND_LIST: list[tuple[str, click.Command]] = list(MADE.commands())


@pytest.mark.parametrize("name", ["serve.md", "options.md", "chart.md", "labels.md"])
def test_a_reference_is_what_the_script_writes(name: str) -> None:
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == MADE.pages()[name], "stale: run python scripts/references.py"


@pytest.mark.parametrize(("path", "model"), MODELS, ids=[path or "serve" for path, _ in MODELS])
def test_every_setting_says_what_it_does(path: str, model: type[BaseModel]) -> None:
    untold = [name for name, field in model.model_fields.items() if not field.description]
    assert untold == []


def test_the_page_of_settings_has_every_field_of_the_schema() -> None:
    schema = KINDS["serve"]()
    shapes = {ServeConfig.__name__: schema, **schema["$defs"]}
    page = (REFERENCE / "serve.md").read_text(encoding="utf-8")
    fields = [name for one in shapes.values() for name in one.get("properties", {})]
    rows = page.count("\n| `")
    assert rows == len(fields) >= 100
    assert [name for name in fields if f"\n| `{name}` |" not in page] == []


def test_every_option_says_what_it_does() -> None:
    untold = [
        f"{path} {one.opts[0]}"
        for path, command in COMMAND_LIST
        for one in MADE.options(command)
        if not one.help
    ]
    assert untold == []


def test_the_page_of_options_has_every_command_and_option() -> None:
    page = (REFERENCE / "options.md").read_text(encoding="utf-8")
    sections = {one.partition("\n")[0]: one for one in page.split("\n## ")[1:]}
    assert {f"wattherd {name}" for name in COMMANDS} <= sections.keys()
    assert [path for path, _ in COMMAND_LIST] == list(sections)
    for path, command in COMMAND_LIST:
        for option in MADE.options(command):
            assert all(f"`{one}`" in sections[path] for one in option.opts), (path, option.opts)


def test_every_value_of_the_chart_says_what_it_does() -> None:
    assert [path for path, _, _, told in MADE.chart_values() if not told] == []


def test_the_page_of_the_chart_has_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    told = [path for path, *_ in MADE.chart_values()]
    assert {path.partition(".")[0] for path in told} == values.keys()
    assert values.keys() == schema["properties"].keys() - {"global"}
    assert len(told) == len(set(told)) >= 70


def test_a_comment_is_of_the_line_that_it_stands_at() -> None:
    text = (
        "# of a\n# and more\na: 1\n\n# of nobody\n\n"
        "b:\n  c: 2  # of c\n  d: '#3'\n  # of e\n  e: 4\n"
    )
    assert MADE.comments(text) == {
        "a": "of a and more",
        "b": "",
        "b.c": "of c",
        "b.d": "",
        "b.e": "of e",
    }


def test_every_name_of_ours_on_kubernetes_is_on_the_page_with_what_it_says() -> None:
    page = (REFERENCE / "labels.md").read_text(encoding="utf-8")
    known = {row[0]: row for rows in MADE.label_names().values() for row in rows}
    for constant, value in vars(names).items():
        if constant != "OURS" and str(value).startswith(names.OURS):
            assert f"| `{value}` |" in page
            assert known[value][2].strip(), f"{constant} has no docstring"
    assert "| `wattherd.dev/gpu-cap` | Annotation | What each of its GPUs may draw" in page
    assert "`kueue.x-k8s.io/queue-name`" in page.partition("Names of others")[2]


def test_every_name_of_ours_in_the_sources_has_a_constant() -> None:
    """A label that is spelt out in code or in a manifest would be missing on the page."""
    known = {name for rows in MADE.label_names().values() for name, _, _ in rows}
    spelt = set()
    for folder, kind in (("src/wattherd/kube", "*.py"), ("deploy/kubernetes", "*.yaml")):
        for path in (ROOT / folder).rglob(kind):
            text = path.read_text(encoding="utf-8")
            spelt |= set(re.findall(r"(?<![\w.])wattherd\.dev/[a-z][a-z-]*[a-z]\b", text))
    assert spelt - known - ELSEWHERE == set()
