"""Tests on a real Kubernetes control plane.

WATTHERD_KUBECONFIG names a cluster to use, with KWOK and rights to everything (tests that kill,
freeze or read parts of one are skipped then); else the programs in WATTHERD_KUBE_BIN, or those that
`make kube-binaries` built, are started on loopback. With none of the three these tests are skipped
with the reason; with WATTHERD_NEED_KUBE set that is a failure.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import kube_binaries
import pytest
from control_plane import POD_GROUPS, ControlPlane
from helm_chart import Tools
from kube_cluster import Cluster, NamedCluster
from term_fence import keep_leases_watched

os.environ["PYTHONFAULTHANDLER"] = "1"  # who does not end when asked says where it is

_NEEDED = bool(os.environ.get("WATTHERD_NEED_KUBE"))
_NAMED = os.environ.get("WATTHERD_KUBECONFIG")
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/kube/"):
            item.add_marker(pytest.mark.kube)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """A test that was skipped for want of a control plane."""
    del item, call
    report: Any = yield
    if _NEEDED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where a control plane is required: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def kube_programs() -> Path:
    """The folder with kube-apiserver and the others."""
    try:
        return kube_binaries.folder()
    except kube_binaries.NoBinaries as absent:
        pytest.skip(str(absent))


@pytest.fixture
def helm(kube_programs: Path, tmp_path: Path) -> Tools:
    """Helm without a cluster: it renders the chart."""
    if not (kube_programs / "helm").exists():
        pytest.skip(f"no helm in {kube_programs}: `make kube-binaries` builds it (needs Go)")
    return Tools(kube_programs, tmp_path / "none", tmp_path)


@pytest.fixture(scope="session")
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A plane for all tests of this process; who kills one of its parts starts it again."""
    if _NAMED:
        named = NamedCluster(Path(_NAMED), tmp_path_factory.mktemp("named"))
        with closing(named):
            yield cast("ControlPlane", named)  # what it has not, skips
        return
    kube_programs: Path = request.getfixturevalue("kube_programs")
    made = ControlPlane(kube_programs, apiserver=POD_GROUPS)
    with closing(made):
        made.start()
        keep_leases_watched(made.api)
        yield made


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> Cluster:
    """A cluster to talk to, none of whose parts may be killed."""
    return plane


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of this test, whose pods go with it."""
    name = cluster.api.namespace(f"test-{os.getpid()}-{next(_numbers)}")
    yield name
    cluster.api.remove_namespace(name)
