"""A small DCIM on loopback, made from the public REST models: pages, tokens, patience, faults."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

Rows = dict[str, list[dict[str, Any]]]
SQRT3_W = 400 * 32 * 0.8 * 3**0.5  # of a feed of 3 x 32 A at 400 V, for hours


def netbox(racks: int = 2, nodes: int = 2) -> Rows:
    """NetBox 4: two panels, in each rack an A and a B feed with a PDU, and nodes with two cords."""
    rows: Rows = {
        "sites": [{"id": 1, "name": "DC 1", "slug": "dc-1", "status": choice("active")}],
        "locations": [{"id": 1, "name": "Room 1", "parent": None, "site": ref(1)}],
        "racks": [], "power-feeds": [], "devices": [], "power-ports": [], "power-outlets": [],
        "power-panels": [
            {"id": 1, "name": "Panel A", "site": ref(1), "location": ref(1), "custom_fields": {}},
            {"id": 2, "name": "Panel B", "site": ref(1), "location": ref(1), "custom_fields": {}},
        ],
        "cables": [],
    }  # fmt: skip
    for rack in range(1, racks + 1):
        rows["racks"].append({"id": rack, "name": f"R{rack}", "site": ref(1), "location": ref(1)})
        for side, panel in (("A", 1), ("B", 2)):
            feed = 10 * rack + panel
            rows["power-feeds"].append({
                "id": feed, "name": f"R{rack}-{side}", "power_panel": ref(panel), "rack": ref(rack),
                "status": choice("active"), "supply": choice("ac"), "phase": choice("three-phase"),
                "type": choice("primary" if side == "A" else "redundant"),
                "voltage": 400, "amperage": 32, "max_utilization": 80,
            })  # fmt: skip
            pdu = 100 * rack + panel
            rows["devices"].append(device(pdu, f"pdu-{rack}{side.lower()}", rack, "pdu"))
            rows["power-ports"].append(port(pdu, "inlet", 1000 * feed, "powerfeed", feed))
            for node in range(1, nodes + 1):
                rows["power-outlets"].append({
                    "id": 100 * pdu + node, "device": ref(pdu), "name": f"outlet {node}",
                    "power_port": ref(1000 * feed), "feed_leg": None,
                })  # fmt: skip
        for node in range(1, nodes + 1):
            key = node_id(rack, node)
            rows["devices"].append(device(key, f"gpu-{rack}{node}", rack, "gpu-server"))
            for psu, panel in (("PSU1", 1), ("PSU2", 2)):
                outlet = 100 * (100 * rack + panel) + node
                rows["power-ports"].append(
                    port(key, psu, 10 * key + panel, "poweroutlet", outlet, draw=3000)
                )
    return rows


def node_id(rack: int, node: int) -> int:
    return 10_000_000 + 1000 * rack + node


def device(key: int, name: str, rack: int, role: str) -> dict[str, Any]:
    return {
        "id": key, "name": name, "rack": ref(rack), "site": ref(1), "location": ref(1),
        "role": {"id": 1, "name": role, "slug": role}, "status": choice("active"),
        "tags": [], "parent_device": None, "custom_fields": {},
    }  # fmt: skip


def port(
    device: int, name: str, key: int, kind: str, end: int, draw: int | None = None
) -> dict[str, Any]:
    return {
        "id": key, "device": ref(device), "name": name, "cable": {"id": key},
        "maximum_draw": draw, "allocated_draw": None,
        "connected_endpoints": [ref(end)], "connected_endpoints_type": f"dcim.{kind}",
        "connected_endpoints_reachable": True,
    }  # fmt: skip


def ref(key: int) -> dict[str, Any]:
    return {"id": key, "url": f"/api/x/{key}/", "display": f"number {key}"}


def choice(value: str) -> dict[str, str]:
    return {"value": value, "label": value.title()}


def first_generation(rows: Rows) -> Rows:
    """The same as NetBox 2.10 wrote it: one far end, roles of devices, choices as they were."""
    found = json.loads(json.dumps(rows))
    for one in found["power-ports"]:
        ends = one.pop("connected_endpoints")
        one["connected_endpoint"] = ends[0] if ends else None
        one["connected_endpoint_type"] = one.pop("connected_endpoints_type")
    for one in found["devices"]:
        one["device_role"] = one.pop("role")
    return found


def nautobot(rows: Rows) -> Rows:
    """The same as Nautobot 2 writes it: UUIDs, sites as locations, names of types in objects."""
    found = json.loads(json.dumps(rows), object_hook=_uuids)
    site = {**found.pop("sites")[0], "parent": None, "location_type": {"name": "Site"}}
    for one in found["locations"]:
        one["parent"] = {"id": "u-site-1"}
        one.pop("site", None)
    site["id"] = "u-site-1"
    found["locations"].insert(0, site)
    for name, rows_ in found.items():
        for one in rows_:
            if name != "locations":
                one.pop("site", None)
            if isinstance(one.get("status"), dict):
                one["status"] = {"id": "u-s", "name": one["status"]["label"]}
    for one in found["power-ports"]:
        end, kind = one.pop("connected_endpoints")[0], one.pop("connected_endpoints_type")
        one["connected_endpoint"] = {"id": end["id"], "object_type": kind, "url": end["url"]}
    return found


def _uuids(one: dict[str, Any]) -> dict[str, Any]:
    if isinstance(one.get("id"), int):
        one["id"] = f"u-{one['id']}"
    return one


@dataclass
class Dcim:
    """What the server has and how it behaves; `seen` are paths and headers of all requests."""

    rows: Rows
    most: int = 50  # rows on a page, whatever is asked for
    token: str = ""  # the whole Authorization header it wants
    busy: list[str] = field(default_factory=list)  # answers 429 first, with these Retry-After
    outside: str = ""  # the server it believes to be, in `next`
    moving: bool = False  # rows shift by one between two pages
    circle: bool = False  # the second page names itself as the next
    missing: tuple[str, ...] = ()  # lists it has not
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    def page(self, target: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        name = parts.path.strip("/").rpartition("/")[2]
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if name not in self.rows or name in self.missing:
            return 404, {"detail": "Not found."}
        rows, at = self.rows[name], int(query.get("offset", 0))
        size = min(int(query.get("limit", 50)), self.most)
        shown = rows[at - 1 : at - 1 + size] if self.moving and at else rows[at : at + size]
        more = at + size < len(rows)
        origin = self.outside or f"http://127.0.0.1:{self.port}"
        following = at if self.circle and at else at + size
        depth = "&depth=1" if "depth" in query else ""
        link = f"{origin}{parts.path}?limit={size}&offset={following}{depth}"
        return 200, {
            "count": len(rows), "next": link if more or (self.circle and at) else None,
            "previous": None, "results": shown,
        }  # fmt: skip


class _Handler(http.server.BaseHTTPRequestHandler):
    dcim: Dcim

    def do_GET(self) -> None:
        self.dcim.seen.append((self.path, dict(self.headers)))
        headers = {"Content-Type": "application/json"}
        if self.dcim.token and self.headers.get("Authorization") != self.dcim.token:
            status, content = 403, {"detail": "Invalid token"}
        elif self.dcim.busy:
            status, content = 429, {"detail": "Request was throttled."}
            headers["Retry-After"] = self.dcim.busy.pop()
        else:
            status, content = self.dcim.page(self.path)
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(dcim: Dcim) -> Iterator[str]:
    """The address of a server that is gone afterwards."""
    handler = type("Handler", (_Handler,), {"dcim": dcim})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        dcim.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{dcim.port}"
        finally:
            server.shutdown()
            thread.join()
