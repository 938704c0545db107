"""Watts as devices: capacities of a power tree, slices and claim templates made of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from kube_builders import a_node, a_pod, bound, fleet_of, node_json, pod_json

from wattherd.catalog.gpus import GPUS
from wattherd.kube.account.domains import columns_of
from wattherd.kube.account.watt_claims import (
    ByClaim,
    WantedTemplate,
    same_template,
    template_of,
    wanted_of,
)
from wattherd.kube.account.watt_devices import UNLIMITED_MW, DomainLoad, WattSite, loads_of
from wattherd.kube.account.watt_slices import (
    after,
    class_as_owner,
    pool_name,
    same_slice,
    slice_of,
)
from wattherd.kube.api.api_objects import decoder, encode
from wattherd.kube.api.objects import ObjectMeta
from wattherd.kube.decide.foreign_reasons import StuckPods
from wattherd.kube.decide.scheduler import KubeScheduler
from wattherd.kube.facts.claim_objects import (
    DeviceClass,
    ResourceClaimTemplate,
    ResourceSlice,
)
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive

IDLE_MW = round(1000 * GPUS["T4"].idle_w)
RISE_MW = round(1000 * GPUS["T4"].max_w) - IDLE_MW
CLASS = class_as_owner(DeviceClass(metadata=ObjectMeta(name="watts.wattherd.dev", uid="u-1")))
ANEW = msgspec.structs.replace(CLASS, uid="u-2")
"""Of a class that was deleted and made again."""
ABOVE = {"": "", "row": "", "rack-1": "row", "rack-2": "row", "island": ""}
"""A site with a row of two racks, and an island beside it."""


def path(domain: str) -> list[str]:
    found = [domain]
    while found[-1]:
        found.append(ABOVE[found[-1]])
    return found


def a_site(budgets_w: dict[str, int], loads: dict[str, DomainLoad]) -> WattSite:
    budgets = {name: watts * 1000 for name, watts in budgets_w.items()}
    return WattSite(loads=loads, path=path, budgets_mw=budgets)


def test_every_node_finds_one_device_on_each_level() -> None:
    loads = {name: DomainLoad() for name in ("rack-1", "rack-2", "island", "row", "")}
    site = a_site({}, loads)
    assert site.depth == 3
    for leaf in loads:
        on = [device.level for device in site.devices() if leaf in device.leaves]
        assert on == [0, 1, 2], leaf


def test_a_domain_offers_its_budget_less_what_nobody_can_claim() -> None:
    loads = {
        "rack-1": DomainLoad(100_000),
        "rack-2": DomainLoad(50_000),
        "island": DomainLoad(10_000),
    }
    site = a_site({"": 1000, "row": 500, "rack-1": 120, "island": 5}, loads)
    offered = {(one.level, one.domain): one.capacity_mw for one in site.devices()}
    assert offered == {
        (0, ""): 840_000,
        (1, "row"): 350_000,
        (1, "island"): 0,
        (2, "rack-1"): 20_000,
        (2, "rack-2"): UNLIMITED_MW,
        (2, "island"): UNLIMITED_MW,
    }


def test_pods_without_a_claim_and_idle_devices_are_taken_off() -> None:
    scheduler = KubeScheduler(fleet_of("first-fit"), {}, way=ByClaim())
    made = node_json(a_machine("n", gpus=4, model="T4"), **{"wattherd.dev/power-domain": "rack-1"})
    scheduler.node_seen(a_node(made))
    claim = [{"name": "wattherd-watts", "resourceClaimTemplateName": "wattherd-1-gpus-any"}]
    with_claim = pod_json("with", exclusive(1_000, 1), resourceClaims=claim)
    for one in (with_claim, pod_json("without", exclusive(1_000, 2))):
        scheduler.pod_seen(a_pod(bound(one, "n")), 0.0)
    assert scheduler.plan(0.0) == []
    fleet = scheduler.fleet
    loads = loads_of(fleet, columns_of(fleet.order), {"uid-with"}.__contains__, {})
    assert loads == {"rack-1": DomainLoad(4 * IDLE_MW + 2 * RISE_MW, RISE_MW)}


def test_a_slice_is_read_back_as_the_same_however_amounts_are_spelt() -> None:
    [device] = a_site({"": 12_000}, {"": DomainLoad(0, RISE_MW)}).devices()
    made = slice_of(device, (), CLASS)
    text = encode(made).replace(b'"12000"', b'"12k"')
    assert b"12k" in text
    read = decoder(ResourceSlice).decode(text)
    assert same_slice(read, made)
    less = slice_of(replace(device, capacity_mw=1), (), CLASS)
    assert not same_slice(read, less)
    assert not same_slice(read, slice_of(device, (), ANEW))
    assert after(after(read, less), made).spec.pool.generation == 3


def test_pools_of_domains_with_odd_names_stay_apart() -> None:
    devices = a_site({}, {"": DomainLoad()}).devices()
    named = [replace(devices[0], level=1, domain=name) for name in ("PDU_1", "pdu-1", "pdu.1")]
    pools = [pool_name(one) for one in named]
    assert len(set(pools)) == 3
    assert pools[1] == "level-1.pdu-1"


@pytest.mark.parametrize(
    ("template", "product", "expected"),
    [
        (
            "wattherd-2-gpus-any",
            "",
            WantedTemplate("wattherd-2-gpus-any", 2, 9_000, any_model=True),
        ),
        (
            "wattherd-3-gpus-tesla-t4",
            "Tesla-T4",
            WantedTemplate("wattherd-3-gpus-tesla-t4", 3, RISE_MW, any_model=False),
        ),
        ("wattherd-1-gpus-unheard-of", "Unheard-Of", None),
        ("of-somebody-else", "", None),
    ],
)
def test_what_a_template_must_say_follows_from_the_pod(
    template: str, product: str, expected: WantedTemplate | None
) -> None:
    claim = [{"name": "wattherd-watts", "resourceClaimTemplateName": template}]
    selector = {"nvidia.com/gpu.product": product} if product else {}
    pod = a_pod(pod_json("p", exclusive(1, 1), resourceClaims=claim, nodeSelector=selector))
    assert wanted_of(pod, 9_000) == expected


def test_a_claim_asks_once_on_each_level_and_never_where_gpus_are_hungrier() -> None:
    made = template_of(WantedTemplate("t", 2, 60_000, any_model=True), "ns", 2, CLASS)
    first, second = made.spec.spec.devices.requests or ()
    for one in (first, second):
        assert one.exactly
        assert one.exactly.capacity
        assert one.exactly.capacity.requests == {"watts": "120"}
    told = [
        one.exactly.selectors[0].cel.expression
        for one in (first, second)
        if one.exactly and one.exactly.selectors
    ]
    assert "mostGpuMilliwatts" not in told[0]
    assert told[1].endswith("mostGpuMilliwatts <= 60000")
    read = decoder(ResourceClaimTemplate).decode(encode(made))
    assert same_template(read, made)
    wanted = WantedTemplate("t", 2, 60_000, any_model=True)
    assert not same_template(read, template_of(wanted, "ns", 3, CLASS))
    assert not same_template(read, template_of(wanted, "ns", 2, ANEW))


def test_a_scheduler_is_woken_for_pods_that_nothing_keeps_but_not_all_the_time() -> None:
    stuck = StuckPods()
    assert not stuck.are_due(100.0)
    stuck.note("a", 100.0)
    stuck.note("a", 105.0)  # it waits since it was noted first
    assert not stuck.are_due(109.0)
    assert stuck.are_due(110.0)
    assert not stuck.are_due(119.0)
    assert stuck.are_due(120.0)
    stuck.note("b", 125.0)
    stuck.forget("a")
    assert not stuck.are_due(130.0)
    stuck.forget("b")
    assert not stuck.are_due(200.0)
