"""The page for reviewers has every right that is shipped, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/kubernetes-rights.md").read_text()
MODES = ("scheduler", "extender", "admit", "admission-check", "dra", "agent", "pools")
READ = {"get", "list", "watch"}
Right = tuple[str, str, str]
"""Resource (and the name it is for), verb, and whose it is."""


def shipped() -> set[Right]:
    found = set()
    for mode in MODES:
        for made in yaml.safe_load_all((ROOT / f"deploy/kubernetes/{mode}.yaml").read_text()):
            if made["kind"] not in ("ClusterRole", "Role"):
                continue
            for rule in made["rules"]:
                [name] = rule.get("resourceNames", [""])
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        what = ".".join(filter(None, (resource, group))) + (name and f"/{name}")
                        found |= {(what, verb, mode) for verb in rule["verbs"]}
    return found


def told() -> set[Right]:
    found = set()
    for rights, verbs, who in re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE):
        each = set(verbs.split(", "))
        for right in re.findall("`(.*?)`", rights):
            for verb in each - {"read"} | (READ if "read" in each else set()):
                found |= {(right, verb, mode) for mode in who.split(", ")}
    return found


def test_the_page_has_all_rights_that_are_shipped_and_no_others() -> None:
    assert told() - shipped() == set()
    assert shipped() - told() == set()


def test_no_account_reads_secrets_or_makes_pods_or_holds_a_wildcard() -> None:
    rights = shipped()
    for resource, verb, mode in rights:
        kind = resource.partition(".")[0]
        assert "*" not in resource + verb, mode
        assert kind not in ("secrets", "roles", "clusterroles"), mode
        assert not resource.startswith("configmaps") or resource == "configmaps/wattherd-learned"
        assert kind != "pods" or verb in READ | {"patch"}, mode


def test_only_admission_may_change_what_a_pod_is() -> None:
    assert {mode for right, verb, mode in shipped() if (right, verb) == ("pods", "patch")} == {
        "admit"
    }
