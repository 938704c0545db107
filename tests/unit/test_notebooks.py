"""Notebooks show what their cells print today, as pages, as pictures and as .ipynb."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import docs_commands as docs

nbformat = pytest.importorskip("nbformat", reason="of the development tools")


def notebooks_module() -> ModuleType:
    path = docs.REPOSITORY / "scripts" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["notebooks"] = module
    spec.loader.exec_module(module)
    return module


NOTEBOOKS = notebooks_module()
PAGES = NOTEBOOKS.pages()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTHERD_NO_PROGRESS", "1")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_that_a_notebook_shows_is_stale(page: Path) -> None:
    for path, text in NOTEBOOKS.written(page, NOTEBOOKS.run(page)).items():
        hint = "python scripts/notebooks.py writes it anew"
        assert path.read_text(encoding="utf-8") == text, f"{path}: {hint}"


def test_every_page_has_a_notebook_and_every_picture_a_page() -> None:
    books = sorted(NOTEBOOKS.BOOKS.glob("*.ipynb"))
    assert [one.stem for one in books] == [one.stem for one in PAGES]
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in NOTEBOOKS.PICTURES.iterdir():
        assert f"img/notebooks/{picture.name})" in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_jupyter_takes_the_notebook(page: Path) -> None:
    book = nbformat.read(NOTEBOOKS.BOOKS / f"{page.stem}.ipynb", as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert any(one.output_type == "execute_result" for cell in code for one in cell.outputs)
    assert not any("](../" in cell.source for cell in book.cells)  # it is read elsewhere


def test_a_changed_output_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NOTEBOOKS, "REPOSITORY", tmp_path)
    for name in ("PAGES", "PICTURES", "BOOKS"):
        monkeypatch.setattr(NOTEBOOKS, name, tmp_path / name)
    page = tmp_path / "PAGES" / "sum.md"
    page.parent.mkdir()
    page.write_text("# Sum\n\n```python\nprint(1)\n1 + 1\n```\n\nThe end.\n")
    first = NOTEBOOKS.written(page, NOTEBOOKS.run(page))
    assert (
        "\n<!-- output -->\n```text\n1\n2\n```\n<!-- end of output -->\n\nThe end." in first[page]
    )
    page.write_text(first[page])
    assert NOTEBOOKS.written(page, NOTEBOOKS.run(page)) == first  # once written it stays
    page.write_text(first[page].replace("```text\n1\n2", "```text\n1\n3"))
    assert NOTEBOOKS.written(page, NOTEBOOKS.run(page)) == first


def test_a_cell_shows_what_jupyter_would() -> None:
    names: dict[str, object] = {}
    assert NOTEBOOKS.run_cell("x = 2\nprint(x)\n", names).printed == "2\n"
    assert NOTEBOOKS.run_cell("x + 1", names).text == "3"  # cells share their names
    assert NOTEBOOKS.run_cell("None", names).text == ""
    assert NOTEBOOKS.run_cell("!echo hello\n", names).printed == "hello\n"
    drawn = "class D:\n    def _repr_svg_(self): return '<svg/>'\nD()"
    assert NOTEBOOKS.run_cell(drawn, names).svg == "<svg/>"


def test_a_cell_that_fails_ends_the_run(tmp_path: Path) -> None:
    page = tmp_path / "bad.md"
    for cell, said in (("1 / 0", "ZeroDivisionError"), ("!exit 3", "exit code 3")):
        page.write_text(f"```python\npass\n```\n\n```python\n{cell}\n```\n")
        with pytest.raises(SystemExit, match=rf"bad.md, cell 2: .*{said}"):
            NOTEBOOKS.run(page)


def test_links_of_a_notebook_lead_to_the_code_host() -> None:
    page = docs.REPOSITORY / "docs" / "notebooks" / "x.md"
    text = "[here](../guides/import.md#what) [there](https://example.org) ![one](../img/a.svg)\n"
    (cell,) = json.loads(NOTEBOOKS.notebook(text, page, []))["cells"]
    assert f"({NOTEBOOKS.CODE_HOST}docs/guides/import.md#what)" in "".join(cell["source"])
    assert "(https://example.org)" in "".join(cell["source"])
