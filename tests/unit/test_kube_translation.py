"""What pods and nodes mean to us, each rule against a naive definition or the API's own words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import a_node, a_pod, node_json, pod_json, wanted

from wattherd.catalog.gpus import GPUS
from wattherd.kube.api.api_objects import (
    PersistentVolume,
    PersistentVolumeClaim,
    PodGroup,
    decoder,
)
from wattherd.kube.api.objects import Pod
from wattherd.kube.facts.node_facts import Giving, GpuOffer, NodeFacts, catalog_model, node_facts
from wattherd.kube.facts.node_filter import (
    Neighbour,
    Volumes,
    host_ports,
    node_check,
    ports_clash,
    repelled,
    unsupported,
)
from wattherd.kube.facts.pod_groups import GroupKind, group_of, least_members, stated_size
from wattherd.kube.facts.pod_request import ask_of, ask_of_foreign, pod_amounts
from wattherd.kube.facts.refusal import PodRefused, RefusalToken
from wattherd.model.job import Request
from wattherd.testing.builders import a_node as a_machine
from wattherd.testing.builders import exclusive, sharing

SLOTS = GpuOffer(Giving.SLOTS, 250)
ANNOTATED = GpuOffer(Giving.ANNOTATED)


def spec_pod(**spec: Any) -> Pod:
    """A pod of this spec."""
    return a_pod({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec})


def container(cpu: int, *, sidecar: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {"name": f"c{cpu}", "resources": {"requests": {"cpu": f"{cpu}m"}}}
    return made | ({"restartPolicy": "Always"} if sidecar else {})


# --- amounts ------------------------------------------------------------------------------------

CPUS = st.integers(0, 50)


@given(
    inits=st.lists(st.tuples(CPUS, st.booleans()), max_size=6),
    main=st.lists(CPUS, max_size=4),
    overhead=CPUS,
)
def test_a_pod_takes_the_most_that_runs_at_any_moment(
    inits: list[tuple[int, bool]], main: list[int], overhead: int
) -> None:
    """Play the pod's life: every init container in turn, sidecars stay, then the containers."""
    staying, most = 0, 0
    for cpu, sidecar in inits:
        most = max(most, staying + cpu)
        staying += cpu if sidecar else 0
    most = max(most, staying + sum(main)) + overhead
    pod = spec_pod(
        initContainers=[container(cpu, sidecar=sidecar) for cpu, sidecar in inits],
        containers=[container(cpu) for cpu in main],
        overhead={"cpu": f"{overhead}m"},
    )
    assert pod_amounts(pod).get("cpu", 0) == most


def test_what_the_whole_pod_asks_for_takes_the_place_of_its_containers() -> None:
    pod = spec_pod(
        resources={"requests": {"cpu": "3"}},
        containers=[{"name": "a", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}],
        overhead={"cpu": "100m"},
    )
    assert pod_amounts(pod) == {"cpu": 3100, "nvidia.com/gpu": 2}


def test_while_a_pod_is_resized_the_most_counts() -> None:
    made = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]},
        "status": {
            "containerStatuses": [
                {
                    "name": "a",
                    "allocatedResources": {"cpu": "1"},
                    "resources": {"requests": {"cpu": "4"}},
                }
            ]
        },
    }
    assert pod_amounts(a_pod(made))["cpu"] == 4000


# --- GPUs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("Tesla-T4", "T4"),
        ("NVIDIA-A10", "A10"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA-A100-80GB-PCIe", "A100-80GB-PCIe"),
        ("NVIDIA-A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("Tesla-V100-SXM2-16GB", "V100M16"),
        ("Tesla-V100-SXM2-32GB", "V100M32"),
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM"),
        ("NVIDIA-H200", "H200"),
        ("NVIDIA-L40S-SHARED", "L40S"),
        ("NVIDIA-GeForce-RTX-3090", "3090"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", None),
        ("NVIDIA-A1000", None),
        ("NVIDIA-Z9000", None),
    ],
)
def test_products_by_the_labels_of_their_vendors(product: str, model: str | None) -> None:
    assert catalog_model(product) == model


def test_every_model_of_the_catalog_may_be_named() -> None:
    assert [catalog_model(name) for name in GPUS] == list(GPUS)


def asked(request: Request) -> Pod:
    return a_pod(pod_json("p", request))


def test_whole_gpus_go_where_whole_gpus_are_given() -> None:
    ask = ask_of(asked(exclusive(1_000, 2, "T4")))
    assert ask.on(GpuOffer()) == ask.on(ANNOTATED) == exclusive(1_000, 2, "T4")
    assert ask.on(SLOTS) is None


def test_a_share_goes_by_annotation_or_into_a_slot_that_is_large_enough() -> None:
    exact = ask_of(asked(sharing(1_000, 200)))
    assert exact.on(ANNOTATED) == sharing(1_000, 200)
    assert exact.on(GpuOffer()) is None
    made = pod_json("p", sharing(1_000, 200))
    made["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "1"
    slot = ask_of(a_pod(made))
    assert slot.on(SLOTS) == sharing(1_000, 250)
    assert slot.on(GpuOffer(Giving.SLOTS, 199)) is None
    assert slot.on(ANNOTATED) is None


def test_a_slot_by_its_own_name_needs_no_annotation_and_is_one() -> None:
    def slots(count: int) -> Pod:
        asked = {"requests": {"nvidia.com/gpu.shared": str(count)}}
        return spec_pod(containers=[{"name": "a", "resources": asked}])

    assert ask_of(slots(1)).on(SLOTS) == sharing(0, 250)
    assert ask_of(slots(2)).on(SLOTS) is None
    assert ask_of(slots(1)).on(GpuOffer()) is None


def test_models_are_read_where_users_write_them() -> None:
    by_affinity = spec_pod(affinity={"nodeAffinity": wanted(["Tesla-T4", "NVIDIA-A10"])})
    assert ask_of(by_affinity).models == ("T4", "A10")
    by_selector = spec_pod(nodeSelector={"nvidia.com/gpu.product": "Tesla-T4"})
    assert ask_of(by_selector).models == ("T4",)
    terms = [
        {
            "matchExpressions": [
                {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["T4"]}
            ]
        },
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
    ]
    node_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert ask_of(spec_pod(affinity={"nodeAffinity": node_affinity})).models == ()


@pytest.mark.parametrize(
    ("milli", "amounts", "problem"),
    [
        ("0", {}, "is no share"),
        ("1001", {}, "is no share"),
        ("many", {}, "is no quantity"),
        (None, {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}, "at once"),
    ],
)
def test_a_pod_that_makes_no_sense_is_refused_but_counts_where_it_is(
    milli: str | None, amounts: dict[str, str], problem: str
) -> None:
    made = pod_json("p", exclusive(0, 0))
    if milli is not None:
        made["metadata"]["annotations"]["wattherd.dev/gpu-milli"] = milli
    made["spec"]["containers"][0]["resources"]["requests"] = amounts
    with pytest.raises(PodRefused, match=problem) as refused:
        ask_of(a_pod(made))
    assert refused.value.refusal.token is RefusalToken.INVALID_POD
    assert ask_of_foreign(a_pod(made)).whole == sum(name.endswith("/gpu") for name in amounts)


def test_a_node_is_translated_and_its_plugin_understood() -> None:
    made = node_json(a_machine("n", gpus=4, model="T4"))
    facts = node_facts(a_node(made))
    assert (facts.spec.gpu_count, facts.spec.gpu_model, facts.offer) == (4, "T4", ANNOTATED)
    made["metadata"]["labels"] = {
        "nvidia.com/gpu.product": "Tesla-T4-SHARED",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.count": "2",
    }
    made["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    facts = node_facts(a_node(made))
    assert (facts.spec.gpu_count, facts.spec.gpu_model, facts.offer) == (2, "T4", SLOTS)


def test_a_node_with_nonsense_on_it_takes_nothing_and_says_why() -> None:
    made = node_json(a_machine("n", gpus=4, model="T4"))
    made["status"]["allocatable"]["cpu"] = "lots"
    assert "is no quantity" in node_facts(a_node(made)).problem
    made = node_json(a_machine("n", gpus=4, model="T4"))
    made["status"]["allocatable"]["nvidia.com/gpu"] = "64"
    assert "more than the 63" in node_facts(a_node(made)).problem


# --- groups -------------------------------------------------------------------------------------

MARKS: list[tuple[GroupKind, dict[str, Any]]] = [
    (GroupKind.NATIVE, {"spec": {"schedulingGroup": {"podGroupName": "g"}}}),
    (GroupKind.OLDER, {"labels": {"scheduling.x-k8s.io/pod-group": "g"}}),
    (GroupKind.VOLCANO, {"annotations": {"scheduling.k8s.io/group-name": "g"}}),
    (GroupKind.KUEUE, {"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}),
    (GroupKind.JOBSET, {"owners": [{"kind": "JobSet", "name": "g", "controller": True}]}),
    (GroupKind.LWS, {"labels": {"leaderworkerset.sigs.k8s.io/group-key": "g"}}),
]


@given(st.lists(st.sampled_from(range(len(MARKS))), unique=True))
def test_groups_are_known_by_the_first_mark_in_order(chosen: list[int]) -> None:
    meta: dict[str, Any] = {"name": "p", "namespace": "d", "labels": {}, "annotations": {}}
    spec: dict[str, Any] = {}
    for mark in (MARKS[one][1] for one in chosen):
        meta["labels"].update(mark.get("labels", {}))
        meta["annotations"].update(mark.get("annotations", {}))
        if "owners" in mark:
            meta["ownerReferences"] = mark["owners"]
        spec.update(mark.get("spec", {}))
    group = group_of(a_pod({"metadata": meta, "spec": spec}))
    if not chosen:
        assert group is None
    else:
        assert group is not None
        assert (group.kind, group.namespace, group.name) == (MARKS[min(chosen)][0], "d", "g")


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        ({"schedulingPolicy": {"gang": {"minCount": 4}}}, 4),
        ({"schedulingPolicy": {"basic": {}}}, 1),
        ({"minMember": 3}, 3),
        ({}, 1),
    ],
)
def test_gangs_say_how_many_they_are(spec: dict[str, Any], least: int) -> None:
    group = decoder(PodGroup).decode(json.dumps({"spec": spec}).encode())
    assert least_members(group) == least


def test_pods_may_say_how_many_they_are_themselves() -> None:
    def said(text: str) -> int | None:
        return stated_size(
            a_pod({"metadata": {"annotations": {"kueue.x-k8s.io/pod-group-total-count": text}}})
        )

    assert (said("8"), said("0"), said("-1"), said("many")) == (8, None, None, None)


# --- which nodes --------------------------------------------------------------------------------

KEYS, VALUES = st.sampled_from("ab"), st.sampled_from(["1", "2", "x"])
LABELS = st.dictionaries(KEYS, VALUES)
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Resembles"])
NEEDS = st.fixed_dictionaries(
    {"key": KEYS, "operator": OPERATORS, "values": st.lists(VALUES, max_size=2)}
)
TERMS = st.lists(st.lists(NEEDS, max_size=2), min_size=1, max_size=3)


def holds(need: dict[str, Any], labels: dict[str, str]) -> bool:
    """One requirement, as the API reference words it."""
    key, values = need["key"], need["values"]
    if need["operator"] in ("Gt", "Lt"):
        numbers = [labels.get(key, ""), *values]
        if len(values) != 1 or not all(text.isdigit() for text in numbers):
            return False
        have, bound = map(int, numbers)
        return have > bound if need["operator"] == "Gt" else have < bound
    return {
        "In": key in labels and labels[key] in values,
        "NotIn": key not in labels or labels[key] not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
        "Resembles": False,
    }[need["operator"]]


def facts_of(labels: dict[str, str], **spec: Any) -> NodeFacts:
    made = node_json(a_machine("n", gpus=1, model="T4"))
    made["metadata"]["labels"] = labels
    return node_facts(a_node(made | {"spec": spec}))


def refusal(pod: Pod, facts: NodeFacts, volumes: Volumes | None = None) -> RefusalToken | None:
    found = node_check(pod, volumes or Volumes())(facts)
    return None if found is None else found.token


@given(labels=LABELS, terms=TERMS, selector=LABELS)
def test_selectors_and_affinity_select_as_defined(
    labels: dict[str, str], terms: list[list[dict[str, Any]]], selector: dict[str, str]
) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": needs} for needs in terms]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    pod = spec_pod(affinity=affinity, nodeSelector=selector)
    selected = all(labels.get(key) == value for key, value in selector.items())
    chosen = any(needs and all(holds(need, labels) for need in needs) for needs in terms)
    assert (refusal(pod, facts_of(labels)) is None) == (selected and chosen)


def test_affinity_may_name_the_node() -> None:
    for name, token in (("n", None), ("m", RefusalToken.AFFINITY)):
        need = {"key": "metadata.name", "operator": "In", "values": [name]}
        required = {"nodeSelectorTerms": [{"matchFields": [need]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        assert refusal(spec_pod(affinity=affinity), facts_of({})) == token


EFFECTS = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
TAINTS = st.fixed_dictionaries({"key": KEYS, "value": VALUES, "effect": EFFECTS})
TOLERATIONS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["", "a", "b"]),
        "operator": st.sampled_from(["", "Equal", "Exists", "Gt"]),
        "value": VALUES,
        "effect": st.sampled_from(["", "NoSchedule", "NoExecute"]),
    }
)


def bears(toleration: dict[str, str], taint: dict[str, str]) -> bool:
    """As the API reference words it: empty key and effect match all; no operator means Equal."""
    same = {"": taint["value"], "Equal": taint["value"], "Exists": toleration["value"]}
    return (
        toleration["effect"] in ("", taint["effect"])
        and toleration["key"] in ("", taint["key"])
        and same.get(toleration["operator"]) == toleration["value"]
    )


@given(taints=st.lists(TAINTS, max_size=3), tolerations=st.lists(TOLERATIONS, max_size=3))
def test_taints_keep_off_whoever_does_not_tolerate_them(
    taints: list[dict[str, str]], tolerations: list[dict[str, str]]
) -> None:
    hard = [taint for taint in taints if taint["effect"] != "PreferNoSchedule"]
    welcome = all(any(bears(one, taint) for one in tolerations) for taint in hard)
    found = refusal(spec_pod(tolerations=tolerations), facts_of({}, taints=taints))
    assert found == (None if welcome else RefusalToken.TAINT)


def test_a_cordoned_node_takes_only_daemons() -> None:
    facts = facts_of({}, unschedulable=True)
    assert refusal(spec_pod(), facts) is RefusalToken.UNSCHEDULABLE
    daemon = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert refusal(spec_pod(tolerations=[daemon]), facts) is None


ADDRESSES = st.sampled_from(["", "0.0.0.0", "10.0.0.1", "10.0.0.2"])
PORTS = st.fixed_dictionaries(
    {
        "hostPort": st.integers(0, 2),
        "hostIP": ADDRESSES,
        "protocol": st.sampled_from(["", "TCP", "UDP"]),
    }
)


@given(one=st.lists(PORTS, max_size=2), other=st.lists(PORTS, max_size=2))
def test_host_ports_clash_on_the_same_address(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    def clash(a: dict[str, Any], b: dict[str, Any]) -> bool:
        anywhere = {"", "0.0.0.0"}
        there = {a["hostIP"], b["hostIP"]}
        return (
            a["hostPort"] == b["hostPort"] != 0
            and (a["protocol"] or "TCP") == (b["protocol"] or "TCP")
            and (a["hostIP"] == b["hostIP"] or bool(there & anywhere))
        )

    first, second = (spec_pod(containers=[{"ports": ports}]).spec for ports in (one, other))
    expected = any(clash(a, b) for a in one for b in other)
    assert (ports_clash(host_ports(first), host_ports(second)) is not None) == expected


# --- volumes ------------------------------------------------------------------------------------


def volumes(*, bound: bool, zone: str = "a", modes: tuple[str, ...] = ()) -> Volumes:
    claim = {"spec": {"volumeName": "v" if bound else "", "accessModes": list(modes)}}
    need = {"key": "zone", "operator": "In", "values": [zone]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
    volume = {"metadata": {"name": "v"}, "spec": {"nodeAffinity": {"required": required}}}
    return Volumes(
        {("d", "c"): decoder(PersistentVolumeClaim).decode(json.dumps(claim).encode())},
        {"v": decoder(PersistentVolume).decode(json.dumps(volume).encode())},
    )


CLAIMING = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}


def test_a_bound_volume_says_where_its_pod_may_go() -> None:
    pod, there = spec_pod(**CLAIMING), volumes(bound=True)
    assert unsupported(pod, there) is None
    assert refusal(pod, facts_of({"zone": "a"}), there) is None
    assert refusal(pod, facts_of({"zone": "b"}), there) is RefusalToken.VOLUME


@pytest.mark.parametrize(
    ("spec", "there", "token"),
    [
        (CLAIMING, Volumes(), RefusalToken.VOLUME),
        (CLAIMING, volumes(bound=False), RefusalToken.VOLUME),
        (CLAIMING, volumes(bound=True, modes=("ReadWriteOncePod",)), RefusalToken.UNSUPPORTED),
        ({"volumes": [{"name": "x", "ephemeral": {}}]}, Volumes(), RefusalToken.VOLUME),
        ({"volumes": [{"name": "x", "iscsi": {}}]}, Volumes(), RefusalToken.UNSUPPORTED),
        ({"volumes": [{"name": "x", "emptyDir": {}}]}, Volumes(), None),
        ({"resourceClaims": [{"name": "x"}]}, Volumes(), RefusalToken.UNSUPPORTED),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
            Volumes(),
            None,
        ),
        (
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
            Volumes(),
            None,
        ),
    ],
    ids=[
        *("no claim", "unbound", "one pod", "ephemeral", "own disk", "empty dir"),
        *("device claims", "hard spread", "soft spread"),
    ],
)
def test_what_we_would_do_by_half_is_refused_loudly(
    spec: dict[str, Any], there: Volumes, token: RefusalToken | None
) -> None:
    found = unsupported(spec_pod(**spec), there)
    assert (None if found is None else found.token) == token


def test_affinity_to_namespaces_that_a_label_selects_is_refused_where_it_brings_together() -> None:
    for selector, kind, refused in (
        ({}, "podAffinity", False),
        ({"matchLabels": {"team": "a"}}, "podAffinity", True),
        ({"matchLabels": {"team": "a"}}, "podAntiAffinity", False),
    ):
        term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": selector}
        hard = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        found = unsupported(spec_pod(affinity=hard), Volumes())
        assert (found is not None) is refused
        assert found is None or found.token is RefusalToken.UNSUPPORTED


def test_pods_that_will_not_have_others_near_are_minded() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    there = [Neighbour(spec_pod(affinity=anti), "n")]
    nodes = {"n": facts_of({"zone": "a"})}

    def coming(labels: dict[str, str], namespace: str = "d") -> Pod:
        return a_pod({"metadata": {"name": "q", "namespace": namespace, "labels": labels}})

    assert repelled(coming({"app": "x"}), there, nodes) == {("zone", "a")}
    assert repelled(coming({"app": "y"}), there, nodes) == set()
    assert repelled(coming({"app": "x"}, "elsewhere"), there, nodes) == set()
