"""Selectors and tolerations, as the API defines them; pure functions of labels and taints.

Operators that we do not know match nothing: a pod is then refused rather than misplaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wattherd.kube.api.objects import (
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)

_NO_SCHEDULE = frozenset({"NoSchedule", "NoExecute"})


def label_matches(need: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether `labels` meet one requirement.

    `NotIn` and `DoesNotExist` hold where the label is absent; `Gt` and `Lt` compare integers and
    hold for nothing else.
    """
    value, values = labels.get(need.key), need.values or ()
    match need.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and len(values) == 1 and _beyond(need, value, values[0])
        case _:
            return False


def _beyond(need: Requirement, value: str, bound: str) -> bool:
    try:
        have, limit = int(value), int(bound)
    except ValueError:
        return False
    return have > limit if need.operator == "Gt" else have < limit


def selector_matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects an object: absent none, empty all."""
    if selector is None:
        return False
    wanted = (selector.match_labels or {}).items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        label_matches(need, labels) for need in selector.match_expressions or ()
    )


def node_matches(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Whether one of the terms selects the node."""
    return any(_term(one, name, labels) for one in selector.node_selector_terms or ())


def _term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    """A term without requirements selects nothing; of fields, `metadata.name` alone is known."""
    if not (term.match_expressions or term.match_fields):
        return False
    return all(label_matches(need, labels) for need in term.match_expressions or ()) and all(
        label_matches(need, {"metadata.name": name}) for need in term.match_fields or ()
    )


def untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps pods off and is not tolerated; soft taints keep nobody off."""
    for taint in taints:
        if taint.effect in _NO_SCHEDULE and not any(_bears(one, taint) for one in tolerations):
            return taint
    return None


def _bears(toleration: Toleration, taint: Taint) -> bool:
    """An empty key bears every key, an empty effect every effect (alpha operators: nothing)."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    operator = toleration.operator or "Equal"
    return operator == "Exists" or (operator == "Equal" and toleration.value == taint.value)
