"""Alert rules and the dashboard ask for metrics and labels that the service has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from wattherd.server.kube.shell_metrics import ShellMetrics
from wattherd.server.site.metric_names import KUBE_METRICS, METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
OF_PROMETHEUS = {"instance", "job", "le"}
BESIDE = {
    "wattherd_kube_sees": set[str](),
    "wattherd_kube_leads": set[str](),
    "wattherd_kube_troubles": set[str](),
    "wattherd_extender_late_total": set[str](),
    "wattherd_extender_answer_seconds": {"verb"},
    "wattherd_build_info": {"version", "commit"},
}
"""What copies tell that is in no registry, and its labels."""
ON_KUBE = {name: set(metric.labels) for name, metric in KUBE_METRICS.items()} | BESIDE


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels(board: str = "wattherd") -> list[dict[str, Any]]:
    text = (DEPLOY / "grafana" / f"{board}.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)["panels"]
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


def test_every_series_of_the_board_of_kubernetes_is_there_with_its_labels() -> None:
    drawn, told = set[str](), ShellMetrics().text({})
    for panel in panels("wattherd-kubernetes"):
        for target in panel["targets"]:
            expression = target["expr"]
            found = set(re.findall(r"\b(?:wattherd|process)_\w+", expression))
            series = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}
            of_process = {name for name in series if name.startswith("process_")}
            assert all(f"# TYPE {name} " in told for name in of_process)
            assert series - of_process <= ON_KUBE.keys(), panel["title"]
            known = OF_PROMETHEUS.union(*(ON_KUBE[name] for name in series - of_process))
            groups = re.findall(r"\bby\s*\(([^)]*)\)", expression)
            asked = {label.strip() for group in groups for label in group.split(",")}
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert asked | legend <= known, panel["title"]
            drawn |= series
    assert ON_KUBE.keys() - drawn == {"wattherd_kube_sees"}


def test_what_the_shell_counts_has_a_name() -> None:
    source = "".join(
        path.read_text() for path in sorted((DEPLOY.parent / "src/wattherd/kube").rglob("*.py"))
    )
    names = re.findall(r"\.(?:count|took)\(\s*\"(\w+)\"", source)
    kinds = {name for name, metric in KUBE_METRICS.items() if metric.kind != "gauge"}
    assert {f"wattherd_kube_{name}" for name in names} == kinds


def test_what_is_counted_on_kubernetes_is_told_under_its_name() -> None:
    shown = ShellMetrics()
    shown.count("stopped_pods_total", "BudgetCut", "evicted", by=2)
    shown.count("caps_read_back_total")
    shown.took("wait_seconds", 3.0)
    told = shown.text({"wattherd_kube_pods": [(("seen",), 4)]})
    for line in (
        'wattherd_kube_stopped_pods_total{reason="BudgetCut",way="evicted"} 2.0',
        "wattherd_kube_caps_read_back_total 1.0",
        'wattherd_kube_wait_seconds_bucket{le="5.0"} 1.0',
        'wattherd_kube_pods{state="seen"} 4.0',
    ):
        assert line in told
    assert re.search(r"wattherd_build_info{.*} 1.0", told)


@pytest.mark.parametrize("board", ["wattherd", "wattherd-kubernetes"])
def test_panels_do_not_overlap(board: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(board):
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
