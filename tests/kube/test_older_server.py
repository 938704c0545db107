"""An API server as it ships: without kinds of groups, and without ours, all else works."""

from __future__ import annotations

import http
from collections.abc import Iterator
from pathlib import Path

import kube_ledger
import pytest
from control_plane import ControlPlane
from kube_api import Object, a_node, a_pod
from kube_server import wait_until
from safe_copies import written
from test_extender import nodes_of
from test_outage import MODES, at_work, labels_of

ABSENT = (
    "/apis/scheduling.k8s.io/v1alpha2",
    "/apis/scheduling.x-k8s.io/v1alpha1",
    "/apis/wattherd.dev/v1alpha1",
)
MEMBERS = 2


@pytest.fixture
def older(kube_programs: Path) -> Iterator[ControlPlane]:
    """A plane of its own: kinds that a server has served once cannot be taken from it."""
    made = ControlPlane(kube_programs)
    try:
        made.start()
        yield made
    finally:
        made.close()


def a_gang(domain: str) -> list[Object]:
    """Told by the label and annotation of Kueue's pod groups, which any server takes."""
    return [
        a_pod(
            f"{domain}-{number}",
            gpus=1,
            scheduler=MODES[domain],
            spec={"nodeSelector": labels_of(domain)},
            labels={"kueue.x-k8s.io/pod-group-name": domain},
            annotations={"kueue.x-k8s.io/pod-group-total-count": str(MEMBERS)},
        )
        for number in range(MEMBERS)
    ]


def test_where_no_kind_of_group_is_served_pods_and_gangs_run_within_their_budgets(
    older: ControlPlane,
) -> None:
    api, namespace = older.api, older.api.namespace("older")
    assert {api.call("GET", path)[0] for path in ABSENT} == {http.HTTPStatus.NOT_FOUND}
    nodes = [a_node(domain, labels=labels_of(domain)) for domain in MODES]
    with nodes_of(api, nodes), at_work(older) as health:
        made = [pod for domain in MODES for pod in a_gang(domain)]
        api.create_all(f"/api/v1/namespaces/{namespace}/pods", made)
        names = {pod["metadata"]["name"] for pod in made}
        wait_until(lambda: set(written(api, namespace)) == names, "all run")
        assert set(written(api, namespace).values()) == {"60"}
        for domain, address in health.items():
            kube_ledger.wait_nothing_leaked(api, address, domain)
