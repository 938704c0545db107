"""The nodes of power domains as requirements of labels that other schedulers understand."""

from __future__ import annotations

from kube_builders import a_node, fleet_of, node_json

from wattherd.kube.account.domain_nodes import DomainNodes
from wattherd.kube.account.domains import Domains
from wattherd.kube.api.objects import LabelSelector
from wattherd.kube.facts.domain_tree import DomainBranch, DomainTree
from wattherd.kube.facts.node_facts import node_facts
from wattherd.testing.builders import a_node as a_machine

RACK = LabelSelector(match_labels={"rack": "1"})
FAST = LabelSelector(match_labels={"rack": "1", "fast": "yes"})


def told(
    nodes: list[dict[str, str]], branches: dict[str, DomainBranch], *fed: str
) -> list[tuple[str, str, list[str] | None]]:
    """What is required of nodes (by their labels) that `fed` feed."""
    fleet, domains = fleet_of("first-fit"), Domains({}, DomainTree(branches))
    for number, labels in enumerate(nodes):
        made = node_json(a_machine(f"n{number}", gpus=1, model="T4"), **labels)
        fleet.node_seen(domains.fed(node_facts(a_node(made))))
    needs = DomainNodes(fleet, domains).needs(*fed)
    return [(need.key, need.operator, need.values) for need in needs]


def labelled(*names: str) -> list[dict[str, str]]:
    return [{"wattherd.dev/power-domain": name} if name else {} for name in names]


def test_domains_by_label_are_told_by_it() -> None:
    nodes = labelled("a", "b", "")
    label = "wattherd.dev/power-domain"
    assert told(nodes, {}, "a") == [(label, "In", ["a"])]
    assert told(nodes, {}, "a", "b") == [(label, "In", ["a", "b"])]
    assert told(nodes, {}, "") == [(label, "DoesNotExist", None)]


def test_a_domain_with_a_selector_is_told_by_it() -> None:
    branches = {"one": DomainBranch(selector=RACK)}
    nodes = [{"rack": "1"}, {"rack": "2"}]
    assert told(nodes, branches, "one") == [("rack", "In", ["1"])]


def test_nodes_are_named_where_a_deeper_domain_feeds_some_that_are_selected() -> None:
    branches = {"one": DomainBranch(selector=RACK), "fast": DomainBranch("one", FAST)}
    nodes = [{"rack": "1"}, {"rack": "1", "fast": "yes"}, {"rack": "2"}]
    assert told(nodes, branches, "one") == [("kubernetes.io/hostname", "In", ["n0"])]
    assert told(nodes, branches, "fast") == [("rack", "In", ["1"]), ("fast", "In", ["yes"])]
    assert told(nodes, branches, "one", "fast") == [("kubernetes.io/hostname", "In", ["n0", "n1"])]
    assert told(nodes, branches, "") == [("kubernetes.io/hostname", "In", ["n2"])]
