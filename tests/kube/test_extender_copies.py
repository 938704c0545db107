"""Two copies of the extender behind one address: one answers, and watts are handed out once.

The address is that of a Service: questions go to a copy that says it is ready.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import kube_ledger
import pytest
import safe_copies
import term_fence
from control_plane import ControlPlane
from failing_proxy import a_proxy
from kube_api import KubeApi, a_pod
from kube_server import wait_until
from recovery import Succession
from safe_copies import BUDGET_W, DOMAIN, FIT, sampled, written
from test_extender import SCHEDULER, a_scheduler, address_of, extender_process, is_ready
from test_outage import bound_at

from promises import promise

PAUSE_S = 20.0
PROBE_S = 2.0
LONG_S = 300.0
FIRST = "1"
"""Term, of the copy that is lost."""
Copy = subprocess.Popen[str]


def ready_one(addresses: Sequence[str]) -> str:
    """Who is asked; whoever that was, where nobody is ready."""
    return next((one for one in addresses if is_ready(one, PROBE_S)), addresses[0])


def killed(copy: Copy) -> None:
    copy.kill()
    copy.wait()


def stopped(copy: Copy) -> None:
    """For longer than its lease; what it was asked meanwhile, it is to answer when it goes on."""
    assert copy.pid > 1
    os.kill(copy.pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    os.kill(copy.pid, signal.SIGCONT)


@pytest.fixture
def fleet(plane: ControlPlane) -> Iterator[None]:
    with safe_copies.safe_fleet(plane):
        yield


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("lost", [killed, stopped])
def test_no_budget_is_exceeded_when_the_copy_that_answers_is_lost_in_a_burst(
    plane: ControlPlane, namespace: str, lost: Callable[[Copy], None]
) -> None:
    """200 pods for the watts of 20."""
    api, health = plane.api, [kube_ledger.an_address() for _ in range(2)]
    given = (f"--budget={DOMAIN}={BUDGET_W}W", f"--lease={namespace}/extender")
    pods = [a_pod(f"r-{n:03}", gpus=1, scheduler=SCHEDULER) for n in range(200)]
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(term_fence.fenced(api, namespace, "extender"))
        copies = [enter(extender_process(plane, *given, f"--health={one}")) for one in health]
        addresses = [address_of(copy) for copy in copies]
        wait_until(lambda: any(map(is_ready, addresses)), "one of them answers")
        first = [is_ready(address) for address in addresses].index(True)
        proxy = enter(a_proxy(lambda: ready_one(addresses)))
        enter(a_scheduler(plane, proxy.url, "copies"))
        watts = enter(sampled(api, namespace))
        with ThreadPoolExecutor(1) as pool:
            making = pool.submit(api.create_all, f"/api/v1/namespaces/{namespace}/pods", pods)
            wait_until(lambda: written(api, namespace), "the first are bound", every_s=0.005)
            recovery = Succession(plane, namespace, f"extender, leader {lost.__name__}")
            lost(copies[first])
            making.result()
        wait_full(api, namespace)
        recovery.tell()
        assert not is_ready(addresses[first], PROBE_S)
        for name in sorted(written(api, namespace))[:5]:
            api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds=0)
        wait_full(api, namespace)
        assert "decided in term" in term_fence.late_binding(api, namespace, "extender", FIRST)
        kube_ledger.wait_nothing_leaked(api, health[1 - first], DOMAIN)
    promise(max(watts) <= BUDGET_W, max(watts))
    assert max(watts) == BUDGET_W
    bound = bound_at(plane, namespace)
    promise(all(len(times) == 1 for times in bound.values()), bound)


def wait_full(api: KubeApi, namespace: str) -> None:
    wait_until(lambda: len(written(api, namespace)) == FIT, "as many run as there are watts for",
               within_s=LONG_S)  # fmt: skip
