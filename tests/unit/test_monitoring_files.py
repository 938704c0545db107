"""Alert rules and the dashboard ask for metrics and labels that the service has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from wattherd.server.site.metric_names import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
OF_PROMETHEUS = {"instance", "job", "le"}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "wattherd.json").read_text())[
        "panels"
    ]
    return found


EXPRESSIONS = [rule["expr"] for rule in rules()] + [
    target["expr"] for panel in panels() for target in panel["targets"]
]


def base(name: str) -> str:
    """The family that a series belongs to."""
    return next((b for b in (re.sub(r"_(bucket|sum|count)$", "", name),) if b in METRICS), name)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_uses_metrics_that_there_are(expression: str) -> None:
    names = {base(name) for name in re.findall(r"\bwattherd_\w+", expression)}
    assert names <= METRICS.keys()
    assert names or 'up{job="wattherd"}' in expression
    known = {label for name in names for label in METRICS[name].labels} | OF_PROMETHEUS
    asked = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression)
    grouped = [
        label.strip()
        for group in re.findall(r"\bby\s*\(([^)]*)\)", expression)
        for label in group.split(",")
    ]
    assert {*asked, *grouped} <= known


def test_legends_and_annotations_name_labels_that_there_are() -> None:
    for panel in panels():
        for target in panel["targets"]:
            names = re.findall(r"\bwattherd_\w+", target["expr"])
            known = {label for name in names for label in METRICS[base(name)].labels}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known
    for rule in (rule for rule in rules() if "alert" in rule):
        names = re.findall(r"\bwattherd_\w+", rule["expr"])
        known = {label for name in names for label in METRICS[base(name)].labels}
        told = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", told)) <= known | OF_PROMETHEUS


def test_every_alert_has_a_test() -> None:
    tested = (DEPLOY / "prometheus" / "rules.test.yml").read_text()
    for rule in rules():
        name = rule.get("alert") or rule["record"]
        assert re.search(rf"(alertname|expr): {re.escape(name)}\b", tested), name


def test_every_metric_of_the_site_is_watched_or_drawn() -> None:
    used = {base(name) for e in EXPRESSIONS for name in re.findall(r"\bwattherd_\w+", e)}
    by_hand = {
        "wattherd_power_overshoot_joules_total",
        "wattherd_gpu_energy_joules_total",
        "wattherd_job_run_seconds",
        "wattherd_plan_items_total",
        "wattherd_estimate_error_ratio",
        "wattherd_build_info",
        "wattherd_journal_head_digest",
    }
    site = {name for name, metric in METRICS.items() if not metric.by_job}
    assert site - used == by_hand


def test_alerts_of_kubernetes_ask_for_what_copies_tell_and_have_tests() -> None:
    folder = DEPLOY.parent / "src" / "wattherd" / "kube"
    told = "".join(
        (folder / name).read_text() for name in ("api/health.py", "facts/extender_tally.py")
    )
    tested = (DEPLOY / "prometheus" / "kubernetes.rules.test.yml").read_text()
    document = yaml.safe_load((DEPLOY / "prometheus" / "kubernetes.rules.yml").read_text())
    for rule in document["groups"][0]["rules"]:
        assert f"alertname: {rule['alert']}\n" in tested
        [metric] = re.findall(r"\bwattherd_\w+", rule["expr"])
        assert f"# TYPE {metric} " in told


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
