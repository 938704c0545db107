"""Tests on a real Kubernetes control plane.

WATTHERD_KUBECONFIG names a cluster to use, with KWOK and rights to everything (tests that kill or
freeze parts of one are skipped then); else the programs in WATTHERD_KUBE_BIN, or those that `make
kube-binaries` built, are started on loopback. With none of the three these tests are skipped with
the reason; with WATTHERD_NEED_KUBE set that is a failure.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kube_binaries
import pytest
from control_plane import POD_GROUPS, ControlPlane
from kube_cluster import Cluster, of_kubeconfig, of_plane
from term_fence import keep_leases_watched

HERE = Path(__file__).parent
_NEEDED = bool(os.environ.get("WATTHERD_NEED_KUBE"))
_NAMED = os.environ.get("WATTHERD_KUBECONFIG")
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
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


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A plane for all tests of this process; who kills one of its parts starts it again."""
    if _NAMED:
        pytest.skip("kills and freezes parts of a cluster: not of that in WATTHERD_KUBECONFIG")
    kube_programs: Path = request.getfixturevalue("kube_programs")
    made = ControlPlane(kube_programs, apiserver=POD_GROUPS)
    try:
        made.start()
        keep_leases_watched(made.api)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster to talk to, none of whose parts may be killed."""
    made = of_kubeconfig(Path(_NAMED)) if _NAMED else of_plane(request.getfixturevalue("plane"))
    yield made
    made.api.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of this test, whose pods go with it."""
    name = cluster.api.namespace(f"test-{os.getpid()}-{next(_numbers)}")
    yield name
    cluster.api.remove_namespace(name)
