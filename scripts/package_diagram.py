"""Draws the rooms of `src/wattherd` from the import contracts in pyproject.toml, as text.

    python scripts/package_diagram.py          print the drawing
    python scripts/package_diagram.py --write  put it into ARCHITECTURE.md

Only contracts of layers are drawn: they say who stands on whom. The contracts are what the import
linter checks, so the drawing cannot differ from what the code does.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = "wattherd."
BEGIN, END = "<!-- package diagram: begin -->", "<!-- package diagram: end -->"


def contracts() -> list[dict[str, Any]]:
    """The contracts of the import linter, as pyproject.toml has them."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = document["tool"]["importlinter"]["contracts"]
    return found


def floors(contract: Mapping[str, Any]) -> list[list[str]]:
    """The floors of a contract, the upper first: on each the rooms that stand side by side."""
    inside = "".join(f"{one.removeprefix(PACKAGE)}." for one in contract.get("containers", ()))
    return [
        [inside + room.strip().removeprefix(PACKAGE) for room in re.split(r"[|:]", layer)]
        for layer in contract["layers"]
    ]


def _box(rows: list[list[str]]) -> list[str]:
    lines = ["   ".join(rooms) for rooms in rows]
    width = max(map(len, lines))
    rule = "+" + "-" * (width + 4) + "+"
    return [rule, *(f"|  {line.ljust(width)}  |" for line in lines), rule]


def diagram() -> str:
    """One drawing for each contract of layers; a room may import what stands below it."""
    parts = []
    for contract in contracts():
        if contract["type"] == "layers":
            parts.append("\n".join([contract["name"], *_box(floors(contract))]))
        elif contract["type"] == "independence":
            rooms = " | ".join(one.removeprefix(PACKAGE) for one in contract["modules"])
            parts.append(f"{contract['name']}\n   {rooms}")
    return "\n\n".join(parts) + "\n"


def block() -> str:
    """The drawing as it stands in ARCHITECTURE.md, with the marks around it."""
    return f"{BEGIN}\n```\n{diagram()}```\n{END}"


def main() -> None:
    """Print the drawing, or write it into the page."""
    if "--write" not in sys.argv[1:]:
        sys.stdout.write(diagram())
        return
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + block() + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
