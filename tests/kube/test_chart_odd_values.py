"""Values that nobody tries and somebody has: helm lints and renders them, or refuses by name."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml
from helm_chart import CHART, REPOSITORY, VARIANTS, Tools, deployed_pod, deployed_pods, of_kind
from kube_api import Object

ABOUT: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
TEXTS = {
    "a number": "1",
    "a big number": "1234567890123456789",
    "a truth": "true",
    "nothing": "null",
    "octal": "0777",
    "a time": "2026-11-26",
    "sixty-based": "12:30:00",
    "empty": "",
    "quotes": 'it\'s "so"',
    "a colon": "a: b # c",
    "lines": "one\ntwo\n",
    "a template": "{{ .Values.mode }} {{",
    "letters of elsewhere": "Größe 温度 🔌",
    "a backslash": "C:\\temp",
    "dashes": "---\nkind: Secret",
}
"""Words that YAML or a template could take for something else."""
EVERYTHING = {
    "agent": {"enabled": True},
    "pools": {"enabled": True, "grow": True},
    "serviceMonitor": {"enabled": True},
}


@pytest.mark.parametrize("what", TEXTS)
def test_text_comes_out_as_it_went_in(helm: Tools, what: str) -> None:
    text = TEXTS[what]
    values: dict[str, Any] = {
        **EVERYTHING,
        "podAnnotations": {"example.org/note": text},
        "podLabels": {"team": "power", "app.kubernetes.io/name": "stolen"},
        "serviceAccount": {"annotations": {"example.org/note": text}},
        "tolerations": [{"key": "only", "value": text}],
        "nodeSelector": {"example.org/on": text},
    }
    helm.run("helm", "lint", "--strict", str(CHART), helm.values(values))
    made = helm.rendered(values)
    pods = deployed_pods(made)
    assert pods.keys() == {"scheduler", "pools"}
    [agents] = of_kind(made, "DaemonSet")
    for pod in (*pods.values(), agents["spec"]["template"]):
        assert pod["metadata"]["annotations"]["example.org/note"] == text
        assert pod["metadata"]["labels"]["team"] == "power"
        assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != "stolen"
    for pod in pods.values():
        assert {"key": "only", "value": text} in pod["spec"]["tolerations"]
        assert pod["spec"]["nodeSelector"]["example.org/on"] == text
    accounts = of_kind(made, "ServiceAccount")
    assert len(accounts) == 3
    for account in accounts:
        assert account["metadata"]["annotations"]["example.org/note"] == text
    assert of_kind(made, "Secret") == []


BUDGETS = ["40kW", "rack-1=3kW", "hall.row_2=12500W", "a" * 63 + "=1.5MW", "r1=0.5W"]


def test_budgets_are_one_argument_each_whatever_they_are_called(helm: Tools) -> None:
    arguments = container(helm.rendered({"budgets": BUDGETS}))["args"]
    told = [arguments[at + 1] for at, one in enumerate(arguments) if one == "--budget"]
    joined = [one.removeprefix("--budget=") for one in arguments if one.startswith("--budget=")]
    assert told + joined == BUDGETS


LONG = "x" * 53
"""The longest name that Helm gives a release."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_of_objects_fit_however_long_the_release_is_called(helm: Tools, variant: str) -> None:
    told = helm.values(VARIANTS[variant])
    text = helm.run("helm", "template", LONG, str(CHART), "--namespace", "n" * 63, told)
    made = [one for one in yaml.safe_load_all(text) if one]
    names = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(set(names)) == len(names)
    for one in made:
        kind, name = one["kind"], one["metadata"]["name"]
        most = 63 if kind == "Service" else 253
        assert len(name) <= most, (kind, name)
        for label, value in one["metadata"].get("labels", {}).items():
            assert isinstance(value, str), (kind, label)
            assert len(value) <= 63, (kind, label, value)


@pytest.mark.parametrize(
    "values",
    [
        {"nameOverride": "n" * 63},
        {"fullnameOverride": "f" * 63},
        {"budgets": []},
        {"budgets": None},
        {
            "podAnnotations": None,
            "podLabels": None,
            "nodeSelector": None,
            "tolerations": None,
            "affinity": None,
        },
        {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
        {"image": {"tag": "1"}},
        {"image": {"repository": "registry.example:5000/a/b-c_d.e", "tag": "2026.11"}},
        {"global": {"anything": {"of": ["a", "parent"]}}},
        {"scheduler": {"replicas": 1}, "podDisruptionBudget": {"enabled": False}},
        {"networkPolicy": {"enabled": False}, "rbac": {"create": False}},
        {"serviceAccount": {"create": False, "name": "mine"}},
    ],
    ids=lambda values: ",".join(values),
)
def test_values_at_the_edge_are_linted_and_rendered(helm: Tools, values: dict[str, Any]) -> None:
    said = helm.run("helm", "lint", "--strict", str(CHART), helm.values(values))
    assert "0 chart(s) failed" in said
    made = helm.rendered(values)
    image = container(made)["image"]
    assert isinstance(image, str)
    assert ":" in image.rpartition("/")[2]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"budgets": ["40kW --kubeconfig=/etc/x"]}, "budgets"),
        ({"budgets": ["r=3kW\n- --evil"]}, "budgets"),
        ({"budgets": "40kW"}, "budgets"),
        ({"image": {"tag": "a b"}}, "tag"),
        ({"image": {"repository": "registry.example/Case"}}, "repository"),
        ({"scheduler": {"name": "Not A Name"}}, "name"),
        ({"scheduler": {"replicas": 0}}, "replicas"),
        ({"scheduler": {"replicas": "two"}}, "replicas"),
        ({"health": {"port": 0}}, "port"),
        ({"podAnnotations": {"example.org/n": 1}}, "podAnnotations"),
        ({"podLabels": {"app": True}}, "podLabels"),
        ({"agent": {"limit": "6 potatoes"}}, "limit"),
        ({"agent": {"meterCidrs": ["10.0.0.0"]}}, "meterCidrs"),
        ({"mode": "Scheduler"}, "mode"),
        ({"fullnameOverride": "Not_A_Name"}, "fullnameOverride"),
    ],
    ids=lambda one: ",".join(one) if isinstance(one, dict) else None,
)
def test_values_that_would_be_something_else_are_refused_by_name(
    helm: Tools, values: dict[str, Any], named: str
) -> None:
    said = helm.run("helm", "template", "x", str(CHART), helm.values(values), fails=True)
    assert named in said


def container(made: list[Object]) -> Object:
    return dict(deployed_pod(made)["spec"]["containers"][0])


def test_the_chart_says_where_it_comes_from() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert ABOUT["sources"] == [project["urls"]["Source"]]
    assert ABOUT["home"] == project["urls"]["Source"]
    main = "https://raw.githubusercontent.com/wattherd/wattherd/main/"
    assert ABOUT["icon"].startswith(main)
    icon = (REPOSITORY / ABOUT["icon"].removeprefix(main)).read_text()
    assert icon.lstrip().startswith("<svg")
