"""What failed is said in words: `[Errno 2] No such file or directory` is Python's way, not ours."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wattherd
from wattherd.local.supervisor import _named

ROOT = Path(wattherd.__file__).parent
ROOMS = ("cli", "devices", "library", "local", "server")
FAILURES = {"OSError", "PermissionError", "FileNotFoundError"}
SPOKEN = {
    # Texts of libraries (TLS, mail, AMD SMI), which know more than a system's error.
    "devices/signals/openadr2.py": 1,
    "devices/wire/amdsmi.py": 1,
    "library/client.py": 1,
    "server/auth/oidc/issuer.py": 1,
    "server/notify/channels.py": 1,
    # Told to programs, or only whether it was readable matters.
    "local/run_lock.py": 1,
    "server/api/routes/sessions.py": 1,
    "cli/serve.py": 1,  # of a ValueError
}


def _raw(path: Path) -> int:
    """How often an error of the system is put into a text as Python prints it."""
    found = 0
    for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(handler, ast.ExceptHandler) or not handler.name or handler.type is None:
            continue
        caught = {one.id for one in ast.walk(handler.type) if isinstance(one, ast.Name)}
        if not caught & FAILURES:
            continue
        for one in ast.walk(handler):
            shown = one.value if isinstance(one, ast.FormattedValue) else None
            if isinstance(one, ast.Call) and ast.unparse(one.func) == "str" and one.args:
                shown = one.args[0]
            found += isinstance(shown, ast.Name) and shown.id == handler.name
    return found


def test_no_number_of_an_error_is_shown_to_people() -> None:
    found = {
        str(path.relative_to(ROOT)): raw
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if (raw := _raw(path))
    }
    assert found == SPOKEN


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "train"), "no such file or directory"),
        (FileNotFoundError(2, "No such file or directory", "/gone"),
         "/gone: no such file or directory"),
        (PermissionError(13, "Permission denied"), "permission denied"),
        (MemoryError(), "MemoryError()"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_run_says_which_file_is_meant(error: Exception, said: str) -> None:
    assert _named(error, "train").casefold() == said.casefold()
