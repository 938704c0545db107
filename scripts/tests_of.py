"""Which tests to run after a change: names the test files that notice a module.

    python scripts/tests_of.py engine/core/draft.py

Files come in the order in which they use what the module defines, most uses first; `directly` are
those that import it, `through` those that only import what imports it (one step). It reads the
sources, and keeps no list that could fall behind them.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"


def module_of(path: str) -> str:
    """`engine/core/draft.py`, with or without `src/wattherd/`, as a dotted name.

    Raises:
        SystemExit: there is no such module.
    """
    inside = path.removeprefix("src/").removeprefix("wattherd/")
    if not inside.endswith(".py") or not (SRC / "wattherd" / inside).is_file():
        raise SystemExit(f"{path}: no module of src/wattherd; write engine/core/draft.py")
    return ".".join(["wattherd", *Path(inside).with_suffix("").parts])


@cache
def uses(path: Path) -> Counter[str]:
    """How often a file uses each module: once for the import, once for every imported name."""
    found: Counter[str] = Counter()
    origin: dict[str, str] = {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for one in ast.walk(tree):
        if isinstance(one, ast.ImportFrom) and one.module and one.module.startswith("wattherd"):
            for name in one.names:
                origin[name.asname or name.name] = one.module
                found[one.module] += 1
                found[f"{one.module}.{name.name}"] += 1
    found.update(
        origin[one.id] for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id in origin
    )
    return found


def tests_of(module: str) -> tuple[list[Path], list[Path]]:
    """Test files that import a module, and those that import what imports it; most uses first."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    counted = {path: uses(path)[module] for path in tests}
    direct = sorted((one for one in tests if counted[one]), key=lambda one: -counted[one])
    users = [
        ".".join(path.relative_to(SRC).with_suffix("").parts)
        for path in sorted((SRC / "wattherd").rglob("*.py"))
        if uses(path)[module]
    ]
    through = {path: sum(uses(path)[user] for user in users) for path in tests}
    rest = [one for one in tests if through[one] and not counted[one]]
    return direct, sorted(rest, key=lambda one: -through[one])


def main() -> None:
    """Print the files for the module that is named."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/tests_of.py engine/core/draft.py")
    for how, paths in zip(("directly", "through"), tests_of(module_of(sys.argv[1])), strict=True):
        for path in paths[:10]:
            print(f"{how}\t{path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
