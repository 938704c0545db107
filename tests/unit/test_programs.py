"""Modules that are programs: what they run is defined before they run it."""

from __future__ import annotations

import ast
from pathlib import Path

import wattherd

PACKAGE = Path(wattherd.__file__).parent


def test_what_a_module_runs_as_a_program_stands_at_its_end() -> None:
    """Where classes follow it, they are not there yet when the program begins."""
    programs, wrong = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "__main__" not in text:
            continue
        body = ast.parse(text).body
        places = [
            place for place, one in enumerate(body)
            if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)
        ]  # fmt: skip
        programs += len(places)
        wrong += [str(path.relative_to(PACKAGE)) for place in places if place != len(body) - 1]
    assert programs > 5
    assert wrong == []
