"""It fits every training environment: the standard library alone, quick to import, small."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import wattherd_train
from wattherd_train import protocol

PACKAGE = Path(wattherd_train.__file__).parent
SOURCES = sorted(PACKAGE.glob("*.py"))
FRAMEWORKS = {"lightning": {"lightning", "pytorch_lightning"}, "huggingface": {"transformers"}}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {"wattherd_train"} | FRAMEWORKS.get(path.stem, set())
    assert imports(path) <= allowed


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_is_written_in_the_oldest_python_it_promises(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 10))
    assert len(path.read_text().splitlines()) < 400


def test_no_framework_is_imported_until_it_is_asked_for() -> None:
    code = (
        "import sys, wattherd_train; wattherd_train.current({})\n"
        "heavy = {'torch', 'numpy', 'lightning', 'transformers', 'asyncio', 'urllib.request'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    where = {"PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=where)


def test_all_names_are_there_or_say_what_is_missing() -> None:
    for name in set(wattherd_train.__all__) - {"HFCallback", "LightningCallback"}:
        assert getattr(wattherd_train, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        _ = wattherd_train.Nothing


def test_the_schema_names_what_the_code_does() -> None:
    schema = json.loads((PACKAGE / "protocol.schema.json").read_text())
    names = {value for name, value in vars(protocol).items() if str(value).startswith("WATTHERD_")}
    environment = schema["$defs"]["environment"]
    assert names == set(environment["properties"])
    on_kubernetes = {protocol.NOTICE, protocol.POD_NAME, protocol.CHECKPOINT_PHASE}  # if asked for
    assert names - on_kubernetes == set(environment["required"])
    assert protocol.CHECKPOINTED in schema["$defs"]
