"""Import a power tree from an inventory, and keep it in step: `wattherd power tree import`.

Beside the tree's file stands `NAME.import.json`, which says what was imported last: without it
nobody could tell a hand edit from a change of the inventory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from wattherd.errors import UserError
from wattherd.validation import misfit
from wattherd.workload.dcim import fetch, rest, table
from wattherd.workload.dcim.inventory import Inventory, InventoryFinding
from wattherd.workload.dcim.merge import FileDomain, TreeChange, branches_of, document_of, merged
from wattherd.workload.dcim.supply import Domain, Rating, domains_of
from wattherd.workload.scenario import load
from wattherd.workload.tree_spec import DomainSpec, tree_of

SCHEMA = "wattherd.tree-import/1"
HEADER = "# Imported by `wattherd power tree import`; edits are kept when it is imported again.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeImport:
    """What an import found: the tree to write, how that differs from the file, what is missing."""

    system: str
    source: str
    domains: Sequence[Domain]
    branches: Sequence[FileDomain]
    changes: Sequence[TreeChange]
    findings: Sequence[InventoryFinding]

    @property
    def differs(self) -> bool:
        """Whether the file would change, or disagrees with the inventory."""
        return bool(self.changes)

    def document(self) -> dict[str, Any]:
        """`wattherd.tree-import/1`."""
        return {
            "schema": SCHEMA,
            "system": self.system,
            "source": self.source,
            "tree": document_of(self.branches),
            "changes": [asdict(one) for one in self.changes],
            "findings": [asdict(one) for one in self.findings],
            "domains": [asdict(one) for one in self.domains],
        }


def inventory(
    system: str, source: str, choice: rest.NodeChoice, save: Path | None = None
) -> Inventory:
    """The inventory of a server, of a file of its answers, or of a table.

    Raises:
        UserError: a source that cannot be used.
        DeviceError: a server without an answer for us.
    """
    if system == "csv":
        return table.read_table(Path(source))
    if not fetch.is_address(source):
        return rest.inventory_of(fetch.read_answers(Path(source)), choice)
    fetched = fetch.fetch(source, nautobot=system == "nautobot")
    if save is not None:
        save.write_text(json.dumps(fetched.answers), encoding="utf-8")
    found = rest.inventory_of(fetched.answers, choice)
    for name in fetched.moved:
        text = "changed while it was read, or its pages overlap: import again to be sure"
        found.conflict(name, text)
    return found


def imported(system: str, source: str, found: Inventory, rating: Rating, file: Path) -> TreeImport:
    """The tree of an inventory, merged with what `file` holds.

    Raises:
        UserError: the file is no power tree, or what came of it makes none.
    """
    domains = domains_of(found, rating)
    now = [_branch(one) for one in domains]
    before = _before(file)
    mine = _mine(file) if file.exists() else None
    if mine is None:
        branches: Sequence[FileDomain] = now
        changes = [TreeChange("added", one.name, now=one.budget) for one in now]
    elif not before and mine[0].name != now[0].name:
        problem = f"is another tree, of {mine[0].name!r}; the inventory has {now[0].name!r}"
        raise UserError(
            problem, where=str(file), field="name", hint="name another file: --out FILE"
        )
    else:
        branches, changes = merged(before, mine, now)
    result = TreeImport(
        system=system,
        source=source.partition("?")[0],
        domains=domains,
        branches=branches,
        changes=changes,
        findings=found.findings,
    )
    _check(result, file)
    return result


def write(result: TreeImport, file: Path) -> None:
    """Write the tree and what was imported, each whole or not at all."""
    text = yaml.safe_dump(document_of(result.branches), sort_keys=False, allow_unicode=True)
    head = _head(file) if file.exists() else HEADER
    _replace(file, head + text)
    base = [asdict(_branch(one)) for one in result.domains]
    memory = {**result.document(), "base": base}
    del memory["changes"], memory["tree"]
    _replace(_memory(file), json.dumps(memory, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise UserError(error.strerror or "cannot be written", where=str(path)) from None


def _head(file: Path) -> str:
    """The comments that a file begins with; others are lost when it is written again."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    head = []
    for line in lines:
        if line.strip() and not line.startswith("#"):
            break
        head.append(line)
    return "".join(head)


def _memory(file: Path) -> Path:
    return file.with_name(f"{file.stem}.import.json")


def _branch(one: Domain) -> FileDomain:
    return FileDomain(
        name=one.name,
        parent=one.parent,
        level=one.level,
        budget=one.budget_w,
        loss=one.loss,
        nodes=tuple(_literal(node) for node in one.nodes),
        keys=one.keys,
    )


def _literal(node: str) -> str:
    """A node's name where patterns are read too."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in node)


def _before(file: Path) -> list[FileDomain]:
    """What the last import wrote; nothing where there was none."""
    path = _memory(file)
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["base"]
        found = [FileDomain(**row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        hint = "remove it; edits are then no longer told from changes of the inventory"
        raise UserError("is no record of an import", where=str(path), hint=hint) from None
    return [replace(one, nodes=tuple(one.nodes), keys=tuple(one.keys)) for one in found]


def _mine(file: Path) -> list[FileDomain]:
    document: Mapping[str, Any] = load(file)
    try:
        DomainSpec.model_validate(document)
    except ValidationError as problem:
        raise misfit(problem, str(file), DomainSpec) from None
    return branches_of(document)


def _check(result: TreeImport, file: Path) -> None:
    """What would be written can be read again."""
    document = document_of(result.branches)
    spec = DomainSpec.model_validate(document)
    tree_of(spec, str(file))
