"""Run the notebooks: write what their cells print and draw into docs/notebooks, and the .ipynb.

    python scripts/notebooks.py [PAGE ...] [--check]

A notebook is a page of docs/notebooks: text, and blocks of Python that share one namespace and one
empty folder. Behind each block stands what it printed, and what its last expression shows. The
same, as Jupyter has it, is `examples/notebooks/NAME.ipynb` (nbformat 4.5). `--check` writes
nothing and names what is stale; tests/unit/test_notebooks.py does so, too.

Cells are run by Python itself, not by a kernel of Jupyter: no 60 MB more to install, no second for
a start, and the same output. What Jupyter would do is done here: the last expression is shown, by
`_repr_html_` or `_repr_svg_` where there is one, and a line that begins with `!` goes to the shell.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import posixpath
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = REPOSITORY / "docs" / "notebooks"
PICTURES = REPOSITORY / "docs" / "img" / "notebooks"
BOOKS = REPOSITORY / "examples" / "notebooks"
CODE_HOST = "https://github.com/wattherd/wattherd/blob/main/"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"\n<!-- output -->\n.*?<!-- end of output -->\n", re.DOTALL)
_LINK = re.compile(r"(?<!!)(\[[^\]]*\]\()(?!\w+:)([^)#\s]+)([^)\s]*\))")
_SHELL = re.compile(r"^!(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunCell:
    """One block: its source, and what it printed and showed."""

    source: str
    printed: str = ""
    text: str = ""
    html: str = ""
    svg: str = ""


def pages() -> list[Path]:
    """The notebooks, in order of their names."""
    return sorted(PAGES.glob("*.md"))


def run(page: Path) -> list[RunCell]:
    """Every block of a page, run from top to bottom in a folder of its own.

    Raises:
        SystemExit: a cell raised, or a command failed.
    """
    source = _SHOWN.sub("", page.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    found = []
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder, contextlib.chdir(folder):
        for number, block in enumerate(_BLOCK.findall(source), start=1):
            try:
                found.append(run_cell(block, names, f"{page.name}, cell {number}"))
            except Exception as error:
                raise SystemExit(f"{page.name}, cell {number}: {error!r}") from error
    return found


def run_cell(source: str, names: dict[str, Any], where: str = "cell") -> RunCell:
    """What a block prints and shows; `names` are those of the cells before, and keep its own."""
    names["_shell"] = _shell
    tree = ast.parse(_SHELL.sub(lambda line: f"_shell({line[1]!r})", source), where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        shown = None
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), where, "eval"), names)
    svg, html = _asked(shown, "_repr_svg_"), _asked(shown, "_repr_html_")
    text = "" if shown is None else repr(shown)
    return RunCell(source.strip("\n"), printed.getvalue(), text, html, svg)


def _shell(command: str) -> None:
    ours = re.sub(r"^wattherd\b", f"{shlex.quote(sys.executable)} -m wattherd", command)
    done = subprocess.run(ours, shell=True, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode:
        raise ChildProcessError(f"{command}: exit code {done.returncode}")


def _asked(shown: object, how: str) -> str:
    make = getattr(shown, how, None)
    return str(make()) if callable(make) else ""


def written(page: Path, cells: Sequence[RunCell]) -> dict[Path, str]:
    """The page with its outputs, its pictures, and the notebook of Jupyter, by their paths."""
    text = _SHOWN.sub("", page.read_text(encoding="utf-8"))
    found: dict[Path, str] = {}
    left, pictures = iter(cells), 0

    def with_output(block: re.Match[str]) -> str:
        nonlocal pictures
        cell = next(left)
        shown = cell.printed
        parts = []
        if cell.svg:
            pictures += 1
            picture = PICTURES / f"{page.stem}-{pictures}.svg"
            found[picture] = f'<?xml version="1.0" encoding="UTF-8"?>\n{cell.svg}'
            where = os.path.relpath(picture, page.parent)
            parts.append(f"![{_title(cell.svg)}]({where})\n")
        else:
            shown += f"{cell.text}\n" if cell.text else ""
        if shown:
            stripped = "\n".join(line.rstrip() for line in shown.splitlines())
            parts.insert(0, f"```text\n{stripped}\n```\n")
        if not parts:
            return block[0]
        return f"{block[0]}\n<!-- output -->\n{''.join(parts)}<!-- end of output -->\n"

    found[page] = _BLOCK.sub(with_output, text)
    found[BOOKS / f"{page.stem}.ipynb"] = notebook(text, page, cells)
    return found


def _title(svg: str) -> str:
    found = re.search(r"<title[^>]*>(.*?)</title>", svg)
    return found[1] if found else "plot"


def notebook(text: str, page: Path, cells: Sequence[RunCell]) -> str:
    """The same as Jupyter's own format, with outputs; links lead to the pages on the code host."""
    folder = str(page.parent.relative_to(REPOSITORY))
    found: list[dict[str, Any]] = []
    parts = _BLOCK.split(text)  # text, block, text, block, ..., text
    for number, part in enumerate(parts):
        if number % 2 == 0:
            if part.strip():
                found.append(
                    {"cell_type": "markdown", "source": _lines(_absolute(part.strip(), folder))}
                )
            continue
        cell = cells[number // 2]
        found.append(
            {
                "cell_type": "code",
                "execution_count": number // 2 + 1,
                "outputs": list(_outputs(cell, number // 2 + 1)),
                "source": _lines(cell.source),
            }
        )
    for number, one in enumerate(found):
        one |= {"id": f"cell-{number}", "metadata": {}}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": found,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _outputs(cell: RunCell, count: int) -> Iterator[dict[str, Any]]:
    if cell.printed:
        yield {"name": "stdout", "output_type": "stream", "text": _lines(cell.printed)}
    if cell.text:
        kinds = {"text/plain": cell.text, "text/html": cell.html, "image/svg+xml": cell.svg}
        data = {kind: _lines(text) for kind, text in kinds.items() if text}
        yield {
            "data": data,
            "execution_count": count,
            "metadata": {},
            "output_type": "execute_result",
        }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _absolute(text: str, folder: str) -> str:
    def link(found: re.Match[str]) -> str:
        where = posixpath.normpath(posixpath.join(folder, found[2]))
        return f"{found[1]}{CODE_HOST}{where}{found[3]}"

    return _LINK.sub(link, text)


def main() -> None:
    """Run and write, or check."""
    told = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    told.add_argument("pages", nargs="*", type=Path)
    told.add_argument("--check", action="store_true", help="write nothing; name what is stale")
    given = told.parse_args()
    os.environ["WATTHERD_NO_PROGRESS"] = "1"
    stale = []
    for page in [one.resolve() for one in given.pages] or pages():
        for path, text in written(page, run(page)).items():
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            stale.append(str(path.relative_to(REPOSITORY)))
            if not given.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "nothing is stale")
    sys.exit(1 if stale and given.check else 0)


if __name__ == "__main__":
    main()
