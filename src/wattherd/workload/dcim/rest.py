"""NetBox' and Nautobot's answers as an inventory: both generations of both, by the same reading.

Field names are those of the public REST models (NetBox 2.10 to 4.x, Nautobot 1.x to 3.x). What
differs between them: sites are places of their own or locations; a port's far end is
`connected_endpoint` or a list `connected_endpoints`, with or without its type in the object;
choices are texts or `{value, label}`; keys are numbers or UUIDs; objects name others in full or by
id alone. Objects are joined by id, so that short forms do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from wattherd.errors import UserError
from wattherd.workload.dcim.inventory import (
    Circuit,
    Inventory,
    InventoryLoad,
    InventoryPart,
    PartKind,
)

Row = Mapping[str, Any]
Answers = Mapping[str, Sequence[Row]]
"""Rows by the name of their list, such as `power-feeds`."""
LISTS = (
    "sites",
    "locations",
    "racks",
    "power-panels",
    "power-feeds",
    "devices",
    "power-ports",
    "power-outlets",
    "cables",
)
"""`sites` are missing in Nautobot 2 and later; `cables` are needed only where far ends are not."""
LIMIT, LOSS = "power_limit_w", "power_loss"
"""Custom fields of places, panels, feeds and PDUs: watts they may carry, and the share lost."""
_USABLE = ("", "active", "connected")
_LINE_TO_NEUTRAL = (100, 110, 115, 120, 127, 230, 240, 277)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """Which devices are nodes (all that are named by any of these; none: all that draw)."""

    names: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    site: str | None = None

    def takes(self, device: Row) -> bool:
        """Whether a device is a node."""
        if not (self.names or self.roles or self.tags):
            return True
        role = _labels(device.get("role") or device.get("device_role"))
        tags = {text for one in device.get("tags") or () for text in _labels(one)}
        name = str(device.get("name") or "")
        return (
            any(fnmatchcase(name, one) for one in self.names)
            or bool(role & set(self.roles))
            or bool(tags & set(self.tags))
        )


def inventory_of(answers: Answers, choice: NodeChoice) -> Inventory:
    """The inventory that these rows describe.

    Raises:
        UserError: no site of that name.
    """
    return _Reading(answers, choice).inventory()


class _Reading:
    """One set of answers while it is read."""

    def __init__(self, answers: Answers, choice: NodeChoice) -> None:
        self._found = Inventory()
        self._choice = choice
        self._rows = {name: self._by_id(name, answers.get(name, ())) for name in LISTS}
        self._cabled = _far_ends(self._rows["cables"].values())
        self._ports: dict[str, list[Row]] = {}
        self._outlets_of: dict[str, list[Row]] = {}
        for name, held in (("power-ports", self._ports), ("power-outlets", self._outlets_of)):
            for row in self._rows[name].values():
                held.setdefault(_id(row.get("device")), []).append(row)

    def _by_id(self, name: str, rows: Iterable[Row]) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for number, row in enumerate(rows):
            key = _id(row) if isinstance(row, Mapping) else ""
            if not key:
                self._found.unknown(f"{name} {number}", "has no id; left out")
                continue
            before = found.setdefault(key, row)
            if before is not row and _id(before.get("rack")) != _id(row.get("rack")):
                racks = " and ".join(sorted({_name(one.get("rack")) for one in (before, row)}))
                self._found.conflict(
                    _name(row), f"is listed in two racks, {racks}; the first counts"
                )
        return found

    def inventory(self) -> Inventory:
        """Places first, then sources, then what hangs on them."""
        self._places()
        self._panels()
        self._feeds()
        self._devices()
        self._only_site()
        return self._found

    # --- places --------------------------------------------------------------------------------

    def _places(self) -> None:
        for name, kind in (
            ("sites", PartKind.SITE),
            ("locations", PartKind.LOCATION),
            ("racks", PartKind.RACK),
        ):
            for key, row in self._rows[name].items():
                above = self._around(row)
                level = PartKind.SITE if kind is PartKind.LOCATION and above is None else kind
                self._add(f"{name}:{key}", row, level, within=above)

    def _around(self, row: Row) -> str | None:
        """The nearest place that a row names."""
        for field, name in (
            ("rack", "racks"),
            ("parent", "locations"),
            ("location", "locations"),
            ("site", "sites"),
        ):
            key = _id(row.get(field))
            if key and key in self._rows[name]:
                return f"{name}:{key}"
        return None

    def _add(self, key: str, row: Row, kind: PartKind, **more: Any) -> None:
        custom = row.get("custom_fields") or {}
        name = _name(row)
        self._found.parts[key] = InventoryPart(
            key=key,
            name=name,
            kind=kind,
            limit_w=self._number(custom.get(LIMIT), name, LIMIT) or more.pop("limit_w", None),
            loss=self._loss(custom.get(LOSS), name),
            **more,
        )

    def _number(self, value: Any, where: str, field: str) -> float | None:
        """A number above zero, or none."""
        if value in (None, ""):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 < number < 1e12:
            self._found.unknown(where, f"{field} is {value!r}, which is no usable number")
            return None
        return number

    def _loss(self, value: Any, where: str) -> float:
        loss = self._number(value, where, LOSS) or 0.0
        if loss >= 1:
            self._found.unknown(where, f"{LOSS} is {value!r}; a share from 0 to 1 is expected")
            return 0.0
        return loss

    # --- sources -------------------------------------------------------------------------------

    def _panels(self) -> None:
        for key, row in self._rows["power-panels"].items():
            self._add(f"panel:{key}", row, PartKind.PANEL, within=self._around(row))

    def _feeds(self) -> None:
        for key, row in self._rows["power-feeds"].items():
            name = _name(row)
            status = _value(row.get("status"))
            if status not in _USABLE:
                self._found.assumed(name, f"is {status}: it carries nothing")
                continue
            panel = _id(row.get("power_panel"))
            if not panel or panel not in self._rows["power-panels"]:
                self._found.unknown(name, "names no panel that is listed")
            above = (f"panel:{panel}",) if panel in self._rows["power-panels"] else ()
            self._add(
                f"feed:{key}",
                row,
                PartKind.FEED,
                within=self._around(row),
                fed_by=above,
                circuit=self._circuit(row, name),
                redundant=_value(row.get("type")) == "redundant",
            )
            below = f"panel:{_id(row.get('destination_panel'))}"
            if below in self._found.parts:
                panel_below = self._found.parts[below]
                joined = replace(panel_below, fed_by=(*panel_below.fed_by, f"feed:{key}"))
                self._found.parts[below] = joined

    def _circuit(self, row: Row, name: str) -> Circuit | None:
        volts = self._number(_absolute(row.get("voltage")), name, "voltage")
        amps = self._number(row.get("amperage"), name, "amperage")
        if volts is None or amps is None:
            return None
        percent = self._number(row.get("max_utilization"), name, "max_utilization")
        phase = _value(row.get("phase"))
        three = phase == "three-phase"
        if not phase:
            self._found.assumed(name, "its phase is not stated; taken as a single one")
        if three and volts in _LINE_TO_NEUTRAL:
            text = (
                f"three phases at {volts:g} V: taken as volts between lines; if they are to"
                f" neutral, it carries {3**0.5:.3g} times as much"
            )
            self._found.assumed(name, text)
        return Circuit(
            volts=volts,
            amps=amps,
            three_phase=three,
            utilization=None if percent is None else min(percent, 100.0) / 100.0,
        )

    # --- devices -------------------------------------------------------------------------------

    def _devices(self) -> None:
        devices = self._rows["devices"]
        carried = {_id(row.get("parent_device")) for row in devices.values()} - {""}
        names: dict[str, str] = {}
        for key, row in devices.items():
            status = _value(row.get("status"))
            if key in self._outlets_of:
                self._pdu(key, row)
                continue
            ports = self._ports.get(key, [])
            if key in carried or status in ("decommissioning", "inventory", "offline", "planned"):
                continue
            chassis = _id(row.get("parent_device"))
            if not ports and not chassis and not self._named(row):
                continue  # a patch panel, a blank
            name = _name(row)
            if name in names:
                text = f"two devices are called so; this one is {name} ({key})"
                self._found.conflict(name, text)
                name = f"{name} ({key})"
            names[name] = key
            cords = self._cords(row, ports or self._ports.get(chassis, []))
            self._found.loads[f"device:{key}"] = InventoryLoad(
                key=f"device:{key}",
                name=name,
                node=self._choice.takes(row),
                within=self._around(devices.get(chassis, row)),
                fed_by=cords,
                max_w=self._draw_w(ports, name),
            )

    def _named(self, row: Row) -> bool:
        """Whether somebody asked for this very device."""
        choice = self._choice
        return bool(choice.names or choice.roles or choice.tags) and choice.takes(row)

    def _pdu(self, key: str, row: Row) -> None:
        """A device with outlets: a source, fed through its own ports."""
        inlets = self._ports.get(key, [])
        above: list[str] = []
        name = _name(row)
        for port in inlets:
            for source, line in self._ends(port):
                above.append(source)
                if line:
                    self._found.lines[f"pdu:{key}", source] = line
        if not above:
            above = [
                source for source, _ in self._rack_feeds(row, name, "nothing is known to feed it")
            ]
        stated = [
            one
            for port in inlets
            if (one := self._number(port.get("maximum_draw"), name, "maximum_draw"))
        ]
        self._add(
            f"pdu:{key}",
            row,
            PartKind.PDU,
            within=self._around(row),
            fed_by=tuple(dict.fromkeys(above)),
            limit_w=sum(stated) or None,
        )

    def _cords(self, row: Row, ports: Sequence[Row]) -> tuple[tuple[str, str], ...]:
        """What a device's ports are plugged into."""
        found = [end for port in ports for end in self._ends(port)]
        loose = [str(port.get("name")) for port in ports if not self._ends(port)]
        name = _name(row)
        if found and loose:
            self._found.unknown(name, f"no cable leads from {', '.join(sorted(loose))}")
        if not found:
            found = self._rack_feeds(row, name, "no cable leads to a source")
        return tuple(dict.fromkeys(found))

    def _ends(self, port: Row) -> list[tuple[str, str]]:
        """(Source, line) pairs at the other end of a port's cable."""
        found = []
        for kind, key in _endpoints(port) or self._cabled.get(("powerport", _id(port)), []):
            if kind == "powerfeed" and f"feed:{key}" in self._found.parts:
                found.append((f"feed:{key}", ""))
            elif kind == "poweroutlet" and key in self._rows["power-outlets"]:
                outlet = self._rows["power-outlets"][key]
                line = _value(outlet.get("feed_leg")).upper()
                found.append((f"pdu:{_id(outlet.get('device'))}", line))
        return found

    def _rack_feeds(self, row: Row, name: str, why: str) -> list[tuple[str, str]]:
        """All feeds of the rack: what a device whose cables are unknown may draw from."""
        rack = _id(row.get("rack"))
        feeds = [
            (f"feed:{key}", "")
            for key, feed in self._rows["power-feeds"].items()
            if rack and _id(feed.get("rack")) == rack and f"feed:{key}" in self._found.parts
        ]
        if feeds:
            names = ", ".join(self._found.name_of(one) for one, _ in feeds)
            self._found.assumed(name, f"{why}; held to all feeds of its rack: {names}")
        return feeds

    def _draw_w(self, ports: Sequence[Row], name: str) -> float | None:
        """Watts of all ports: `maximum_draw`, or else `allocated_draw`."""
        stated = [
            self._number(port.get("maximum_draw"), name, "maximum_draw")
            or self._number(port.get("allocated_draw"), name, "allocated_draw")
            for port in ports
        ]
        known = [one for one in stated if one is not None]
        return sum(known) if known and len(known) == len(stated) else None

    # --- one site of several -------------------------------------------------------------------

    def _only_site(self) -> None:
        wanted = self._choice.site
        sites = {key: part for key, part in self._found.parts.items() if part.kind is PartKind.SITE}
        if wanted is None:
            return
        slugs = {_slug(self._rows, key): key for key in sites} | {
            one.name: key for key, one in sites.items()
        }
        if wanted not in slugs:
            names = ", ".join(sorted(one.name for one in sites.values()))
            raise UserError(f"no site {wanted!r}", field="--site", hint=f"sites: {names}")
        self._found.loads = {
            key: load
            for key, load in self._found.loads.items()
            if slugs[wanted] in self._up(load.within)
        }

    def _up(self, key: str | None) -> list[str]:
        seen: list[str] = []
        while key is not None and key in self._found.parts and key not in seen:
            seen.append(key)
            key = self._found.parts[key].within
        return seen


# --- what all versions of the answers share ------------------------------------------------------


def _id(value: Any) -> str:
    """The key of an object, in full or as a bare id; "" for none."""
    if isinstance(value, Mapping):
        value = value.get("id")
    return "" if value is None else str(value)


def _name(value: Any) -> str:
    """What people call an object."""
    if not isinstance(value, Mapping):
        return "" if value is None else str(value)
    for field in ("name", "display", "display_name", "slug"):
        if value.get(field):
            return str(value[field])
    return _id(value)


def _value(choice: Any) -> str:
    """A choice as its machine's word: `{value, label}`, an object with a name, or a text."""
    if isinstance(choice, Mapping):
        choice = choice.get("value") or choice.get("slug") or choice.get("name")
    return str(choice).strip().lower() if choice else ""


def _labels(value: Any) -> set[str]:
    """All that an object may be called by: name, slug, value."""
    if isinstance(value, Mapping):
        names = (value.get(one) for one in ("name", "slug", "value", "display"))
        return {str(one) for one in names if one}
    return {str(value)} if value else set()


def _absolute(value: Any) -> Any:
    """Volts of direct current are written below zero by some."""
    return abs(value) if isinstance(value, int | float) else value


def _slug(rows: Mapping[str, Mapping[str, Row]], key: str) -> str:
    name, _, row = key.partition(":")
    return str(rows[name][row].get("slug") or "")


def _endpoints(port: Row) -> list[tuple[str, str]]:
    """(Kind, id) of the far ends of a port's path; its neighbours where the path is not known."""
    for many, one, kind in (
        ("connected_endpoints", "connected_endpoint", "connected_endpoint"),
        ("link_peers", "cable_peer", "cable_peer"),
    ):
        ends = port.get(many) or ([port[one]] if port.get(one) else [])
        stated = port.get(f"{many}_type") or port.get(f"{kind}_type") or ""
        found = [(_kind(_object_type(end) or stated), _id(end)) for end in ends if _id(end)]
        if found:
            return found
    return []


def _object_type(end: Any) -> str:
    """The type that an object says of itself, or that its address does."""
    if not isinstance(end, Mapping):
        return ""
    if end.get("object_type"):
        return str(end["object_type"])
    parts = [part for part in str(end.get("url") or "").split("/") if part]
    known = {"power-feeds": "powerfeed", "power-outlets": "poweroutlet", "power-ports": "powerport"}
    return next((known[part] for part in parts if part in known), "")


def _kind(text: str) -> str:
    """`dcim.poweroutlet` and the like without the name of the application."""
    return text.rpartition(".")[2].replace("_", "").replace("-", "").lower()


def _far_ends(cables: Iterable[Row]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Neighbours by (kind, id) of either end, of cables as either generation writes them."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for cable in cables:
        ends = []
        for side in ("a", "b"):
            listed = cable.get(f"{side}_terminations")
            if listed is None:
                kind = cable.get(f"termination_{side}_type")
                key = cable.get(f"termination_{side}_id") or _id(cable.get(f"termination_{side}"))
                listed = [{"object_type": kind or "", "object_id": key}] if key else []
            ends.append(
                [
                    (_kind(str(one.get("object_type") or "")), str(one.get("object_id")))
                    for one in listed
                ]
            )
        for near, far in (ends, ends[::-1]):
            for end in near:
                found.setdefault(end, []).extend(far)
    return found
