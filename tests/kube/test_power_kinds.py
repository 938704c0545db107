"""Power domains, budgets and queues on the API server: taken, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from helm_chart import Tools
from kube_api import Object, Refused
from power_api import CRDS, an_object, defined, path_of

GOOD: dict[str, Object] = {
    "a site": an_object("PowerDomain", "site", limit="40kW"),
    "a rack": an_object(
        "PowerDomain",
        "rack-1",
        parent="site",
        limit="7.5 kW",
        nodeSelector={
            "matchLabels": {"rack": "1"},
            "matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}],
        },
    ),
    "a constant budget": an_object("PowerBudget", "b", domain="site", constant="30kW"),
    "a share": an_object("PowerBudget", "b", domain="site", constant="62.5%"),
    "a daily schedule": an_object(
        "PowerBudget",
        "b",
        domain="site",
        schedule={
            "timeZone": "Europe/Berlin",
            "rows": [{"at": "7:00", "limit": "80%"}, {"at": "18:00:30", "until": "21:00"}],
        },
    ),
    "a schedule with dates": an_object(
        "PowerBudget",
        "b",
        domain="site",
        schedule={"rows": [{"at": "2026-11-21T18:00:00+01:00", "limit": "9000W"}]},
    ),
    "a signal": an_object(
        "PowerBudget", "b", domain="site", signal={"address": "https://grid.example/l?safe=60%25"}
    ),
    "a queue": an_object(
        "Queue", "team", parent="all", guaranteedPercent=40, maximumPercent=60, domain="site"
    ),
    "a queue by weight": an_object("Queue", "team", weight=2, userLimitFactor=1.5),
    "a queue with a half-life": an_object("Queue", "team", halfLife="1h30m"),
    "queues that share by weights": an_object(
        "Queue",
        "all",
        guaranteedPercent=100,
        fairSharing={"strategies": ["FinalShare", "InitialShare"], "weight": 0},
    ),
    "a queue with a weight in what is lent": an_object(
        "Queue", "team", parent="all", guaranteedPercent=40, fairSharing={"weight": 2.5}
    ),
    "a queue of nothing but its name": an_object("Queue", "team"),
}

BAD: dict[str, tuple[Object, str]] = {
    "a limit without a unit": (an_object("PowerDomain", "d", limit="40"), "spec.limit"),
    "a limit that is negative": (an_object("PowerDomain", "d", limit="-4kW"), "spec.limit"),
    "its own parent": (an_object("PowerDomain", "d", parent="d"), "cannot be its own parent"),
    "a name too long": (an_object("PowerDomain", "d" * 64), "longer than 63 characters"),
    "no spec": ({**an_object("PowerDomain", "d"), "spec": None}, "spec: Required value"),
    "a selector of nothing": (
        an_object("PowerDomain", "d", nodeSelector={}),
        "leave nodeSelector out, or say which nodes",
    ),
    "an operator there is not": (
        an_object(
            "PowerDomain",
            "d",
            nodeSelector={"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
        ),
        'supported values: "DoesNotExist", "Exists", "In", "NotIn"',
    ),
    "a budget of nothing": (
        an_object("PowerBudget", "b", domain="d"),
        "give exactly one of constant, schedule and signal",
    ),
    "a budget twice": (
        an_object("PowerBudget", "b", domain="d", constant="4kW", signal={"address": "http://h/"}),
        "give exactly one of constant, schedule and signal",
    ),
    "a budget of no domain": (
        an_object("PowerBudget", "b", constant="4kW"),
        "spec.domain: Required value",
    ),
    "a schedule without rows": (
        an_object("PowerBudget", "b", domain="d", schedule={"rows": []}),
        "spec.schedule.rows",
    ),
    "times and dates in one schedule": (
        an_object(
            "PowerBudget",
            "b",
            domain="d",
            schedule={"rows": [{"at": "18:00"}, {"at": "2026-11-21T18:00:00Z"}]},
        ),
        "times of day in every row, or dates in every row",
    ),
    "a date without a zone": (
        an_object("PowerBudget", "b", domain="d", schedule={"rows": [{"at": "2026-11-21T18:00"}]}),
        "spec.schedule.rows[0].at",
    ),
    "a signal from a file": (
        an_object("PowerBudget", "b", domain="d", signal={"address": "schedule:/etc/passwd"}),
        "no address of a signal",
    ),
    "a guarantee beyond everything": (
        an_object("Queue", "q", guaranteedPercent=101),
        "spec.guaranteedPercent",
    ),
    "a maximum below the guarantee": (
        an_object("Queue", "q", guaranteedPercent=50, maximumPercent=40),
        "maximumPercent is below guaranteedPercent",
    ),
    "guarantee and weight": (
        an_object("Queue", "q", guaranteedPercent=50, weight=1),
        "give guaranteedPercent or weight, not both",
    ),
    "no weight": (an_object("Queue", "q", weight=0), "spec.weight"),
    "a half-life of nothing": (
        an_object("Queue", "q", halfLife="0h0.0s"),
        "a half-life is above 0s",
    ),
    "strategies below another queue": (
        an_object("Queue", "q", parent="all", fairSharing={"strategies": ["FinalShare"]}),
        "give them of a queue without parent",
    ),
    "strategies in the wrong order": (
        an_object("Queue", "q", fairSharing={"strategies": ["InitialShare", "FinalShare"]}),
        "or both in this order",
    ),
    "the same strategy twice": (
        an_object("Queue", "q", fairSharing={"strategies": ["FinalShare", "FinalShare"]}),
        "or both in this order",
    ),
    "no strategy": (
        an_object("Queue", "q", fairSharing={"strategies": []}),
        "spec.fairSharing.strategies",
    ),
    "a weight below nothing": (
        an_object("Queue", "q", fairSharing={"weight": -1}),
        "spec.fairSharing.weight",
    ),
    "a half-life without a unit": (an_object("Queue", "q", halfLife="12"), "spec.halfLife"),
}


@pytest.fixture(scope="module", autouse=True)
def _kinds(plane: ControlPlane) -> Iterator[None]:
    with defined(plane.api):
        yield


@pytest.fixture
def tools(plane: ControlPlane, tmp_path: Path) -> Tools:
    if not (plane.programs / "kubectl").exists():
        pytest.skip(f"no kubectl in {plane.programs}: `make kube-binaries` builds it (needs Go)")
    return Tools(plane.programs, plane.kubeconfig, tmp_path)


def test_kubectl_applies_definitions_and_objects(tools: Tools) -> None:
    apply = ("kubectl", "apply", "--dry-run=server", "--validate=strict")
    assert tools.run(*apply, f"--filename={CRDS}").count("(server dry run)") == 3
    objects = {one["metadata"]["name"]: one for one in GOOD.values()}
    said = tools.run(*apply, "--filename=-", given=yaml.safe_dump_all(list(objects.values())))
    assert said.count("(server dry run)") == len(objects)


@pytest.mark.parametrize("case", GOOD)
def test_what_makes_sense_is_taken(plane: ControlPlane, case: str) -> None:
    made = GOOD[case]
    path = f"{path_of(made['kind'])}?dryRun=All&fieldValidation=Strict"
    taken: Any = plane.api.create(path, made)
    assert taken["spec"] == made["spec"]


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_is_refused_with_a_reason(plane: ControlPlane, case: str) -> None:
    made, said = BAD[case]
    with pytest.raises(Refused) as refused:
        plane.api.create(f"{path_of(made['kind'])}?dryRun=All", made)
    assert refused.value.status == 422
    assert said in str(refused.value)


def test_a_word_misspelt_is_refused(plane: ControlPlane) -> None:
    wrong = an_object("PowerBudget", "b", domain="d", constant="4kW", domian="e")
    path = f"{path_of('PowerBudget')}?dryRun=All&fieldValidation=Strict"
    with pytest.raises(Refused, match="domian"):
        plane.api.create(path, wrong)


def test_kubectl_shows_them_in_columns(plane: ControlPlane, tools: Tools) -> None:
    plane.api.create(path_of("PowerDomain"), an_object("PowerDomain", "shown", limit="40kW"))
    status = {
        "boundWatts": 1200,
        "budgetWatts": 40000,
        "conditions": [{"type": "Ready", "status": "True", "reason": "InForce", "message": ""}],
    }
    plane.api.merge(f"{path_of('PowerDomain', 'shown')}/status", {"status": status})
    head, row = tools.run("kubectl", "get", "pdom", "shown").splitlines()
    assert head.split()[:2] == ["NAME", "PARENT"]
    assert all(word in row.split() for word in ("shown", "1200", "40000", "True", "InForce"))
    plane.api.delete(path_of("PowerDomain", "shown"))
