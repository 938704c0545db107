"""A power tree of an inventory: each source becomes a limit on all nodes it may have to carry.

A node with several cords may draw all its watts from any one of them when the others fail, so each
of its sources is held to all of them. That makes a family of (nodes, limit) pairs. Where the sets
nest, they are the domains of a tree; equal ones (an A and a B side) become one domain with the
smaller limit. Where two sets overlap otherwise, no tree can say so: the limit of the smaller one is
divided among its parts, which is safe and tighter than need be, and is told as a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from wattherd.errors import UserError
from wattherd.units import show_exact_watts
from wattherd.workload.dcim.inventory import CONTINUOUS, PLACES, Inventory, InventoryPart, PartKind

_RANK = {kind: number for number, kind in enumerate(PartKind)}
Reach = Mapping[str, float]
"""Sources above a load by key: watts at their input for a watt at the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A domain of the tree that was made; `limits` says of each source in it what it may carry."""

    name: str
    parent: str | None
    level: str
    budget_w: int | None
    loss: float
    nodes: tuple[str, ...]
    limits: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(slots=True)
class _Group:
    """Nodes that a source carries or a place holds; the watts are those left for the nodes."""

    parts: list[InventoryPart]
    nodes: frozenset[str]
    limit_w: float | None = None
    limits: list[str] = field(default_factory=list)
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """How limits follow from ratings, where the inventory does not say."""

    continuous: float = CONTINUOUS
    power_factor: float = 1.0


def domains_of(inventory: Inventory, rating: Rating = Rating()) -> list[Domain]:
    """The domains of the tree, each after the one above it.

    Raises:
        UserError: no load of the inventory is a node.
    """
    return _Builder(inventory, rating).domains()


class _Builder:
    """One tree in the making."""

    def __init__(self, inventory: Inventory, rating: Rating) -> None:
        self._all = inventory
        self._rating = rating
        self._nodes: dict[str, set[str]] = {}
        self._other_w: dict[str, float] = {}
        self._reached: dict[tuple[str, str], Reach] = {}
        self._under_way: list[str] = []
        self._circles: set[frozenset[str]] = set()
        self._kept: list[_Group] = []
        self._holding: dict[str, list[_Group]] = {}

    def domains(self) -> list[Domain]:
        """Gather, nest, name."""
        nodes = [one.key for one in self._all.loads.values() if one.node]
        if not nodes:
            hint = "say which devices are nodes: --nodes 'gpu-*', --role gpu-server"
            raise UserError("no device of the inventory is a node", hint=hint)
        self._gather()
        groups = sorted(self._groups(), key=self._order)
        for group in groups:
            if group.limit_w is not None:
                self._nest(group)
        for group in groups:
            if group.limit_w is None:
                self._nest_unlimited(group)
        everything = frozenset(nodes)
        if not any(one.nodes == everything for one in self._kept):
            self._keep(
                _Group([InventoryPart(key="site", name="site", kind=PartKind.SITE)], everything)
            )
        self._tell()
        return self._named()

    # --- who feeds whom ------------------------------------------------------------------------

    def _gather(self) -> None:
        """Nodes by part, and what other loads may draw from it."""
        for load in self._all.loads.values():
            factors: dict[str, float] = {}
            for source, line in load.fed_by:
                for key, factor in self._reach(source, line).items():
                    factors[key] = max(factor, factors.get(key, 0.0))
            for key in self._places(load.within):
                factors.setdefault(key, 1.0)
            for key, factor in factors.items():
                if load.node:
                    self._nodes.setdefault(key, set()).add(load.key)
                else:
                    self._other_w[key] = self._other_w.get(key, 0.0) + factor * (load.max_w or 0.0)

    def _reach(self, key: str, line: str) -> Reach:
        """All sources from this one upwards; a circle is cut where it closes."""
        known = self._reached.get((key, line))
        if known is not None:
            return known
        part = self._all.parts.get(key)
        if part is None:
            self._all.unknown(key, "is named as a source and not listed")
            return {}
        own = 1.0 / (1.0 - part.loss)
        found = {key: own}
        if line and part.circuit is not None and part.circuit.three_phase:
            found[f"{key}:{line}"] = own
        self._under_way.append(key)
        for above in part.fed_by:
            if above in self._under_way:
                self._tell_circle(above)
                continue
            for one, factor in self._reach(above, self._all.lines.get((key, above), line)).items():
                found[one] = max(own * factor, found.get(one, 0.0))
        self._under_way.pop()
        self._reached[key, line] = found
        return found

    def _tell_circle(self, key: str) -> None:
        circle = self._under_way[self._under_way.index(key) :]
        if frozenset(circle) in self._circles:
            return
        self._circles.add(frozenset(circle))
        path = " <- ".join(self._all.name_of(one) for one in (*circle, key))
        self._all.conflict(self._all.name_of(key), f"feeds itself: {path}; cut where it closes")

    def _places(self, key: str | None) -> list[str]:
        """A place and those around it."""
        found: list[str] = []
        while key is not None and key in self._all.parts:
            if key in found:
                self._all.conflict(self._all.name_of(key), "is within itself")
                break
            found.append(key)
            key = self._all.parts[key].within
        return found

    # --- limits --------------------------------------------------------------------------------

    def _groups(self) -> Iterable[_Group]:
        for key, nodes in self._nodes.items():
            part = self._all.parts.get(key)
            if part is None:
                part = self._phase(key)
            group = _Group([part], frozenset(nodes))
            self._limit(group, key)
            yield group

    def _phase(self, key: str) -> InventoryPart:
        feed, _, line = key.rpartition(":")
        whole = self._all.parts[feed]
        name = f"{whole.name} phase {line}"
        return InventoryPart(
            key=key, name=name, kind=PartKind.PHASE, circuit=whole.circuit, phase_of=feed
        )

    def _limit(self, group: _Group, key: str) -> None:
        """What the part may carry for hours, less what others draw from it."""
        part = group.parts[0]
        known = [one for one in (self._circuit_w(part), part.limit_w) if one is not None]
        if not known:
            return
        whole_w, other_w = min(known), self._other_w.get(key, 0.0)
        text = f"{part.name}: {self._how(part, whole_w)}"
        if other_w:
            text += f", less {show_exact_watts(other_w)} of devices that are no nodes"
        if other_w >= whole_w:
            self._all.conflict(part.name, "other devices may draw all that it carries")
        group.limit_w = max(0.0, whole_w - other_w)
        group.limits.append(text)

    def _circuit_w(self, part: InventoryPart) -> float | None:
        if part.circuit is None:
            return None
        given = (self._rating.continuous, self._rating.power_factor)
        return (
            part.circuit.limit_w(*given) if part.phase_of is None else part.circuit.phase_w(*given)
        )

    def _how(self, part: InventoryPart, whole_w: float) -> str:
        circuit = part.circuit
        if circuit is None or (part.limit_w is not None and part.limit_w <= whole_w):
            return f"{show_exact_watts(whole_w)}, as stated"
        rating = (
            f"{circuit.volts:g} V x {circuit.amps:g} A x {circuit.share(self._rating.continuous):g}"
        )
        if part.phase_of is not None:
            rating += " / sqrt 3, one line"
        elif circuit.three_phase:
            rating += " x sqrt 3"
        return f"{show_exact_watts(whole_w)} = {rating}"

    # --- nesting -------------------------------------------------------------------------------

    def _order(self, group: _Group) -> tuple[int, int, str, str]:
        part = group.parts[0]
        return (-len(group.nodes), _RANK[part.kind], part.name, part.key)

    def _overlaps(self, nodes: frozenset[str]) -> list[_Group]:
        """Groups kept so far that overlap with these nodes, neither one within the other."""
        shared: Counter[int] = Counter()
        by_id: dict[int, _Group] = {}
        for node in nodes:
            for group in self._holding.get(node, ()):
                shared[id(group)] += 1
                by_id[id(group)] = group
        crossing = [
            by_id[one]
            for one, count in shared.items()
            if count < len(nodes) and count < len(by_id[one].nodes)
        ]
        return sorted(crossing, key=self._order)

    def _nest(self, group: _Group) -> None:
        """Keep a limit, whole or in parts."""
        crossing = self._overlaps(group.nodes)
        if not crossing:
            self._keep(group)
            return
        pieces = [group.nodes]
        for _ in range(len(group.nodes)):  # each round cuts a piece, so this many at most
            found = next(((one, other) for one in pieces for other in self._overlaps(one)), None)
            if found is None:
                break
            cut, other = found
            pieces.remove(cut)
            pieces += [cut & other.nodes, cut - other.nodes]
        weights = [sum(self._weight(node) for node in piece) for piece in pieces]
        name = group.parts[0].name
        with_whom = ", ".join(one.parts[0].name for one in crossing[:3])
        text = f"overlaps with {with_whom}: its limit is divided in {len(pieces)}"
        self._all.assumed(name, text)
        for number, (piece, weight) in enumerate(zip(pieces, weights, strict=True), start=1):
            share = weight / sum(weights)
            limits = [f"{one} (a part of it: {share:.0%})" for one in group.limits]
            limit_w = (group.limit_w or 0.0) * share
            self._keep(
                _Group(list(group.parts), piece, limit_w, limits, name=f"{name} part {number}")
            )

    def _weight(self, node: str) -> float:
        """Nodes share by what they draw at most, or alike where that is unknown of one of them."""
        return (self._all.loads[node].max_w or 0.0) if self._all_known() else 1.0

    def _all_known(self) -> bool:
        return all(one.max_w for one in self._all.loads.values() if one.node)

    def _nest_unlimited(self, group: _Group) -> None:
        """Keep a place or a panel, and name the feeds and PDUs of a domain that is there anyway."""
        grouping = group.parts[0].kind in (PartKind.PANEL, *PLACES)
        crossing = self._overlaps(group.nodes)
        if not crossing and (grouping or self._same(group) is not None):
            self._keep(group)
        elif crossing and grouping:
            name = crossing[0].parts[0].name
            self._all.unknown(group.parts[0].name, f"is left out: it shares some nodes with {name}")

    def _same(self, group: _Group) -> _Group | None:
        """What is kept with the same nodes."""
        held = self._holding.get(next(iter(group.nodes)), ())
        return next((one for one in held if one.nodes == group.nodes), None)

    def _keep(self, group: _Group) -> None:
        """Add a group, or join it to the one with the same nodes."""
        same = self._same(group)
        if same is None:
            self._kept.append(group)
            for node in group.nodes:
                self._holding.setdefault(node, []).append(group)
            return
        same.parts += group.parts
        same.limits += group.limits
        limits_w = [one for one in (same.limit_w, group.limit_w) if one is not None]
        same.limit_w = min(limits_w, default=None)
        if not group.name:
            same.name = ""

    # --- what is told --------------------------------------------------------------------------

    def _tell(self) -> None:
        found, rating = self._all, self._rating
        found.assumed(
            "limits",
            f"breakers carry {rating.continuous:.0%} of their rating for hours,"
            " or less where the inventory says so",
        )
        if rating.power_factor == 1.0:
            found.assumed("limits", "volt-amperes are taken for watts (--power-factor)")
        if not any(one.loss for one in found.parts.values()):
            found.assumed("losses", "none are stated; 0 % everywhere")
        for key in self._nodes:
            part = found.parts.get(key)
            if part is not None and part.kind not in PLACES and not self._limits(part):
                found.unknown(part.name, f"no limit is known for this {part.kind}")
        several = [
            one.name
            for one in found.loads.values()
            if one.node and len({source for source, _ in one.fed_by}) > 1
        ]
        if several:
            text = "hang on several sources; each source is held to all of their watts"
            found.assumed(_some(several), text)
        for what, alone in (
            (
                "no source of power is known",
                [one for one in found.loads.values() if one.node and not one.fed_by],
            ),
            (
                "no greatest draw is known; counted as 0 W",
                [one for one in found.loads.values() if not one.node and one.max_w is None],
            ),
        ):
            for load in alone:
                found.unknown(load.name, what)
        found.findings[:] = sorted(set(found.findings))

    def _limits(self, part: InventoryPart) -> bool:
        """Whether a limit is known, of a PDU also that of the only source above it."""
        if part.circuit is not None or part.limit_w is not None:
            return True
        return part.kind is PartKind.PDU and any(
            self._limits(self._all.parts[one])
            for one in part.fed_by
            if one in self._all.parts
            and one != part.key
            and self._all.parts[one].kind is PartKind.FEED
        )

    # --- names ---------------------------------------------------------------------------------

    def _named(self) -> list[Domain]:
        ordered = sorted(self._kept, key=self._order)
        taken = {one.name for one in self._all.loads.values() if one.node}
        names: dict[int, str] = {}
        for group in ordered:
            names[id(group)] = name = self._free_name(group, taken)
            taken.add(name)
        direct = {
            node: min(groups, key=lambda one: len(one.nodes))
            for node, groups in self._holding.items()
        }
        found = []
        for group in ordered:
            node = next(iter(group.nodes))
            above = [one for one in self._holding[node] if len(one.nodes) > len(group.nodes)]
            parent = min(above, key=lambda one: len(one.nodes), default=None)
            found.append(
                Domain(
                    name=names[id(group)],
                    parent=None if parent is None else names[id(parent)],
                    level=str(min(group.parts, key=lambda one: _RANK[one.kind]).kind),
                    budget_w=None if group.limit_w is None else int(group.limit_w),
                    loss=self._loss(group.parts),
                    nodes=tuple(
                        sorted(
                            self._all.loads[one].name for one in group.nodes if direct[one] is group
                        )
                    ),
                    limits=tuple(sorted(set(group.limits))),
                    keys=tuple(sorted({one.key for one in group.parts})),
                )
            )
        return found

    def _free_name(self, group: _Group, taken: set[str]) -> str:
        """What people call it: the place, if there is one, else the sources; no name twice."""
        places = [one for one in group.parts if one.kind in PLACES]
        sites = [one for one in places if one.kind is PartKind.SITE]
        parts = sites or places or group.parts
        outermost = min(parts, key=lambda one: (_RANK[one.kind], one.name))
        innermost = max(parts, key=lambda one: (_RANK[one.kind], one.name))
        alike = sorted({one.name for one in parts if one.kind is outermost.kind})
        name = group.name or (innermost.name if places else " + ".join(alike))
        above = outermost.fed_by[0] if outermost.fed_by else outermost.within
        wished = [name, *([f"{self._all.name_of(above)}/{name}"] if above else [])]
        wished += [f"{name} ({outermost.kind})", f"{name} ({outermost.key})"]
        numbered = (f"{name} {number}" for number in range(2, len(taken) + 3))
        return next(one for one in (*wished, *numbered) if one not in taken)

    def _loss(self, parts: Sequence[InventoryPart]) -> float:
        """Sources in a row lose one after the other; of those side by side the worst counts."""
        by_key = {one.key: one for one in parts}
        factors: dict[str, float] = {}

        def along(key: str, seen: tuple[str, ...]) -> float:
            if key not in factors:
                part = by_key[key]
                above = [
                    along(one, (*seen, key))
                    for one in part.fed_by
                    if one in by_key and one not in (*seen, key)
                ]
                factors[key] = max(above, default=1.0) / (1.0 - part.loss)
            return factors[key]

        worst = max(along(one, ()) for one in by_key)
        return round(1.0 - 1.0 / worst, 6)


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(sorted(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
