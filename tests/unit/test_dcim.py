"""Power trees from inventories: what limits follow, how sources nest, what is told as unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcim_server import SQRT3_W, Rows, first_generation, nautobot, netbox, node_id
from wattherd.errors import UserError
from wattherd.workload.dcim.inventory import Inventory, InventoryLoad, InventoryPart, PartKind
from wattherd.workload.dcim.merge import FileDomain, merged
from wattherd.workload.dcim.rest import NodeChoice, inventory_of
from wattherd.workload.dcim.supply import Domain, Rating, domains_of
from wattherd.workload.dcim.table import read_table

NODES = NodeChoice(roles=("gpu-server",))
HEAD = "name,kind,within,fed_by,volts,amps,phases,utilization,limit,loss,max_draw\n"


def tree(found: Inventory, **rating: float) -> dict[str, Domain]:
    return {one.name: one for one in domains_of(found, Rating(**rating))}


def from_rows(rows: Rows, choice: NodeChoice = NODES) -> tuple[dict[str, Domain], Inventory]:
    found = inventory_of(rows, choice)
    return tree(found), found


def a_table(tmp_path: Path, text: str) -> Inventory:
    file = tmp_path / "site.csv"
    file.write_text(HEAD + text)
    return read_table(file)


def told(found: Inventory) -> str:
    return "\n".join(f"{one.about}: {one.where}: {one.text}" for one in found.findings)


# --- limits ----------------------------------------------------------------------------------


def test_a_three_phase_feed_carries_root_three_times_volts_times_amperes_at_80_percent() -> None:
    found, _ = from_rows(netbox())
    assert found["R1"].budget_w == int(SQRT3_W) == 17736


@pytest.mark.parametrize(
    ("volts", "amps", "phases", "utilization", "watts"),
    [
        (230, 32, "1", "", 230 * 32 * 0.8),
        (230, 32, "1", "60", 230 * 32 * 0.6),
        (230, 32, "1", "100", 230 * 32 * 0.8),  # nothing runs for hours at its full rating
        (208, 60, "3", "80", 208 * 60 * 3**0.5 * 0.8),
        (48, 100, "dc", "", 48 * 100 * 0.8),
    ],
)
def test_limits_follow_from_breakers(
    tmp_path: Path, volts: int, amps: int, phases: str, utilization: str, watts: float
) -> None:
    found = a_table(
        tmp_path, f"f,feed,,,{volts},{amps},{phases},{utilization},,,\nn,node,,f,,,,,,,"
    )
    assert tree(found)["f"].budget_w == int(watts)


def test_a_smaller_limit_that_is_stated_counts_before_the_breaker(tmp_path: Path) -> None:
    found = a_table(tmp_path, "f,feed,,,400,32,3,,9kW,,\nn,node,,f,,,,,,,")
    assert tree(found)["f"].budget_w == 9000


def test_volt_amperes_become_watts_by_the_power_factor_and_by_one_it_is_told(
    tmp_path: Path,
) -> None:
    found = a_table(tmp_path, "f,feed,,,230,32,1,,,,\nn,node,,f,,,,,,,")
    assert tree(found, power_factor=0.95)["f"].budget_w == int(230 * 32 * 0.8 * 0.95)
    assert "volt-amperes" not in told(found)
    tree(found)
    assert "volt-amperes are taken for watts" in told(found)


def test_each_line_of_a_three_phase_feed_has_a_limit_of_its_own(tmp_path: Path) -> None:
    rows = ["f,feed,,,400,32,3,,,,", "pdu,pdu,,f,,,,,,,", "n1,node,,pdu:A,,,,,,,",
            "n2,node,,pdu:A,,,,,,,", "n3,node,,pdu:B,,,,,,,"]  # fmt: skip
    found = tree(a_table(tmp_path, "\n".join(rows)))
    one_line = int(400 / 3**0.5 * 32 * 0.8)
    assert found["f phase A"].budget_w == found["f phase B"].budget_w == one_line
    assert found["f phase A"].nodes == ("n1", "n2")
    assert found["f phase A"].parent == "f"


def test_what_other_devices_may_draw_is_set_aside_with_losses_on_the_way(tmp_path: Path) -> None:
    found = tree(a_table(tmp_path, "p,panel,,,400,100,3,,,,\nf,feed,,p,230,32,1,,,0.02,\n"
                 "n,node,,f,,,,,,,\nm,node,,p,,,,,,,\nswitch,other,,f,,,,,,,490W"))  # fmt: skip
    assert found["f"].budget_w == int(230 * 32 * 0.8 - 490 / 0.98)
    assert found["p"].budget_w == int(400 * 100 * 3**0.5 * 0.8 - 490 / 0.98)


# --- redundancy ------------------------------------------------------------------------------


def test_of_an_a_and_a_b_feed_each_must_carry_all(tmp_path: Path) -> None:
    found = a_table(tmp_path, "r,rack,,,,,,,,,\na,feed,r,,400,32,3,,,,\nb,feed,r,,400,16,3,,,,\n"
                    "n1,node,r,a;b,,,,,,,\nn2,node,r,a;b,,,,,,,")  # fmt: skip
    domains = tree(found)
    assert list(domains) == ["r"]
    assert domains["r"].budget_w == int(400 * 16 * 3**0.5 * 0.8)
    assert [one.partition(":")[0] for one in domains["r"].limits] == ["a", "b"]
    assert "each source is held to all of their watts" in told(found)


def test_a_feed_that_carries_some_of_what_another_carries_lies_below_it(tmp_path: Path) -> None:
    domains = tree(a_table(tmp_path, "a,feed,,,400,32,3,,,,\nb,feed,,,230,16,1,,,,\n"
                   "n1,node,,a;b,,,,,,,\nn2,node,,a,,,,,,,"))  # fmt: skip
    assert (domains["b"].parent, domains["b"].nodes) == ("a", ("n1",))
    assert domains["a"].nodes == ("n2",)


def test_feeds_that_overlap_otherwise_are_divided_and_no_feed_can_exceed_its_limit(
    tmp_path: Path,
) -> None:
    found = a_table(tmp_path, "a,feed,,,230,20,1,,,,\nb,feed,,,230,16,1,,,,\nn1,node,,a,,,,,,,1kW\n"
                    "n2,node,,a;b,,,,,,,1kW\nn3,node,,b,,,,,,,3kW")  # fmt: skip
    domains = tree(found)
    b_w = 230 * 16 * 0.8
    parts = {one.nodes: one for one in domains.values() if one.name.startswith("b part")}
    shares = {nodes: one.budget_w for nodes, one in parts.items()}
    assert shares == {("n2",): int(b_w * 0.25), ("n3",): int(b_w * 0.75)}
    assert parts["n2",].parent == "a"
    assert "assumed: b: overlaps with a: its limit is divided in 2" in told(found)


def most_w(domains: dict[str, Domain], nodes: set[str]) -> float:
    """The most that these nodes can draw together while every domain is within its budget."""

    def within(name: str) -> float:
        one = domains[name]
        below = [within(child.name) for child in domains.values() if child.parent == name]
        own = math.inf if nodes & set(one.nodes) else 0.0
        return min(own + sum(below), math.inf if one.budget_w is None else one.budget_w)

    return within(next(one.name for one in domains.values() if one.parent is None))


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 5), min_size=1), st.integers(1000, 9000)),
        min_size=1,
        max_size=6,
    )
)
def test_however_sources_overlap_none_can_be_made_to_carry_more_than_its_limit(
    sources: list[tuple[set[int], int]],
) -> None:
    found = Inventory()
    for number, (_, limit_w) in enumerate(sources):
        key = f"s{number}"
        found.parts[key] = InventoryPart(
            key=key, name=key, kind=PartKind.FEED, limit_w=float(limit_w)
        )
    for node in range(6):
        cords = tuple((f"s{at}", "") for at, (nodes, _) in enumerate(sources) if node in nodes)
        key = f"n{node}"
        found.loads[key] = InventoryLoad(key=key, name=key, node=True, fed_by=cords, max_w=1000.0)
    domains = tree(found)
    assert sorted(name for one in domains.values() for name in one.nodes) == sorted(found.loads)
    for nodes, limit_w in sources:
        assert most_w(domains, {f"n{one}" for one in nodes}) <= limit_w


# --- both systems, both generations ----------------------------------------------------------


@pytest.mark.parametrize("version", [dict, first_generation, nautobot])
def test_all_versions_of_the_answers_give_the_same_tree(version: Any) -> None:
    found, _ = from_rows(version(netbox()))
    seen = {one.name: (one.parent, one.level, one.budget_w, one.nodes) for one in found.values()}
    assert seen == {
        "DC 1": (None, "site", None, ()),
        "R1": ("DC 1", "rack", 17736, ("gpu-11", "gpu-12")),
        "R2": ("DC 1", "rack", 17736, ("gpu-21", "gpu-22")),
    }  # fmt: skip


def test_far_ends_that_are_not_told_are_read_from_cables() -> None:
    rows = netbox()
    whole, _ = from_rows(rows)
    for port in rows["power-ports"]:
        kind = port.pop("connected_endpoints_type")
        end = port.pop("connected_endpoints")[0]["id"]
        rows["cables"].append({
            "id": port["id"],
            "a_terminations": [{"object_type": "dcim.powerport", "object_id": port["id"]}],
            "b_terminations": [{"object_type": kind, "object_id": end}],
        })  # fmt: skip
    assert from_rows(rows)[0] == whole
    old = json.loads(json.dumps(rows))
    for cable in old["cables"]:
        for side in ("a", "b"):
            end = cable.pop(f"{side}_terminations")[0]
            cable[f"termination_{side}_type"] = end["object_type"]
            cable[f"termination_{side}_id"] = end["object_id"]
    assert from_rows(old)[0] == whole


def test_a_panel_that_is_fed_by_a_feed_of_another_lies_below_it() -> None:
    rows = netbox()
    rows["power-panels"].append({"id": 3, "name": "Main", "site": {"id": 1},
                                 "custom_fields": {"power_limit_w": 30000}})  # fmt: skip
    rows["power-feeds"].append({
        "id": 99, "name": "Main-1", "power_panel": {"id": 3}, "rack": None, "voltage": 400,
        "status": {"value": "active"}, "phase": {"value": "three-phase"}, "amperage": 125,
        "max_utilization": 80, "destination_panel": {"id": 1},
    })  # fmt: skip
    found, _ = from_rows(rows)
    assert next(one for one in found.values() if one.parent is None).budget_w == 30000


def test_blades_draw_through_their_chassis() -> None:
    rows = netbox(racks=1, nodes=1)
    chassis = rows["devices"][-1]
    for bay in (1, 2):
        blade = {
            **chassis,
            "id": 7000 + bay,
            "name": f"blade-{bay}",
            "parent_device": {"id": chassis["id"]},
        }
        rows["devices"].append(blade)
    found, _ = from_rows(rows)
    assert next(iter(found.values())).nodes == ("blade-1", "blade-2")


# --- what is unknown or wrong ----------------------------------------------------------------


def test_what_the_inventory_does_not_say_is_listed() -> None:
    rows = netbox()
    rows["power-feeds"][0]["amperage"] = None
    rows["power-ports"] = [
        one for one in rows["power-ports"] if one["id"] != 10 * node_id(1, 1) + 2
    ]
    rows["devices"].append({**rows["devices"][-1], "id": 5000, "name": "switch",
                            "role": {"slug": "switch"}})  # fmt: skip
    rows["power-ports"].append({"id": 1, "device": {"id": 5000}, "name": "PSU", "cable": None,
                                "maximum_draw": None})  # fmt: skip
    loose = {"id": 2, "name": "PSU3", "cable": None, "maximum_draw": 10}
    rows["power-ports"].append({**loose, "device": {"id": node_id(2, 1)}})
    _, found = from_rows(rows)
    text = told(found)
    assert "unknown: R1-A: no limit is known for this feed" in text
    assert "unknown: Panel A: no limit is known for this panel" in text
    assert "unknown: gpu-21: no cable leads from PSU3" in text
    assert "unknown: switch: no greatest draw is known; counted as 0 W" in text
    assert "assumed: switch: no cable leads to a source; held to all feeds of its rack" in text


def test_a_device_without_cables_is_held_to_all_feeds_of_its_rack() -> None:
    rows = netbox()
    for port in rows["power-ports"]:
        if port["device"]["id"] == node_id(1, 1):
            port["connected_endpoints"], port["cable"] = None, None
    domains, found = from_rows(rows)
    assert domains["R1"].nodes == ("gpu-11", "gpu-12")
    assert "assumed: gpu-11: no cable leads to a source; held to all feeds" in told(found)


def test_a_device_in_two_racks_and_two_devices_of_one_name_are_told() -> None:
    rows = netbox()
    rows["devices"].append({**rows["devices"][2], "rack": {"id": 2, "name": "R2"}})
    next(one for one in rows["devices"] if one["id"] == node_id(1, 2))["name"] = "gpu-11"
    domains, found = from_rows(rows)
    assert "conflict: gpu-11: is listed in two racks, R2 and number 1; the first counts" in told(
        found
    )
    assert domains["R1"].nodes == ("gpu-11", f"gpu-11 ({node_id(1, 2)})")


def test_cables_that_go_in_a_circle_are_cut_and_told() -> None:
    rows = netbox(racks=1, nodes=1)
    outlet = {"id": 77, "device": {"id": 101}, "name": "loop", "power_port": None, "feed_leg": None}
    back = {"id": 78, "device": {"id": 102}, "name": "loop", "power_port": None, "feed_leg": None}
    rows["power-outlets"] += [outlet, back]
    for port in rows["power-ports"]:
        if port["name"] == "inlet":
            end = 78 if port["device"]["id"] == 101 else 77
            port["connected_endpoints"] = [{"id": end}]
            port["connected_endpoints_type"] = "dcim.poweroutlet"
    domains, found = from_rows(rows)
    assert sum(len(one.nodes) for one in domains.values()) == 1
    assert told(found).count("feeds itself") == 1


def test_feeds_that_are_off_carry_nothing() -> None:
    rows = netbox(racks=1)
    rows["power-feeds"][1]["status"] = {"value": "offline"}
    rows["power-feeds"][1]["amperage"] = 6
    domains, found = from_rows(rows)
    assert max(one.budget_w or 0 for one in domains.values()) == 17736
    assert "assumed: R1-B: is offline: it carries nothing" in told(found)


def test_three_phases_at_a_voltage_to_neutral_are_told() -> None:
    rows = netbox()
    rows["power-feeds"][0]["voltage"] = 230
    assert "assumed: R1-A: three phases at 230 V: taken as volts between lines" in told(
        from_rows(rows)[1]
    )


@pytest.mark.parametrize("bad", ["32A", -5, True, [], {"a": 1}, float("nan"), 1e30])
def test_numbers_that_are_none_lose_themselves_only(bad: Any) -> None:
    rows = netbox()
    rows["power-feeds"][0]["amperage"] = bad
    rows["power-ports"][2]["maximum_draw"] = bad
    domains, _ = from_rows(rows)
    assert domains["R2"].budget_w == 17736


@pytest.mark.parametrize("name", list(netbox()))
def test_rows_of_any_shape_break_nothing(name: str) -> None:
    rows = netbox()
    rows[name] = [*rows[name], {}, {"id": 1}, {"id": None}, "row", None, {"id": 9, "name": None}]  # type: ignore[list-item]
    domains, _ = from_rows(rows)
    assert {node for one in domains.values() for node in one.nodes} >= {"gpu-21", "gpu-22"}


def test_without_a_node_it_says_how_to_choose_some() -> None:
    with pytest.raises(UserError, match="no device of the inventory is a node") as error:
        from_rows(netbox(), NodeChoice(roles=("gpu",)))
    assert "--role" in error.value.hint


def test_one_site_of_several_can_be_chosen_and_a_wrong_name_lists_them() -> None:
    rows = netbox()
    rows["sites"].append({"id": 2, "name": "DC 2", "slug": "dc-2"})
    rows["devices"].append({"id": 9000, "name": "far", "rack": None, "site": {"id": 2},
                            "role": {"slug": "gpu-server"}})  # fmt: skip
    domains, _ = from_rows(rows, NodeChoice(roles=("gpu-server",), site="dc-1"))
    assert "far" not in {node for one in domains.values() for node in one.nodes}
    with pytest.raises(UserError, match="no site 'dc-3'") as error:
        from_rows(rows, NodeChoice(site="dc-3"))
    assert "DC 2" in error.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f,fed,,,,,,,,,", "kind: 'fed' is unknown (hint: did you mean 'feed'"),
        ("f,feed,,,230,,,,,,", "amps: volts and amps must be given together"),
        ("f,feed,,,230,x,,,,,", "amps: 'x' is no usable number"),
        ("f,feed,,,230,16,2,,,,", "phases: '2' is unknown"),
        ("f,feed,,,,,,,20,,\nf,feed,,,,,,,,,", "name: 'f' is there twice"),
        ("n,node,,g,,,,,,,", "names 'g', which is no part"),
        ("f,feed,,,,,,,10mW,,", "limit: 10mW may mean milliwatts or megawatts"),
    ],
)
def test_a_table_names_line_and_column_of_what_it_cannot_use(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UserError) as error:
        a_table(tmp_path, text)
    assert said in error.value.line()


# --- again -----------------------------------------------------------------------------------


def branches(**racks: Any) -> list[FileDomain]:
    return [
        FileDomain(name="site", keys=("sites:1",)),
        *(FileDomain(name=name, parent="site", **fields) for name, fields in racks.items()),
    ]


def test_what_nobody_edited_follows_and_what_was_edited_stays() -> None:
    before = branches(a={"budget": 10, "nodes": ("n1", "n2")}, b={"budget": 20})
    mine = branches(a={"budget": "9kW", "nodes": ("n1", "x")}, b={"budget": 20, "signal": "1h:5W"})
    now = branches(a={"budget": 11, "nodes": ("n1", "n2", "n3")}, b={"budget": 21})
    found, changes = merged(before, mine, now)
    by_name = {one.name: one for one in found}
    assert (by_name["a"].budget, by_name["a"].nodes) == ("9kW", ("n1", "x", "n3"))
    assert (by_name["b"].budget, by_name["b"].signal) == (21, "1h:5W")
    assert {(one.kind, one.domain, one.field) for one in changes} == {
        ("kept", "a", "budget"), ("changed", "a", "nodes"), ("changed", "b", "budget"),
    }  # fmt: skip


def test_domains_come_go_and_stay_as_each_side_meant() -> None:
    before = branches(a={}, b={}, c={})
    mine = branches(a={}, c={}, mine={"budget": 5})  # b was taken out by hand
    now = branches(a={}, b={}, d={})
    found, changes = merged(before, mine, now)
    assert {one.name for one in found} == {"site", "a", "mine", "d"}
    assert {(one.kind, one.domain) for one in changes} == {("added", "d"), ("removed", "c")}


def test_a_rename_in_the_inventory_keeps_edits() -> None:
    before = branches(a={"keys": ("racks:1",), "budget": 5})
    mine = branches(a={"budget": 4})
    found, changes = merged(before, mine, branches(z={"keys": ("racks:1",), "budget": 5}))
    assert [(one.name, one.budget) for one in found] == [("site", None), ("z", 4)]
    assert [(one.kind, one.domain, one.before) for one in changes] == [("changed", "z", "a")]


def test_a_node_that_was_moved_by_hand_stays_there() -> None:
    before = branches(a={"nodes": ("n1", "n2")}, b={"nodes": ()})
    mine = branches(a={"nodes": ("n1",)}, b={"nodes": ("n2",)})
    found, changes = merged(before, mine, before)
    assert [one.nodes for one in found] == [(), ("n1",), ("n2",)]
    assert changes == []


def test_the_same_inventory_changes_nothing() -> None:
    same = branches(a={"budget": 10, "nodes": ("n1",), "keys": ("k",)})
    assert merged(same, same, same) == (same, [])


@pytest.mark.long
def test_ten_thousand_nodes_in_a_thousand_racks_take_seconds() -> None:
    domains, _ = from_rows(netbox(racks=1000, nodes=10))
    assert len(domains) == 1001
    assert all(one.budget_w == 17736 for one in domains.values() if one.parent)
