"""Mutation testing of the core: change one thing in a module, and see whether its tests notice.

    python scripts/mutation.py --minutes 10 engine/core/draft.py engine/power/account.py

Mutants come from cosmic-ray's operators and one of our own, which leaves a statement out: what a
refused proposal forgets to give back is a statement, and no other operator drops one. They are
tried in a random order that `--seed` fixes, in a copy of the tree, until the minutes are over, so
that a short run is a fair sample. Survivors are shown as diffs. docs/guides/mutation-testing.md
says what was found so far.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/wattherd")
UNIT, PROPERTY = "tests/unit/test_", "tests/property/test_"
TESTS = {
    "engine/core/draft.py": (
        "unit core", "property draft_books", "property draft_undo", "property eligible",
        "unit set_aside", "unit joules",
    ),
    "engine/power/account.py": (
        "unit power_account", "unit core", "property draft_books", "property held_watts",
        "unit shared_gpus", "unit caps_as_told", "unit cap_rules", "unit power_tree",
        "unit set_aside", "unit mixed_gangs",
    ),
    "engine/power/domain_loads.py": (
        "unit power_account", "property draft_books", "property held_watts", "unit shared_gpus",
        "unit set_aside", "unit power_tree",
    ),
    "engine/core/power_control.py": (
        "unit caps_as_told", "unit cap_rules", "unit core", "property caps_in_flight",
        "property held_watts",
    ),
    "engine/jobs/lifecycle.py": ("unit core", "unit core_races"),
    "engine/core/job_table.py": (
        "unit waits", "unit arrays", "unit begin_time", "unit array_submission",
    ),
    "engine/safety/caps.py": ("unit safety", "unit safety_orders", "unit safety_ramp"),
    "engine/core/capacity.py": (
        "property capacity_book", "unit core", "property draft_books", "unit set_aside",
    ),
    "engine/core/feasibility.py": ("unit set_aside", "unit gentle_succession"),
    "engine/power/budgets.py": (
        "property budgets_in_time", "unit budget_sources", "unit cap_rules", "unit set_aside",
    ),
}  # fmt: skip
"""The quick tests that have to notice, the quickest first."""
SAME = ("NumberReplacer", "core/ExceptionReplacer")
"""Operators of which many mutants are equivalent, or numbers in messages: every third is kept."""


class DropStatement:
    """Leaves out one call or assignment that changes something in place."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Where there is one."""
        if node.type == "simple_stmt" and _acts(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """`pass` in its place."""
        del index
        from parso import parse

        fresh = parse("pass\n").children[0]
        fresh.children[0].prefix = node.get_first_leaf().prefix
        return fresh


def _acts(statement: Any) -> bool:
    if statement.type == "expr_stmt":
        return statement.children[1].type == "annassign" or "." in statement.children[0].get_code()
    if statement.type in ("atom_expr", "power"):
        return statement.children[-1].get_code().startswith("(")
    return False


@dataclass(frozen=True)
class Mutant:
    """One change of a module, made when it is tried."""

    module: str
    operator: str
    occurrence: int

    def change(self) -> tuple[str, str]:
        """The changed module and a diff; empty where it would be the same, or no Python."""
        source = (ROOT / PACKAGE / self.module).read_text(encoding="utf-8")
        operator = OPERATORS[self.operator]
        code = MutationVisitor.mutate_code(source, operator, self.occurrence)
        if code is None or code == source or not _compiles(code):
            return "", ""
        diff = _diff(source, code, self.module)
        changed = [line for line in diff.splitlines() if line[:1] in "+-"]
        return (code, diff) if not all('"""' in line for line in changed) else ("", "")


OPERATORS: dict[str, Any] = {
    name: get_operator(name)()
    for name in operator_names()
    # Those want names of variables; `|` stands in annotations, which nothing evaluates.
    if "Variable" not in name and "BitOr" not in name
} | {"drop-statement": DropStatement()}


def mutants(module: str) -> list[Mutant]:
    """All changes of a module."""
    nodes = list(_nodes(get_ast((ROOT / PACKAGE / module).read_text(encoding="utf-8"))))
    found = []
    for name, operator in OPERATORS.items():
        count = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        step = 3 if any(part in name for part in SAME) else 1
        found += [Mutant(module, name, at) for at in range(0, count, step)]
    return found


def _nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in getattr(tree, "children", ()):
        yield from _nodes(child)


def _compiles(code: str) -> bool:
    try:
        compile(code, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _diff(before: str, after: str, module: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), module, module, lineterm="", n=1
    )
    return "\n".join(list(lines)[2:])


class Bench:
    """A copy of the tree in which one module at a time is another."""

    def __init__(self, folder: Path) -> None:
        """Copy what tests need."""
        self.folder = folder
        for name in ("src", "tests", "sdk", "examples", "docs"):
            shutil.copytree(ROOT / name, folder / name, symlinks=True)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def run(self, module: str, timeout_s: float) -> bool:
        """Whether the module's tests pass; a run that does not end does not."""
        tests = []
        for one in TESTS[module]:
            kind, _, name = one.partition(" ")
            tests.append(f"tests/{kind}/test_{name}.py")
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"),
            *("-p", "no:cacheprovider", "-p", "no:randomly", "--max-suite-reruns=0"),
            *("--hypothesis-seed=1", *tests),
        ]
        paths = [str(self.folder / "src"), str(self.folder / "sdk" / "src")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False

    def survives(self, module: str, code: str, timeout_s: float) -> bool:
        """Whether no test notices that a module is another."""
        path = self.folder / PACKAGE / module
        before = path.read_text(encoding="utf-8")
        path.write_text(code, encoding="utf-8")
        try:
            return self.run(module, timeout_s)
        finally:
            path.write_text(before, encoding="utf-8")


def main() -> int:
    """Try mutants until the minutes are over."""
    parser = argparse.ArgumentParser(description="mutation testing of the core")
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="engine/core/draft.py")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of an operator's name")
    parser.add_argument("--out", type=Path, help="one JSON line for each mutant")
    given = parser.parse_args()
    unknown = [one for one in given.modules if one not in TESTS]
    if unknown:
        parser.error(f"no tests are named for {unknown[0]}; known: {', '.join(TESTS)}")
    chosen = [
        one for module in given.modules for one in mutants(module) if given.only in one.operator
    ]
    random.Random(given.seed).shuffle(chosen)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        return _try_all(Bench(Path(folder)), chosen, given)


def _try_all(bench: Bench, chosen: list[Mutant], given: argparse.Namespace) -> int:
    took_s = {}
    for module in given.modules:
        began = time.monotonic()
        if not bench.run(module, 600.0):
            print(f"{module}: its tests fail without any change", file=sys.stderr)
            return 2
        took_s[module] = time.monotonic() - began
    end_s = time.monotonic() + 60 * given.minutes
    tried: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for number, mutant in enumerate(chosen, start=1):
        if time.monotonic() > end_s:
            break
        code, diff = mutant.change()
        if not code:
            continue
        alive = bench.survives(mutant.module, code, 30.0 + 4 * took_s[mutant.module])
        tried[mutant.module] += 1
        survived[mutant.module] += alive
        if alive:
            print(f"survived {number}: {mutant.operator}\n{diff}\n", flush=True)
        if given.out is not None:
            line = {"module": mutant.module, "operator": mutant.operator, "survived": alive}
            with given.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({**line, "diff": diff}) + "\n")
    for module in given.modules:
        dead = tried[module] - survived[module]
        print(
            f"{module}: {tried[module]} mutants tried, {dead} killed, {survived[module]} survived"
        )
    print(f"{sum(tried.values())} of {len(chosen)} mutants tried")
    return 0


if __name__ == "__main__":
    sys.exit(main())
