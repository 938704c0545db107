"""A site's power in a table, for those without a DCIM: one part or device a row.

```csv
name,kind,within,fed_by,volts,amps,phases,utilization,limit,loss,max_draw
hall,site,,,,,,,,,
panel-a,panel,hall,,400,250,3,80,,0.02,
feed-a1,feed,rack-1,panel-a,400,32,3,80,,,
rack-1,rack,hall,,,,,,,,
gpu-0,node,rack-1,feed-a1;feed-b1,,,,,,,10.2kW
switch-0,other,rack-1,feed-a1:A,,,,,,,300W
```
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from wattherd.errors import UserError
from wattherd.spelling import hint_for
from wattherd.units import plain, watts
from wattherd.workload.dcim.inventory import (
    Circuit,
    Inventory,
    InventoryLoad,
    InventoryPart,
    PartKind,
)

COLUMNS = (
    "name",
    "kind",
    "within",
    "fed_by",
    "volts",
    "amps",
    "phases",
    "utilization",
    "limit",
    "loss",
    "max_draw",
)
NODE, OTHER = "node", "other"
_KINDS = (*(str(one) for one in PartKind if one is not PartKind.PHASE), NODE, OTHER)
_PHASES = {"": False, "1": False, "dc": False, "3": True}


def read_table(path: Path) -> Inventory:
    """The inventory of a CSV file; `fed_by` names sources, `;` between them, `:A` for a line.

    Raises:
        UserError: unreadable, an unknown column or kind, a bad number, or a name twice.
    """
    found = Inventory()
    for where, row in _rows(path):
        _take(found, row, where)
    for part in found.parts.values():
        _check(found, part.name, (part.within, *part.fed_by))
    for load in found.loads.values():
        _check(found, load.name, (load.within, *(source for source, _ in load.fed_by)))
    return found


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            for name in reader.fieldnames or ():
                if name not in COLUMNS:
                    raise UserError(
                        "unknown column",
                        where=f"{path}:1",
                        field=name,
                        hint=hint_for(name, COLUMNS),
                    )
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row:
                    raise UserError("has more fields than the first line", where=where)
                yield where, {name: (value or "").strip() for name, value in row.items()}
    except OSError as error:
        raise UserError(error.strerror or "cannot be read", where=str(path)) from None
    except UnicodeDecodeError:
        raise UserError("is no UTF-8", where=str(path)) from None
    except csv.Error as error:
        raise UserError(str(error), where=str(path)) from None


def _take(found: Inventory, row: dict[str, str], where: str) -> None:
    name, kind = row.get("name", ""), row.get("kind", "")
    if not name:
        raise UserError("is empty", where=where, field="name")
    if kind not in _KINDS:
        raise UserError(
            f"{kind!r} is unknown", where=where, field="kind", hint=hint_for(kind, _KINDS)
        )
    if name in found.parts or name in found.loads:
        raise UserError(f"{name!r} is there twice", where=where, field="name")
    within = row.get("within") or None
    fed_by = [one.strip() for one in row.get("fed_by", "").split(";") if one.strip()]
    if kind in (NODE, OTHER):
        cords = tuple(
            (source, line.upper()) for source, _, line in (one.partition(":") for one in fed_by)
        )
        draw_w = _watts(row, "max_draw", where)
        found.loads[name] = InventoryLoad(
            key=name, name=name, node=kind == NODE, within=within, fed_by=cords, max_w=draw_w
        )
        return
    above = [one.partition(":") for one in fed_by]
    found.lines.update({(name, source): line.upper() for source, _, line in above if line})
    found.parts[name] = InventoryPart(
        key=name,
        name=name,
        kind=PartKind(kind),
        within=within,
        fed_by=tuple(source for source, _, _ in above),
        circuit=_circuit(row, where),
        limit_w=_watts(row, "limit", where),
        loss=_number(row, "loss", where, most=0.999) or 0.0,
    )


def _circuit(row: dict[str, str], where: str) -> Circuit | None:
    volts, amps = _number(row, "volts", where), _number(row, "amps", where)
    if (volts is None) != (amps is None):
        missing = "volts" if volts is None else "amps"
        raise UserError("volts and amps must be given together", where=where, field=missing)
    if volts is None or amps is None:
        return None
    phases = row.get("phases", "").lower()
    if phases not in _PHASES:
        raise UserError(f"{phases!r} is unknown", where=where, field="phases", hint="1, 3 or dc")
    percent = _number(row, "utilization", where, most=100.0)
    share = None if percent is None else percent / 100.0
    return Circuit(volts=volts, amps=amps, three_phase=_PHASES[phases], utilization=share)


def _number(row: dict[str, str], field: str, where: str, most: float = 1e9) -> float | None:
    text = row.get(field, "").removesuffix("%")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most or (number == 0 and field != "loss"):
        raise UserError(f"{row[field]!r} is no usable number", where=where, field=field)
    return number


def _watts(row: dict[str, str], field: str, where: str) -> float | None:
    text = row.get(field, "")
    if not text:
        return None
    try:
        return watts(plain(text), field=field)
    except UserError as error:
        raise UserError(error.problem, where=where, field=field, hint=error.hint) from None


def _check(found: Inventory, name: str, named: tuple[str | None, ...]) -> None:
    for one in named:
        if one is not None and one not in found.parts:
            known = ", ".join(list(found.parts)[:8])
            raise UserError(f"names {one!r}, which is no part", where=name, hint=f"parts: {known}")
